"""Two models mix only if their cards are equal, and a difference is told in words."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.model_card import MAX_CARD_BYTES, ModelCard, TensorCard, decode_card, difference, encode_card

CARD = ModelCard(
    app="eyes",
    tensors=(TensorCard("conv1.weight", (16, 1, 5, 5)), TensorCard("conv1.bias", (16,)), TensorCard("scale", ())),
    loss="cross_entropy",
    version="1",
    frozen="ab12",
)


def changed(**fields: Any) -> ModelCard:
    return msgspec.structs.replace(CARD, **fields)


def test_a_card_knows_its_size_and_where_tensors_begin() -> None:
    assert CARD.size == 417
    assert CARD.bounds() == (0, 400, 416, 417)


def test_a_card_survives_the_wire() -> None:
    assert decode_card(encode_card(CARD)) == CARD
    assert len(CARD.digest) == 8


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"app": 3}', b"\xff\xfe", b"x" * (MAX_CARD_BYTES + 1)])
def test_what_is_no_card_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="model card"):
        decode_card(data)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (
            changed(tensors=(TensorCard("conv1.weight", (32, 1, 5, 5)), *CARD.tensors[1:])),
            "this device's conv1.weight is 16x1x5x5, the federation's 32x1x5x5",
        ),
        (changed(tensors=CARD.tensors[1:]), "this device's conv1.weight (16x1x5x5) is not in the federation's model"),
        (
            changed(tensors=(*CARD.tensors, TensorCard("head.bias", (4,)))),
            "the federation's head.bias (4) is not in this device's model",
        ),
        (changed(tensors=CARD.tensors[::-1]), "in another order"),
        (changed(loss="mse"), "the loss differs: 'cross_entropy' here, 'mse' in the federation"),
        (changed(version="2"), "version of the preprocessing differs"),
        (changed(frozen="cd"), "another pre-trained backbone"),
        (changed(app="ears"), "the app differs: 'eyes' here, 'ears' in the federation"),
    ],
)
def test_a_difference_is_told_in_words_and_changes_the_digest(theirs: ModelCard, says: str) -> None:
    assert says in difference(CARD, theirs)
    assert CARD.digest != theirs.digest


def test_equal_models_do_not_differ() -> None:
    assert difference(CARD, decode_card(encode_card(CARD))) == ""


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_a_card_fail_otherwise(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode_card(data)
