"""The model card: what must be equal for two parties' vectors to mean the same; its digest; differences in words."""

from __future__ import annotations

import hashlib
import math

import msgspec

from ofl_iot.errors import DecodeError

MAX_CARD_BYTES = 256 * 1024
"""A card is a retained message: some four thousand tensors fit."""


class TensorCard(msgspec.Struct, frozen=True, array_like=True):
    """One tensor that travels: its name and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        """Return the shape as people write it: 32x1x5x5."""
        return "x".join(map(str, self.shape)) or "a single number"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as a federation knows it."""

    app: str
    tensors: tuple[TensorCard, ...]
    """Those that travel, in the order of the vector."""
    loss: str
    version: str
    """Version of the preprocessing, as the app states it."""
    frozen: str = ""
    """Hash of the weights and buffers that do not travel and are the same everywhere; empty if there are none."""

    @property
    def size(self) -> int:
        """Number of parameters that travel."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def digest(self) -> bytes:
        """Eight bytes that are equal if and only if the cards are."""
        return hashlib.blake2b(encode_card(self), digest_size=8).digest()

    def bounds(self) -> tuple[int, ...]:
        """Where tensors begin in the vector, and where the last one ends."""
        ends = [0]
        for tensor in self.tensors:
            ends.append(ends[-1] + tensor.size)
        return tuple(ends)


def encode_card(card: ModelCard) -> bytes:
    """Return the card as JSON, the same bytes for the same card."""
    return msgspec.json.encode(card)


def decode_card(data: bytes) -> ModelCard:
    """Return the card that another party sent, or DecodeError."""
    if len(data) > MAX_CARD_BYTES:
        raise DecodeError(f"a model card of {len(data)} bytes: at most {MAX_CARD_BYTES} are read")
    try:
        return msgspec.json.decode(data, type=ModelCard)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"not a model card ({error})") from error


def difference(mine: ModelCard, theirs: ModelCard) -> str:
    """Say in words how this device's model differs from the federation's; empty if it does not."""
    return _other_tensors(mine, theirs) or "; ".join(
        f"{what} differs: {own!r} here, {their!r} in the federation{advice}"
        for what, own, their, advice in (
            ("the app", mine.app, theirs.app, ""),
            ("the loss", mine.loss, theirs.loss, ""),
            ("the version of the preprocessing", mine.version, theirs.version, ""),
            ("the hash of the frozen weights", mine.frozen, theirs.frozen, " (another pre-trained backbone?)"),
        )
        if own != their
    )


def _other_tensors(mine: ModelCard, theirs: ModelCard) -> str:
    have, want = ({tensor.name: tensor for tensor in card.tensors} for card in (mine, theirs))
    for name in dict.fromkeys([*want, *have]):
        if name not in want:
            return f"this device's {name} ({have[name]}) is not in the federation's model"
        if name not in have:
            return f"the federation's {name} ({want[name]}) is not in this device's model"
        if have[name].shape != want[name].shape:
            return f"this device's {name} is {have[name]}, the federation's {want[name]}"
    if list(have) != list(want):
        return "the tensors are the same in another order: define the layers in the same order"
    return ""
