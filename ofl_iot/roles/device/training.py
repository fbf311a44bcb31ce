"""When a device trains, on what, and what becomes of the result."""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.errors import PrivacyError
from ofl_iot.privacy.planning import ROUNDED_UP
from ofl_iot.protocol.values import bounded
from ofl_iot.roles.backoff import backoff_s
from ofl_iot.roles.commands import Command, Compute, Persist, SetTimer
from ofl_iot.roles.device.ledger_watch import LedgerWatch
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.phases import REST, Activity, Obstacles, Phase, phase_of
from ofl_iot.roles.device.presence import Presence
from ofl_iot.roles.device.privacy_guard import PrivacyGuard
from ofl_iot.roles.device.resources import Resources
from ofl_iot.roles.device.upload import Upload
from ofl_iot.roles.events import JobFailed, Trained
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import LookAtData, OpenLedger, TrainLocally
from ofl_iot.roles.reports.base import JobFailure
from ofl_iot.roles.reports.device import BudgetSpent, DataFound, TrainingDiscarded, TrainingDiverged, WaitingForData
from ofl_iot.roles.settings import TrainingRules

_RETRY_S = 5.0
_LONGEST_RETRY_S = 600.0


class Training:
    """The trainings of one device: `advance` begins one in the phases that allow it."""

    def __init__(
        self,
        rules: TrainingRules,
        activity: Activity,
        *,
        model: LocalModel,
        guard: PrivacyGuard,
        data: OwnData,
        resources: Resources,
        upload: Upload,
        ledger: LedgerWatch,
        presence: Presence,
    ) -> None:
        self.rules = rules
        self._activity, self._model, self._guard, self._data = activity, model, guard, data
        self._resources, self._upload, self._ledger, self._presence = resources, upload, ledger, presence
        self._failure: tuple[type[Job], str] | None = None
        """The last job that failed and why, until one succeeds."""
        self._failures = 0
        """How often that job failed again for the same reason."""
        self.step_s: float | None = None
        """Seconds that a step of the last training took."""

    @property
    def failure(self) -> str:
        """Why the last job failed, until one succeeds."""
        return self._failure[1] if self._failure else ""

    @property
    def failures(self) -> int:
        """How often the same job has failed in a row."""
        return self._failures + 1 if self._failure else 0

    @property
    def phase(self) -> Phase:
        """Return why the device trains, or the foremost reason why it does not."""
        obstacles = Obstacles(
            model_incomplete=not self._model.complete,
            refused=bool(self._guard.refusal),
            spent=self._guard.exhausted,
            paused=self._resources.throttle.paused or bool(self._activity.paused_by),
            backlogged=self._upload.trainings_since_release >= self.rules.max_unreleased,
        )
        return phase_of(self._activity, obstacles)

    def advance(self, now: float) -> Iterator[Command]:
        """Begin the next training if this phase allows it; whatever ends another phase calls here again."""
        if not self.phase.may_begin:
            return
        guard = self._guard
        steps = guard.due(self._resources.steps(self.step_s), self._model.round_no, now)
        self._activity.awaiting_round = not steps
        if not steps:
            if (at := guard.next_due(now)) is not None:
                yield from self.rest(at - now, now)
        elif self._data.must_look:
            yield self._begin(LookAtData())
        elif guard.needs_plan(self._data, self.rules.batch_size):
            yield from self._ledger.open(now)
        else:
            yield from self._pay_and_train(steps)

    def _pay_and_train(self, steps: int) -> Iterator[Command]:
        guard = self._guard
        try:
            paid = guard.pay_training(steps)
        except PrivacyError as error:
            yield BudgetSpent(reason=str(error))
            return
        self._data.used()
        if paid:
            yield Persist(tuple(paid))
        plan, announced = guard.plan(self._data.announced), self._data.announced
        divisor = max(1, round(plan.sampling_rate * ROUNDED_UP * announced)) if plan else 0
        start = self._model.start_training()
        yield self._begin(TrainLocally(start, steps, guard.noise_multiplier, guard.sampling_rate, plan, divisor))

    def _begin(self, job: LookAtData | TrainLocally) -> Compute:
        self._activity.job = type(job)
        return Compute(job)

    def rest(self, seconds: float, now: float) -> Iterator[Command]:
        """Train again in so many seconds, at the earliest."""
        self._activity.resting = True
        yield SetTimer(REST, now + seconds)

    def rested(self, now: float) -> Iterator[Command]:
        """Go on when the timer fires."""
        self._activity.resting = False
        yield from self.advance(now)

    def keeps(self, event: Trained, now: float) -> Iterator[Command]:
        """Refuse a result that diverged or sampled more than was paid for; yield nothing if it is to be kept."""
        self._activity.job, self._failure = None, None
        if not bounded(event.params):
            yield TrainingDiverged(loss=event.loss)
            yield from self._paid_back()
            yield from self.rest(_RETRY_S, now)
        elif not self._guard.keeps(event.sampling_rate):
            yield TrainingDiscarded(sampling_rate=event.sampling_rate)
            yield from self.rest(_RETRY_S, now)

    def kept(self, event: Trained) -> None:
        """Add the result to the unreleased work."""
        self._model.trained(event.start, event.params)
        self._upload.trained(event.steps)
        self.step_s = max(1e-9, event.seconds / max(1, event.steps))

    def pause(self, event: Trained, now: float) -> Iterator[Command]:
        """Rest after a training as the settings and the throttle ask."""
        if rest_s := self.rules.pause_s + self._resources.throttle.rest_s(event.seconds):
            yield from self.rest(rest_s, now)

    def looked(self, records: int, now: float) -> Iterator[Command]:
        """Go on with what there is to train on; without anything, look again later."""
        self._activity.job = None
        self._data.found(records)
        if self._data.begins_waiting():
            yield WaitingForData()
        if self._data.must_announce():
            yield DataFound(records=records)
            yield from self._presence.announce_if_linked(now)
        if not records:
            yield from self.rest(_RETRY_S, now)
        yield from self.advance(now)

    def failed(self, event: JobFailed, now: float) -> Iterator[Command]:
        """Try again later; the same failure is told once, and each time the pause is twice as long."""
        if event.job is OpenLedger:
            self._activity.opening = False
        else:
            self._activity.job = None
            yield from self._discarded(event, now)
        failure = (event.job, event.reason)
        self._failures = self._failures + 1 if failure == self._failure else 0
        if failure != self._failure:
            yield JobFailure(job=event.job.__name__, reason=event.reason)
        self._failure = failure
        yield from self.rest(backoff_s(_RETRY_S, self._failures, _LONGEST_RETRY_S), now)

    def _discarded(self, failed: JobFailed, now: float) -> Iterator[Command]:
        """Refund a training that failed; where the data changed, have the budget planned anew."""
        if failed.job is TrainLocally:
            yield from self._paid_back()
            if issubclass(failed.error, PrivacyError) and not self._guard.needs_ledger:
                self._guard.reopen()
                yield from self._ledger.open(now)

    def _paid_back(self) -> Iterator[Command]:
        if ops := self._guard.discarded():
            yield Persist(tuple(ops))
