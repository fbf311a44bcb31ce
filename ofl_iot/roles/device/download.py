"""How a device gets its leader's model: it pulls the stalest blocks, one pull at a time, with a deadline.

Where leaders publish changes, a device in step with them pulls nothing: after a release it waits for the next change.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ofl_iot.errors import LateError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Blocks, ClusterChange, Pull
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Publish, SetTimer
from ofl_iot.roles.device.following import Following
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.phases import PULL, Activity
from ofl_iot.roles.device.pull_pace import PullPace
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
        following: Following,
    ) -> None:
        self._me, self._rules, self._model, self._activity = me, rules, model, activity
        self._following = following
        self._reported = False
        """Whether what is waited for is the next change and not an answer."""
        self._pace = PullPace(rules.timeout_s)

    def pull(self, now: float) -> Iterator[Command]:
        """Ask the leader for the stalest blocks, unless it is being asked or an answer may still be on its way.

        Who has no whole model keeps a timer for asking again.
        """
        assignment = self._activity.assignment
        if not self._activity.linked or assignment is None or self._activity.pulling:
            return
        if now < self._pace.not_before:
            if not self._model.complete:
                yield SetTimer(PULL, self._pace.not_before)
            return
        blocks = self._model.layout.count
        share = self._following.share(self._rules.gamma)
        most = blocks if not self._model.complete else int(np.ceil(share * blocks))
        if not self._following.follows:  # who follows is in step only with all blocks of one answer
            most = self._pace.limit(most)
        if most:
            self._activity.pulling = True
            self._pace.asked(now)
            seen, follower = self._model.seen.astype("<f8").tobytes(), self._following.begin_pull()
            pull = Pull(assignment.term, seen, most, packed=True, follower=follower, segmented=True)
            yield Publish(Topic(Kind.PULL, self._me, DeviceId(assignment.leader)), pull)
            yield self._deadline(now)

    def after_release(self, now: float) -> Iterator[Command]:
        """Pull; a device in step tells instead that it has sent what it had, and waits a while for the next change."""
        assignment = self._activity.assignment
        if not self._following.in_step or assignment is None:
            yield from self.pull(now)
        elif self._activity.linked and not self._activity.pulling:
            self._activity.pulling = self._reported = True
            report = Pull(assignment.term, b"", 0, packed=True, follower=self._following.report())
            yield Publish(Topic(Kind.PULL, self._me, DeviceId(assignment.leader)), report)
            yield SetTimer(PULL, now + self._following.wait_s)

    def change(self, message: ClusterChange, now: float) -> Iterator[Command]:
        """Take in a part of a change; a gap is pulled."""
        assignment = self._activity.assignment
        following, was_in_step = self._following, self._following.in_step
        complete = following.change(message, assignment.term if assignment else 0)
        if complete and self._reported:
            yield from self.stop()
        elif was_in_step and not following.in_step:
            if self._reported:
                yield from self.stop()
            yield from self.pull(now)

    def blocks(self, message: Blocks, now: float) -> Iterator[Command]:
        """Take in blocks; the last of an answer ends the pull."""
        assignment = self._activity.assignment
        if assignment is None or message.term != assignment.term:
            raise LateError(f"blocks of term {message.term}, this device is in {assignment.term if assignment else 0}")
        if self._following.takes(message):
            for batch in message.read_batches():
                self._model.downloaded(batch, message.round_no)
                self._pace.came(batch.count)
            self._following.blocks(message)
        if message.last and not self._reported:
            self._pace.answered(now)
            if self._model.complete:
                yield ModelDownloaded(message.round_no)
            yield from self.stop()
            if not self._model.complete:
                yield from self.pull(now)
        elif self._activity.pulling and not self._reported:
            yield self._deadline(now)  # more is coming in

    def stop(self) -> Iterator[Command]:
        """Wait no longer: the answer came, or will not come."""
        self._pace.begin_anew()
        if self._activity.pulling:
            self._activity.pulling = self._reported = False
            yield CancelTimer(PULL)

    def unanswered(self, now: float) -> Iterator[Command]:
        """Give this pull up at its deadline."""
        if not self._activity.pulling:
            return
        self._activity.pulling = False
        if self._reported:
            self._reported = False
            return
        self._pace.unanswered(now)
        assignment = self._activity.assignment
        yield PullUnanswered(leader=assignment.leader if assignment else "")

    def _deadline(self, now: float) -> SetTimer:
        return SetTimer(PULL, now + self._rules.timeout_s)
