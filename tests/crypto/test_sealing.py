"""Sealed boxes open for one receiver, from one sender, in one term."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.sealing import OVERHEAD_BYTES, Envelope, SealingKey, open_sealed, seal
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import DeviceId, FederationId, Term

ENTROPY = SeededEntropy(1)
ALICE, BOB, EVE = (SealingKey.generate(ENTROPY) for _ in range(3))
ENVELOPE = Envelope(FederationId("harbour"), Term(3), DeviceId("alice"), DeviceId("bob"))
BOX = seal(b"a share", ENVELOPE, ALICE, BOB.public_bytes, ENTROPY)


@given(st.binary(max_size=300), st.integers(0, 2**31))
@settings(max_examples=30)
def test_the_receiver_reads_what_the_sender_wrote(plaintext: bytes, seed: int) -> None:
    box = seal(plaintext, ENVELOPE, ALICE, BOB.public_bytes, SeededEntropy(seed))
    assert len(box) == len(plaintext) + OVERHEAD_BYTES
    assert open_sealed(box, ENVELOPE, BOB, ALICE.public_bytes) == plaintext


def test_every_altered_byte_and_every_truncation_is_refused() -> None:
    for place in range(len(BOX)):
        altered = bytearray(BOX)
        altered[place] ^= 1
        with pytest.raises(CryptoError, match="from alice to bob: altered"):
            open_sealed(bytes(altered), ENVELOPE, BOB, ALICE.public_bytes)
        with pytest.raises(CryptoError, match="from alice to bob"):
            open_sealed(BOX[:place], ENVELOPE, BOB, ALICE.public_bytes)


@pytest.mark.parametrize(
    "envelope",
    [
        replace(ENVELOPE, term=Term(4)),
        replace(ENVELOPE, federation=FederationId("airport")),
        replace(ENVELOPE, sender=DeviceId("eve")),
        replace(ENVELOPE, receiver=DeviceId("eve")),
        replace(ENVELOPE, purpose="something else"),
    ],
)
def test_a_box_is_bound_to_its_names_and_term(envelope: Envelope) -> None:
    with pytest.raises(CryptoError, match="not made by this sender"):
        open_sealed(BOX, envelope, BOB, ALICE.public_bytes)


def test_nobody_else_opens_a_box_or_writes_one_in_another_name() -> None:
    with pytest.raises(CryptoError, match="not made by this sender"):
        open_sealed(BOX, ENVELOPE, EVE, ALICE.public_bytes)
    forged = seal(b"a share", ENVELOPE, EVE, BOB.public_bytes, ENTROPY)
    with pytest.raises(CryptoError, match="not made by this sender"):
        open_sealed(forged, ENVELOPE, BOB, ALICE.public_bytes)


def test_unusable_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="enrol the device again"):
        SealingKey(b"short")
    for wrong in (bytes(32), b"short"):
        with pytest.raises(CryptoError, match="not a usable X25519 public key"):
            seal(b"", ENVELOPE, ALICE, wrong, ENTROPY)
