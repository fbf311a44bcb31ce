"""Stands between a device and its privacy budget: nothing is trained or released that was not paid for, durably, first.

In `rigorous` mode each noisy training step is paid for before the training begins; what follows is post-processing. In
`paper` mode each released value is paid for with its chunk. `off` must be asked for by name; it is entered as infinite.

The ledger belongs to the device and its data: another model goes on with it. A device that others have seen further
than its ledger says has lost it, or an older copy was brought back: it does not train until its operator accepts a new
budget.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ofl_iot.errors import PrivacyError, StoreError
from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease, Unprotected
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.privacy.planning import Fleet, Lifetime, Pace, TrainingPlan, balance_in_words, plan_under
from ofl_iot.protocol.lives import Account
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.settings import NotNegative, Number, Positive
from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "device.privacy"
Mode = Literal["rigorous", "paper", "off"]
REPLAN_FLEET = 2.0
"""A plan is made anew when the fleet's records have grown or shrunk by this factor."""
MOST_PLANNED = 100
"""Steps of a plan at most, unless its lifetime has more rounds."""
TRAININGS = 100
"""Trainings that a lifetime given as a time is divided into."""
_LOST = (
    "others have seen this device's privacy ledger further (version {theirs}) than it is here ({ours}): it was lost, "
    "or an older copy was brought back. Restore the latest state folder, or, with the data owner's consent, start once "
    "with --accept-new-budget"
)


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
    lifetime: Annotated[
        str,
        Meta(
            description='Rigorous: how long the budget is to last, in rounds or as a time ("90 d"); with the data size '
            "it decides the noise. A device trains `training.steps` steps for each global model it receives, and no "
            "faster than the calendar."
        ),
    ] = "100 rounds"
    auto: Annotated[
        bool,
        Meta(
            description="Rigorous: plan clipping, sampling, steps, noise, learning rate and momentum from epsilon, "
            "`lifetime`, the model's size and the fleet's records; `training.batch_size`, `.learning_rate` and "
            "`.momentum` and `privacy.clip_norm` are not used then."
        ),
    ] = False
    planned_steps: Annotated[
        Number,
        Meta(
            description="Deprecated, use `lifetime`: training steps that the budget is to last for, without any pace; "
            "0 = not used."
        ),
    ] = 0
    noise_multiplier: Annotated[
        NotNegative,
        Meta(
            description="Rigorous: standard deviation of the noise over `clip_norm`; 0 = the least that lasts for "
            "`lifetime`."
        ),
    ] = 0.0
    clip_norm: Annotated[Positive, Meta(description="Rigorous: bound on the norm of one record's gradient.")] = 1.0
    eps1: Annotated[Positive, Meta(description="Paper: epsilon of choosing one parameter.")] = 1.0
    eps2: Annotated[Positive, Meta(description="Paper: epsilon of one released value.")] = 1.0

    def __post_init__(self) -> None:
        Lifetime.parse(self.lifetime)

    @property
    def budget(self) -> Budget:
        """What may be spent; what other modes come to is only counted."""
        return Budget(self.epsilon if self.mode == "rigorous" else math.inf, self.delta)

    def steps_in_all(self, each: int) -> int:
        """Return how many steps the budget is to last for, `each` of one training; of a plan, the most there may be."""
        if self.auto:
            return max(MOST_PLANNED, Lifetime.parse(self.lifetime).rounds)
        return self.planned_steps or (Lifetime.parse(self.lifetime).rounds or TRAININGS) * each


