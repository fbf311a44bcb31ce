"""What an operator should know: an alert is open while its cause lasts and goes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.view import Alert, DeviceView, FleetView, Severity

FLAPS = 3
"""Changes of a cluster's leader within an hour that are too many."""
LOW_BUDGET = 0.1
STALLED_INTERVALS_S = 1800.0
"""Seconds without a word from the coordinator that are worth an alert."""
MAX_RESOLVED = 100
_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


class AlertBook:
    """Open alerts and those that are over."""

    def __init__(self, current: list[Alert], resolved: list[Alert]) -> None:
        self._open = {each.id: each for each in current}
        self._resolved = resolved[:MAX_RESOLVED]

    @property
    def current(self) -> tuple[Alert, ...]:
        """Return the open ones, the most urgent first."""
        return tuple(sorted(self._open.values(), key=lambda each: (_ORDER[each.severity], each.since_s, each.id)))

    @property
    def resolved(self) -> tuple[Alert, ...]:
        """Return those that are over, the last first."""
        return tuple(self._resolved)

    def judge(self, view: FleetView, now: float) -> tuple[bool, list[Alert]]:
        """Compare with what holds now; return whether an alert is new or says something else, and those now over."""
        held = {each.id: each for each in found_in(view, now)}
        over = [msgspec.structs.replace(each, until_s=now) for name, each in self._open.items() if name not in held]
        kept = {
            name: msgspec.structs.replace(each, since_s=self._open[name].since_s) if name in self._open else each
            for name, each in held.items()
        }
        changed = any(self._open.get(name) != each for name, each in kept.items())
        self._open = kept
        self._resolved = [*over, *self._resolved][:MAX_RESOLVED]
        return changed, over


@dataclass(frozen=True)
class Cause:
    """What an alert is about and since when."""

    severity: Severity
    kind: str
    subject: str
    since_s: float

    def alert(
        self, title: str, detail: str, *, todo: str | None = None, command: str | None = None, link: str | None = None
    ) -> Alert:
        """Return it in words, with what can be done."""
        return Alert(
            id=f"{self.kind}:{self.subject}",
            severity=self.severity,
            kind=self.kind,
            subject=self.subject,
            since_s=self.since_s,
            title=title,
            detail=detail,
            todo=todo,
            command=command,
            link=link,
        )


def found_in(view: FleetView, now: float) -> Iterator[Alert]:
    """Yield every alert whose cause holds in this view."""
    yield from _encryption(view, now)
    yield from _leaders(view, now)
    yield from _refused(view, now)
    yield from _budgets(view, now)
    yield from _code(view, now)
    yield from _coordinator(view, now)
    yield from _versions(view, now)


def _encryption(view: FleetView, now: float) -> Iterator[Alert]:
    closed = [each for each in view.rounds if each.state == "closed"]
    if view.federation.protection.state != "off" or not closed:
        return
    since = view.federation.protection.since_s or now
    clusters = len(closed[-1].contributions)
    alone = clusters < 2
    detail = (
        "The federation has a single cluster: its model is the global model, so there is nothing to hide it behind."
        if alone
        else "The coordinator reads the model of every cluster."
    )
    yield Cause("warning" if alone else "critical", "encryption-off", view.federation.id, since).alert(
        f"Round {closed[-1].round_no} was not encrypted",
        detail,
        todo="Bring more leaders online, or see protection.mode.",
        command="ofl config show",
        link=f"#/rounds/{closed[-1].round_no}",
    )


def _leaders(view: FleetView, now: float) -> Iterator[Alert]:
    for cluster in view.clusters:
        if cluster.handovers_1h >= FLAPS:
            yield Cause("critical", "leader-flapping", cluster.id, now).alert(
                f"Cluster {cluster.id} changed its leader {cluster.handovers_1h} times within the hour",
                "Each change costs a new joint key and sends again what was not settled.",
                todo="Look at the links of its leaders.",
                command=f"ofl why {cluster.leader}",
                link=f"#/device/{cluster.leader}",
            )
        if cluster.state == "without-leader" and cluster.members > 1:
            yield Cause("warning", "without-leader", cluster.id, now).alert(
                f"Cluster {cluster.id} has no leader",
                f"{cluster.leader} is offline and no deputy has taken over.",
                command=f"ofl why {cluster.leader}",
                link=f"#/device/{cluster.leader}",
            )


def _refused(view: FleetView, now: float) -> Iterator[Alert]:
    flooding = [each for each in view.devices if each.why.code == "flood"]
    for device in flooding:
        yield Cause("critical", "flood", device.id, now).alert(
            f"{device.id} floods its leader",
            wording.sentence(device.why, now),
            todo="Look at what runs under its name.",
            command=f"ofl why {device.id}",
            link=f"#/device/{device.id}",
        )
    others = [each for each in view.devices if each.state == "refused" and each.why.code != "flood"]
    if others:
        yield Cause("warning", "refused", view.federation.id, now).alert(
            f"{len(others)} devices are refused" if len(others) > 1 else f"{others[0].id} is refused",
            _named(others),
            command=f"ofl why {others[0].id}",
            link="#/fleet?state=refused",
        )


def _budgets(view: FleetView, now: float) -> Iterator[Alert]:
    spent = [each for each in view.devices if each.why.code == "spent"]
    low = [each for each in view.devices if each.budget_left is not None and 0 < each.budget_left < LOW_BUDGET]
    if spent:
        yield Cause("info", "budget-spent", view.federation.id, now).alert(
            f"Privacy budget spent on {_devices(len(spent))}",
            _named(spent),
            command=f"ofl why {spent[0].id}",
            link="#/fleet?state=spent",
        )
    if low:
        yield Cause("warning", "budget-low", view.federation.id, now).alert(
            f"Privacy budget below {LOW_BUDGET:.0%} on {_devices(len(low))}".replace("%", " %"),
            _named(low),
            link="#/fleet?by=budget",
        )


def _code(view: FleetView, now: float) -> Iterator[Alert]:
    failing = [each for each in view.devices if each.why.code == "user-code"]
    if failing:
        yield Cause("warning", "user-code", view.federation.id, now).alert(
            f"Own code fails on {_devices(len(failing))}",
            _named(failing),
            command=f"ofl why {failing[0].id}",
            link="#/fleet?state=limited",
        )


def _coordinator(view: FleetView, now: float) -> Iterator[Alert]:
    heard = view.coordinator.last_seen_s
    if view.observer.link == "up" and heard is not None and now - heard > STALLED_INTERVALS_S and view.rounds:
        yield Cause("critical", "coordinator-silent", view.federation.id, heard).alert(
            "The coordinator says nothing",
            "No round was opened or closed for more than half an hour.",
            todo="Look whether it runs.",
            command="ofl status --local",
        )


def _versions(view: FleetView, now: float) -> Iterator[Alert]:
    counts: dict[str, int] = {}
    for device in view.devices:
        if device.version:
            counts[device.version] = counts.get(device.version, 0) + 1
    if len(counts) > 1:
        most = max(counts, key=lambda version: counts[version])
        rest = sum(counts.values()) - counts[most]
        yield Cause("info", "version-skew", view.federation.id, now).alert(
            f"{_devices(rest)} run another version than {most}",
            ", ".join(f"{count} run {version}" for version, count in sorted(counts.items())),
            link="#/fleet?by=version",
        )


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _named(devices: list[DeviceView]) -> str:
    shown = ", ".join(each.id for each in devices[:5])
    return shown if len(devices) <= 5 else f"{shown} and {len(devices) - 5} more"
