"""The ledger: what a device spent and what it may still spend.

A ledger is a value. `spend` gives the ledger after the spending, which is stored before anything is released; after a
crash between the two, the device believes to have spent what it did not, never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ofl_iot.errors import ConfigError, PrivacyError, StoreError
from ofl_iot.privacy.accountant import affordable_steps, epsilon
from ofl_iot.privacy.events import Budget, DpSgdSteps, Event, PaperRelease


@dataclass(frozen=True)
class Ledger:
    """One device's privacy account."""

    budget: Budget
    events: tuple[Event, ...] = ()
    """All that was spent; equal mechanisms are kept as one event."""
    allowance: DpSgdSteps | None = None
    """The steps that the budget still allows, for the one mechanism that `allow` prepared."""

    def allow(self, noise_multiplier: float, sampling_rate: float) -> Ledger:
        """Compute once how many steps of this mechanism are left, so that spending them is only counting."""
        steps = affordable_steps(self.budget, noise_multiplier, sampling_rate, self.events)
        return replace(self, allowance=DpSgdSteps(noise_multiplier, sampling_rate, steps))

    @property
    def steps_left(self) -> int:
        """DP-SGD steps that may still be spent with the prepared mechanism."""
        return self.allowance.steps if self.allowance else 0

    def spent_epsilon(self) -> float:
        """The true composed total of all that was spent, at the budget's delta."""
        return epsilon(self.events, self.budget.delta)

    def spend(self, event: Event) -> Ledger:
        """The ledger after `event`, or PrivacyError if the budget does not allow it: then release nothing."""
        if isinstance(event, DpSgdSteps):
            return self._spend_steps(event)
        total = epsilon((*self.events, event), self.budget.delta)
        if total > self.budget.epsilon:
            raise PrivacyError(
                f"releasing {event.parameters} parameters would bring epsilon to {total:g} of a budget of "
                f"{self.budget.epsilon:g}: uploads stop; raise the budget only with the data owner's consent"
            )
        return replace(self, events=_added(self.events, event), allowance=None)

    def _spend_steps(self, event: DpSgdSteps) -> Ledger:
        allowed = self.allowance
        if allowed is None or replace(event, steps=0) != replace(allowed, steps=0):
            raise PrivacyError(
                f"no steps with noise {event.noise_multiplier:g} and sampling rate {event.sampling_rate:g} are "
                "allowed yet: call allow() for this mechanism first"
            )
        if event.steps > allowed.steps:
            raise PrivacyError(
                f"{event.steps} training steps asked for, {allowed.steps} left of a budget of epsilon = "
                f"{self.budget.epsilon:g}, delta = {self.budget.delta:g}: uploads stop; raise the budget only "
                "with the data owner's consent"
            )
        left = replace(allowed, steps=allowed.steps - event.steps)
        return replace(self, events=_added(self.events, event), allowance=left)

    def to_plain(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and maps, to be stored."""
        return {
            "budget": [self.budget.epsilon, self.budget.delta],
            "events": [_event_to_plain(event) for event in self.events],
            "allowance": None if self.allowance is None else _event_to_plain(self.allowance),
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Ledger:
        """What `to_plain` gave; StoreError if it cannot be read, because a lost ledger must not become a new one."""
        try:
            allowance = None if plain["allowance"] is None else _event_from_plain(plain["allowance"])
            if isinstance(allowance, PaperRelease):
                raise TypeError("the allowance is not in steps")  # noqa: TRY301  told apart below
            events = tuple(_event_from_plain(event) for event in plain["events"])
            return Ledger(Budget(*plain["budget"]), events, allowance)
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"the stored privacy ledger cannot be read ({error}): restore it, do not delete it"
            ) from error


def _added(events: tuple[Event, ...], new: Event) -> tuple[Event, ...]:
    """The events with `new` among them; steps or parameters of equal mechanisms are added up."""
    for place, old in enumerate(events):
        joined = _joined(old, new)
        if joined is not None:
            return (*events[:place], joined, *events[place + 1 :])
    return (*events, new)


def _joined(old: Event, new: Event) -> Event | None:
    if isinstance(old, DpSgdSteps) and isinstance(new, DpSgdSteps):
        joined = replace(old, steps=old.steps + new.steps)
        return joined if replace(new, steps=joined.steps) == joined else None
    if isinstance(old, PaperRelease) and isinstance(new, PaperRelease):
        merged = replace(old, parameters=old.parameters + new.parameters)
        return merged if replace(new, parameters=merged.parameters) == merged else None
    return None


def _event_to_plain(event: Event) -> list[Any]:
    if isinstance(event, DpSgdSteps):
        return ["dp-sgd", event.noise_multiplier, event.sampling_rate, event.steps]
    return ["paper", event.eps1, event.eps2, event.parameters]


def _event_from_plain(plain: list[Any]) -> Event:
    kind, first, second, count = plain
    if kind == "dp-sgd":
        return DpSgdSteps(float(first), float(second), int(count))
    if kind == "paper":
        return PaperRelease(float(first), float(second), int(count))
    raise ValueError(f"unknown privacy event {kind!r}")
