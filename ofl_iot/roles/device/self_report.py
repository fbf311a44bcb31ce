"""What a device says of itself: its resources to the coordinator, and to observers how it fares.

An observer learns what keeps the device from training as a stable code, whenever that changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ofl_iot.opportunity.plan import Plan
from ofl_iot.protocol.fleet_notes import Vitals
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.phases import Activity
from ofl_iot.roles.device.privacy_guard import PrivacyGuard
from ofl_iot.roles.device.profile import DeviceProfile
from ofl_iot.roles.device.resources import ResourceRules, Resources
from ofl_iot.roles.device.training import Training
from ofl_iot.roles.device.upload import Upload
from ofl_iot.roles.events import Measured
from ofl_iot.roles.reports.device import ExchangeLimited

PAUSED, SPENT, LEDGER_LOST, NO_DATA, USER_CODE, OUTBOX = (
    "paused",
    "spent",
    "ledger-lost",
    "no-data",
    "user-code",
    "outbox",
)
MAX_WORD = 40


class SelfReport:
    """A device's telemetry and vitals, sent when they changed enough to be worth the bytes."""

    def __init__(
        self,
        profile: DeviceProfile,
        rules: ResourceRules,
        activity: Activity,
        *,
        resources: Resources,
        training: Training,
        upload: Upload,
        guard: PrivacyGuard,
        data: OwnData,
        model: LocalModel,
    ) -> None:
        self._profile, self._rules, self._activity = profile, rules, activity
        self._resources, self._training, self._upload = resources, training, upload
        self._guard, self._data, self._model = guard, data, model
        self._told: str | None = None
        """What held the device back when observers were last told; None: they are to be told anew."""
        self._told_progress: tuple[object, ...] = ()
        self._traffic = (0, 0)
        """Bytes up and down since the process began, as the last measurement told."""

    @property
    def contact_plan(self) -> Plan:
        """What a contact allows (Eq. 4)."""
        return self._resources.plan(self._payable())

    @property
    def held_back(self) -> str:
        """What keeps the device from training, as a stable code; empty if nothing does."""
        causes = (
            (bool(self._activity.paused_by), PAUSED),
            (bool(self._guard.refusal), LEDGER_LOST),
            (self._guard.exhausted, SPENT),
            (self._resources.throttle.paused, self._resources.throttle.reason),
            (bool(self._training.failure), USER_CODE),
            (self._data.waiting, NO_DATA),
            (self._upload.outbox.full, OUTBOX),
        )
        return next((code for holds, code in causes if holds), "")

    def tell_anew(self) -> None:
        """Another connection: observers may not know what they were told."""
        self._told = None

    def what_changed(self) -> Iterator[Publish]:
        """Tell observers when something else holds the device back than they know."""
        if self._activity.linked and self.held_back != self._told:
            yield self._announced()

    def measured(self, event: Measured, now: float) -> Iterator[Command]:
        """Report resources when they changed enough; tell observers of progress, too."""
        self._traffic = (event.bytes_up, event.bytes_down)
        telemetry = event.telemetry
        known = msgspec.structs.replace(
            telemetry,
            samples=self._data.announced,
            device_type=telemetry.device_type or self._profile.device_type,
            step_s=telemetry.step_s or self._guard.coarse(self._training.step_s),
            model_distance=0.0 if self._guard.perturbs else self._model.distance(),
            budget_left=self._guard.left,
        )
        report, plan = self._resources.measured(known, self._payable())
        if plan:
            up, down = round(plan.gamma_up, 4), round(plan.gamma_down, 4)
            yield ExchangeLimited(binding=plan.binding, gamma_up=up, gamma_down=down)
        if self._activity.linked and self._resources.worth_sending(report, now):
            yield Publish(Topic(Kind.TELEMETRY, self._profile.device), report, qos=0)
            yield self._announced()
        elif self._activity.linked and self._progress() != self._told_progress:
            yield self._announced()

    def _progress(self) -> tuple[object, ...]:
        """What an observer would like to know of at the next measurement, though no resource changed."""
        outbox = self._upload.outbox
        return (outbox.next_seq, len(outbox.unsettled), self._model.round_no, round(self._guard.left, 2))

    def _announced(self) -> Publish:
        self._told, self._told_progress = self.held_back, self._progress()
        return Publish(Topic(Kind.VITALS, self._profile.device), self.vitals(), retain=True)

    def _payable(self) -> float:
        """Steps already paid for may leave even when the budget is spent."""
        return self._guard.steps_left + self._upload.steps

    def vitals(self) -> Vitals:
        """Return how the device fares now."""
        plan, measured, outbox = self.contact_plan, self._resources.telemetry, self._upload.outbox
        return Vitals(
            version=self._profile.software[:MAX_WORD],
            outbox_chunks=len(outbox.unsettled),
            outbox_bytes=outbox.held_bytes,
            outbox_limit_bytes=outbox.max_bytes,
            sent_chunks=outbox.next_seq - 1,
            gamma_up=min(1.0, max(0.0, plan.gamma_up)),
            gamma_down=min(1.0, max(0.0, plan.gamma_down)),
            binding=plan.binding[:MAX_WORD],
            budget_left=min(1.0, max(0.0, self._guard.left)),
            round_no=self._model.round_no,
            held_back=self.held_back,
            error=error_class(self._training.failure) if self._training.failure else "",
            failures=self._training.failures,
            network_mbps=measured.network_mbps if measured else None,
            round_trip_s=measured.round_trip_s if measured else None,
            availability=measured.availability if measured else 1.0,
            temperature_c=measured.temperature_c if measured else None,
            max_temperature_c=min(200.0, self._rules.max_temperature_c),
            battery=measured.battery if measured else None,
            power_w=measured.power_w if measured else None,
            cpu_load=measured.cpu_load if measured else None,
            memory_free_mib=measured.memory_free_mib if measured else None,
            step_s=measured.step_s if measured else None,
            bytes_up=self._traffic[0],
            bytes_down=self._traffic[1],
            paused_by=self._activity.paused_by,
        )


def error_class(reason: str) -> str:
    """Return the name of the exception class in front of a failure's text; the text stays on the device."""
    name = reason.partition(":")[0].strip()
    return name[:MAX_WORD] if name.isidentifier() else "Exception"
