"""A fleet view as text of 80 columns: status, why a device does what it does, rows of a live table."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.devices import DeviceView, State
from ofl_iot.fleet_view.rounds import RoundView
from ofl_iot.fleet_view.view import FleetView

WIDTH = 80
MARKS: dict[State, str] = {
    "contributing": "●",
    "waiting": "○",
    "limited": "▾",
    "refused": "✕",
    "spent": "◌",
    "paused": "‖",
    "offline": "·",
}
ATTENTION: tuple[State, ...] = ("refused", "limited", "spent", "paused", "offline", "waiting", "contributing")
"""What needs attention stands first."""
_SIGNS = {"critical": "!!", "warning": "! ", "info": "i "}
_BLOCKS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "–"


def status_lines(view: FleetView) -> Iterator[str]:
    """Yield the whole fleet at a glance."""
    yield from _head(view)
    if view.clusters:
        yield ""
        yield "cluster  leader           term    online   weight  leads for"
        yield from _clusters(view)
    yield ""
    yield "no alerts" if not view.alerts else f"{len(view.alerts)} alert{'s' if len(view.alerts) > 1 else ''}"
    for alert in view.alerts:
        since = f"{wording.span(view.now_s - alert.since_s)} ago"
        yield f" {_SIGNS[alert.severity]} {alert.title[:58]:<58} {since:>13}"
    yield ""
    yield "ofl why DEVICE tells why a device does what it does."


def why_lines(view: FleetView, device: DeviceView) -> Iterator[str]:
    """Yield why a device does what it does: the sentence, the evidence, what to do."""
    where = f"cluster {device.cluster}, {device.role}" if device.cluster else "no cluster"
    yield f"{MARKS[device.state]} {device.id}  {device.state}, {where}  [{device.why.code}]"
    yield ""
    yield from textwrap.wrap(wording.sentence(device.why, view.now_s), WIDTH)
    if device.why.evidence:
        yield ""
    for each in device.why.evidence:
        ago = f"{wording.span(view.now_s - each.at_s)} ago" if each.at_s else "unknown when"
        head = f"  {ago:<16} {each.by:<12} "
        yield from textwrap.wrap(each.text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    yield ""
    if device.why.todo is None:
        yield "Nothing to do."
        return
    yield from textwrap.wrap(device.why.todo.text, WIDTH)
    if device.why.todo.command:
        yield ""
        yield f"  $ {device.why.todo.command}"


def round_sentence(view: FleetView, device: DeviceView, number: int) -> str:
    """Return in words whether a device is part of a round, and if not, why, as far as is known."""
    found = next((each for each in view.rounds if each.round_no == number), None)
    if found is None:
        first, last = (view.rounds[0].round_no, view.rounds[-1].round_no) if view.rounds else (0, 0)
        return f"Nothing is known of round {number}; the observer knows rounds {first} to {last}."
    if found.state == "open":
        return f"Round {number} is open; who is in it shows when it closes."
    if found.state == "abandoned":
        return f"Round {number} was abandoned: {found.reason or 'nobody says why'}."
    part = next((each for each in found.contributions if device.id in each.contributors), None)
    if part is not None:
        return _took_part(number, part.leader, part.weight, part.cluster, part.verdict)
    return f"It was not in round {number}: {_absent(found, device)}."


def _absent(found: RoundView, device: DeviceView) -> str:
    mine = next((each for each in found.contributions if each.leader == device.leader), None)
    if mine is None:
        return "its present leader had no seat in it"
    if mine.verdict in ("missing", "refused"):
        because = f" ({mine.reason})" if mine.reason else ""
        return f"the contribution of its leader {mine.leader} was {mine.verdict}{because}"
    return f"its leader {mine.leader} held no chunk of it when it contributed"


def top_rows(view: FleetView, limit: int, state: str = "", find: str = "") -> list[tuple[DeviceView, str]]:
    """Return devices with a line each, what needs attention first; `limit` of those that fit the filter."""
    fitting = [each for each in view.devices if (not state or each.state == state) and find in each.id]
    ordered = sorted(fitting, key=lambda each: (ATTENTION.index(each.state), each.id))
    return [(each, _top_line(view, each)) for each in ordered[:limit]]


TOP_HEAD = f"  {'device':<14} {'state':<12} {'cl':<3}{'Mbit/s':>7} {'seen':>7} {'sent':>9}  {'budget':<12} why"


def _top_line(view: FleetView, device: DeviceView) -> str:
    link = f"{device.link.mbps:.2f}" if device.online and device.link.mbps is not None else _UNKNOWN
    seen = _short(view.now_s - device.last_seen_s) if device.last_seen_s is not None else _UNKNOWN
    sent = wording.size(device.bytes.up) if device.bytes.up is not None else _UNKNOWN
    left = device.budget_left
    budget = f"{bar(left, 6)} {left:>4.0%}" if left is not None else f"{_UNKNOWN:<11}"
    who = f"{MARKS[device.state]} {device.id[:14]:<14} {device.state:<12} {device.cluster or _UNKNOWN:<3}"
    return f"{who}{link:>7} {seen:>7} {sent:>9}  {budget} {device.why.code}"


def top_head(view: FleetView) -> str:
    """Return the line above the live table."""
    online = sum(each.online for each in view.devices)
    number = f"round {view.rounds[-1].round_no}" if view.rounds else "no round yet"
    rate = f"{view.observer.messages_per_s:.1f} msg/s" if view.observer.messages_per_s is not None else ""
    link = "" if view.observer.link == "up" else "  NO LINK: these figures are old"
    return f"{view.federation.id}  {online}/{len(view.devices)} online  {number}  {rate}{link}"


def bar(share: float, width: int) -> str:
    """Return a bar of blocks."""
    return ("█" * round(min(1.0, max(0.0, share)) * width)).ljust(width, "░")


def spark(values: Sequence[float | None]) -> str:
    """Return a curve in one line; what is not known is a gap."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    steps = (high - low) or 1.0
    return "".join(" " if value is None else _BLOCKS[int((value - low) / steps * 7.99)] for value in values)


