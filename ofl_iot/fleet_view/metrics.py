"""A fleet view in Prometheus' text format; docs/operating.md lists the names.

Base units, shares as `_ratio`, `_total` for what only grows. Up to `DEVICES_MAX` devices each has figures of its own;
above that the fleet has them by cluster and type alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ofl_iot.fleet_view.devices import STATES, DeviceView
from ofl_iot.fleet_view.view import FleetView

DEVICES_MAX = 200
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]
_BUDGET_BOUNDS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_SECONDS_BOUNDS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


def exposition(view: FleetView, devices_max: int = DEVICES_MAX) -> str:
    """Return all figures as Prometheus reads them."""
    pages = [*_fleet(view), *_rounds(view), *_budget(view), *_sums(view)]
    if len(view.devices) <= devices_max:
        pages += _devices(view)
    federation = {"federation": view.federation.id}
    return "".join(_family(name, kind, told, samples, federation) for name, kind, told, samples in pages)


Family = tuple[str, str, str, list[tuple[str, Sample]]]


def _gauge(name: str, told: str, samples: Iterable[Sample], kind: str = "gauge") -> Family:
    return name, kind, told, [("", each) for each in samples]


def _fleet(view: FleetView) -> Iterator[Family]:
    observer, version = view.observer, {"version": view.federation.version or ""}
    yield _gauge("ofl_build_info", "Version of the federation's software.", [(version, 1)])
    yield _gauge("ofl_observer_up", "Whether the observer has a link.", [({}, observer.link == "up")])
    if observer.last_message_s is not None:
        told = "When the observer heard anything last."
        yield _gauge("ofl_observer_last_message_timestamp_seconds", told, [({}, observer.last_message_s)])
    counted = Counter((each.state, each.type or "") for each in view.devices)
    types = sorted({kind for _, kind in counted}) or [""]
    samples = [({"state": state, "type": kind}, float(counted[state, kind])) for kind in types for state in STATES]
    yield _gauge("ofl_devices", "Devices by state and type.", samples)
    reasons = Counter(each.why.code for each in view.devices)
    yield _gauge("ofl_devices_why", "Devices by the code of `ofl why`.", _by("code", reasons))
    yield _gauge("ofl_clusters", "Clusters.", [({}, len(view.clusters))])
    term = max((each.term for each in view.clusters), default=0)
    yield _gauge("ofl_term", "Highest term of a leader.", [({}, term)])
    changes = observer.counts.get("handover", 0)
    yield _gauge("ofl_leader_changes_total", "Changes of a cluster's leader.", [({}, changes)], "counter")
    refusals = observer.counts.get("refused", 0)
    yield _gauge("ofl_refusals_total", "Times that a party began to refuse a device.", [({}, refusals)], "counter")
    alerts = Counter((each.severity, each.kind) for each in view.alerts)
    rows = [({"severity": severity, "kind": kind}, float(count)) for (severity, kind), count in sorted(alerts.items())]
    yield _gauge("ofl_alerts", "Open alerts.", rows)


def _by(label: str, counts: Counter[str]) -> list[Sample]:
    return [({label: name}, float(count)) for name, count in sorted(counts.items())]


def _rounds(view: FleetView) -> Iterator[Family]:
    counts = view.observer.counts
    samples = [({"result": name}, float(counts.get(f"round-{name}", 0))) for name in ("closed", "abandoned")]
    yield _gauge("ofl_rounds_total", "Rounds that ended.", samples, "counter")
    closed = [each for each in view.rounds if each.state == "closed"]
    if not closed:
        return
    last = closed[-1]
    yield _gauge("ofl_round_number", "The last closed round.", [({}, last.round_no)])
    yield _gauge("ofl_round_devices", "Devices whose chunks it holds.", [({}, last.devices)])
    yield _gauge("ofl_round_encrypted", "Whether it was encrypted.", [({}, last.encrypted)])
    if last.accuracy is not None:
        yield _gauge("ofl_accuracy_ratio", "Accuracy on the coordinator's held-out records.", [({}, last.accuracy)])
    verdicts: Counter[str] = Counter(part.verdict for each in closed for part in each.contributions)
    told = "Contributions of leaders to the rounds that the observer remembers."
    yield _gauge("ofl_round_contributions", told, _by("verdict", verdicts))
    stages = {
        "collect": [each.seconds.collect for each in closed if each.seconds.collect is not None],
        "aggregate": [each.seconds.aggregate for each in closed if each.seconds.aggregate is not None],
    }
    rows = [row for stage, values in stages.items() for row in _histogram(values, _SECONDS_BOUNDS, {"stage": stage})]
    yield "ofl_round_duration_seconds", "histogram", "Seconds of the stages of closed rounds.", rows


def _budget(view: FleetView) -> Iterator[Family]:
    left = [each.budget_left for each in view.devices if each.budget_left is not None]
    told = "Share of the privacy budget left, over devices."
    yield "ofl_privacy_budget_left_ratio", "histogram", told, _histogram(left, _BUDGET_BOUNDS, {})


def _sums(view: FleetView) -> Iterator[Family]:
    up, down = (sum(getattr(each.bytes, way) or 0 for each in view.devices) for way in ("up", "down"))
    samples = [({"direction": "up", "role": "device"}, up), ({"direction": "down", "role": "device"}, down)]
    yield _gauge("ofl_bytes_total", "Bytes at the devices' links since they started.", samples, "counter")
    sent = sum(each.chunks.sent or 0 for each in view.devices)
    refused = sum(each.chunks.refused or 0 for each in view.devices)
    yield _gauge("ofl_chunks_total", "Chunks that devices sent.", [({"outcome": "sent"}, sent)], "counter")
    yield _gauge("ofl_refused_messages", "Messages refused of devices that are refused now.", [({}, refused)])


def _devices(view: FleetView) -> Iterator[Family]:
    def each(name: str, told: str, values: Iterable[tuple[DeviceView, float | None]], kind: str = "gauge") -> Family:
        return _gauge(name, told, [({"device": d.id}, value) for d, value in values if value is not None], kind)

    all_ = view.devices
    yield each("ofl_device_up", "Whether the device is online.", ((d, d.online) for d in all_))
    why = [({"device": d.id, "state": d.state, "code": d.why.code}, 1.0) for d in all_]
    yield _gauge("ofl_device_why", "State of the device and the code of `ofl why`.", why)
    yield each("ofl_device_last_seen_timestamp_seconds", "When it was heard.", ((d, d.last_seen_s) for d in all_))
    yield each("ofl_device_privacy_budget_left_ratio", "Budget left.", ((d, d.budget_left) for d in all_))
    yield each("ofl_device_staleness_rounds", "Rounds behind.", ((d, d.staleness_rounds) for d in all_))
    yield each("ofl_device_outbox_bytes", "Bytes that wait in its outbox.", ((d, d.outbox.bytes) for d in all_))
    rates = ((d, d.link.mbps * 125_000 if d.link.mbps is not None else None) for d in all_)
    yield each("ofl_device_link_bytes_per_second", "Upload rate of its link.", rates)
    yield each("ofl_device_temperature_celsius", "Hottest sensor.", ((d, d.telemetry.temperature_c) for d in all_))
    yield each("ofl_device_battery_ratio", "Charge left.", ((d, d.telemetry.battery) for d in all_))
    rows = [
        ({"device": d.id, "direction": way}, float(count))
        for d in all_
        for way, count in (("up", d.bytes.up), ("down", d.bytes.down))
        if count is not None
    ]
    yield _gauge("ofl_device_bytes_total", "Bytes at its link since it started.", rows, "counter")


def _histogram(values: list[float], bounds: tuple[float, ...], labels: dict[str, str]) -> list[tuple[str, Sample]]:
    rows: list[tuple[str, Sample]] = [
        ("_bucket", ({**labels, "le": f"{bound:g}"}, sum(value <= bound for value in values))) for bound in bounds
    ]
    rows.append(("_bucket", ({**labels, "le": "+Inf"}, len(values))))
    return [*rows, ("_sum", (labels, sum(values))), ("_count", (labels, len(values)))]


def _family(name: str, kind: str, told: str, samples: list[tuple[str, Sample]], common: dict[str, str]) -> str:
    if not samples:
        return ""
    lines = [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
    for suffix, (labels, value) in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**common, **labels}.items())
        lines.append(f"{name}{suffix}{{{inside}}} {float(value):.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
