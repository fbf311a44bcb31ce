"""Why a device does what it does: one stable code, a template with values, evidence, and what to do.

Without evidence there is no reason: what is not known is said. The order of `_RULES` decides where several hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ofl_iot.fleet_view.records import ClusterRecord, DeviceRecord, RefusalRecord
from ofl_iot.fleet_view.view import Evidence, RoundView, State, Todo, Values, Why
from ofl_iot.ids import COORDINATOR

THIN_SHARE = 0.01
"""A contact that carries less than this share of the model is too thin."""
RECENT_ROUNDS = 3

TEMPLATES: dict[str, tuple[State, str]] = {
    "paused": ("paused", "It is paused by {by}: it serves and does not train."),
    "wrong-model": ("refused", "It is refused: it trains another model than the federation."),
    "block-size": ("refused", "It is refused: its leader.block_size is not the federation's ({reason})."),
    "flood": ("refused", "It is held back: it sends far more than its leader allows ({reason})."),
    "refused": ("refused", "It is refused by {by}: {reason}."),
    "offline": ("offline", "It is offline for {since_s:since}."),
    "offline-unknown": ("offline", "It is offline; the observer was not there to see since when."),
    "never-seen": ("offline", "It belongs to a cluster and was never heard by this observer."),
    "spent": ("spent", "Its privacy budget is spent, so it no longer trains. It still receives models and may lead."),
    "ledger-lost": ("limited", "Its privacy ledger is lost or out of date, so it does not train."),
    "heat": ("limited", "It rests because it is hot: {temperature} °C, and training stops above {limit} °C."),
    "battery": ("limited", "It rests because its battery is low: {battery:share}."),
    "no-data": ("limited", "It has no data to train on: it counts {samples:count} records."),
    "user-code": ("limited", "Its own code fails: {error}, {failures} times in a row, so it does not train."),
    "outbox": ("limited", "It stopped training: {bytes:size} wait in its outbox and no leader takes them."),
    "held-back": ("limited", "It does not train: {code}."),
    "thin-link": ("limited", "Its link is too thin: at {mbps} Mbit/s a contact carries {gamma:share} of its model."),
    "no-leader": ("waiting", "It waits for its leader: {leader} is offline, and no deputy has taken over yet."),
    "unassigned": ("waiting", "It waits for a leader: the coordinator has not given it one."),
    "leader-changed": (
        "waiting",
        "It waits for its leader: {leader} took over from {previous} {since_s:ago}; what is not settled is sent again.",
    ),
    "contributing": ("contributing", "It contributes: its chunks are in round {round_no}."),
    "no-contact": ("waiting", "It is well and between two contacts: it trains and will upload at the next one."),
}
"""By code: the state that it means, and the sentence."""

_PUBLIC = {"offline-unknown": "offline", "never-seen": "offline", "unassigned": "no-leader"}
"""Codes that differ in their sentence only."""
_TODO: dict[str, Todo] = {
    "paused": Todo("Let it go on when you want it to.", "ofl fleet resume {device}"),
    "wrong-model": Todo(
        "Give it the federation's model and start it again. What it had learnt with the other one cannot be merged.",
        "ofl config show",
    ),
    "block-size": Todo("Give it the federation's leader.block_size and start it again.", "ofl config show"),
    "flood": Todo(
        "Look at what runs under its name; revoke its certificate if it is not yours.", "ofl enroll revoke {device}"
    ),
    "refused": Todo("Look at the log of the device.", "ofl doctor"),
    "offline": Todo("Look whether it has power and a network.", "ofl doctor"),
    "spent": Todo("Nothing, or give its data a new budget, knowingly.", "ofl agent --accept-new-budget"),
    "ledger-lost": Todo("Restore its state folder, or accept a new budget.", "ofl agent --accept-new-budget"),
    "no-data": Todo("Look whether its data are where its app looks for them.", "ofl doctor"),
    "user-code": Todo("Its log has the error in full.", "journalctl -u ofl-agent"),
    "outbox": Todo("Look at its leader and at its link.", "ofl why {leader}"),
    "thin-link": Todo("It sends more at a contact with a faster or longer link.", None),
}


@dataclass(frozen=True)
class Surroundings:
    """What a device's reason depends on beside the device."""

    model: str
    """Digest of the federation's model in hex; empty while it is not known."""
    size: int
    workload: str
    coordinator_s: float | None
    cluster: ClusterRecord | None
    leader: DeviceRecord | None
    """The leader's own record."""
    recent: tuple[RoundView, ...]
    """The last closed rounds, newest first."""


