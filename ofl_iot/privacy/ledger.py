"""The ledger: what was spent on a device's data, and what may still be spent.

A ledger belongs to a device and the data it holds, whatever model is learnt from them. It is a value: `spend` gives the
ledger after the spending, which is stored before anything is released; after a crash between the two, the device
believes to have spent what it did not, never the other way round. Work without protection is entered as what it costs,
infinity. A new budget after a lost or exhausted ledger is the operator's decision: it is entered, and so is all that
was spent before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ofl_iot.errors import ConfigError, PrivacyError, StoreError
from ofl_iot.privacy.accountant import affordable_steps, epsilon
from ofl_iot.privacy.events import Budget, DpSgdSteps, Event, PaperRelease, Unprotected

MOST_REFUNDS = 3
"""Trainings in a row that are paid back when their result was discarded; a fourth is charged."""
MOST_ENTRIES = 200
"""Entries of the history that are kept; the oldest go first, but never what an operator accepted."""
RATE_SLACK = 1e-9
_MARKS = (0.1, 0.4, 1.0)

EntryKind: TypeAlias = Literal["opened", "mode", "source", "budget", "accepted"]


@dataclass(frozen=True)
class Entry:
    """Something that changed the terms of a ledger; `at` is in seconds since 1970."""

    at: float
    kind: EntryKind
    text: str


@dataclass(frozen=True)
class Ledger:
    """One device's privacy account."""

    budget: Budget
    events: tuple[Event, ...] = ()
    """All that was spent of this budget; equal mechanisms are kept as one event."""
    allowance: DpSgdSteps | None = None
    """The steps that the budget still allows, for the one mechanism that `allow` prepared."""
    mode: str = ""
    """The privacy mode of the last work; unreleased work of another mode must not leave."""
    source: str = ""
    """What the data are called."""
    version: int = 0
    """Grows with every payment: a copy with a lower version than others saw is out of date."""
    paid_steps: int = 0
    """Training steps paid for in this ledger's whole life; never falls, not even by a refund."""
    refunds: int = 0
    """Trainings paid back since one was last charged."""
    opened_at: float = 0.0
    """When this budget was opened, in seconds since 1970; pacing counts from there."""
    opened_round: int = -1
    """The model version of the first training under this budget; -1 before it."""
    milestones: tuple[tuple[int, float], ...] = ()
    """Steps spent and what they come to, a few of them: for a balance without the accountant."""
    former: tuple[Event, ...] = ()
    """What was spent of the budgets before this one."""
    history: tuple[Entry, ...] = ()

    # --- terms

    def allow(self, noise_multiplier: float, sampling_rate: float, planned: int = 0) -> Ledger:
        """Compute once how many steps of this mechanism are left, so that spending them is only counting.

        Noise that was chosen for `planned` steps of an untouched budget allows just those: nothing is searched for.
        """
        steps = planned
        if not planned or self.events:
            steps = affordable_steps(self.budget, noise_multiplier, sampling_rate, self.events)
        allowance = DpSgdSteps(noise_multiplier, sampling_rate, steps)
        marks = sorted({round(steps * share) for share in _MARKS}) if math.isfinite(self.budget.epsilon) else []
        milestones = tuple(
            (self.steps_spent + mark, epsilon(_added(self.events, replace(allowance, steps=mark)), self.budget.delta))
            for mark in marks
        )
        return replace(self, allowance=allowance, milestones=milestones)

    def begun(self, round_no: int) -> Ledger:
        """Return the ledger whose rounds count from `round_no` on."""
        return replace(self, opened_round=round_no)

    def under(self, *, mode: str, source: str, budget: Budget, at: float) -> Ledger:
        """Return the ledger under these terms; whatever differs from before is entered into the history."""
        ledger = self
        if not any(entry.kind in ("opened", "accepted") for entry in ledger.history):
            ledger = _noted(replace(ledger, opened_at=at), at, "opened", f"budget of {_words(budget)}")
        if ledger.mode and ledger.mode != mode:
            ledger = _noted(ledger, at, "mode", f"{ledger.mode} -> {mode}")
        if ledger.source and ledger.source != source:
            ledger = _noted(ledger, at, "source", f"{ledger.source} -> {source}; the same budget goes on")
        if ledger.budget != budget:
            if ledger.events:
                ledger = _noted(ledger, at, "budget", f"{_words(ledger.budget)} -> {_words(budget)}")
            ledger = replace(ledger, allowance=None, milestones=())
        return replace(ledger, mode=mode, source=source, budget=budget)

    def renewed(self, *, at: float, reason: str, version: int = 0, paid_steps: int = 0) -> Ledger:
        """Begin a new budget because an operator accepted it; what was spent before stays entered.

        `version` and `paid_steps` are what others know of this device's past: the new budget counts on from there.
        """
        renewed = replace(
            self,
            events=(),
            allowance=None,
            refunds=0,
            opened_at=at,
            opened_round=-1,
            milestones=(),
            version=max(self.version, version) + 1,
            paid_steps=max(self.paid_steps, paid_steps),
            former=_all_added(self.former, self.events),
        )
        return _noted(renewed, at, "accepted", reason)

    @property
    def accepted(self) -> int:
        """How often an operator accepted a new budget."""
        return sum(1 for entry in self.history if entry.kind == "accepted")

    # --- balance

    @property
    def steps_left(self) -> int:
        """DP-SGD steps that may still be spent with the prepared mechanism."""
        return self.allowance.steps if self.allowance else 0

    @property
    def steps_spent(self) -> int:
        """DP-SGD steps spent of this budget, of any mechanism."""
        return sum(event.steps for event in self.events if isinstance(event, DpSgdSteps))

    def spent_epsilon(self) -> float:
        """Return the composed total of what was spent of this budget, at its delta."""
        return epsilon(self.events, self.budget.delta)

    def total_epsilon(self) -> float:
        """Return the composed total of all that was ever spent on these data, earlier budgets included."""
        return epsilon((*self.former, *self.events), self.budget.delta)

    def estimated_epsilon(self) -> float:
        """Return about what was spent, without the accountant: by the root of the steps between milestones."""
        if any(isinstance(event, Unprotected) and event.trainings for event in self.events):
            return math.inf
        spent, before = self.steps_spent, (0, 0.0)
        for steps, cost in self.milestones:
            if spent <= steps:
                width = math.sqrt(steps) - math.sqrt(before[0])
                share = (math.sqrt(spent) - math.sqrt(before[0])) / width if width else 1.0
                return before[1] + max(0.0, share) * (cost - before[1])
            before = (steps, cost)
        return before[1]

    # --- spending

    def spend(self, event: Event) -> Ledger:
        """Return the ledger after `event`; PrivacyError if the budget does not allow it: then release nothing."""
        if isinstance(event, DpSgdSteps):
            return self._spend_steps(event)
        if isinstance(event, PaperRelease):
            total = epsilon((*self.events, event), self.budget.delta)
            if total > self.budget.epsilon:
                raise PrivacyError(
                    f"releasing {event.parameters} parameters would bring epsilon to {total:g} of a budget of "
                    f"{self.budget.epsilon:g}: uploads stop; raise the budget only with the data owner's consent"
                )
        return replace(self, events=_added(self.events, event), allowance=None, version=self.version + 1, refunds=0)

    def refund(self, event: DpSgdSteps) -> Ledger:
        """Return the ledger without the last payment, whose result was discarded and will never leave.

        After `MOST_REFUNDS` in a row the ledger stays as it is: what fails again and again may fail because of the
        data, and that it fails is seen from outside.
        """
        spent = [old for old in self.events if isinstance(old, DpSgdSteps) and _same(old, event)]
        if self.refunds >= MOST_REFUNDS or not spent or spent[0].steps < event.steps:
            return self
        reduced = replace(spent[0], steps=spent[0].steps - event.steps)
        events = tuple(reduced if old == spent[0] else old for old in self.events)
        allowance = self.allowance
        if allowance and _same(allowance, event):
            allowance = replace(allowance, steps=allowance.steps + event.steps)
        return replace(
            self,
            events=tuple(old for old in events if not (isinstance(old, DpSgdSteps) and not old.steps)),
            allowance=allowance,
            version=self.version + 1,
            refunds=self.refunds + 1,
        )

    def kept(self) -> Ledger:
        """Return the ledger after a training whose result was kept: refunds count anew."""
        return replace(self, refunds=0)

    def check_rate(self, sampling_rate: float) -> None:
        """Raise PrivacyError if a training would sample records more often than was planned."""
        if self.allowance and sampling_rate > self.allowance.sampling_rate * (1 + RATE_SLACK):
            raise PrivacyError(
                f"a training would sample each record with a chance of {sampling_rate:.3g}, the plan is "
                f"{self.allowance.sampling_rate:.3g}: are there fewer records than at the start? Restart, so that the "
                "plan follows the data"
            )

    def _spend_steps(self, event: DpSgdSteps) -> Ledger:
        allowed = self.allowance
        if allowed is None or event.noise_multiplier < allowed.noise_multiplier:
            raise PrivacyError(
                f"no steps with noise {event.noise_multiplier:g} and sampling rate {event.sampling_rate:g} are "
                "allowed yet: call allow() for this mechanism first"
            )
        self.check_rate(event.sampling_rate)
        if event.steps > allowed.steps:
            raise PrivacyError(
                f"{event.steps} training steps asked for, {allowed.steps} left of a budget of epsilon = "
                f"{self.budget.epsilon:g}, delta = {self.budget.delta:g}: uploads stop; raise the budget only "
                "with the data owner's consent"
            )
        charged = replace(allowed, steps=event.steps)  # never less than what was used
        return replace(
            self,
            events=_added(self.events, charged),
            allowance=replace(allowed, steps=allowed.steps - event.steps),
            version=self.version + 1,
            paid_steps=self.paid_steps + event.steps,
        )

    # --- storing

    def to_plain(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and maps, to be stored."""
        return {
            "budget": [self.budget.epsilon, self.budget.delta],
            "events": [_event_to_plain(event) for event in self.events],
            "allowance": None if self.allowance is None else _event_to_plain(self.allowance),
            "mode": self.mode,
            "source": self.source,
            "version": self.version,
            "paid_steps": self.paid_steps,
            "refunds": self.refunds,
            "opened_at": self.opened_at,
            "opened_round": self.opened_round,
            "milestones": [list(mark) for mark in self.milestones],
            "former": [_event_to_plain(event) for event in self.former],
            "history": [[entry.at, entry.kind, entry.text] for entry in self.history],
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Ledger:
        """Return what `to_plain` gave, of this version or the one before.

        StoreError if it cannot be read, because a lost ledger must not become a new one.
        """
        try:
            return _from_plain(plain)
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"the stored privacy ledger cannot be read ({error}): restore it, do not delete it; without it the "
                "device trains no more until it is started with --accept-new-budget"
            ) from error


def _from_plain(plain: Mapping[str, Any]) -> Ledger:
    events = tuple(_event_from_plain(event) for event in plain["events"])
    allowance = None if plain["allowance"] is None else _event_from_plain(plain["allowance"])
    if not (allowance is None or isinstance(allowance, DpSgdSteps)):
        raise TypeError("the allowance is not in steps")
    paid = sum(event.steps for event in events if isinstance(event, DpSgdSteps))
    ledger = Ledger(
        Budget(*plain["budget"]),
        events,
        allowance,
        mode=str(plain.get("mode", "")),
        source=str(plain.get("source", "")),
        version=int(plain.get("version", 0)),
        paid_steps=int(plain.get("paid_steps", paid)),
        refunds=int(plain.get("refunds", 0)),
        opened_at=float(plain.get("opened_at", 0.0)),
        opened_round=int(plain.get("opened_round", -1)),
        milestones=tuple((int(steps), float(cost)) for steps, cost in plain.get("milestones", ())),
        former=tuple(_event_from_plain(event) for event in plain.get("former", ())),
        history=tuple(Entry(float(at), kind, str(text)) for at, kind, text in plain.get("history", ())),
    )
    if min(ledger.version, ledger.paid_steps, ledger.refunds) < 0:
        raise ValueError("a count is negative")
    return ledger


def _noted(ledger: Ledger, at: float, kind: EntryKind, text: str) -> Ledger:
    history = [*ledger.history, Entry(at, kind, text)]
    surplus = max(0, len(history) - MOST_ENTRIES)
    for entry in [each for each in history if each.kind != "accepted"][:surplus]:
        history.remove(entry)
    return replace(ledger, history=tuple(history))


def _words(budget: Budget) -> str:
    return f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"


def _same(one: DpSgdSteps, other: DpSgdSteps) -> bool:
    """Whether two events are of one mechanism."""
    return (one.noise_multiplier, one.sampling_rate) == (other.noise_multiplier, other.sampling_rate)


def _all_added(events: tuple[Event, ...], new: tuple[Event, ...]) -> tuple[Event, ...]:
    for event in new:
        events = _added(events, event)
    return events


def _added(events: tuple[Event, ...], new: Event) -> tuple[Event, ...]:
    """The events with `new` among them; counts of equal mechanisms are added up."""
    for place, old in enumerate(events):
        joined = _joined(old, new)
        if joined is not None:
            return (*events[:place], joined, *events[place + 1 :])
    return (*events, new)


def _joined(old: Event, new: Event) -> Event | None:
    if isinstance(old, DpSgdSteps) and isinstance(new, DpSgdSteps):
        return replace(old, steps=old.steps + new.steps) if _same(old, new) else None
    if isinstance(old, PaperRelease) and isinstance(new, PaperRelease):
        merged = replace(old, parameters=old.parameters + new.parameters)
        return merged if replace(new, parameters=merged.parameters) == merged else None
    if isinstance(old, Unprotected) and isinstance(new, Unprotected):
        return Unprotected(old.trainings + new.trainings)
    return None


def _event_to_plain(event: Event) -> list[Any]:
    if isinstance(event, DpSgdSteps):
        return ["dp-sgd", event.noise_multiplier, event.sampling_rate, event.steps]
    if isinstance(event, PaperRelease):
        return ["paper", event.eps1, event.eps2, event.parameters]
    return ["unprotected", event.trainings]


def _event_from_plain(plain: list[Any]) -> Event:
    kind, *numbers = plain
    if kind == "unprotected":
        (trainings,) = numbers
        return Unprotected(int(trainings))
    first, second, count = numbers
    if kind == "dp-sgd":
        return DpSgdSteps(float(first), float(second), int(count))
    if kind == "paper":
        return PaperRelease(float(first), float(second), int(count))
    raise ValueError(f"unknown privacy event {kind!r}")
