"""The devices of a cluster as their leader knows them: what each may send, and how much."""

from __future__ import annotations

from collections.abc import Iterable

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Member
from ofl_iot.protocol.seqset import MAX_RUNS, MAX_STEP, SeqSet
from ofl_iot.robust.claims import CLUSTER_RATIO, believable
from ofl_iot.roles.allowance import Allowance

LEAST_PULL_BYTES = 2**20
"""A second; smaller models may be pulled more often than once."""


class Membership:
    """The members of the present assignment."""

    def __init__(self) -> None:
        self.samples: dict[str, int] = {}
        """Sample counts by device, as far as they are believable."""
        self._next_seq: dict[str, int] = {}
        """Numbers that devices announced for their next chunks."""
        self._pulls: dict[str, Allowance] = {}

    def take(self, members: Iterable[Member]) -> None:
        """These are the members from now on."""
        each = tuple(members)
        self.samples = believable({member.device: member.sample_count for member in each}, CLUSTER_RATIO)
        self._next_seq = {member.device: member.next_seq for member in each}
        self._pulls = {device: pulls for device, pulls in self._pulls.items() if device in self.samples}

    def __contains__(self, device: str) -> bool:
        return device in self.samples

    def check(self, device: DeviceId) -> None:
        """Raise LateError for a device of another cluster."""
        if device not in self.samples:
            raise LateError(f"{device} is not in this cluster")

    def check_pull(self, device: DeviceId, answer_bytes: float, model_bytes: float, now: float) -> None:
        """Raise RefusedError if a device pulls more than it can use: four models at once, then one a second."""
        per_second = max(model_bytes, LEAST_PULL_BYTES)
        allowance = self._pulls.setdefault(device, Allowance(burst=4 * per_second, rate=per_second))
        if not allowance.spend(answer_bytes, now):
            raise RefusedError(f"{device} pulls faster than {per_second:.0f} bytes a second", "flood")

    def check_number(self, device: DeviceId, seq: int, settled: SeqSet, held: SeqSet) -> None:
        """Raise RefusedError for a chunk number that is far ahead, or leaves too many gaps behind it.

        The coordinator refuses the whole contribution for such a number, so its device must not bring it in.
        """
        limit = max(settled.highest, self._next_seq[device]) + MAX_STEP
        if seq > limit:
            raise RefusedError(f"chunk {seq} of {device}, which may number its chunks up to {limit}", "flood")
        if seq > held.highest + 1 and held.runs >= MAX_RUNS:
            raise RefusedError(f"chunk {seq} of {device} leaves another gap behind {held.runs} others", "flood")
