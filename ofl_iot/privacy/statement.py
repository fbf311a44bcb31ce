"""What a data owner or an auditor needs to know of a device's privacy, after NIST SP 800-226, as text and as HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from ofl_iot.privacy.accountant import NEIGHBOURS, PAPER_CAVEATS
from ofl_iot.privacy.events import DpSgdSteps, Event, PaperRelease
from ofl_iot.privacy.ledger import Ledger

Section = tuple[str, tuple[str, ...]]
"""A heading and its lines."""

UNITS = {
    "record": "a record: one training example of this device",
    "label": "a label: that of one training example; features and links of a graph are not covered",
    "device": "a device: all of its records together",
}

TRUST = (
    "The device itself, its operating system and whoever can read its memory: they hold the records.",
    "The operating system's random numbers, from which all noise is drawn.",
    "Nobody else: noise is added on the device, before anything leaves it.",
)
NOT_COVERED = (
    "That a device takes part, when it is online, how many bytes it sends, and its resources (SECURITY.md lists them).",
    "The number of its records, announced rounded up to a power of two.",
    "A person whose records lie on several devices, or who has several records: epsilon adds up over them.",
    "Facts about a population that the model is meant to learn.",
    "Side channels of the device's hardware.",
)


@dataclass(frozen=True)
class Subject:
    """Whose statement it is."""

    device: str
    federation: str
    software: str
    settings: tuple[tuple[str, str], ...] = ()
    """Names and values of the settings that decide."""
    unit: str = "record"
    balance: str = ""
    """What is left, in words."""


Dates: TypeAlias = Callable[[float], str]
"""Writes a time, in seconds since 1970, as a date."""


def statement(subject: Subject, ledger: Ledger, now: float, dates: Dates) -> tuple[Section, ...]:
    """Return the sections of a statement about everything that was ever spent on these data."""
    return (
        ("Privacy statement", (f"{subject.device} in {subject.federation}, {dates(now)}",)),
        ("Guarantee", tuple(_guarantee(subject, ledger))),
        ("Mechanisms used so far", tuple(_mechanisms((*ledger.former, *ledger.events)))),
        ("History of the ledger", tuple(_history(ledger, dates))),
        ("Trusted", TRUST),
        ("Not covered", (*NOT_COVERED, *_paper_caveats(ledger))),
        ("Software and settings", (subject.software, *(f"{name} = {value}" for name, value in subject.settings))),
    )


def as_text(sections: Iterable[Section]) -> str:
    """Return the statement for a terminal or a file."""
    blocks = []
    for heading, lines in sections:
        blocks.append("\n".join([heading, *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def as_html(sections: Iterable[Section]) -> str:
    """Return the statement as one self-contained page."""
    (title, _), *_ = sections = tuple(sections)
    body = []
    for place, (heading, lines) in enumerate(sections):
        tag = "h1" if place == 0 else "h2"
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        body.append(f"<{tag}>{escape(heading)}</{tag}><ul>{items}</ul>")
    style = "body{font:16px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em}h2{margin-top:1.5em}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _guarantee(subject: Subject, ledger: Ledger) -> Iterable[str]:
    yield f"Unit of privacy: {UNITS.get(subject.unit, subject.unit)}."
    yield (
        f"Neighbouring data sets: {NEIGHBOURS} (one record replaced by one without influence; the number of records "
        "is public). Replacing a record by another costs about twice as much."
    )
    yield f"Spent of the present budget: {_epsilon(ledger.spent_epsilon())} at delta = {ledger.budget.delta:g}."
    if ledger.former:
        yield f"Spent in all, earlier budgets included: {_epsilon(ledger.total_epsilon())}."
    if math.isinf(ledger.budget.epsilon):
        yield f"Budget: none in mode {ledger.mode or 'unknown'}; what is spent is only counted."
    else:
        yield f"Budget: epsilon = {ledger.budget.epsilon:g}; training stops before it is exceeded."
    yield "Accounting: privacy loss distributions or the exact Gaussian, rounded up."
    if subject.balance:
        yield f"Balance: {subject.balance}."


def _mechanisms(events: Iterable[Event]) -> Iterable[str]:
    empty = True
    for event in events:
        empty = False
        if isinstance(event, DpSgdSteps):
            yield (
                f"DP-SGD: {event.steps} steps, noise multiplier {event.noise_multiplier:.4g}, each record in a step "
                f"with probability {event.sampling_rate:.3g} (Poisson), gradients clipped a record"
            )
        elif isinstance(event, PaperRelease):
            yield (
                f"Paper mode: {event.parameters} values released, each picked with eps1 = {event.eps1:g} and perturbed "
                f"with eps2 = {event.eps2:g}; epsilon {event.epsilon:g} by its lemmas"
            )
        else:
            yield f"None: {event.trainings} trainings without protection (mode off)"
    if empty:
        yield "None: nothing was spent"


def _history(ledger: Ledger, dates: Dates) -> Iterable[str]:
    for entry in ledger.history:
        what = {"accepted": "new budget accepted by the operator", "opened": "opened"}.get(entry.kind, entry.kind)
        yield f"{dates(entry.at)}: {what}: {entry.text}"
    if not ledger.history:
        yield "No changes of terms."


def _paper_caveats(ledger: Ledger) -> tuple[str, ...]:
    events = (*ledger.former, *ledger.events)
    return PAPER_CAVEATS if any(isinstance(event, PaperRelease) for event in events) else ()


def _epsilon(value: float) -> str:
    return "epsilon is infinite: data were used without protection" if math.isinf(value) else f"epsilon = {value:.3f}"
