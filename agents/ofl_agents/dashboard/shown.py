"""What of a fleet view a page is sent, and what changed between two views, by ids.

Evidence, advice and a round's contributors stay behind: a page asks for them when it shows one device or one round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from ofl_iot.fleet_view.view import Alert, ClusterView, DeviceView, EventView, FleetView, RoundView

ROUNDS, EVENTS, RESOLVED = 64, 200, 50
"""The latest of each that a page is sent; longer lists are for `ofl report`."""
Shown: TypeAlias = dict[str, Any]
SINGLE = ("federation", "coordinator", "broker", "observer")


@dataclass
class Table:
    """Things with ids, as a page has them."""

    key: str
    show: Callable[[Any], Shown]
    items: dict[Hashable, Any] = field(default_factory=dict)
    rows: dict[Hashable, Shown] = field(default_factory=dict)

    def take(self, latest: Iterable[Any]) -> tuple[list[Shown], list[Hashable]]:
        """Take the present things; return the fields that changed, by thing, and the ids of those that are gone."""
        items = {getattr(item, self.key): item for item in latest}
        gone = [name for name in self.items if name not in items]
        changes = []
        rows: dict[Hashable, Shown] = {}
        for name, item in items.items():
            if self.items.get(name) == item:
                rows[name] = self.rows[name]
                continue
            rows[name] = self.show(item)
            before = self.rows.get(name, {})
            change = {each: value for each, value in rows[name].items() if each not in before or before[each] != value}
            if change:
                changes.append({self.key: name, **change})
        self.items, self.rows = items, rows
        return changes, gone


class ShownView:
    """A fleet view as pages have it; `update` says what changed."""

    def __init__(self, view: FleetView) -> None:
        self._tables = {
            "devices": Table("id", show_device),
            "clusters": Table("id", msgspec.to_builtins),
            "rounds": Table("round_no", show_round),
        }
        self._view = view
        for name, table in self._tables.items():
            table.take(_latest(view, name))

    def whole(self) -> Shown:
        """Return all that a page needs to begin with."""
        view = self._view
        return {
            "schema": view.schema,
            "now_s": view.now_s,
            **{name: msgspec.to_builtins(getattr(view, name)) for name in SINGLE},
            **{name: list(table.rows.values()) for name, table in self._tables.items()},
            **_bounded(view),
            "events": msgspec.to_builtins(view.events[:EVENTS]),
        }

    def update(self, view: FleetView) -> Shown:
        """Take a newer view; return what a page that has the former one must change."""
        before, self._view = self._view, view
        delta: Shown = {"now_s": view.now_s}
        for name, table in self._tables.items():
            delta[name], gone = table.take(_latest(view, name))
            if gone and name != "rounds":  # a page drops old rounds by itself
                delta[f"{name}_gone"] = gone
        for name in SINGLE:
            if getattr(before, name) != getattr(view, name):
                delta[name] = msgspec.to_builtins(getattr(view, name))
        old, new = _bounded(before), _bounded(view)
        delta |= {name: value for name, value in new.items() if value != old[name]}
        known = set(before.events)
        delta["events"] = msgspec.to_builtins([each for each in view.events[:EVENTS] if each not in known])
        return delta


def show_device(device: DeviceView) -> Shown:
    """Return a device without what only its own page shows."""
    shown: Shown = msgspec.to_builtins(device)
    why = device.why
    shown["why"] = {"code": why.code, "text": why.text, "values": why.values}
    return shown


def show_round(closed: RoundView) -> Shown:
    """Return a round without the names of its contributors, of which there may be a thousand."""
    shown: Shown = msgspec.to_builtins(closed)
    for contribution in shown["contributions"]:
        del contribution["contributors"]
    return shown


def _latest(view: FleetView, name: str) -> tuple[DeviceView | ClusterView | RoundView, ...]:
    return view.rounds[-ROUNDS:] if name == "rounds" else getattr(view, name)


def _bounded(view: FleetView) -> dict[str, list[Alert | EventView]]:
    lists = {"alerts": view.alerts, "resolved": view.resolved[:RESOLVED]}
    return {name: msgspec.to_builtins(items) for name, items in lists.items()}
