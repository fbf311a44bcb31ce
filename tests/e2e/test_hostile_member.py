"""An enrolled device that means ill: a foreign client over mutual TLS, against a federation of processes on mosquitto.

Each attack once stopped or owned the federation. Now the rounds go on, and a log names the attacker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.messages import Status
from ofl_iot.protocol.topics import Kind
from ofl_iot.runtime.logs import SenderLimit
from tests.conftest import MOSQUITTO
from tests.e2e.hostile import Field, Foreigner
from tests.roles.parties import chunk_of

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

MALLORY = "mallory"
FORGED = "\n2026-01-01 00:00:00,000 ERROR forged: round closed party=coordinator"


async def test_a_hostile_member_stops_nobody_and_is_named(tmp_path: Path) -> None:
    field = Field(tmp_path, MALLORY)
    async with field.running():
        with field.foreigner(MALLORY) as mallory:
            mine = announced(field)
            for attack in (last_term, forged_lines, too_many_samples, numbers_and_nonsense):
                await attack(field, mallory, mine)
            await field.rounds_go_on()
        await field.stop()
    assert max(assignment.term for assignment in field.watch.assignments.values()) < 1000
    assert all(process.output.count("\n2026-01-01") == 0 for process in field.federation.processes.values())


def announced(field: Field) -> Status:
    """What an honest newcomer would say."""
    honest = next(iter(field.watch.statuses.values()))
    return Status(online=True, term=0, sample_count=honest.sample_count, model=honest.model, size=honest.size)


async def last_term(field: Field, mallory: Foreigner, mine: Status) -> None:
    """A term of 2^53 - 1, after which no other could be given, in 39 bytes."""
    mallory.say(Kind.STATUS, msgspec.structs.replace(mine, term=2**53 - 1))
    await field.until(field.named(COORDINATOR, MALLORY, "term 9007199254740991"))


async def forged_lines(field: Field, mallory: Foreigner, _mine: Status) -> None:
    """A line of the coordinator's own log, and 700,000 characters of it."""
    mallory.say(Kind.TELEMETRY, b"\x92\x01" + msgspec.msgpack.encode([FORGED * 10_000, 1]))
    await field.until(field.named(COORDINATOR, MALLORY, "not a TELEMETRY message"))
    assert max(map(len, field.output(COORDINATOR).splitlines())) < 2000


async def too_many_samples(field: Field, mallory: Foreigner, mine: Status) -> None:
    """10^12 samples are a weight of 0.999999999; with 2^53 - 1 honest leaders' contributions did not decode."""
    for claim in (10**12, 2**53 - 1):
        mallory.say(Kind.STATUS, msgspec.structs.replace(mine, sample_count=claim), retain=True)
        await field.until(field.named(COORDINATOR, MALLORY, f"claimed={claim}"))
    bounded = next(line for line in field.output(COORDINATOR).splitlines() if "claimed=1000000000000" in line)
    counted = int(re.search(r"counted=(\d+)", bounded)[1])  # type: ignore[index]
    usual = sorted(status.sample_count for name, status in field.watch.statuses.items() if name != MALLORY)
    assert counted <= 4 * usual[-1]


async def numbers_and_nonsense(field: Field, mallory: Foreigner, mine: Status) -> None:
    """The last number of a chunk, numbers with gaps, and messages that only fill a log.

    It says them to whoever leads it at the moment; a leader that is not ready yet, or no longer its own, says nothing.
    """

    def to_leader(say: Callable[[str, int], None]) -> Callable[[], None]:
        def again() -> None:
            if mallory.assignment is not None and mallory.assignment.leader != MALLORY:
                say(mallory.assignment.leader, mallory.assignment.term)

        return again

    def somebody(what: str) -> Callable[[], bool]:
        return lambda: any(field.named(name, MALLORY, what)() for name in field.federation.processes)

    def chunk(seq: int) -> Callable[[str, int], None]:
        return lambda leader, term: mallory.say(
            Kind.UPDATE, chunk_of(seq, {0: 1e-3}, term=term, size=mine.size, model=mine.model), leader
        )

    def gaps(leader: str, term: int) -> None:
        for seq in range(1, 140, 2):
            chunk(seq)(leader, term)

    def nonsense(leader: str, _term: int) -> None:
        for _ in range(100):
            mallory.say(Kind.PULL, b"no pull at all", leader)

    began = time.monotonic()
    await field.until(somebody("may number its chunks up to"), to_leader(chunk(2**62 - 1)))
    await field.until(somebody("leaves another gap"), to_leader(gaps), every_s=5.0)
    await field.until(somebody("not an envelope"), to_leader(nonsense), every_s=5.0)
    elapsed = time.monotonic() - began
    for name in field.federation.processes:
        lines = [
            line
            for line in field.output(name).splitlines()
            if f"sender={MALLORY}" in line and "not an envelope" in line
        ]
        assert len(lines) <= SenderLimit.BURST + elapsed / SenderLimit.EVERY_S + 1
