"""What a leader publishes for its members opens for its key, its term and its place, and for nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.crypto.cluster_seal import ClusterSeal, Place
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId

PRIVATE = bytes(range(32))
SEAL = ClusterSeal.of_leader(PRIVATE, DeviceId("a"), 3)
places = st.builds(
    Place, st.integers(1, 2**53 - 1), st.integers(0, 2**16), st.integers(1, 2**16), st.integers(0, 2**53 - 1)
)


@given(st.binary(max_size=300), places)
def test_what_was_sealed_opens_at_its_place(plaintext: bytes, place: Place) -> None:
    box = SEAL.close(plaintext, place)
    assert SEAL.open(box, place) == plaintext
    assert len(box) == len(plaintext) + 16


@given(st.binary(max_size=50), places, places)
def test_a_box_opens_nowhere_else(plaintext: bytes, place: Place, other: Place) -> None:
    if place != other:
        with pytest.raises(CryptoError):
            SEAL.open(SEAL.close(plaintext, place), other)


@given(st.binary(max_size=50), places, st.data())
def test_an_altered_or_truncated_box_does_not_open(plaintext: bytes, place: Place, data: st.DataObject) -> None:
    box = bytearray(SEAL.close(plaintext, place))
    with pytest.raises(CryptoError):
        SEAL.open(bytes(box[: data.draw(st.integers(0, len(box) - 1))]), place)
    box[data.draw(st.integers(0, len(box) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CryptoError):
        SEAL.open(bytes(box), place)


@given(places, places)
def test_no_two_places_share_a_nonce(one: Place, other: Place) -> None:
    assert (one.nonce == other.nonce) == ((one.version, one.part) == (other.version, other.part))


@pytest.mark.parametrize(
    "other",
    [
        ClusterSeal.of_leader(PRIVATE, DeviceId("a"), 4),
        ClusterSeal.of_leader(PRIVATE, DeviceId("b"), 3),
        ClusterSeal.of_leader(bytes(32), DeviceId("a"), 3),
    ],
    ids=["another term", "another leader", "another private key"],
)
def test_another_key_does_not_open_it(other: ClusterSeal) -> None:
    place = Place(1, 0, 1, 0)
    with pytest.raises(CryptoError):
        other.open(SEAL.close(b"text", place), place)


def test_the_key_is_pinned() -> None:
    """Members of a restarted leader hold the key that it derives again."""
    assert SEAL.key.hex() == ClusterSeal.of_leader(PRIVATE, DeviceId("a"), 3).key.hex()
    assert len(SEAL.key) == 32
    assert SEAL.key != PRIVATE
    assert ClusterSeal.of_leader(b"", DeviceId("a"), 3).key == b""


def test_without_a_key_nothing_is_sealed() -> None:
    place = Place(1, 0, 1, 0)
    assert ClusterSeal(b"").close(b"text", place) == b"text" == ClusterSeal(b"").open(b"text", place)