def _head(view: FleetView) -> Iterator[str]:
    federation = view.federation
    size = f" ({federation.model.parameters:,} parameters)" if federation.model.parameters else ""
    yield f"{federation.id}  {federation.workload or 'nothing heard of its model yet'}{size}"
    if view.observer.link != "up":
        yield "NO LINK to the broker: what follows is what was known"
    yield ""
    states = Counter(each.state for each in view.devices)
    online = f"{sum(each.online for each in view.devices)} of {len(view.devices)}"
    first, second = (
        "  ".join(f"{MARKS[state]} {states[state]} {state}" for state in group)
        for group in (("contributing", "waiting", "limited"), ("refused", "spent", "paused", "offline"))
    )
    yield f"online       {online}   {first}"
    yield f"{'':<13}{'':<{len(online)}}   {second}"
    yield from _learning(view)
    yield from _privacy(view)


def _learning(view: FleetView) -> Iterator[str]:
    closed = [each for each in view.rounds if each.state == "closed"]
    measured = [each.accuracy for each in closed if each.accuracy is not None]
    if measured:
        gain = f"  {(measured[-1] - measured[-11]) * 100:+.1f} in 10 rounds" if len(measured) > 10 else ""
        yield f"accuracy     {measured[-1] * 100:.1f} %  {spark([each.accuracy for each in closed[-33:]])}{gain}"
    if view.rounds:
        yield f"round        {_round_words(view.rounds[-1], view.now_s)}"
    if closed and closed[-1].seconds.collect is not None:
        took = closed[-1].seconds
        stages = (took.collect, took.score, took.decrypt, took.publish, took.aggregate)
        whole = sum(each for each in stages if each is not None)
        yield f"cost         {whole:.0f} s a round; {closed[-1].devices} devices in round {closed[-1].round_no}"


def _privacy(view: FleetView) -> Iterator[str]:
    budgets = sorted(each.budget_left for each in view.devices if each.budget_left is not None)
    if budgets:
        spent, low = sum(each <= 0 for each in budgets), sum(0 < each < 0.1 for each in budgets)
        median = wording.share(budgets[len(budgets) // 2])
        yield f"privacy      {median} of the budget left (median), {spent} spent, {low} below 10 %"
    protection = view.federation.protection
    since = f", for {wording.span(view.now_s - protection.since_s)}" if protection.since_s else ""
    if protection.state == "on":
        who = f"any {protection.threshold} of {protection.leaders} leaders decrypt" if protection.threshold else "on"
        yield f"encryption   on: {who}, key of term {protection.key_term}{since}"
    elif protection.state == "off":
        yield f"encryption   OFF: the coordinator reads the model of every cluster{since}"


def _round_words(last: RoundView, now_s: float) -> str:
    if last.state != "open":
        ago = f" {wording.span(now_s - last.closed_s)} ago" if last.closed_s else ""
        return f"{last.round_no} {last.state}{ago}"
    left = ""
    if last.deadline_s is not None and last.opened_s is not None:
        left = f", {wording.span(last.opened_s + last.deadline_s - now_s)} left"
    return f"{last.round_no} {last.stage or 'open'} from {len(last.contributions)} clusters{left}"


def _clusters(view: FleetView) -> Iterator[str]:
    for each in view.clusters:
        weight = wording.share(each.weight) if each.weight is not None else _UNKNOWN
        leads = wording.span(view.now_s - each.since_s) if each.since_s is not None else _UNKNOWN
        note = f"after {each.previous[:14]}" if each.previous else ""
        online = f"{each.online} of {each.members}"
        yield f"{each.id:<8} {each.leader[:16]:<16} {each.term:>4} {online:>9} {weight:>8}  {leads:<10} {note}".rstrip()


def _took_part(number: int, leader: str, weight: float, cluster: str | None, verdict: str) -> str:
    where = f"cluster {cluster}" if cluster else f"the cluster of {leader}"
    judged = "" if verdict == "included" else f" (its leader's contribution was {verdict})"
    return f"It was in round {number}: {where} had {wording.share(weight)} of the weight{judged}."


def _short(seconds: float) -> str:
    return wording.span(seconds).replace(" min", "m").replace(" h", "h").replace(" s", "s").replace(" days", "d")
