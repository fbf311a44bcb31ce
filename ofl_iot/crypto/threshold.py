"""ServerDec, PartDec, FinDec: decryption by t of n leaders that survives a vanished one.

    ServerDec  ct + Enc(0), round both halves from Q to q_dec, flood the first half with noise
    PartDec    pd_i = λ_i·share_i·c1 + z_i   with Lagrange coefficients λ of the active set and fresh wide noise z_i
    FinDec     c0 + Σ pd_i, decoded

The active set is fixed before anyone answers. A leader answers a ciphertext once, stores the answer and resends the
same bytes; when a member vanishes, ServerDec is run again, which yields another ciphertext for another set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import kernels, noise, sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, encrypt_zero
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.frames import Framed, Kind, Note, as_ids, check_rows
from ofl_iot.crypto.keygen import KeyShare
from ofl_iot.crypto.params import DECRYPTION_LIMBS, ParameterSet
from ofl_iot.crypto.ring import Residues, ring_of, shoup
from ofl_iot.errors import CryptoError, WrongShareError
from ofl_iot.ids import COORDINATOR, DeviceId

_BATCH = 16
_DIGEST_VERSION = 1
"""Version of the fields under a request's id: leaders of another version must not be taken for liars."""


class _RequestNote(Note, frozen=True):
    n_params: int
    active: tuple[str, ...]
    contributors: tuple[str, ...]


class _HeldNote(Note, frozen=True):
    n_params: int
    active: tuple[str, ...]
    request_id: bytes


class _AnswerNote(Note, frozen=True):
    request_id: bytes


