"""Fault schedules in virtual time: drawn from a seed, carried out on a counting federation, reduced when they fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

import msgspec

from ofl_agents.chaos.tally import TallyWorld
from ofl_iot.errors import ConfigError
from ofl_iot.ids import DeviceId
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import RoundClosed
from ofl_iot.runtime.virtual_broker import Faults

Kind: TypeAlias = Literal["crash", "torn", "cut", "wipe"]
"""A killed process; one killed between two commands of a step; a broken link; a kill with the folder gone."""
KINDS: tuple[Kind, ...] = get_args(Kind)
COORDINATOR = "coordinator"
DEVICES = 5
BUSY_S = 45.0
REST_S = 400.0
"""How long a federation may take to settle everything after the last fault."""
NETWORK = Faults(latency_s=(0.005, 0.3), duplicate=0.2, lose_under_way=0.7, forget_queue=0.5)
"""Beside every schedule: latency, repeated and lost messages, forgotten sessions."""
_TEAR = 0.3
_TEAR_FOR_S = 1.0


class Fault(msgspec.Struct, frozen=True):
    """One fault of a schedule."""

    at_s: float
    kind: Kind
    party: str
    for_s: float

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s  {self.kind:<5}  {self.party:<11}  for {self.for_s:.1f} s"


class Schedule(msgspec.Struct, frozen=True):
    """The faults of one run; `seed` also draws what the network does."""

    seed: int
    faults: tuple[Fault, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What a run ended with."""

    lost: int
    doubled: int
    released: int
    """Chunks that devices handed over."""
    rested: bool
    """Whether everything was settled in time."""
    recovered_s: tuple[float | None, ...]
    """For each fault, seconds from its end to the next closed round; None if none closed before the end."""
    refused: str = ""
    """Why the successor of a coordinator whose folder was wiped did not go on; then nothing is compared."""

    @property
    def failed(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.lost or self.doubled or not (self.rested or self.refused))


def draw_schedule(seed: int, devices: int = DEVICES) -> Schedule:
    """Return the schedule of a seed: 2 to 14 faults on any party; each folder is wiped once at most."""
    rng = random.Random(f"schedule {seed}")  # noqa: S311  # a seed must repeat itself
    parties = [COORDINATOR, *(f"d{number}" for number in range(devices))]
    wiped: set[str] = set()
    faults = []
    for at_s in sorted(rng.uniform(1.0, BUSY_S) for _ in range(rng.randint(2, 14))):
        kind, party = rng.choice(KINDS), rng.choice(parties)
        if kind == "wipe" and party in wiped:
            kind = "crash"
        if kind == "wipe":
            wiped.add(party)
        faults.append(Fault(round(at_s, 1), kind, party, round(0.1 + rng.expovariate(1 / 4.0), 1)))
    return Schedule(seed, tuple(faults))


WorldType: TypeAlias = Callable[..., TallyWorld]


def run_schedule(schedule: Schedule, world_type: WorldType = TallyWorld, devices: int = DEVICES) -> Outcome:
    """Carry a schedule out, let the federation come to rest, and compare the model with what was released."""
    closed: list[float] = []

    def listen(_party: str, report: Report, now: float) -> None:
        if isinstance(report, RoundClosed):
            closed.append(now)

    fleet = world_type(devices=devices, seed=schedule.seed, faults=NETWORK, listener=listen)
    for party in fleet.world.parties.values():
        party.faults = None
    for fault in schedule.faults:
        fleet.world.at(fault.at_s, partial(_inject, fleet, fault))
    try:
        fleet.world.run(lambda: False, limit_s=BUSY_S + 5.0)
        rested = fleet.settle(limit_s=REST_S)
    except ConfigError as error:
        if not fleet.coordinators_lost:
            raise
        return Outcome(0, 0, 0, rested=False, recovered_s=(), refused=str(error))
    lost, doubled = compare(fleet, rested=rested)
    ends = [fault.at_s + fault.for_s for fault in schedule.faults]
    recovered = tuple(next((round(at - end, 2) for at in closed if at > end), None) for end in ends)
    stores = [store for name in fleet.names for store in (*fleet.lost.get(name, ()), fleet.store_of(name))]
    return Outcome(lost, doubled, sum(len(store.released) for store in stores), rested, recovered)


def _inject(fleet: TallyWorld, fault: Fault) -> None:
    world, party = fleet.world, fleet.world.parties[fault.party]
    if party.machine is None:
        return  # it is dead already
    if fault.kind == "crash":
        world.crash(party, for_s=fault.for_s)
    elif fault.kind == "cut":
        world.cut(party, for_s=fault.for_s)
    elif fault.kind == "torn":
        party.faults = Faults(crash_between_commands=_TEAR, mean_dead_s=fault.for_s)
        world.at(world.now + _TEAR_FOR_S, lambda: setattr(party, "faults", None))
    elif fault.party == COORDINATOR:
        fleet.lose_coordinator(for_s=fault.for_s)
    else:
        fleet.lose_store(DeviceId(fault.party), for_s=fault.for_s)


def compare(fleet: TallyWorld, *, rested: bool) -> tuple[int, int]:
    """Return chunks lost and doubled.

    What a device released since it has its present store is in the model, exactly once. Of a store that was wiped, the
    model holds what the books say; if a coordinator's folder was wiped too, at least that and at most all of it.
    """
    if fleet.coordinator is None:
        return 0, 0
    lost, doubled = 0, fleet.coordinator.doubled_chunks
    for slot, name in enumerate(fleet.names):
        record = fleet.coordinator.roster.devices.get(name)
        store = fleet.store_of(name)
        doubled += len(store.reused)
        if record is None:
            lost += len(store.released)
            continue
        if rested:
            lost += sum(seq not in record.books.settled_of(store.id) for seq in store.released)
        least = sum(value for seq, value in store.released.items() if seq in record.books.settled_of(store.id))
        most = least
        for former in fleet.lost.get(name, ()):
            settled = record.books.settled_of(former.id) if former.id else ()
            held = sum(value for seq, value in former.released.items() if seq in settled)
            least += held
            most += sum(former.released.values()) if fleet.coordinators_lost else held
        held_now = float(fleet.coordinator.model[slot * fleet.width])
        lost += int(max(0.0, least - held_now))
        doubled += int(max(0.0, held_now - most))
    return lost, doubled


def shrink(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Return a failing part of a failing schedule from which no fault can be left out (delta debugging, ddmin)."""
    kept, pieces = list(faults), 2
    while len(kept) >= 2:
        size = -(-len(kept) // pieces)
        without = [kept[:start] + kept[start + size :] for start in range(0, len(kept), size)]
        smaller = next((each for each in without if fails(each)), None)
        if smaller is not None:
            kept, pieces = smaller, max(2, pieces - 1)
        elif size == 1:
            return kept
        else:
            pieces = min(len(kept), 2 * pieces)
    return [] if kept and fails([]) else kept
