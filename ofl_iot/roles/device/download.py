"""How a device gets its leader's model: it pulls the stalest blocks, one pull at a time, with a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ofl_iot.errors import LateError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Blocks, Pull
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Publish, SetTimer
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.phases import PULL, Activity
from ofl_iot.roles.reports.device import ModelDownloaded, PullUnanswered
from ofl_iot.roles.settings import DownloadRules


class Download:
    """The pulls of one device."""

    def __init__(
        self,
        me: DeviceId,
        rules: DownloadRules,
        model: LocalModel,
        activity: Activity,
        gamma_down: Callable[[], float],
    ) -> None:
        """`gamma_down` returns the share of the model that the next contact allows."""
        self._me, self._rules, self._model, self._activity = me, rules, model, activity
        self._gamma_down = gamma_down

    def pull(self, now: float) -> Iterator[Command]:
        """Ask the leader for the stalest blocks, unless it is being asked."""
        assignment = self._activity.assignment
        if not self._activity.linked or assignment is None or self._activity.pulling:
            return
        blocks = self._model.layout.count
        share = min(self._rules.gamma, self._gamma_down())
        most = blocks if not self._model.complete else int(np.ceil(share * blocks))
        if most:
            self._activity.pulling = True
            pull = Pull(assignment.term, self._model.seen.astype("<f8").tobytes(), most, packed=True)
            yield Publish(Topic(Kind.PULL, self._me, DeviceId(assignment.leader)), pull)
            yield self._deadline(now)

    def blocks(self, message: Blocks, now: float) -> Iterator[Command]:
        """Take in blocks; the last of an answer ends the pull."""
        assignment = self._activity.assignment
        if assignment is None or message.term != assignment.term:
            raise LateError(f"blocks of term {message.term}, this device is in {assignment.term if assignment else 0}")
        for batch in message.read_batches():
            self._model.downloaded(batch, message.round_no)
        if message.last:
            if self._model.complete:
                yield ModelDownloaded(message.round_no)
            yield from self.stop()
        elif self._activity.pulling:
            yield self._deadline(now)  # more is coming in

    def stop(self) -> Iterator[Command]:
        """Wait no longer: the answer came, or will not come."""
        if self._activity.pulling:
            self._activity.pulling = False
            yield CancelTimer(PULL)

    def unanswered(self) -> Iterator[Command]:
        """Give this pull up at its deadline."""
        self._activity.pulling = False
        assignment = self._activity.assignment
        yield PullUnanswered(leader=assignment.leader if assignment else "")

    def _deadline(self, now: float) -> SetTimer:
        return SetTimer(PULL, now + self._rules.timeout_s)
