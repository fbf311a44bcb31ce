"""Eq. 4 on a device: from what it measures to how much it sends and fetches in the next contact, and to its report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ofl_iot.opportunity.plan import Plan, costs_of, limits_of, plan
from ofl_iot.protocol.chunks import BYTES_PER_PARAMETER
from ofl_iot.protocol.telemetry import ReportGate, SentReport, Telemetry
from ofl_iot.protocol.values import BYTES_PER_VALUE, BlockPrecision, Precision
from ofl_iot.roles.device.throttle import Pace, Throttle, throttle
from ofl_iot.roles.settings import Fraction, NotNegative, Positive, TrainingRules

FRAMING = 0.1
"""Bytes of messages' heads for each parameter, on top of `BYTES_PER_PARAMETER` up and `BYTES_PER_VALUE` down."""

MIN_CONTACT_S = 1.0
"""A contact counts as no shorter: there is always something worth sending."""
CONTACT_WEIGHT = 0.3
"""Weight of the last contact in how long the next is expected to be."""


class ResourceRules(msgspec.Struct, frozen=True):
    """What a device may spend in one contact."""

    objective: Annotated[
        Literal["fair", "linear"],
        Meta(description="How the resource plan (Eq. 4) divides a contact between upload and download."),
    ] = "fair"
    contact_s: Annotated[Positive, Meta(description="Expected length of a contact with the broker, in seconds.")] = 60.0
    link_share: Annotated[Fraction, Meta(description="Share of the measured link rate that learning may take.")] = 0.5
    passes: Annotated[
        Positive,
        Meta(
            description="Passes over the data in one contact if all classes are alike; skewed data get fewer (Eq. "
            "4's data heterogeneity). The default leaves the usual tenth of the model to devices with "
            "two samples of one class in ten."
        ),
    ] = 100.0
    battery_wh: Annotated[NotNegative, Meta(description="Battery capacity in watt hours; 0 = on mains.")] = 0.0
    battery_reserve: Annotated[Fraction, Meta(description="Share of the charge that learning leaves alone.")] = 0.2
    battery_pace: Annotated[
        Pace, Meta(description="Share of time that training may take on battery; below the reserve it pauses.")
    ] = 0.5
    max_temperature_c: Annotated[
        Positive,
        Meta(
            description="Temperature above which training pauses until the device has cooled down by 5 degrees Celsius."
        ),
    ] = 90.0
    battery_share: Annotated[Fraction, Meta(description="Share of the charge that one contact may use.")] = 0.01
    radio_j_per_byte: Annotated[NotNegative, Meta(description="Energy that the radio takes for a byte, in joules.")] = (
        1e-6
    )


def plan_contact(
    size: int,
    telemetry: Telemetry | None,
    training: TrainingRules,
    resources: ResourceRules,
    privacy_steps_left: float,
    *,
    values: Precision = "byte",
    values_down: BlockPrecision = "byte",
    balance: float = 1.0,
) -> Plan:
    """gamma_up and gamma_down for the next contact, and which resource keeps them from being larger.

    `values` and `values_down` say in which precision parameters go up and come down, `balance` how even the device's
    labels are (`label_balance`).
    """
    step_s = telemetry.step_s if telemetry and telemetry.step_s else 0.0
    rate = telemetry.network_mbps * 1e6 / 8 if telemetry and telemetry.network_mbps else math.inf
    energy = math.inf
    if telemetry and telemetry.battery is not None and resources.battery_wh:
        charge = max(0.0, telemetry.battery - resources.battery_reserve)
        energy = min(charge, resources.battery_share) * resources.battery_wh * 3600
    return plan(
        costs_of(
            size,
            local_steps=training.steps,
            batch_size=training.batch_size,
            step_s=step_s,
            bytes_up=BYTES_PER_PARAMETER[values] + FRAMING,
            bytes_down=BYTES_PER_VALUE[values_down] + FRAMING,
            computing_w=telemetry.power_w or 0.0 if telemetry else 0.0,
            radio_j_per_byte=resources.radio_j_per_byte,
            privacy_units=training.steps,
        ),
        limits_of(
            link_bytes_per_s=rate * resources.link_share,
            contact_s=resources.contact_s,
            examples=float(telemetry.samples) if telemetry and telemetry.samples else math.inf,
            passes=resources.passes,
            balance=balance,
            energy_j=energy,
            privacy_units_left=privacy_steps_left,
        ),
        resources.objective,
    )


