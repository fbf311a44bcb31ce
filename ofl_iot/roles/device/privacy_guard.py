"""Stands between a device and its privacy budget: nothing is trained or released that was not paid for, durably, first.

In `rigorous` mode each noisy training step is paid for before the training begins; what follows is post-processing. In
`paper` mode each released value is paid for with its chunk. `off` pays nothing and must be asked for by name.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ofl_iot.errors import PrivacyError
from ofl_iot.privacy.events import DpSgdSteps, PaperRelease
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.lives import Account
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.settings import AtLeastOne, NotNegative, Positive
from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "device.privacy"
Mode = Literal["rigorous", "paper", "off"]


class PrivacyRules(msgspec.Struct, frozen=True):
    """How a device's records are protected, and how much may be spent on them in its life."""

    mode: Annotated[
        Mode,
        Meta(
            description="`rigorous`: record-level DP-SGD within a budget; `paper`: the paper's per-value noise, "
            "with its true total reported; `off`."
        ),
    ] = "rigorous"
    epsilon: Annotated[
        Positive,
        Meta(
            description="Rigorous: the privacy budget of a record. Paper: spending goes beyond any sensible budget, "
            "and is reported."
        ),
    ] = 8.0
    delta: Annotated[Positive, Meta(description="Probability with which epsilon may not hold.")] = 1e-5
    planned_steps: Annotated[
        AtLeastOne,
        Meta(
            description="Rigorous: training steps that the budget is to last for; with the data size it decides the "
            "noise."
        ),
    ] = 1000
    noise_multiplier: Annotated[
        NotNegative,
        Meta(
            description="Rigorous: standard deviation of the noise over `clip_norm`; 0 = the least that lasts for "
            "`planned_steps`."
        ),
    ] = 0.0
    clip_norm: Annotated[Positive, Meta(description="Rigorous: bound on the norm of one record's gradient.")] = 1.0
    eps1: Annotated[Positive, Meta(description="Paper: epsilon of choosing one parameter.")] = 1.0
    eps2: Annotated[Positive, Meta(description="Paper: epsilon of one released value.")] = 1.0


class PrivacyGuard:
    """One device's ledger and the rules it goes by."""

    def __init__(self, rules: PrivacyRules) -> None:
        self._rules = rules
        self.ledger: Ledger | None = None
        self.exhausted = False

    def stored_ledger(self, stored: Stored) -> bytes | None:
        """What an earlier process left; it is opened outside the machine, because accounting takes long to load."""
        return stored.get(TABLE, {}).get("ledger")

    @property
    def account(self) -> Account:
        """How far the ledger has come."""
        return Account(self.ledger.version, self.ledger.paid_steps) if self.ledger else Account()

    @property
    def needs_ledger(self) -> bool:
        """Whether training must wait for the ledger."""
        return self._rules.mode != "off" and self.ledger is None

    def needs_plan(self, data: OwnData, batch_size: int) -> bool:
        """Whether training must wait for a ledger, or for one that is planned for as many records as there are."""
        if self.needs_ledger:
            return True
        allowance = self.ledger.allowance if self.ledger else None
        if self._rules.mode != "rigorous" or allowance is None:
            return False
        return data.needs_other_plan(allowance.sampling_rate, batch_size)

    def encoded(self) -> bytes | None:
        """The ledger as it is stored; None while it is not open."""
        return msgspec.msgpack.encode(self.ledger.to_plain()) if self.ledger else None

    @property
    def perturbs(self) -> bool:
        """Whether noise is added to what is released (in rigorous mode it is added to the training)."""
        return self._rules.mode == "paper"

    @property
    def noise_multiplier(self) -> float:
        """Of the next training; 0 without noise."""
        allowance = self.ledger.allowance if self.ledger else None
        return allowance.noise_multiplier if self._rules.mode == "rigorous" and allowance else 0.0

    def open(self, ledger: Ledger) -> list[StoreOp]:
        """Take the ledger over; it is stored at once, so that a device that loses it later is noticed."""
        self.ledger = ledger
        return [self._stored(ledger)]

    def pay_training(self, steps: int) -> list[StoreOp]:
        """Spend what a training costs, or raise PrivacyError: then do not train."""
        if self._rules.mode != "rigorous":
            return []
        if self.ledger is None or self.ledger.allowance is None:
            raise PrivacyError("the privacy ledger is not open")
        allowed = self.ledger.allowance
        return self._spend(DpSgdSteps(allowed.noise_multiplier, allowed.sampling_rate, steps))

    def pay_release(self, parameters: int) -> list[StoreOp]:
        """Spend what the release of a chunk costs, or raise PrivacyError: then do not release."""
        if self._rules.mode != "paper":
            return []
        return self._spend(PaperRelease(self._rules.eps1, self._rules.eps2, parameters))

    @property
    def left(self) -> float:
        """Share of the budget left; 0 once it does not pay for another training."""
        if self._rules.mode != "rigorous" or self.ledger is None:
            return 1.0
        if self.exhausted:
            return 0.0
        spent_steps = sum(event.steps for event in self.ledger.events if isinstance(event, DpSgdSteps))
        total = spent_steps + self.ledger.steps_left
        return self.ledger.steps_left / total if total else 0.0

    @property
    def steps_left(self) -> float:
        """Training steps that the budget still allows."""
        if self._rules.mode == "rigorous":
            return float(self.ledger.steps_left) if self.ledger else 0.0
        return float("inf")

    def _spend(self, event: DpSgdSteps | PaperRelease) -> list[StoreOp]:
        if self.ledger is None:
            raise PrivacyError("the privacy ledger is not open")
        try:
            self.ledger = self.ledger.spend(event)
        except PrivacyError:
            self.exhausted = True
            raise
        return [self._stored(self.ledger)]

    def _stored(self, ledger: Ledger) -> Put:
        return Put(TABLE, "ledger", msgspec.msgpack.encode(ledger.to_plain()))
