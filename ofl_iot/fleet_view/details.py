"""A device's page: its last day in bins, and what happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ofl_iot.fleet_view.records import BIN_S, DAY_BINS, Bin, DeviceRecord
from ofl_iot.fleet_view.view import DeviceDetails, EventView, LeaderSpan, PlanRow, StopSpan

MAX_EVENTS = 100
T = TypeVar("T")


def details_of(record: DeviceRecord, bins: Sequence[Bin], events: Sequence[EventView], now: float) -> DeviceDetails:
    """Return the last day of a device."""
    first = (int(now // BIN_S) - DAY_BINS + 1) * BIN_S
    held = {each.start_s: each for each in bins}
    day = [held.get(first + number * BIN_S) for number in range(DAY_BINS)]
    return DeviceDetails(
        id=record.id,
        bin_s=BIN_S,
        from_s=float(first),
        contact=tuple(_contact(each) for each in day),
        upload_bytes=tuple(each.uploaded_bytes if each else 0 for each in day),
        budget=tuple(each.budget if each else None for each in day),
        leaders=tuple(
            LeaderSpan(start=start, end=end, leader=leader, term=term)
            for start, end, (leader, term) in _spans([(each.leader, each.term) if each else ("", 0) for each in day])
            if leader
        ),
        stops=tuple(
            StopSpan(start=start, end=end, kind=code, text=code)
            for start, end, code in _spans([each.stop if each else "" for each in day])
            if code
        ),
        plan=_plan(record),
        events=tuple(events[:MAX_EVENTS]),
    )


def _contact(entry: Bin | None) -> float | None:
    if entry is None or entry.watched_s <= 0:
        return None
    return round(min(1.0, entry.contact_s / entry.watched_s), 3)


def _spans(values: Sequence[T]) -> list[tuple[int, int, T]]:
    """Return runs of equal values, as first, end and value."""
    spans: list[tuple[int, int, T]] = []
    for number, value in enumerate(values):
        if spans and spans[-1][2] == value:
            spans[-1] = (spans[-1][0], number + 1, value)
        else:
            spans.append((number, number + 1, value))
    return spans


def _plan(record: DeviceRecord) -> tuple[PlanRow, ...]:
    """Return what limits a contact, as far as the device says: the binding resource and the measured figures."""
    vitals = record.vitals
    if vitals is None:
        return ()
    measured = {
        "communication": (vitals.network_mbps, "Mbit/s"),
        "computing": (vitals.step_s, "s a step"),
        "availability": (vitals.battery, "of the charge"),
        "privacy": (vitals.budget_left, "of the budget"),
        "data": (float(record.samples) if record.samples is not None else None, "records"),
    }
    return tuple(
        PlanRow(resource=name, need=None, limit=value, unit=unit, binding=vitals.binding == name)
        for name, (value, unit) in measured.items()
    )
