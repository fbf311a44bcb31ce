"""One device as the coordinator knows it: its announcement, its resources, what was observed of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ofl_iot.fleet.assignment import DeviceView
from ofl_iot.fleet.trust import Evidence
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Observation, Status
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.roles.coordinator.settled_record import SettledRecord
from ofl_iot.roles.leader.observation import ContactWindow
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.roles.storage import Put

KNOWN = "coordinator.known"
CONTACT_S = 300.0
"""Contact is judged over windows of at least this length."""
_UNREPORTED = Telemetry(cpu_count=1, cpu_ghz=1.0, cpu_load=0.0, memory_total_mib=1024, memory_free_mib=512)
"""Stands in for a device whose first report has not come: modest, so that it is not made a leader."""


@dataclass
class DeviceRecord:
    """One device as the coordinator knows it."""

    status: Status
    online: bool
    since: float
    """When it was last heard of, or went offline."""
    contact: ContactWindow
    telemetry: Telemetry = _UNREPORTED
    books: SettledRecord = field(default_factory=SettledRecord)
    evidence: Evidence = field(default_factory=Evidence)
    news: bool = False
    """Whether report or evidence changed since they were last stored."""

    @property
    def settled(self) -> SeqSet:
        """The chunks of its present store that the global model holds."""
        return self.books.settled

    @property
    def view(self) -> DeviceView:
        """As the planning of the fleet sees it."""
        return DeviceView(self.telemetry, self.evidence)

    def announced(self, status: Status, now: float) -> bool:
        """Take an announcement that is not the first; return whether key or certificate are others than before."""
        known = self.status
        if not status.sealing_key:  # a last will was written before the key was made
            status = msgspec.structs.replace(status, sealing_key=known.sealing_key, certificate=known.certificate)
        self.contact.count(now, online=self.online)
        if status.online or self.online:
            self.since = now
        self.status, self.online = status, status.online
        return (status.sealing_key, status.certificate) != (known.sealing_key, known.certificate)

    def observed(self, seen: Observation, training: TrainingRules) -> None:
        """Take in what the device's leader saw of it.

        What comes out of a broker's queue looks faster than it was sent, so an observation above the device's own claim
        is no evidence against the claim and counts as the claim.
        """
        report, evidence = self.telemetry, self.evidence
        if seen.trainings:
            seconds = max(1e-3, seen.training_s - training.pause_s, training.steps * (report.step_s or 0.0))
            evidence = evidence.with_training(training.steps, seconds)
        if seen.size_bytes:
            claimed_s = seen.size_bytes * 8e-6 / report.network_mbps if report.network_mbps else 0.0
            evidence = evidence.with_arrival(seen.size_bytes, max(seen.arrival_s, claimed_s))
        self.evidence, self.news = evidence, True

    def take_stock(self, device: DeviceId, now: float, *, at_once: bool) -> Iterator[Put]:
        """Close the contact window if it is long enough, or `at_once`; yield what makes news of the device durable."""
        window = self.contact
        window.count(now, online=self.online)
        if window.length_s >= (1.0 if at_once else CONTACT_S):
            self.evidence = self.evidence.with_contact(window.online_s, window.length_s)
            self.contact, self.news = ContactWindow.open(now), True
        if self.news:
            self.news = False
            yield Put(KNOWN, device, msgspec.msgpack.encode(Knowledge(self.telemetry, self.evidence)))

    def restore(self, row: bytes) -> None:
        """Take up what `take_stock` made durable."""
        knowledge = msgspec.msgpack.decode(row, type=Knowledge)
        self.telemetry, self.evidence = knowledge.telemetry, knowledge.evidence


class Knowledge(msgspec.Struct, frozen=True, array_like=True):
    """A device's last report and what was observed of it, as they are stored."""

    telemetry: Telemetry
    evidence: Evidence
