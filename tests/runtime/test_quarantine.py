"""A message that a machine cannot digest is tried twice, then dropped for good; everything else goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Pull
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Persist
from ofl_iot.roles.events import Arrived, Event, LinkUp, Started
from ofl_iot.roles.storage import Put
from ofl_iot.runtime import quarantine
from ofl_iot.runtime.quarantine import Quarantine, culprit
from tests.runtime.fakes import ME, BreakableStore, pull, pull_topic, running, status
from tests.waiting import eventually

POISON = 13


def digest(event: Event, now: float) -> Sequence[Command]:
    """Chokes on number 13 after it has changed nothing durable; keeps and answers the others."""
    if isinstance(event, Arrived) and isinstance(event.message, Pull):
        number = event.message.term
        if number == POISON:
            raise KeyError(f"secret payload {event.message}")
        return Persist((Put("kept", number, b"x"),)), status(number)
    return ()


def message(number: int, sender: str = "d1") -> Arrived:
    return Arrived(Topic(Kind.PULL, DeviceId(sender), ME), Pull(number, b"", 1))


async def test_a_message_that_raises_twice_is_acknowledged_and_the_others_are_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(digest, store_retry_s=600.0) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.up()
        for number in (1, POISON, 2):
            bench.link.deliver(pull_topic("d1"), pull(number))
        await eventually(lambda: len(bench.link.acknowledged) == 3)
        assert sorted(bench.store.load()["kept"]) == [1, 2]
        assert bench.party.quarantined == {"d1": 1}
        first, second = (i for i, e in enumerate(bench.told) if isinstance(e, Arrived) and e == message(POISON))
        assert [type(e) for e in bench.told[first + 1 : second]] == [Started, LinkUp]
    assert caplog.text.count("handling a message raised party=me sender=d1 kind=PULL error=KeyError at test_quar") == 2
    assert caplog.text.count("message in quarantine party=me sender=d1 kind=PULL") == 1
    assert "secret payload" not in caplog.text


async def test_what_is_in_quarantine_is_dropped_at_once_when_it_comes_again() -> None:
    """A retained message comes again with every subscription; the machine must not begin again each time."""

    async with running(digest) as bench:
        await eventually(lambda: bench.link.handler)
        for _ in range(5):
            bench.link.deliver(pull_topic("d1"), pull(POISON))
        await eventually(lambda: len(bench.link.acknowledged) == 5)
        assert bench.told.count(message(POISON)) == 2
        assert bench.party.quarantined == {"d1": 5}
        assert "5 messages in quarantine" in (await bench.party.pulse()).status


async def test_the_second_try_waits_for_a_store_that_fails_in_between() -> None:
    store = BreakableStore()
    async with running(digest, store=store) as bench:
        await eventually(lambda: bench.link.handler)
        store.full = True
        bench.link.deliver(pull_topic("d1"), pull(POISON))
        await eventually(lambda: bench.party.store_failures >= 2)
        assert not bench.link.acknowledged
        store.full = False
        await eventually(lambda: bench.link.acknowledged)
        assert bench.party.quarantined == {"d1": 1}


@pytest.mark.parametrize("error", [ConfigError("another coordinator"), None])
async def test_what_the_operator_must_fix_and_what_no_message_caused_end_the_party(error: Exception | None) -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Arrived) and error:
            raise error
        if isinstance(event, LinkUp) and not error:
            raise ZeroDivisionError
        return ()

    async def story() -> None:
        async with running(rule) as bench:
            await eventually(lambda: bench.link.handler)
            bench.link.up()
            bench.link.deliver(pull_topic("d1"), pull(1))
            await eventually(lambda: "stop" in bench.link.journal)
            assert not bench.link.acknowledged

    with pytest.raises(type(error) if error else ZeroDivisionError):
        await story()


async def test_an_error_of_ours_that_escapes_a_machine_is_no_reason_to_end() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Arrived):
            raise CryptoError("a made-up key")
        return ()

    async with running(rule) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.link.acknowledged)
        assert bench.party.quarantined == {"d1": 1}


def test_two_strikes_are_counted_for_each_message_of_each_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_KEPT", 3)
    kept = Quarantine()
    assert not kept.holds(message(1))
    assert not kept.strike(message(1))
    assert not kept.strike(message(1, "d2"))
    assert not kept.holds(message(1))
    assert kept.strike(message(1))
    assert kept.holds(message(1))
    assert not kept.holds(message(1, "d2"))
    for number in range(2, 5):
        kept.strike(message(number))
    assert not kept.holds(message(1))


def test_a_culprit_is_a_place_and_not_a_text() -> None:
    try:
        raise ValueError("0.123456")  # noqa: TRY301
    except ValueError as error:
        said = culprit(error)
    assert said.startswith("ValueError at test_quarantine.py:")
    assert "0.123456" not in said