class PrivacyGuard:
    """One device's ledger and the rules it goes by."""

    def __init__(
        self, rules: PrivacyRules, *, steps: int = 1, accept_new_budget: bool = False, parameters: int = 0
    ) -> None:
        """`steps` of one training; `accept_new_budget` renews a lost or spent budget once."""
        self._rules = rules
        self._parameters = parameters
        self.fleet: Fleet | None = None
        """What the coordinator last told of all devices' records."""
        self._planned_for: Fleet | None = None
        self._steps = steps
        self._accept = accept_new_budget
        self.ledger: Ledger | None = None
        self.exhausted = False
        self._stored: bytes | None = None
        self._seen = Account()
        """The furthest that others have seen the ledger."""
        self._wall = 0.0
        """Seconds since 1970 at a `now` of 0."""
        self._version = -1
        self._steps_on_version = 0
        self._last: DpSgdSteps | None = None
        """What the training under way has paid."""

    # --- opening

    def begin(self, stored: Stored, wall: float, *, worked: bool) -> bool:
        """Read what an earlier process left; return whether unreleased work must be dropped: it is of another mode.

        `wall` is the time since 1970 at a `now` of 0. A device that has `worked` without a ledger worked unprotected.
        """
        self._wall = wall
        self._stored = stored.get(TABLE, {}).get("ledger")
        if self._stored is None and not worked:
            return False
        try:
            ledger = self._read()
        except (StoreError, msgspec.DecodeError):
            return True  # opening it will say why
        mode = ledger.mode or ("off" if self._stored is None else self._rules.mode)
        if self._stored is None and self._rules.mode != "off":
            self._stored = _encoded(ledger.spend(Unprotected(1)))
        return mode != self._rules.mode

    @property
    def stored_ledger(self) -> bytes | None:
        """What an earlier process left; it is opened outside the machine, because accounting takes long to load."""
        return self._stored

    @property
    def needs_ledger(self) -> bool:
        """Whether training must wait for the ledger."""
        return self._rules.mode != "off" and self.ledger is None

    def open(self, ledger: Ledger, now: float) -> list[StoreOp]:
        """Take the ledger over; it is stored at once, so that a device that loses it later is noticed."""
        self.ledger, self._planned_for = ledger, self.fleet
        if self._accept and self._lost:
            self._renew(now, "the ledger was lost, or an older copy was brought back")
        elif self._accept and self._rules.mode == "rigorous" and not ledger.steps_left:
            self._renew(now, "the budget was spent")
        return [self._put()]

    def reopen(self) -> None:
        """The ledger must be opened again, because the data have changed."""
        if self.ledger is not None:
            self._stored, self.ledger = _encoded(self.ledger), None

    @property
    def wants_renewal(self) -> bool:
        """Whether an accepted budget must be worked out before it can be spent."""
        return self.ledger is not None and self._rules.mode == "rigorous" and self.ledger.allowance is None

    def wall(self, now: float) -> float:
        """Return the time since 1970."""
        return self._wall + now

    # --- what others know

    @property
    def account(self) -> Account:
        """How far the ledger has come."""
        return Account(self.ledger.version, self.ledger.paid_steps) if self.ledger else Account()

    def observe(self, seen: Account, now: float) -> list[StoreOp]:
        """Take what others know of this device's ledger; the operations store a budget that was accepted for it."""
        self._seen = self._seen.latest(seen)
        if self._accept and self.ledger is not None and self._lost:
            self._renew(now, "the ledger was lost, or an older copy was brought back")
            return [self._put()]
        return []

    @property
    def _lost(self) -> bool:
        return self.ledger is not None and self.account.behind(self._seen)

    @property
    def refusal(self) -> str:
        """Why the device does not train although its budget may look unspent; empty if it may."""
        if self._rules.mode == "off" or not self._lost:
            return ""
        return _LOST.format(theirs=self._seen.version, ours=self.account.version)

    def coarse(self, step_s: float | None) -> float | None:
        """Return the time of a step as it is reported: where data are private, to a quarter of a doubling."""
        if step_s is None or self._rules.mode == "off":
            return step_s
        return float(2.0 ** (round(4 * math.log2(max(step_s, 1e-9))) / 4))

    # --- paying

    def needs_plan(self, data: OwnData, batch_size: int) -> bool:
        """Whether training must wait for a ledger, or for one that is planned for as many records as there are."""
        if self.needs_ledger:
            return True
        allowance = self.ledger.allowance if self.ledger else None
        if self._rules.mode != "rigorous":
            return False
        if self.plans:
            return allowance is None or self._fleet_changed
        return allowance is None or data.needs_other_plan(allowance.sampling_rate, batch_size)

    @property
    def plans(self) -> bool:
        """Whether training is planned from the fleet's records, which an assignment tells."""
        return self._rules.auto and self._rules.mode == "rigorous"

    @property
    def _fleet_changed(self) -> bool:
        """Whether the records of all devices are twice as many as when the plan was made, or half."""
        if self.fleet is None or self._planned_for is None:
            return False
        return not 1 / REPLAN_FLEET < self.fleet.records / self._planned_for.records < REPLAN_FLEET

    def plan(self, announced: int) -> TrainingPlan | None:
        """Return how to train by the plan; None where settings say how. `announced` are the device's own records."""
        allowance = self.ledger.allowance if self.ledger else None
        if not self.plans or self.ledger is None or allowance is None:
            return None
        whole = replace(allowance, steps=self.ledger.steps_spent + allowance.steps)
        return plan_under(whole, self.fleet or Fleet.announced(announced, 1), self._parameters)

    def encoded(self) -> bytes | None:
        """The ledger as it is stored; None while it is not open."""
        return _encoded(self.ledger) if self.ledger else None

    @property
    def perturbs(self) -> bool:
        """Whether noise is added to what is released (in rigorous mode it is added to the training)."""
        return self._rules.mode == "paper"

    @property
    def noise_multiplier(self) -> float:
        """Return the noise multiplier of the next training; 0 without noise."""
        allowance = self.ledger.allowance if self.ledger else None
        return allowance.noise_multiplier if self._rules.mode == "rigorous" and allowance else 0.0

    @property
    def sampling_rate(self) -> float:
        """The largest that the next training may use; 1 without a plan."""
        allowance = self.ledger.allowance if self.ledger else None
        return allowance.sampling_rate if self._rules.mode == "rigorous" and allowance else 1.0

    def pay_training(self, steps: int) -> list[StoreOp]:
        """Spend what a training costs, or raise PrivacyError: then do not train."""
        if self._rules.mode == "off":
            return self._enter_unprotected()
        if self._rules.mode != "rigorous":
            return []
        if self.ledger is None or self.ledger.allowance is None:
            raise PrivacyError("the privacy ledger is not open")
        allowed = self.ledger.allowance
        self._last = DpSgdSteps(allowed.noise_multiplier, allowed.sampling_rate, steps)
        self._steps_on_version += steps
        return self._spend(self._last)

    def pay_release(self, parameters: int) -> list[StoreOp]:
        """Spend what the release of a chunk costs, or raise PrivacyError: then do not release."""
        if self._rules.mode != "paper":
            return []
        return self._spend(PaperRelease(self._rules.eps1, self._rules.eps2, parameters))

    def discarded(self) -> list[StoreOp]:
        """The training under way failed and left nothing: it is paid back, a few times in a row at most."""
        if self._last is None or self.ledger is None:
            return []
        self.ledger, last, self._last = self.ledger.refund(self._last), self._last, None
        self._steps_on_version = max(0, self._steps_on_version - last.steps)
        return [self._put()]

    def keeps(self, sampling_rate: float) -> bool:
        """Return whether the result of the training under way may be kept: not if it sampled more than was paid for."""
        self._last = None
        if self.ledger is None or self._rules.mode != "rigorous":
            return True
        try:
            self.ledger.check_rate(sampling_rate)
        except PrivacyError:
            return False
        self.ledger = self.ledger.kept()
        return True

    # --- pace

    @property
    def _each(self) -> int:
        """Steps of one training: those of a plan are spread over its rounds."""
        if not self.plans or self.ledger is None:
            return self._steps
        rounds = Lifetime.parse(self._rules.lifetime).rounds or TRAININGS
        return max(1, (self.ledger.steps_spent + self.ledger.steps_left) // rounds)

    @property
    def _pace(self) -> Pace | None:
        if self._rules.mode != "rigorous" or self._rules.planned_steps or self.ledger is None:
            return None
        total = self.ledger.steps_spent + self.ledger.steps_left
        lifetime, first = Lifetime.parse(self._rules.lifetime), max(0, self.ledger.opened_round)
        if self.plans and lifetime.rounds > total:
            # Few steps are planned where many would drown in noise; without any, a round has nothing to merge.
            lifetime = Lifetime(rounds=max(1, total))
        return Pace(total, lifetime, self.ledger.opened_at, first, self._each)

    def due(self, steps: int, round_no: int, now: float) -> int:
        """Return how many of `steps` may be trained now on this version of the model; 0: wait."""
        pace = self._pace
        if pace is None or self.ledger is None or self.ledger.steps_left < 1:
            return steps
        if round_no != self._version:
            self._version, self._steps_on_version = round_no, 0
        used = self.ledger.steps_spent // self._each
        if not 0 <= self.ledger.opened_round <= round_no:  # the first training, or another federation's rounds
            self.ledger = self.ledger.begun(max(0, round_no - used))
            pace = self._pace or pace
        here = max(0, pace.burst - self._steps_on_version)
        return min(
            self._each if self.plans else steps, here, pace.allowed(self.ledger.steps_spent, self._wall + now, round_no)
        )

    def next_due(self, now: float) -> float | None:
        """Return when the calendar allows the next training, in the machine's time; None if a round must come first."""
        pace = self._pace
        if pace is None or self.ledger is None:
            return None
        at = pace.next_at(self.ledger.steps_spent, 1)
        return None if at is None or at <= self._wall + now else at - self._wall

    # --- balance

    @property
    def left(self) -> float:
        """Share of the budget left; 0 once it does not pay for another training."""
        if self.refusal:
            return 0.0
        if self._rules.mode != "rigorous" or self.ledger is None:
            return 1.0
        if self.exhausted:
            return 0.0
        total = self.ledger.steps_spent + self.ledger.steps_left
        return self.ledger.steps_left / total if total else 0.0

    @property
    def steps_left(self) -> float:
        """Training steps that the budget still allows."""
        if self._rules.mode == "rigorous":
            return float(self.ledger.steps_left) if self.ledger else 0.0
        return float("inf")

    def words(self, now: float) -> str:
        """Return what is left, or why the device does not train."""
        if self.refusal:
            return "training stopped: the privacy ledger was lost or is out of date"
        if self._rules.mode != "rigorous" or self.ledger is None:
            return f"privacy.mode is {self._rules.mode}"
        spent = self.ledger.estimated_epsilon()
        if self.exhausted or not self.ledger.steps_left:
            return balance_in_words(spent, self.ledger.budget, None, None)
        pace = self._pace
        if pace is None:
            return f"{self.ledger.steps_left} of {self.ledger.steps_spent + self.ledger.steps_left} training steps left"
        if pace.lifetime.rounds:
            return balance_in_words(spent, self.ledger.budget, None, self.ledger.steps_left / self._each)
        return balance_in_words(
            spent, self.ledger.budget, pace.opened_at + pace.lifetime.seconds - self._wall - now, None
        )

    # --- the ledger itself

    def _spend(self, event: DpSgdSteps | PaperRelease) -> list[StoreOp]:
        if self.ledger is None:
            raise PrivacyError("the privacy ledger is not open")
        try:
            self.ledger = self.ledger.spend(event)
        except PrivacyError:
            self.exhausted = True
            raise
        return [self._put()]

    def _enter_unprotected(self) -> list[StoreOp]:
        """Once for a device: infinity does not grow."""
        if self.ledger is None:
            ledger = self._read()
            self.ledger = ledger.under(mode="off", source=ledger.source, budget=self._rules.budget, at=self._wall)
        elif any(isinstance(event, Unprotected) for event in self.ledger.events) and self.ledger.mode == "off":
            return []
        if not any(isinstance(event, Unprotected) for event in self.ledger.events):
            self.ledger = self.ledger.spend(Unprotected(1))
        return [self._put()]

    def _renew(self, now: float, reason: str) -> None:
        assert self.ledger is not None  # noqa: S101  # its callers have looked
        self._accept = self.exhausted = False
        at, seen = self._wall + now, self._seen
        self.ledger = self.ledger.renewed(at=at, reason=reason, version=seen.version, paid_steps=seen.paid_steps)

    def _read(self) -> Ledger:
        if self._stored is None:
            return Ledger(self._rules.budget)
        return Ledger.from_plain(msgspec.msgpack.decode(self._stored))

    def _put(self) -> Put:
        assert self.ledger is not None  # noqa: S101  # its callers have looked
        return Put(TABLE, "ledger", _encoded(self.ledger))


def _encoded(ledger: Ledger) -> bytes:
    return msgspec.msgpack.encode(ledger.to_plain())