@dataclass(frozen=True, eq=False)
class DecryptionRequest(Framed):
    """What ServerDec sends to the active set: the second half of the ciphertext at q_dec."""

    kind = Kind.DECRYPTION_REQUEST
    note_type = _RequestNote

    origin: Origin
    n_params: int
    active: tuple[DeviceId, ...]
    contributors: tuple[DeviceId, ...]
    """Whose models are in the aggregate."""
    c1: Residues

    @cached_property
    def ciphertext_id(self) -> bytes:
        """Digest of the ciphertext alone: a leader never answers the same one for two requests."""
        return hashlib.sha256(self.c1.astype("<u4").tobytes()).digest()[:16]

    @cached_property
    def request_id(self) -> bytes:
        """Digest of the ciphertext and of everything said about it."""
        return request_digest(self.origin, self.ciphertext_id, self.body()[0])

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _RequestNote(self.n_params, self.active, self.contributors), (self.c1,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> DecryptionRequest:
        assert isinstance(note, _RequestNote)  # noqa: S101 - decoded as note_type
        check_rows("decryption request", stacks[0], origin.context.params.rows(note.n_params))
        return cls(origin, note.n_params, as_ids(note.active), as_ids(note.contributors), stacks[0])


@dataclass(frozen=True, eq=False)
class HeldDecryption(Framed):
    """What ServerDec keeps until the shares are in: the flooded first half."""

    kind = Kind.HELD_DECRYPTION
    note_type = _HeldNote

    origin: Origin
    n_params: int
    active: tuple[DeviceId, ...]
    request_id: bytes
    c0: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _HeldNote(self.n_params, self.active, self.request_id), (self.c0,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> HeldDecryption:
        assert isinstance(note, _HeldNote)  # noqa: S101 - decoded as note_type
        check_rows("held decryption", stacks[0], origin.context.params.rows(note.n_params))
        return cls(origin, note.n_params, as_ids(note.active), note.request_id, stacks[0])


@dataclass(frozen=True, eq=False)
class DecryptionShare(Framed):
    """PartDec's answer; store it before it is sent."""

    kind = Kind.DECRYPTION_SHARE
    note_type = _AnswerNote

    origin: Origin
    request_id: bytes
    values: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _AnswerNote(self.request_id), (self.values,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> DecryptionShare:
        assert isinstance(note, _AnswerNote)  # noqa: S101 - decoded as note_type
        return cls(origin, note.request_id, stacks[0])


def request_digest(origin: Origin, ciphertext_id: bytes, note: Note) -> bytes:
    """16 bytes that name a request and all it says: SHA-256 of a version byte and a msgpack array of the fields."""
    fields = (origin.context.key_id, int(origin.round_no), ciphertext_id, note)
    encoded = bytes([_DIGEST_VERSION]) + msgspec.msgpack.encode(fields)
    return hashlib.sha256(b"ofl-iot decryption request\n" + encoded).digest()[:16]


def lagrange(context: KeyContext, active: Sequence[DeviceId], member: DeviceId, p: int) -> int:
    """λ of one member of the active set at zero, modulo p: Π x_j/(x_j - x_i) over the others."""
    own = context.point_of(member)
    top = bottom = 1
    for other in active:
        point = context.point_of(other)
        if point != own:
            top = top * point % p
            bottom = bottom * (point - own) % p
    return top * pow(bottom, -1, p) % p


def switch_to_decryption(
    key: PublicKey, c0: Residues, c1: Residues, sigmas: npt.NDArray[np.float64], entropy: Entropy
) -> tuple[Residues, Residues]:
    """Re-randomise rows, round them to q_dec and flood the first half with deviation `sigmas` a row."""
    ring = ring_of(key.context.params)
    zero0, zero1 = encrypt_zero(key, c0.shape[1], entropy)
    ring.scale_add(c0, 1, zero0)
    ring.scale_add(c1, 1, zero1)
    first = ring.switch_modulus(zero0, DECRYPTION_LIMBS)
    second = ring.switch_modulus(zero1, DECRYPTION_LIMBS)
    for row, sigma in enumerate(sigmas):
        flood = ring.from_integers(sampling.gaussian((1, ring.degree), float(sigma), entropy), DECRYPTION_LIMBS)
        ring.scale_add(flood, 1, first[:, row : row + 1])
    return first, second


def server_decrypt(
    key: PublicKey,
    aggregate: EncryptedModel,
    active: Sequence[DeviceId],
    contributors: Sequence[DeviceId],
    entropy: Entropy,
    *,
    server: DeviceId = COORDINATOR,
) -> tuple[HeldDecryption, DecryptionRequest]:
    """ServerDec: a ciphertext at q_dec that nothing links to the aggregate but its content.

    `server` is who runs it, and in whose name the leaders are asked.
    """
    context = key.context
    params = context.params
    if aggregate.context != context:
        raise CryptoError("the aggregate is encrypted under another key")
    if aggregate.scale_bits != params.scale_bits + params.weight_bits:
        raise CryptoError("only a weighted sum can be decrypted: a fresh model must never be")
    context.check_active(tuple(active))
    sigmas = np.full(aggregate.c0.shape[1], noise.smudging_sigma(params, context.leaders))
    c0, c1 = switch_to_decryption(key, aggregate.c0, aggregate.c1, sigmas, entropy)
    origin = replace(aggregate.origin, sender=server)
    request = DecryptionRequest(origin, aggregate.n_params, tuple(active), tuple(contributors), c1)
    return HeldDecryption(origin, aggregate.n_params, tuple(active), request.request_id, c0), request


def check_request(
    share: KeyShare, origin: Origin, active: tuple[DeviceId, ...], contributors: tuple[DeviceId, ...], fewest: int
) -> None:
    """Whether a leader may answer: its key, a proper active set with itself in it, enough contributors."""
    context = share.context
    if origin.context != context:
        raise CryptoError(f"request of round {origin.round_no}: for another key than that of term {context.term}")
    context.check_active(active)
    if share.owner not in active:
        raise CryptoError(f"request of round {origin.round_no}: {share.owner} is not in its active set")
    for contributor in contributors:
        context.point_of(contributor)
    if len(set(contributors)) < fewest:
        raise CryptoError(
            f"request of round {origin.round_no}: an aggregate of {len(set(contributors))} contributors is refused, "
            f"at least {fewest} were agreed"
        )


def partial_decrypt(
    share: KeyShare, request: DecryptionRequest, entropy: Entropy, fewest_contributors: int = 2
) -> DecryptionShare:
    """PartDec: λ_i·share_i·c1 + z_i modulo q_dec. Call once for a ciphertext, store the result, resend that."""
    context = share.context
    check_request(share, request.origin, request.active, request.contributors, max(2, fewest_contributors))
    ring = ring_of(context.params)
    sigma = noise.smudging_sigma(context.params, context.leaders)
    keys = []
    for limb, p in enumerate(ring.moduli[:DECRYPTION_LIMBS]):
        factor = np.uint64(lagrange(context, request.active, share.owner, p))
        part = (share.values[limb].astype(np.uint64) * factor % np.uint64(p)).astype(np.uint32)
        keys.append((np.uint32(p), part, shoup(part, p)))
    out = np.empty_like(request.c1)
    rows = out.shape[1]
    for start in range(0, rows, _BATCH):
        batch = slice(start, min(rows, start + _BATCH))
        smudging = sampling.gaussian((batch.stop - start, ring.degree), sigma, entropy)
        for limb, (p, part, part_shoup) in enumerate(keys):
            ring.limb_into(smudging, limb, out[limb, batch])
            kernels.multiply_add(request.c1[limb, batch], part, part_shoup, p, out[limb, batch])
    return DecryptionShare(replace(request.origin, sender=share.owner), request.request_id, out)


class Answer(Protocol):
    """What both kinds of decryption share have in common."""

    @property
    def origin(self) -> Origin:
        """Who answered."""
        ...

    @property
    def request_id(self) -> bytes:
        """Which request it answers."""
        ...


def check_answers(title: str, active: Sequence[DeviceId], request_id: bytes, answers: Sequence[Answer]) -> None:
    """Exactly one answer of every member of the active set, to this very request."""
    seen: set[DeviceId] = set()
    for answer in answers:
        sender = answer.origin.sender
        if sender not in active:
            raise CryptoError(f"{title} from {sender}: not a member of the active set")
        if answer.request_id != request_id:
            raise CryptoError(f"{title} from {sender}: answers another request (replayed, or of another round)")
        if sender in seen:
            raise CryptoError(f"{title} from {sender}: came twice")
        seen.add(sender)
    missing = [member for member in active if member not in seen]
    if missing:
        raise CryptoError(f"too few shares: {', '.join(missing)} of the active set did not answer")


def final_decrypt(held: HeldDecryption, shares: Sequence[DecryptionShare]) -> npt.NDArray[np.float64]:
    """FinDec: the weighted sum in the clear, within `noise.error_bound`.

    A wrong share makes every coefficient uniform modulo q_dec, so the padding is not zero and values leave the bound:
    that is refused. It cannot be told whose share was wrong.
    """
    check_answers("decryption share", held.active, held.request_id, shares)
    context = held.origin.context
    params = context.params
    ring = ring_of(params)
    total = held.c0.copy()
    for share in shares:
        if share.values.shape != total.shape:
            raise CryptoError(f"decryption share from {share.origin.sender}: of another size than asked for")
        ring.scale_add(share.values, 1, total)
    values = ring.join(total[0], total[1], (0, 1)).reshape(-1) / noise.decrypted_scale(params)
    slack = 2 * noise.error_bound(params, context.leaders, len(held.active))
    model, padding = values[: held.n_params], values[held.n_params :]
    if np.abs(model).max() > params.bound + slack or np.abs(padding).max(initial=0.0) > slack:
        raise WrongShareError(
            f"round {held.origin.round_no}: the shares of {', '.join(held.active)} do not decrypt to a model: one of "
            "them is wrong, or a contributor's ciphertext is",
            held.active,
        )
    return model
