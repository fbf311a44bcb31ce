"""The wire form: whole or in parts, any damage is found, and what does not belong is named."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofl_iot.crypto import frames as wire
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, encrypt
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.keygen import KEY_ROUND
from ofl_iot.crypto.params import LEAN, MAIN
from ofl_iot.crypto.scalars import ScalarShare
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId, Term

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def model(term) -> EncryptedModel:
    values = np.random.default_rng(0).normal(0, 0.1, 20_000)
    return encrypt(term.public, values, term.origin("truck-0"), SeededEntropy(5))


def reframed(data: bytes, **changes) -> bytes:
    """The same frame with an altered header and a valid digest, as a wrong program would send it."""
    length = int.from_bytes(data[5:7], "little")
    header = msgspec.msgpack.decode(data[7 : 7 + length], type=wire.Header)
    payload = changes.pop("payload", data[7 + length : -16])
    encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, **changes))
    body = data[:5] + len(encoded).to_bytes(2, "little") + encoded + payload
    return body + hashlib.sha256(body).digest()[:16]


@given(max_bytes=st.integers(1, 700_000), shuffle=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_of_any_size_in_any_order_give_the_model_back(model, max_bytes, shuffle) -> None:
    parts = model.to_parts(max_bytes)
    shuffle.shuffle(parts)
    back = EncryptedModel.from_parts(parts, model.origin)
    assert (back.c0 == model.c0).all()
    assert (back.c1 == model.c1).all()
    assert (back.n_params, back.scale_bits) == (model.n_params, model.scale_bits)


def test_default_parts_are_of_useful_size_and_say_what_they_are(model) -> None:
    parts = model.to_parts()
    assert all(64 * 1024 < len(part) < 257 * 1024 for part in parts)
    headers = [wire.read_part(part) for part in parts]
    assert [header.part for header in headers] == list(range(len(parts)))
    assert {header.title for header in headers} == {"model from truck-0"}
    assert sum(header.rows for header in headers) == MAIN.rows(20_000)


def test_the_wire_form_takes_24_bytes_a_parameter(model) -> None:
    assert sum(map(len, model.to_parts())) / (5 * MAIN.degree) < 24


@given(place=st.integers(0, 10**9), flip=st.integers(1, 255))
@relaxed
def test_every_altered_byte_is_found(model, place, flip) -> None:
    data = bytearray(model.to_parts()[2])
    data[place % len(data)] ^= flip
    with pytest.raises(CryptoError, match=r"magic|version|altered"):
        wire.read_part(bytes(data))


def test_every_byte_of_the_header_is_protected(term) -> None:
    data = term.public.to_bytes()
    for place in range(7 + int.from_bytes(data[5:7], "little")):
        altered = bytearray(data)
        altered[place] ^= 4
        with pytest.raises(CryptoError, match=r"magic|version|altered"):
            wire.read_part(bytes(altered))


def test_every_truncation_is_found(term) -> None:
    data = term.public.to_bytes()
    for length in (*range(300), *range(300, len(data), 997), len(data) - 1):
        with pytest.raises(CryptoError, match="truncated"):
            wire.read_part(data[:length])
    with pytest.raises(CryptoError, match="altered"):
        wire.read_part(data + b"\0")


@given(st.binary(max_size=200))
@relaxed
def test_random_bytes_are_refused(data: bytes) -> None:
    for prefix in (b"", wire.MAGIC, wire.MAGIC + bytes([wire.VERSION])):
        with pytest.raises(CryptoError):
            wire.read_part(prefix + data)


@given(st.binary(max_size=60))
@relaxed
def test_a_valid_digest_does_not_make_a_header(junk: bytes) -> None:
    body = wire.MAGIC + bytes([wire.VERSION]) + len(junk).to_bytes(2, "little") + junk
    with pytest.raises(CryptoError, match="header cannot be read"):
        wire.read_part(body + hashlib.sha256(body).digest()[:16])


def test_a_header_that_claims_more_than_the_frame_is_refused() -> None:
    body = wire.MAGIC + bytes([wire.VERSION]) + b"\xff\xff" + b"x" * 20
    with pytest.raises(CryptoError, match="longer than the frame"):
        wire.read_part(body + hashlib.sha256(body).digest()[:16])


def test_missing_doubled_and_mixed_parts_are_named(term, model, entropy) -> None:
    parts = model.to_parts()
    with pytest.raises(CryptoError, match=r"model from truck-0: parts \[1\] of 3 are missing"):
        EncryptedModel.from_parts([parts[0], *parts[2:]], model.origin)
    with pytest.raises(CryptoError, match="a part came twice"):
        EncryptedModel.from_parts([*parts, parts[0]], model.origin)
    with pytest.raises(CryptoError, match="no part arrived"):
        EncryptedModel.from_parts([], model.origin)
    other = encrypt(term.public, np.zeros(9000), model.origin, entropy).to_parts()
    with pytest.raises(CryptoError, match="parts of different objects were mixed"):
        EncryptedModel.from_parts([*parts[:2], other[-1]], model.origin)


def test_what_belongs_elsewhere_is_refused_by_sender(term, other_term, model) -> None:
    data = model.to_bytes()
    origin, context = model.origin, term.context
    expected = {
        "expected one from truck-1": replace(origin, sender=DeviceId("truck-1")),
        "made for round 7, this is round 8": replace(origin, round_no=8),
        "made for term 3, this is term 4": replace(origin, context=replace(context, term=Term(4))),
        "of federation 'harbour', not 'airport'": replace(
            origin, context=replace(context, federation=FederationId("airport"))
        ),
        "made under another key": replace(origin, context=other_term.context),
        "parameter set 'main', the term uses 'lean'": replace(origin, context=replace(context, params=LEAN)),
    }
    for complaint, wrong in expected.items():
        with pytest.raises(CryptoError, match=f"model from truck-0: .*{complaint}"):
            EncryptedModel.from_bytes(data, wrong)
    key = term.public.to_bytes()
    with pytest.raises(CryptoError, match="public key from coordinator: expected a model"):
        EncryptedModel.from_bytes(key, replace(origin, round_no=KEY_ROUND, sender=COORDINATOR))


def test_contradictions_inside_a_valid_frame_are_refused(term, model) -> None:
    data, origin = model.to_bytes(), model.origin
    small = term.public.to_bytes()
    with pytest.raises(CryptoError, match="part 3 of 1 with"):
        wire.read_part(reframed(small, part=3))
    with pytest.raises(CryptoError, match="do not add up to 9 rows"):
        EncryptedModel.from_bytes(reframed(data, total_rows=9), origin)
    with pytest.raises(CryptoError, match=r"holds .* bytes, 4 rows need"):
        EncryptedModel.from_bytes(reframed(data, rows=4, total_rows=4), origin)
    with pytest.raises(CryptoError, match="note cannot be read"):
        EncryptedModel.from_bytes(reframed(data, note=b"\xc1"), origin)
    with pytest.raises(CryptoError, match="unknown parameter set number 77"):
        EncryptedModel.from_bytes(reframed(data, params=77), origin)
    with pytest.raises(CryptoError, match="5 rows, expected 1"):
        EncryptedModel.from_bytes(reframed(data, note=msgspec.msgpack.encode([10, MAIN.scale_bits])), origin)
    with pytest.raises(CryptoError, match="neither fresh nor weighted"):
        EncryptedModel.from_bytes(reframed(data, note=msgspec.msgpack.encode([20_000, 3])), origin)
    with pytest.raises(CryptoError, match="at least one parameter"):
        EncryptedModel.from_bytes(reframed(data, note=msgspec.msgpack.encode([0, MAIN.scale_bits])), origin)
    length = len(data) - 16 - 7 - int.from_bytes(data[5:7], "little")
    with pytest.raises(CryptoError, match="coefficient of row 0 is not below its prime"):
        EncryptedModel.from_bytes(reframed(data, payload=b"\xff" * length), origin)


def test_what_a_header_claims_is_never_counted_up_to(term, model) -> None:
    """2^60 parts or rows are refused at once, not waited or allocated for."""
    with pytest.raises(CryptoError, match=rf"parts \[1, 2, .*\] of {2**60} are missing"):
        EncryptedModel.from_bytes(reframed(model.to_bytes(), parts=2**60), model.origin)
    with pytest.raises(CryptoError, match=r"bytes, .* rows need"):
        EncryptedModel.from_bytes(reframed(model.to_bytes(), rows=2**60, total_rows=2**60), model.origin)
    share = ScalarShare(term.origin("truck-0"), b"id", ((1, 2),))
    with pytest.raises(CryptoError, match="score share from truck-0: part 0 holds 0 bytes"):
        ScalarShare.from_bytes(reframed(share.to_bytes(), rows=2**60, total_rows=2**60), share.origin)


def test_a_header_too_long_for_its_length_field_is_refused(term) -> None:
    note = wire.Header(
        kind=wire.Kind.MODEL, params=1, federation="f", term=1, round_no=1, sender="s", key_id=b"",
        part=0, parts=1, rows=0, total_rows=0, note=bytes(70_000),
    )  # fmt: skip
    with pytest.raises(CryptoError, match="too long"):
        wire._frame(note, b"")


def test_importing_the_wire_form_does_not_load_the_kernels(tmp_path) -> None:
    import subprocess
    import sys

    program = "import sys, ofl_iot.crypto.frames; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)  # noqa: S603
    assert done.stdout.strip() == "False"


def test_the_wire_form_never_changes_between_versions(term) -> None:
    """A golden frame: leaders and coordinator of different versions must read each other."""
    b = np.stack([np.arange(MAIN.degree, dtype=np.uint32) * 1009 % p for p in MAIN.primes]).astype(np.uint32)
    frame = PublicKey(term.public.origin, b).to_bytes()
    assert hashlib.sha256(frame).hexdigest()[:16] == "a78a5e1d6b63570b"


def test_a_public_key_has_one_row(term) -> None:
    origin = term.public.origin
    data = term.public.to_bytes()
    start = 7 + int.from_bytes(data[5:7], "little")
    doubled = reframed(data, rows=2, total_rows=2, payload=data[start:-16] * 2)
    with pytest.raises(CryptoError, match="public key: 2 rows, expected 1"):
        PublicKey.from_bytes(doubled, origin)
