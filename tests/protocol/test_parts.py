"""Large bodies: cut into parts, joined from any order, never mixed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.parts import BodyJoiner, digest_of, split_body

bodies = st.binary(max_size=500)


@settings(max_examples=100)
@given(bodies, st.integers(1, 64), st.data())
def test_in_any_order_with_repetitions_the_parts_make_the_body_once_complete(
    body: bytes, target: int, data: st.DataObject
) -> None:
    parts = split_body(body, 1, 2, "stage", target)
    arrivals = data.draw(st.permutations(parts + data.draw(st.lists(st.sampled_from(parts), max_size=5))))
    joiner, seen = BodyJoiner.expecting(arrivals[0]), set()
    for part in arrivals:
        seen.add(part.part)
        assert joiner.add(part) == (body if len(seen) == len(parts) else None)
        assert set(joiner.held) == seen


@given(bodies, st.integers(1, 64))
def test_parts_carry_their_term_round_stage_and_the_digest_of_the_whole(body: bytes, target: int) -> None:
    parts = split_body(body, 3, 4, "stage", target)
    assert b"".join(part.body for part in parts) == body
    assert {(p.term, p.round_no, p.stage, p.parts, p.digest) for p in parts} == {
        (3, 4, "stage", len(parts), digest_of(body))
    }
    assert all(len(part.body) <= target for part in parts)


@given(bodies, bodies)
def test_parts_of_two_bodies_never_mix(mine: bytes, other: bytes) -> None:
    first, second = split_body(mine, 1, 1, "s", 16), split_body(other, 1, 1, "s", 16)
    joiner = BodyJoiner.expecting(first[0])
    if mine != other:
        with pytest.raises(DecodeError, match="another body"):
            joiner.add(second[0])


def test_another_number_of_parts_is_another_body() -> None:
    (part,) = split_body(b"body", 1, 1, "s")
    joiner = BodyJoiner.expecting(part)
    with pytest.raises(DecodeError, match="another body"):
        joiner.add(msgspec.structs.replace(part, parts=2))


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=200), st.data())
def test_an_altered_slice_is_noticed(body: bytes, data: st.DataObject) -> None:
    parts = split_body(body, 1, 1, "s", 16)
    victim = data.draw(st.integers(0, len(parts) - 1))
    altered = bytearray(parts[victim].body)
    altered[data.draw(st.integers(0, len(altered) - 1))] ^= data.draw(st.integers(1, 255))
    parts[victim] = msgspec.structs.replace(parts[victim], body=bytes(altered))
    joiner = BodyJoiner.expecting(parts[0])
    for part in parts[:-1]:
        assert joiner.add(part) is None
    with pytest.raises(DecodeError, match="do not make the body"):
        joiner.add(parts[-1])


def test_a_body_above_its_limit_is_refused_as_it_grows() -> None:
    parts = split_body(bytes(100), 1, 1, "s", 10)
    joiner = BodyJoiner.expecting(parts[0], max_bytes=35)
    assert [joiner.add(part) for part in parts[:3]] == [None] * 3
    with pytest.raises(DecodeError, match="more than 35 bytes"):
        joiner.add(parts[3])


def test_an_empty_body_is_one_empty_part() -> None:
    (part,) = split_body(b"", 1, 1, "s")
    assert BodyJoiner.expecting(part).add(part) == b""
