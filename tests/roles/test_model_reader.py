"""A leader reads the retained global model: whatever is missing is asked for again until it is there."""

from __future__ import annotations

from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Subscribe
from ofl_iot.roles.leader.model_reader import FETCH, ModelReader
from tests.roles.parties import SIZE, global_model, timers


def subscribed(commands: list) -> list[Kind]:
    return [command.kind for command in commands if isinstance(command, Subscribe)]


def test_a_manifest_whose_parts_do_not_come_is_fetched_again_and_again() -> None:
    reader = ModelReader(SIZE)
    _, manifest = global_model(1, 2.0)
    now = 0.0
    waiting = timers(list(reader.take_manifest(manifest, now)))
    for _ in range(3):
        assert waiting[FETCH] > now, "a lost part must not leave the leader waiting for ever"
        now = waiting[FETCH]
        commands = list(reader.timer(now))
        assert subscribed(commands) == [Kind.GLOBAL_PART, Kind.MANIFEST]
        waiting = timers(commands)


def test_a_fetch_is_not_repeated_while_parts_come_in() -> None:
    reader = ModelReader(SIZE)
    parts, manifest = global_model(1, 2.0)
    first = timers(list(reader.fetch(0.0)))[FETCH]
    assert not list(reader.fetch(0.5)), "it was just asked"
    assert timers(list(reader.take_part(parts[0], 1.0)))[FETCH] > first
    for part in parts[1:]:
        list(reader.take_part(part, 1.0))
    assert list(reader.take_manifest(manifest, 2.0)) == []
    version = reader.complete()
    assert version is not None
    assert version.values.tolist() == [2.0] * SIZE
    assert not subscribed(list(reader.timer(9.0))), "nothing is waited for any more"


def test_a_leader_that_resigned_while_it_fetched_fetches_again_when_it_leads_again() -> None:
    reader = ModelReader(SIZE)
    assert subscribed(list(reader.fetch(0.0)))
    reader.forget()
    list(reader.stop())
    commands = list(reader.fetch(1.0))
    assert subscribed(commands) == [Kind.GLOBAL_PART, Kind.MANIFEST]
    assert FETCH in timers(commands)
