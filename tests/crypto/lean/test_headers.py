"""Headers and vouchers: canonical bytes, agreement on common ground, one vector signed by all."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.lean.header import Header, Weighed, check_agreement, decode_header
from ofl_iot.crypto.lean.vouchers import (
    Statement,
    check_statement,
    check_vouched,
    sign,
    verify_signature,
)
from ofl_iot.crypto.params import MAIN
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId, FederationId, Term

MEMBERS = tuple(DeviceId(f"truck-{n}") for n in range(4))
CONTEXT = KeyContext(MAIN, FederationId("harbour"), Term(3), MEMBERS, 3)
KEYS = {name: derive_private_key(1000 + n, SECP256R1()) for n, name in enumerate(MEMBERS)}
PUBLIC = {
    name: key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for name, key in KEYS.items()
}


def verify(leader: str, data: bytes, signature: bytes) -> None:
    verify_signature(PUBLIC[DeviceId(leader)], data, signature, leader)


def header_of(sender: str, **changes: object) -> Header:
    fields = {
        "federation": "harbour", "term": 3, "key_id": CONTEXT.key_id, "round_no": 7, "attempt": 0, "sender": sender,
        "n_params": 100, "precision": 20, "body": hashlib.sha256(sender.encode()).digest(), "base": bytes(32),
        "bounds": bytes([1] * 32),
    }  # fmt: skip
    return Header(**(fields | changes))  # type: ignore[arg-type]


HEADERS = [header_of(name) for name in MEMBERS[:3]]
STATEMENT = Statement.over(HEADERS, {"truck-0": 2, "truck-1": 3, "truck-2": 4})
SIGNED = {name: sign(KEYS[name], STATEMENT.signed_bytes) for name in MEMBERS[:3]}


def test_a_header_and_a_statement_are_these_bytes_for_ever() -> None:
    header = Header("harbour", 3, bytes(16), 7, 1, "truck-0", 100, 20, bytes(32), bytes(32), bytes(32),
                    (Weighed("truck-0", 1), Weighed("truck-1", 1)))  # fmt: skip
    assert header.encode().hex() == (
        "019ca7686172626f757203c410" + "00" * 16 + "0701a7747275636b2d306414" + ("c420" + "00" * 32) * 3
        + "9292a7747275636b2d300192a7747275636b2d3101"
    )  # fmt: skip
    assert decode_header(header.encode()) == header
    statement = Statement.over([header], {"truck-0": 5})
    assert statement.signed_bytes == b"ofl-iot lean vector v1\n" + bytes.fromhex(
        "0195a7686172626f757203c410" + "00" * 16 + "079193a7747275636b2d30c420" + header.digest.hex() + "05"
    )


@pytest.mark.parametrize("cut", [0, 1, 5, 50, -1])
def test_a_header_that_is_not_whole_or_not_canonical_is_refused(cut) -> None:
    data = HEADERS[0].encode()
    with pytest.raises(CryptoError):
        decode_header(data[:cut])
    with pytest.raises(CryptoError, match="another version"):
        decode_header(b"\x02" + data[1:])
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(data[1:]), 0])
    with pytest.raises(CryptoError):
        decode_header(b"\x01" + longer)
    wide = data.replace(b"\xa7harbour", b"\xd9\x07harbour")
    with pytest.raises(CryptoError, match="canonical"):
        decode_header(wide)


def test_headers_on_common_ground_agree() -> None:
    check_agreement(CONTEXT, 7, HEADERS)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"base": bytes([9] * 32)}, "another base model"),
        ({"bounds": bytes([9] * 32)}, "another set of quantisation bounds"),
        ({"precision": 16}, "another number of bits"),
        ({"n_params": 99}, "another number of parameters"),
        ({"round_no": 8}, "made for round 8"),
        ({"key_id": bytes(16)}, "another key"),
        ({"term": 4}, "another key"),
        ({"federation": "airport"}, "another key"),
        ({"sender": "stranger"}, "no member"),
        ({"sender": "truck-1"}, "two headers"),
    ],
)
def test_a_header_on_other_ground_is_refused(changes, why) -> None:
    """Fine bounds for one and huge ones for the rest would make the sum that one's update."""
    with pytest.raises(CryptoError, match=why):
        check_agreement(CONTEXT, 7, [*HEADERS[:2], header_of(**({"sender": "truck-2"} | changes))])


