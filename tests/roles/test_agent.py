"""The agent: both roles of one device; what they say to each other does not pass the broker."""

from __future__ import annotations

import numpy as np

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.messages import PartReceipt, Receipt
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.commands import Command, Persist, Publish, SetTimer
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.events import (
    ContributionProtected,
    JobFailed,
    LinkDown,
    LinkUp,
    Started,
    Stopping,
    TimerFired,
    Trained,
)
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.leader.journal import TABLE as JOURNAL
from ofl_iot.roles.reports.base import JobFailure, MessageDropped
from ofl_iot.roles.reports.leader import ContributionFailed, LeadershipEnded
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    SIZE,
    A,
    B,
    agent_machine,
    arrived,
    assigned,
    assignment,
    chunk_of,
    global_model,
    jobs,
    kinds,
    office,
    persist,
    prepared,
    published,
    round_open,
    told,
)


def leading(store: MemoryStore | None = None) -> tuple[AgentMachine, list[Command]]:
    """An agent that leads itself and B and has the global model; returns it with all commands so far."""
    agent = agent_machine()
    parts, manifest = global_model(0, 3.0)
    commands: list[Command] = []
    for event in (
        Started(),
        LinkUp(),
        assigned(office()),
        *(arrived(Kind.GLOBAL_PART, COORDINATOR, part) for part in parts),
        arrived(Kind.MANIFEST, COORDINATOR, manifest),
        TimerFired("device.pull"),
    ):
        commands += agent.handle(event, 0.0)
    if store:
        persist(store, commands)
    return agent, commands


def to_itself(commands: list[Command]) -> list[Publish]:
    return [c for c in commands if isinstance(c, Publish) and c.topic.receiver == c.topic.sender]


def test_a_leader_pulls_from_itself_without_the_broker() -> None:
    _, commands = leading()
    assert not to_itself(commands)
    (job,) = jobs(commands, TrainLocally)
    np.testing.assert_array_equal(job.params, np.full(SIZE, 3.0))


def test_a_leaders_own_chunk_goes_straight_across_stored_on_both_sides_in_order() -> None:
    agent, commands = leading()
    (job,) = jobs(commands, TrainLocally)
    agent.handle(Trained(job.params, job.params + 1, 0.0, 1, 0.01), 1.0)
    commands = agent.handle(prepared({0: 1.0}), 2.0)
    assert not to_itself(commands)
    assert not published(commands, Kind.UPDATE)
    tables = [op.table for c in commands if isinstance(c, Persist) for op in c.ops]
    assert tables == [OUTBOX, JOURNAL], "released durably, then merged durably"
    assert agent.leader.cluster is not None
    assert agent.leader.cluster.unsettled() == {A: {1}}
    assert all(parcel.stored for parcel in agent.device.outbox.unsettled.values())


def test_a_crash_at_any_command_between_the_two_roles_merges_the_chunk_once() -> None:
    for survived in range(12):
        store = MemoryStore()
        agent, commands = leading(store)
        (job,) = jobs(commands, TrainLocally)
        persist(store, agent.handle(Trained(job.params, job.params + 1, 0.0, 1, 0.01), 1.0))
        done = agent.handle(prepared({0: 1.0}), 2.0)[:survived]
        persist(store, done)
        again = agent_machine()
        again.handle(Started(store.load()), 3.0)
        again.handle(LinkUp(), 3.0)
        assert again.leader.cluster is not None
        released = 1.0 if again.device.outbox.next_seq == 2 else 0.0
        assert again.leader.cluster.model[0] == 3.0 + released
        assert again.device.model.unreleased[0] == 1.0 - released


def test_chunks_of_other_devices_go_to_the_leader_and_receipts_out_to_the_broker() -> None:
    agent, _ = leading()
    commands = agent.handle(arrived(Kind.UPDATE, B, chunk_of(1, {0: 1.0}), A), 1.0)
    assert kinds(commands) == ["Persist", "ChunkMerged", "Publish RECEIPT"]


def test_each_event_reaches_the_role_it_concerns() -> None:
    agent, _ = leading()
    (job,) = jobs(agent.handle(arrived(Kind.ROUND_OPEN, COORDINATOR, round_open(1)), 1.0), ProtectContribution)
    commands = agent.handle(ContributionProtected(1, job.update.tobytes()), 1.0)
    assert published(commands, Kind.CONTRIBUTION)
    assert published(agent.handle(TimerFired("leader.resend"), 60.0), Kind.CONTRIBUTION)
    confirmed = arrived(Kind.RECEIPT, COORDINATOR, PartReceipt(1, 1, "contribute", (0,)), A)
    assert agent.handle(confirmed, 61.0) == []
    assert agent.handle(TimerFired("leader.resend"), 120.0) == []
    assert told(agent.handle(JobFailed(ProtectContribution, "boom"), 2.0)) == [ContributionFailed]
    assert told(agent.handle(JobFailed(TrainLocally, "boom"), 2.0)) == [JobFailure]
    assert kinds(agent.handle(Stopping(), 3.0)) == ["Publish STATUS", "Persist"]
    agent.handle(LinkDown(), 4.0)
    assert published(agent.handle(LinkUp(), 5.0), Kind.STATUS)


def test_an_agent_that_is_relieved_becomes_a_plain_device_of_the_new_leader() -> None:
    agent, _ = leading()
    commands = agent.handle(assigned(assignment(2, B)), 1.0)
    assert LeadershipEnded in told(commands)
    pulls = [c for c in commands if isinstance(c, Publish) and c.topic.kind is Kind.PULL]
    assert [c.topic.receiver for c in pulls] == [B]
    receipt = arrived(Kind.RECEIPT, B, Receipt(2, (), SeqSet(), 8), A)
    assert MessageDropped not in told(agent.handle(receipt, 2.0))


def test_timers_of_the_two_roles_have_their_own_names() -> None:
    _, commands = leading()
    assert all(c.name.startswith(("device.", "leader.")) for c in commands if isinstance(c, SetTimer))
