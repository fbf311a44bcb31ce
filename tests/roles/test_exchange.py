"""Bodies in parts between peers: whatever the order, whole and once; nothing is sent for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError, LateError
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.parts import split_body
from ofl_iot.roles.transfer import PATIENCE, BodyExchange


def exchange(*, number: int = 1, max_bytes: int = 1 << 20) -> BodyExchange:
    return BodyExchange(3, number, resend_s=2.0, max_bytes=max_bytes)


def parts_of(body: bytes, *, number: int = 1, stage: str = "one") -> list[Part]:
    return split_body(body, 3, number, stage, target_bytes=4)


@given(st.binary(max_size=60), st.data())
def test_parts_in_any_order_and_number_make_the_body_once(body: bytes, data: st.DataObject) -> None:
    parts = parts_of(body)
    order = data.draw(st.permutations([*parts, *data.draw(st.lists(st.sampled_from(parts), max_size=9))]))
    receiver = exchange()
    taken = [receiver.take("a", part) for part in order]
    assert [whole for _, whole in taken if whole is not None] == [body]
    assert {number for receipt, _ in taken for number in receipt.parts} == set(range(len(parts)))


def test_bodies_of_peers_and_stages_do_not_mix() -> None:
    receiver = exchange()
    for peer, stage, body in (("a", "one", b"first"), ("b", "one", b"other"), ("a", "two", b"third")):
        *_, (_, whole) = [receiver.take(peer, part) for part in parts_of(body, stage=stage)]
        assert whole == body
    assert receiver.heard_of("a")
    assert not receiver.heard_of("c")


def test_a_peer_that_began_anew_is_taken_at_its_later_word() -> None:
    receiver = exchange()
    for part in parts_of(b"before the crash"):
        receiver.take("a", part)
    *_, (_, whole) = [receiver.take("a", part) for part in parts_of(b"after the crash!")]
    assert whole == b"after the crash!"
    receiver.take("a", parts_of(b"half of another")[0])
    *_, (_, whole) = [receiver.take("a", part) for part in parts_of(b"a third")]
    assert whole == b"a third"


def test_parts_of_another_conversation_are_late() -> None:
    with pytest.raises(LateError, match=r"exchange 3\.2, not 3\.1"):
        exchange().take("a", parts_of(b"x", number=2)[0])


def test_a_body_that_is_not_what_its_digest_says_is_refused_and_can_come_again() -> None:
    receiver = exchange()
    good = parts_of(b"four" + b"more")
    bad = Part(3, 1, "one", 1, 2, good[1].digest, b"less")
    receiver.take("a", good[0])
    with pytest.raises(DecodeError, match="do not make the body"):
        receiver.take("a", bad)
    assert [receiver.take("a", part)[1] for part in good] == [None, b"fourmore"]


def test_a_body_beyond_the_limit_is_refused_at_its_first_byte_too_many() -> None:
    receiver = exchange(max_bytes=6)
    receiver.take("a", parts_of(b"12345678")[0])
    with pytest.raises(DecodeError, match="more than 6 bytes"):
        receiver.take("a", parts_of(b"12345678")[1])


def test_what_is_not_confirmed_is_sent_again_and_given_up_in_the_end() -> None:
    sender = exchange()
    sender.send("a", "one", b"hello")
    sent = [at for at in range(200) for _ in sender.due(float(at))]
    assert sent[0] == 0
    assert 3 <= len(sent) <= 10
    assert max(sent) <= PATIENCE * 2.0
    assert not sender.pending


def test_what_was_given_up_is_sent_again_with_the_same_patience_when_that_is_asked_for() -> None:
    sender = exchange()
    sender.send("a", "one", b"hello")
    first = [at for at in range(100) for _ in sender.due(float(at))]
    assert sender.given_up("a", "one")
    assert not sender.given_up("a", "two")
    sender.send_again("a")
    assert not sender.given_up("a", "one")
    assert [at for at in range(100) for _ in sender.due(100.0 + at)] == first
    sender.send_again("a")
    sender.due(300.0)
    sender.confirm("a", PartReceipt(3, 1, "one", (0,)))
    assert not sender.due(900.0)
    assert not sender.given_up("a", "one"), "it is there"


def test_a_confirmed_body_is_done_and_only_its_own_receipt_confirms_it() -> None:
    sender = exchange()
    sender.send("a", "one", b"hello")
    sender.due(0.0)
    for peer, term, number, stage in (("b", 3, 1, "one"), ("a", 3, 2, "one"), ("a", 2, 1, "one"), ("a", 3, 1, "two")):
        sender.confirm(peer, PartReceipt(term, number, stage, (0,)))
        assert sender.pending
    sender.confirm("a", PartReceipt(3, 1, "one", (0,)))
    assert not sender.pending
    sender.send_again("a")  # it restarted and has lost what it confirmed
    assert [peer for peer, _ in sender.due(1.0)] == ["a"]


def test_a_broken_link_makes_what_was_under_way_due_at_once() -> None:
    sender = exchange()
    sender.send("a", "one", b"hello")
    assert sender.due(0.0)
    assert not sender.due(0.5)
    sender.link_lost()
    assert sender.due(0.5)


def test_what_a_later_stage_makes_void_is_no_longer_sent() -> None:
    sender = exchange()
    sender.send("a", "scores", b"old")
    sender.send("a", "model", b"new")
    sender.send_only("model")
    assert [part.stage for _, part in sender.due(0.0)] == ["model"]
