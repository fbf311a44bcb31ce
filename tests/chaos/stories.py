"""Stories that encrypted rounds and lean rounds share: a leader that goes wrong, updates too long for one round."""

from __future__ import annotations

from ofl_iot.roles.reports.coordinator import LeaderReplaced, RoundAbandoned
from ofl_iot.roles.reports.keys import JointKeyReady
from ofl_iot.roles.reports.leader import ChunkBounded
from tests.chaos.encrypted import CryptoToolbox, EncryptedWorld, unexpected
from tests.chaos.tally import TallyToolbox


def corrupted(fleet: EncryptedWorld, place: int, toolbox: type[CryptoToolbox]) -> str:
    """Give one leader another toolbox as soon as there is a key; return its name."""
    assert fleet.world.run(lambda: fleet.world.told[JointKeyReady] == 1, limit_s=60.0)
    name = fleet.leaders()[place]
    jobs = TallyToolbox(8, fleet.names.index(name), fleet)
    fleet.world.parties[name].toolbox = toolbox(jobs, 5, fleet.protection)
    return name


def a_mute_leader_is_replaced(fleet: EncryptedWorld, toolbox: type[CryptoToolbox], *, rounds_before: int) -> None:
    """One that contributes and answers nothing is replaced after two rounds, and rounds go on."""
    mute = corrupted(fleet, 0, toolbox)
    assert fleet.world.run(lambda: fleet.world.told[LeaderReplaced] == 1, limit_s=90.0)
    assert mute not in fleet.leaders()
    before = fleet.completed()
    assert before == rounds_before
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 30.0)


def a_lying_leader_is_replaced(fleet: EncryptedWorld, toolbox: type[CryptoToolbox]) -> None:
    """One whose answers are well formed and wrong is found and replaced, and no round is lost."""
    liar = corrupted(fleet, 1, toolbox)
    assert fleet.world.run(lambda: fleet.world.told[LeaderReplaced] == 1, limit_s=60.0)
    assert liar not in fleet.leaders()
    assert fleet.completed() == 2
    assert not fleet.world.told[RoundAbandoned]


def long_updates_go_in_parts(fleet: EncryptedWorld, *, may_bound: bool) -> bool:
    """Updates too long to be scored are contributed in parts; return whether a chunk was too long by itself."""
    split = 0
    for tick in range(120):
        fleet.world.run(lambda: False, limit_s=float(tick))
        split += sum(bool(agent.leader.cluster and agent.leader.cluster._waiting) for agent in fleet.agents.values())
    assert split, "the updates were short enough"
    assert fleet.come_to_rest(limit_s=600.0)
    bounded = bool(fleet.world.told[ChunkBounded])  # of a device that was away for long: one chunk, too long alone
    assert may_bound or not bounded
    assert fleet.coordinator is not None
    assert fleet.coordinator.doubled_chunks == 0
    assert not unexpected(fleet)
    return bounded