class Resources:
    """What a device knows of itself: the last telemetry, the plan it allows, what was reported of it."""

    def __init__(
        self,
        size: int,
        training: TrainingRules,
        rules: ResourceRules,
        values: Precision = "byte",
        *,
        values_down: BlockPrecision = "byte",
        balance: float = 1.0,
    ) -> None:
        self._size = size
        self._values, self._values_down = values, values_down
        self._balance = balance
        self._training = training
        self._rules = rules
        self._gate = ReportGate()
        self._telemetry: Telemetry | None = None
        self._planned: tuple[float, Plan] | None = None
        self._reported: SentReport | None = None
        self._binding = ""
        self.throttle = Throttle()
        self._contact_began: float | None = None
        self._usual_contact_s = rules.contact_s

    def contact_began(self, now: float) -> None:
        """There is a link."""
        self._contact_began = now

    def contact_ended(self, now: float) -> None:
        """The link is gone: contacts are expected to last as long as the last ones did, at most `contact_s`."""
        if self._contact_began is not None:
            lasted_s = min(self._rules.contact_s, max(MIN_CONTACT_S, now - self._contact_began))
            self._usual_contact_s += CONTACT_WEIGHT * (lasted_s - self._usual_contact_s)
            self._contact_began, self._planned = None, None

    def plan(self, payable_steps: float) -> Plan:
        """Eq. 4 with what is known now, for training steps that are paid for or can be.

        It is solved anew when the telemetry changed, and at every step once the budget comes to its end.
        """
        enough = min(payable_steps, 10.0 * self._training.steps)
        if self._planned is None or self._planned[0] != enough:
            plan = plan_contact(
                self._size,
                self._telemetry,
                self._training,
                msgspec.structs.replace(self._rules, contact_s=self._usual_contact_s),
                payable_steps,
                values=self._values,
                values_down=self._values_down,
                balance=self._balance,
            )
            self._planned = (enough, plan)
        return self._planned[1]

    @property
    def telemetry(self) -> Telemetry | None:
        """The last telemetry."""
        return self._telemetry

    def steps(self, step_s: float | None = None) -> int:
        """Return the steps of one training: those of the rules, fewer where they take too long, at least one.

        `step_s` are the seconds of a step of the last training; before there was one, what telemetry says.
        """
        step_s = step_s or (self._telemetry.step_s if self._telemetry else None)
        fitting = int(self._training.longest_s / step_s + 1e-6) if step_s else self._training.steps
        return max(1, min(self._training.steps, fitting))

    def measured(self, telemetry: Telemetry, payable_steps: float) -> tuple[Telemetry, Plan | None]:
        """Take new telemetry; the report of it, and the plan if another resource limits it than before.

        A throttle comes first: while it binds, it decides how much there is to exchange.
        """
        self._telemetry, self._planned = telemetry, None
        self.throttle = throttle(telemetry, self._rules, self.throttle)
        plan = self.plan(payable_steps)
        plan = replace(plan, binding=self.throttle.reason or plan.binding)
        changed = plan.binding != self._binding
        self._binding = plan.binding
        return msgspec.structs.replace(telemetry, binding=plan.binding), plan if changed else None

    def worth_sending(self, report: Telemetry, now: float) -> bool:
        """Whether a report tells enough to be worth its bytes; it then counts as sent."""
        due = self._gate.is_due(self._reported, report, now)
        if due:
            self._reported = SentReport(report, now)
        return due
