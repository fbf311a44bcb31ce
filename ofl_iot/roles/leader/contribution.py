"""A leader's part in the rounds: under which key it contributes, and its contribution until it is confirmed.

    round opened ─▶ frozen ─▶ protected ─▶ sent in parts, again until each is confirmed ─▶ included or thawed

Algorithm 4, lines 3 to 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ofl_iot.crypto.params import LEAN
from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.lean import LeanUpload
from ofl_iot.protocol.messages import Contribution, Manifest, PartReceipt, RoundOpen
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish, SetTimer, Withdraw
from ofl_iot.roles.events import OpenBody
from ofl_iot.roles.job_kinds.keys import KeyMaterial
from ofl_iot.roles.job_kinds.rounds import LeanGround
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.part_sender import PartSender

CONTRIBUTE = "contribute"
RESEND = "leader.resend"


class Keys(Protocol):
    """Where the leader finds the joint key; whoever takes part in its making fills it."""

    @property
    def material(self) -> KeyMaterial | None:
        """The joint key, or None while there is none."""
        ...

    @property
    def sealing_private(self) -> bytes:
        """The key with which this leader seals."""
        ...


class Contributing:
    """The last round that was opened, and what is sent for it."""

    def __init__(self, me: DeviceId, keys: Keys, *, encrypted: bool, resend_s: float) -> None:
        self._me = me
        self._keys = keys
        self._encrypted = encrypted
        self._resend_s = resend_s
        self._linked = False
        self._sender: PartSender | None = None
        self._superseded = False
        """Whether parts of an earlier contribution may still wait at the link."""
        self._header = b""
        self.opened: RoundOpen | None = None

    def forget(self) -> None:
        """The leadership has ended, or begins anew."""
        self.opened = self._sender = None

    def take(self, opened: RoundOpen, cluster: ClusterModel) -> bool:
        """Take note of a round; False if this leader has no seat in it or it has passed."""
        if not any(seat.leader == self._me and seat.term == cluster.term for seat in opened.seats):
            return False
        newest = max(cluster.frozen_round, self.opened.round_no if self.opened else 0)
        if opened.round_no <= cluster.round_no or opened.round_no < newest:
            return False  # late news of an abandoned round: what is frozen belongs to its successor
        again = self.opened is not None and opened.attempt > self.opened.attempt
        if again and self._sender and cluster.frozen_round == opened.round_no:
            self._sender.restart()  # the coordinator lost what it had confirmed
        self.opened = opened
        return True

    def key_for(self, opened: RoundOpen) -> KeyMaterial | None:
        """The key that the round names; None for a round in the clear, where that is allowed."""
        if not opened.key_id:
            if self._encrypted and len(opened.seats) > 1:
                raise RefusedError(f"round {opened.round_no} asks for cluster updates in the clear")
            return None
        material = self._keys.material
        if material is None or material.key_id != opened.key_id:
            raise LateError(f"round {opened.round_no} is under a key that is not here yet")
        return material

    def ground_for(self, opened: RoundOpen, key: KeyMaterial | None, cluster: ClusterModel) -> LeanGround | None:
        """What a lean contribution stands on; None for any other round."""
        if key is None or key.opened.params != LEAN.name:
            return None
        pinned = cluster.pin.vector if cluster.pin and cluster.pin.binds(key) else ()
        return LeanGround(cluster.base, opened.bounds, opened.attempt, self._keys.sealing_private, pinned)

    def bound(self, cluster: ClusterModel) -> bool:
        """Whether the open contribution was signed for, and may be signed under the present key for that alone."""
        key = self._keys.material
        return cluster.pin is not None and key is not None and cluster.pin.binds(key)

    def open_body(self, cluster: ClusterModel) -> OpenBody | None:
        """The contribution to the open round, from when it is made until a global model ends the round."""
        key, frozen = self._keys.material, cluster.frozen
        if self._sender is None or key is None or frozen is None:
            return None
        return OpenBody(cluster.frozen_round, key.key_id, frozen.size, self._header, frozen, cluster.frozen_bounds)

    def load(self, body: bytes, cluster: ClusterModel) -> None:
        """This is the contribution of the frozen round."""
        self._header = header_in(body) if cluster.frozen_bounds else b""
        parts = split_body(body, cluster.term, cluster.frozen_round, CONTRIBUTE)
        self._superseded = self._sender is not None and not self._sender.done
        self._sender = PartSender(parts, resend_s=self._resend_s)

    def unload(self) -> None:
        """There is nothing to be sent."""
        self._sender = None

    def included_in(self, manifest: Manifest, cluster: ClusterModel) -> bool:
        """Whether a global model holds the contribution."""
        return self._sender is not None and any(
            (i.leader, i.round_no, i.digest) == (self._me, cluster.frozen_round, self._sender.digest)
            for i in manifest.included
        )

    def confirm(self, sender: DeviceId, receipt: PartReceipt, cluster: ClusterModel | None) -> bool:
        """The coordinator holds some parts: whether they are of the present contribution."""
        if sender != COORDINATOR:
            raise RefusedError(f"{sender} is not the coordinator")
        if not self._sender or not cluster or receipt.round_no != cluster.frozen_round:
            return False
        self._sender.confirm(receipt.parts)
        return True

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self._sender is None or self._sender.done or not self._linked:
            return
        if self._superseded:
            self._superseded = False
            yield Withdraw(Topic(Kind.CONTRIBUTION, self._me))
        for part in self._sender.due(now):
            yield Publish(Topic(Kind.CONTRIBUTION, self._me), part)
        yield SetTimer(RESEND, now + self._resend_s)

    def link_up(self) -> None:
        """The coordinator can be reached."""
        self._linked = True

    def link_lost(self) -> None:
        """What was under way may be lost."""
        self._linked = False
        if self._sender:
            self._sender.link_lost()


def header_in(body: bytes) -> bytes:
    """The header of a lean contribution."""
    return decode_body(LeanUpload, decode_body(Contribution, body).payload).signed.header
