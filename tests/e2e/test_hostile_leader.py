"""A leader that means ill: its process is gone, a foreign client speaks with its certificate.

Each attack once stopped its members, or cost the coordinator more than the leader. Now the rounds go on without it,
and a log names it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.messages import Contribution, Part, Receipt, Settlement, Status
from ofl_iot.protocol.parts import digest_of, split_body
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.keys.participant import FAULT, ROUND1
from ofl_iot.roles.leader.contribution import CONTRIBUTE
from ofl_iot.runtime.logs import SenderLimit
from tests.conftest import MOSQUITTO
from tests.e2e.hostile import Field, Foreigner

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

LAST = 2**62 - 1


async def test_a_hostile_leader_stops_neither_its_members_nor_the_rounds_and_is_named(tmp_path: Path) -> None:
    field = Field(tmp_path)
    async with field.running():
        leader = field.watch.leader()
        before = field.watch.statuses[leader]
        process = field.federation.processes[leader]  # type: ignore[index]
        process.kill()
        await process.ended()
        with field.foreigner(leader) as impostor:
            for attack in (settle_the_last_number, send_a_refused_one_again, accuse_at_length):
                await attack(field, impostor, before)
        await field.stop(leader)


def seated(field: Field, impostor: Foreigner, before: Status) -> bool:
    """It stays in office as long as it can: online, as its device was."""
    impostor.say(Kind.STATUS, before, retain=True)
    opened = impostor.opened
    return opened is not None and any(seat.leader == impostor.name for seat in opened.seats)


def contributed(impostor: Foreigner, member: str, number: int) -> list[Part]:
    """A contribution to the open round that claims one chunk of a member."""
    assert impostor.opened is not None
    term = next(seat.term for seat in impostor.opened.seats if seat.leader == impostor.name)
    body = encode_body(Contribution(b"payload", (Settlement(member, (number,)),), 10, 1))
    return split_body(body, term, impostor.opened.round_no, CONTRIBUTE)


def members_of(field: Field, leader: str) -> list[str]:
    return sorted(name for name, each in field.watch.assignments.items() if each.leader == leader)


async def settle_the_last_number(field: Field, impostor: Foreigner, before: Status) -> None:
    """Once settled, a member could not encode its next number, and its agent exited at every start."""

    def claim() -> None:
        if not seated(field, impostor, before):
            return
        for member in members_of(field, impostor.name):
            for part in contributed(impostor, member, LAST):
                impostor.say(Kind.CONTRIBUTION, part)
            term = field.watch.assignments[member].term
            impostor.say(Kind.RECEIPT, Receipt(term, (LAST,), SeqSet(LAST), 1, LAST), member)

    await field.until(field.named(COORDINATOR, impostor.name, f"merged chunk {LAST}"), claim)
    others = [name for name in field.federation.processes if name not in (COORDINATOR, impostor.name)]
    await field.until(lambda: any(field.named(each, impostor.name, "kind=RECEIPT")() for each in others), claim)


async def send_a_refused_one_again(field: Field, impostor: Foreigner, before: Status) -> None:
    """A refused body was joined and hashed anew for each of its parts that came again."""

    def repeat() -> None:
        if seated(field, impostor, before):
            for _ in range(50):
                for part in contributed(impostor, members_of(field, impostor.name)[0], LAST - 1):
                    impostor.say(Kind.CONTRIBUTION, part)

    refused = f"merged chunk {LAST - 1}"
    await field.until(field.named(COORDINATOR, impostor.name, refused), repeat, every_s=5.0)
    lines = [line for line in field.output(COORDINATOR).splitlines() if refused in line]
    assert len(lines) <= SenderLimit.BURST


async def accuse_at_length(field: Field, impostor: Foreigner, _before: Status) -> None:
    """A FAULT of megabytes came into the coordinator's log; parts of unknown key generations filled a memory."""
    text = b"x\n" * 2**18
    impostor.say(Kind.KEYS, Part(2**40, 1, FAULT, 0, 1, digest_of(text), text), COORDINATOR)
    for number in range(200):
        for member in field.watch.statuses:
            impostor.say(Kind.KEYS, Part(2**40 + number, 1, ROUND1, 0, 1, digest_of(b"early"), b"early"), member)
    await field.rounds_go_on()
    assert max(map(len, field.output(COORDINATOR).splitlines())) < 2000