def test_a_statement_is_signed_and_vouched_for_by_all() -> None:
    for header in HEADERS:
        check_statement(CONTEXT, STATEMENT, header)
    check_vouched(STATEMENT, SIGNED, verify)


def test_a_missing_a_foreign_and_a_copied_signature_are_refused() -> None:
    with pytest.raises(CryptoError, match="truck-2 did not sign"):
        check_vouched(STATEMENT, {name: SIGNED[name] for name in MEMBERS[:2]}, verify)
    with pytest.raises(CryptoError, match="truck-2: the signature is not its own"):
        check_vouched(STATEMENT, SIGNED | {MEMBERS[2]: SIGNED[MEMBERS[1]]}, verify)
    with pytest.raises(CryptoError, match="truck-2: the signature"):
        check_vouched(STATEMENT, SIGNED | {MEMBERS[2]: b""}, verify)


def test_a_signature_for_one_vector_does_not_open_another() -> None:
    """With t - 1 colluders two honest leaders could be shown different vectors; each needs the other's signature."""
    other = Statement.over(HEADERS, {"truck-0": 3, "truck-1": 3, "truck-2": 4})
    with pytest.raises(CryptoError, match="the signature"):
        check_vouched(other, SIGNED, verify)
    fewer = Statement.over(HEADERS, {"truck-0": 1, "truck-1": 1})
    with pytest.raises(CryptoError, match="the signature"):
        check_vouched(fewer, SIGNED, verify)


def test_a_leader_signs_only_for_its_present_body_under_fair_weights() -> None:
    own = HEADERS[0]
    with pytest.raises(CryptoError, match="present body"):
        check_statement(CONTEXT, STATEMENT, header_of("truck-0", attempt=1))
    with pytest.raises(CryptoError, match="present body"):
        check_statement(CONTEXT, STATEMENT, header_of("truck-3"))
    with pytest.raises(CryptoError, match="above half"):
        check_statement(CONTEXT, Statement.over(HEADERS, {"truck-0": 9, "truck-1": 1, "truck-2": 1}), own)
    with pytest.raises(CryptoError, match="open contribution is of round 8"):
        check_statement(CONTEXT, STATEMENT, header_of("truck-0", round_no=8))
    twice = msgspec.structs.replace(STATEMENT, entries=(STATEMENT.entries[0], *STATEMENT.entries))
    with pytest.raises(CryptoError, match="named twice"):
        check_statement(CONTEXT, twice, own)
    stranger = msgspec.structs.replace(STATEMENT.entries[0], leader="a-stranger")
    with pytest.raises(CryptoError, match="no member"):
        check_statement(CONTEXT, msgspec.structs.replace(STATEMENT, entries=(stranger, *STATEMENT.entries)), own)
    with pytest.raises(CryptoError, match="another key"):
        check_statement(CONTEXT, msgspec.structs.replace(STATEMENT, key_id=bytes(16)), own)


def test_an_update_that_was_signed_for_is_signed_again_under_the_same_vector_only() -> None:
    pinned = header_of("truck-0", attempt=1, pinned=STATEMENT.vector)
    again = Statement.over([pinned, *HEADERS[1:]], STATEMENT.weights)
    check_statement(CONTEXT, again, pinned)
    for weights in ({"truck-0": 2, "truck-1": 3, "truck-2": 5}, {"truck-0": 1, "truck-1": 1}):
        with pytest.raises(CryptoError, match="signed for this update before"):
            check_statement(CONTEXT, Statement.over([pinned, *HEADERS[1:]], weights), pinned)


def test_a_key_on_another_curve_signs_nothing() -> None:
    with pytest.raises(CryptoError, match="no usable signing key"):
        verify_signature(b"junk", b"", b"", "truck-0")