Rule = Callable[[DeviceRecord, Surroundings], "tuple[str, Values, list[Evidence]] | None"]


def judge(record: DeviceRecord, around: Surroundings) -> tuple[State, Why]:
    """Return the state of a device and the reason for it."""
    for rule in _RULES:
        found = rule(record, around)
        if found is not None:
            break
    else:
        found = ("no-contact", {}, [])
    code, values, evidence = found
    state, text = TEMPLATES[code]
    evidence = sorted([*evidence, *_common(record, around)], key=lambda each: -each.at_s)
    public = {"offline-unknown": "offline", "never-seen": "offline", "unassigned": "no-leader"}.get(code, code)
    return state, Why(
        code=public, text=text, values=values, evidence=tuple(evidence), todo=_todo(public, record, around)
    )


def _todo(code: str, record: DeviceRecord, around: Surroundings) -> Todo | None:
    todo = _TODO.get(code)
    if todo is None or todo.command is None:
        return todo
    leader = around.cluster.leader if around.cluster else record.id
    return Todo(todo.text, todo.command.format(device=record.id, leader=leader))


def _paused(record: DeviceRecord, _: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    if record.vitals is None or record.vitals.held_back != "paused":
        return None
    by = record.paused_by or record.vitals.paused_by or "an operator"
    return "paused", {"by": by}, [_said(record, f"it was paused by {by}")]


def _wrong_model(record: DeviceRecord, around: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    refusal = _refusal(record, "wrong-model")
    differs = bool(around.model and record.model and record.model != around.model)
    if not differs and refusal is None:
        return None
    evidence = []
    if refusal is not None:
        evidence.append(_refused_by(refusal))
    if record.difference:
        evidence.append(Evidence(record.seen_s or 0.0, record.difference, "device"))
    if record.seen_s is not None:
        size = f"{record.size:,} parameters"
        evidence.append(Evidence(record.seen_s, f"its model has digest {record.model[:8]}, {size}", "device"))
    if around.model and around.coordinator_s is not None:
        theirs = f"the federation's is {around.workload}, digest {around.model[:8]}, {around.size:,} parameters"
        evidence.append(Evidence(around.coordinator_s, theirs, "coordinator"))
    return "wrong-model", {"parameters": record.size, "federation_parameters": around.size}, evidence


def _refused(record: DeviceRecord, _: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    if not record.refusals:
        return None
    last = max(record.refusals.values(), key=lambda each: each.at_s)
    code = last.code if last.code in TEMPLATES and TEMPLATES[last.code][0] == "refused" else "refused"
    values: Values = {"by": last.by, "reason": last.reason, "dropped": last.dropped, "since_s": last.first_s}
    return code, values, [_refused_by(each) for each in record.refusals.values()]


def _offline(record: DeviceRecord, _: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    if record.online:
        return None
    if not record.model:
        return "never-seen", {}, []
    if record.since_s is None:
        return "offline-unknown", {}, []
    gone = Evidence(record.since_s, "its last will or its goodbye: it has no link", "broker")
    return "offline", {"since_s": record.since_s}, [gone]


def _held_back(record: DeviceRecord, _: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    vitals = record.vitals
    if vitals is None or not vitals.held_back:
        return None
    code = vitals.held_back if vitals.held_back in TEMPLATES else "held-back"
    values: Values = {
        "code": vitals.held_back,
        "temperature": vitals.temperature_c,
        "limit": vitals.max_temperature_c,
        "battery": vitals.battery,
        "samples": record.samples,
        "error": vitals.error,
        "failures": vitals.failures,
        "bytes": vitals.outbox_bytes,
        "budget_left": vitals.budget_left,
    }
    evidence = [_said(record, f"it says what keeps it from training: {vitals.held_back}")]
    if record.held_since_s is not None:
        evidence.append(Evidence(record.held_since_s, f"it began to say so: {vitals.held_back}", "device"))
    if code == "spent":
        evidence.append(_said(record, record.privacy or f"budget left: {vitals.budget_left:.1%}"))
    return code, values, evidence


def _thin_link(record: DeviceRecord, _: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    vitals = record.vitals
    if vitals is None or vitals.binding != "communication" or vitals.gamma_up >= THIN_SHARE:
        return None
    plan = f"its plan sends {vitals.gamma_up:.2%} of the model at a contact; the link is what limits it"
    return "thin-link", {"mbps": vitals.network_mbps, "gamma": vitals.gamma_up}, [_said(record, plan)]


def _no_leader(record: DeviceRecord, around: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    cluster = around.cluster
    if cluster is None:
        return "unassigned", {}, []
    if around.leader is None or around.leader.online or cluster.leader == record.id or not around.leader.model:
        return None
    since = around.leader.since_s
    evidence = [Evidence(since, f"{cluster.leader} lost its link", "broker")] if since is not None else []
    return "no-leader", {"leader": cluster.leader, "since_s": since}, evidence


def _leader_changed(record: DeviceRecord, around: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    cluster = around.cluster
    if cluster is None or not cluster.previous or cluster.since_s is None or cluster.leader == record.id:
        return None
    closed_s = max((each.closed_s or 0.0 for each in around.recent), default=0.0)
    if closed_s >= cluster.since_s:
        return None
    values: Values = {"leader": cluster.leader, "previous": cluster.previous, "since_s": cluster.since_s}
    return "leader-changed", values, []


def _contributing(record: DeviceRecord, around: Surroundings) -> tuple[str, Values, list[Evidence]] | None:
    if not record.last_round or record.last_round not in {each.round_no for each in around.recent}:
        return None
    return "contributing", {"round_no": record.last_round}, []


_RULES: tuple[Rule, ...] = (
    _paused,
    _wrong_model,
    _refused,
    _offline,
    _held_back,
    _thin_link,
    _no_leader,
    _leader_changed,
    _contributing,
)


def _common(record: DeviceRecord, around: Surroundings) -> list[Evidence]:
    """Return what is worth knowing whatever the reason: the last round, the leader, the last word."""
    evidence = []
    if record.last_round and record.last_round_s is not None:
        evidence.append(Evidence(record.last_round_s, f"chunks of it are in round {record.last_round}", COORDINATOR))
    cluster = around.cluster
    if cluster is not None and cluster.since_s is not None and cluster.previous:
        text = f"{cluster.leader} leads cluster {cluster.letter} after {cluster.previous} ({cluster.reason})"
        evidence.append(Evidence(cluster.since_s, text, COORDINATOR))
    if record.vitals is not None and record.vitals_s is not None and not record.vitals.held_back:
        plan = record.vitals
        text = f"it sends up to {plan.gamma_up:.0%} of its update at a contact; limited by {plan.binding or 'nothing'}"
        evidence.append(Evidence(record.vitals_s, text, "device"))
    return evidence


def _refusal(record: DeviceRecord, code: str) -> RefusalRecord | None:
    found = [each for each in record.refusals.values() if each.code == code]
    return max(found, key=lambda each: each.at_s) if found else None


def _refused_by(refusal: RefusalRecord) -> Evidence:
    messages = "1 message" if refusal.dropped == 1 else f"{refusal.dropped:,} messages"
    text = f"{messages} dropped by {refusal.by}, and the device was told so: {refusal.reason}"
    return Evidence(refusal.at_s, text, COORDINATOR if refusal.by == COORDINATOR else "leader")


def _said(record: DeviceRecord, text: str) -> Evidence:
    return Evidence(record.vitals_s or record.seen_s or 0.0, text, "device")
