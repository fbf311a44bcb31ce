"""Compares what devices journalled as released with what the broker's last global model holds, and sums a run up."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from ofl_agents.chaos.observer import Observer
from ofl_agents.chaos.party import LivePlan, Released, read_journal
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.roles.reports.keys import RoundsWithKey, RoundsWithoutKey

_HALF = 0.5
"""A sum may be wrong by less than half of one training: in the clear it is exact, under encryption nearly."""


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
    encrypted: bool = False
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
    sent_by_kind: dict[str, dict[str, int]] = {}
    """Those bytes by kind of message, by kind of link; " again" are repetitions of the same message."""
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
    sent: Mapping[str, Counter[str]],
    *,
    rested: bool,
    broker: str,
    until: float,
) -> Figures:
    """Return the figures of a live run; what was released after `until` need not be settled."""
    lost = doubled = 0
    released = {name: read_journal(plan.journal(name)) for name in plan.names}
    for slot, name in enumerate(plan.names):
        missing, extra = _compare(plan, observer, slot, released[name], until)
        lost, doubled = lost + missing, doubled + extra
    links = sorted({name.split("-")[0] for name in plan.names})
    by_link = {link: [name for name in plan.names if name.startswith(f"{link}-")] for link in links}
    settled = {name: _settled(observer, name, released[name]) for name in plan.names}
    return Figures(
        mode="live",
        encrypted=plan.counting.encrypted,
        broker=broker,
        rounds=observer.round_no,
        released=sum(map(len, released.values())),
        lost=lost,
        doubled=doubled,
        rested=rested,
        without_key_share=_without_key(plan),
        sent_per_settled={
            link: _ratio(
                sum(sent[name].total() for name in names), sum(each.size for n in names for each in settled[n])
            )
            for link, names in by_link.items()
        },
        sent_by_kind={
            link: dict(sum((sent[name] for name in names), Counter[str]()).most_common())
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


def _compare(plan: LivePlan, observer: Observer, slot: int, released: list[Released], until: float) -> tuple[int, int]:
    """Return chunks lost and doubled of one device.

    Everything that its last store released until then is settled, and the model holds exactly what the books say of
    this store. Of a store that was wiped the model holds at least what was seen settled, and at most all: the books at
    the broker tell of each device's present store only.
    """
    if observer.values is None or observer.books is None:
        return len(released), 0
    name, width = plan.names[slot], plan.counting.width
    held = float(observer.values[slot * width : (slot + 1) * width].sum(dtype=np.float64))
    last = observer.books.stores.get(name, b"")
    now = observer.books.settled.get(name, SeqSet())
    seen = {each.store: observer.settled.get((name, each.store), SeqSet()) for each in released}
    former = [each for each in released if each.store != last]
    present = sum(each.total for each in released if each.store == last and each.seq in now)
    least = present + sum(each.total for each in former if each.seq in seen[each.store])
    most = present + sum(each.total for each in former)
    step = width * plan.counting.step
    newest = released[-1].store if released else b""
    lost = sum(each.seq not in seen[newest] for each in released if each.store == newest and each.at <= until)
    if not lost and held < least - _HALF * step:
        lost = max(1, round((least - held) / step))
    return lost, max(1, round((held - most) / step)) if held > most + _HALF * step else 0


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
    if not plan.counting.encrypted:
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
