"""What a device announces of itself, and how its model differs from the federation's."""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.protocol.fields import MAX_TEXT
from ofl_iot.protocol.messages import Card, Status
from ofl_iot.protocol.model_card import decode_card, difference
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.device.outbox import Outbox
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.phases import Activity
from ofl_iot.roles.device.privacy_guard import PrivacyGuard
from ofl_iot.roles.device.profile import DeviceProfile
from ofl_iot.roles.reports.device import ModelDiffers
from ofl_iot.roles.store_identity import StoreIdentity


class Presence:
    """The retained status of one device."""

    def __init__(
        self,
        profile: DeviceProfile,
        activity: Activity,
        *,
        data: OwnData,
        guard: PrivacyGuard,
        outbox: Outbox,
        store: StoreIdentity,
    ) -> None:
        self._profile, self._activity, self._store = profile, activity, store
        self._data, self._guard, self._outbox = data, guard, outbox
        self.sealing_key = b""
        """X25519 public key of the device's key holder."""
        self.certificate = b""
        """X.509 certificate (DER) for that key; empty if the device is not enrolled."""
        self._difference = ""

    def status(self, now: float, *, online: bool) -> Status:
        """Return the device's announcement; the offline form is its last will."""
        assignment = self._activity.assignment
        return Status(
            online=online,
            term=assignment.term if assignment else 0,
            sample_count=self._data.announced,
            model=self._profile.model,
            size=self._profile.size,
            device_type=self._profile.device_type,
            sealing_key=self.sealing_key,
            certificate=self.certificate,
            store=self._store.id,
            next_seq=self._outbox.next_seq,
            difference=self._difference,
            privacy=self._guard.words(now),
            software=self._profile.software,
        )

    def announce(self, now: float, *, online: bool = True) -> Publish:
        """Publish the status, whatever the link."""
        return Publish(Topic(Kind.STATUS, self._profile.device), self.status(now, online=online), retain=True)

    def announce_if_linked(self, now: float) -> Iterator[Command]:
        """Publish the status where there is a link; without one, the next link publishes it."""
        if self._activity.linked:
            yield self.announce(now)

    def compare(self, card: Card, now: float) -> Iterator[Command]:
        """Tell here and, with the next announcement, there, how this device's model differs from the federation's."""
        before, self._difference = self._difference, ""
        if card.model != self._profile.card:
            self._difference = difference(decode_card(self._profile.card), decode_card(card.model))[:MAX_TEXT]
        if self._difference != before:
            if self._difference:
                yield ModelDiffers(difference=self._difference)
            yield from self.announce_if_linked(now)
