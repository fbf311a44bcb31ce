"""Compares what devices journalled as released with what the broker's last global model holds, and sums a run up."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from ofl_agents.chaos.observer import Observer
from ofl_agents.chaos.party import LivePlan, Released, read_journal
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.roles.reports.keys import RoundsWithKey, RoundsWithoutKey

_HALF = 0.5
"""Sums are whole numbers; float32 holds them exactly."""


class Happened(Protocol):
    """A fault that was injected."""

    @property
    def kind(self) -> str:
        """Its name."""
        ...

    @property
    def ended_at(self) -> float:
        """When it was over, in seconds since the epoch."""
        ...


class FaultFigures(msgspec.Struct, frozen=True):
    """What became of one kind of fault."""

    times: int
    lost: int
    doubled: int
    recovered_median_s: float | None
    """Seconds from the fault's end to the next new global model."""
    recovered_max_s: float | None


class Windows(msgspec.Struct, frozen=True):
    """Contacts of devices that are seldom there, and in how many of them something was settled."""

    offered: int
    used: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What `ofl chaos` writes."""

    mode: str
    broker: str = ""
    runs: int = 1
    rounds: int = 0
    released: int
    """Chunks that devices durably handed over."""
    lost: int
    doubled: int
    rested: bool
    """Whether everything was settled within the time limit."""
    refused: int = 0
    """Virtual runs in which the successor of a wiped coordinator refused, because half a model was at the broker."""
    without_key_share: float | None = None
    """Share of the time in which a key was being made and no round could open; None without encryption."""
    sent_per_settled: dict[str, float | None] = {}
    """Bytes that left devices for each byte of their chunks that was settled, by kind of link."""
    first_settled_s: dict[str, float | None] = {}
    """Seconds from a device's first assignment to its first settled chunk, the slowest of each kind of link."""
    settled: dict[str, int] = {}
    """Chunks settled, by kind of link."""
    led: tuple[str, ...] = ()
    """Devices that led at some time: their bytes include their clusters'."""
    windows: Windows = Windows(0, 0)
    faults: dict[str, FaultFigures] = {}

    @property
    def failed(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.lost or self.doubled or not self.rested)


def audit(
    plan: LivePlan,
    observer: Observer,
    injected: Sequence[Happened],
    sent: Mapping[str, int],
    *,
    rested: bool,
    broker: str,
) -> Figures:
    """Return the figures of a live run."""
    lost = doubled = 0
    released = {name: read_journal(plan.journal(name)) for name in plan.names}
    for slot, name in enumerate(plan.names):
        missing, extra = _compare(plan, observer, slot, released[name])
        lost, doubled = lost + missing, doubled + extra
    links = sorted({name.split("-")[0] for name in plan.names})
    by_link = {link: [name for name in plan.names if name.startswith(f"{link}-")] for link in links}
    settled = {name: _settled(observer, name, released[name]) for name in plan.names}
    return Figures(
        mode="live",
        broker=broker,
        rounds=observer.round_no,
        released=sum(map(len, released.values())),
        lost=lost,
        doubled=doubled,
        rested=rested,
        without_key_share=_without_key(plan),
        sent_per_settled={
            link: _ratio(sum(sent[name] for name in names), sum(each.size for n in names for each in settled[n]))
            for link, names in by_link.items()
        },
        first_settled_s={
            link: _slowest(observer.first_settled.get(name, 0.0) - observer.assigned.get(name, 0.0) for name in names)
            for link, names in by_link.items()
        },
        settled={link: sum(len(settled[name]) for name in names) for link, names in by_link.items()},
        led=tuple(sorted(observer.led)),
        faults=fault_figures([(each.kind, _recovery(each, observer)) for each in injected], lost, doubled),
    )


def fault_figures(recoveries: Sequence[tuple[str, float | None]], lost: int, doubled: int) -> dict[str, FaultFigures]:
    """Return the figures by kind of fault; lost and doubled are those of the whole run."""
    figures = {}
    for kind in sorted({kind for kind, _ in recoveries}):
        times = [seconds for each, seconds in recoveries if each == kind]
        known = [seconds for seconds in times if seconds is not None]
        figures[kind] = FaultFigures(
            times=len(times),
            lost=lost,
            doubled=doubled,
            recovered_median_s=round(statistics.median(known), 1) if known else None,
            recovered_max_s=round(max(known), 1) if known else None,
        )
    return figures


def _compare(plan: LivePlan, observer: Observer, slot: int, released: list[Released]) -> tuple[int, int]:
    """Return chunks lost and doubled of one device.

    Everything that its last store released is in the model. Of a store that was wiped the model holds at least what was
    seen settled, and at most all: the books at the broker tell of each device's present store only.
    """
    if observer.values is None:
        return len(released), 0
    name, held = plan.names[slot], float(observer.values[slot * plan.counting.width]) * plan.counting.width
    last = released[-1].store if released else b""
    seen = {each.store: observer.settled.get((name, each.store), SeqSet()) for each in released}
    present = [each for each in released if each.store == last]
    least = sum(each.total for each in present) + sum(
        each.total for each in released if each.store != last and each.seq in seen[each.store]
    )
    most = sum(each.total for each in released)
    off = _HALF * plan.counting.width
    lost = sum(each.seq not in seen[last] for each in present)
    if not lost and held < least - off:
        lost = max(1, round((least - held) / plan.counting.width))
    return lost, max(1, round((held - most) / plan.counting.width)) if held > most + off else 0


def _settled(observer: Observer, name: str, released: list[Released]) -> list[Released]:
    return [each for each in released if each.seq in observer.settled.get((name, each.store), SeqSet())]


def _recovery(fault: Happened, observer: Observer) -> float | None:
    return next((at - fault.ended_at for at in observer.new_rounds if at > fault.ended_at), None)


def _ratio(sent: int, settled: int) -> float | None:
    return round(sent / settled, 2) if settled else None


def _slowest(seconds: Iterable[float]) -> float | None:
    known = [each for each in seconds if each > 0]
    return round(max(known), 1) if known else None


def _without_key(plan: LivePlan) -> float | None:
    """Return the share of time in which a round was due and had no key, as `KeyCoverage` counts it."""
    if plan.counting.protection.mode != "threshold":
        return None
    file = plan.reports(COORDINATOR)
    told = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    waited, since = 0.0, None
    for at, kind in told:
        if kind == RoundsWithoutKey.__name__ and since is None:
            since = at
        elif kind == RoundsWithKey.__name__ and since is not None:
            waited, since = waited + at - since, None
    if since is not None:
        waited += told[-1][0] - since
    whole = told[-1][0] - told[0][0] if len(told) > 1 else 0.0
    return round(waited / whole, 4) if whole else None
