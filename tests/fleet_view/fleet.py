"""A fleet that talks to an observer: messages as parties publish them, at times that a test chooses."""

from __future__ import annotations

from typing import Any

from ofl_iot.fleet_view.observer import Observer
from ofl_iot.fleet_view.records import Past
from ofl_iot.fleet_view.view import BrokerView, DeviceView, FleetView
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.fleet_notes import ClusterNote, ContributionNote, Refusal, RoundNote, Vitals
from ofl_iot.protocol.messages import Card, Message, RoundOpen, Seat, Status
from ofl_iot.protocol.model_card import ModelCard, TensorCard, encode_card
from ofl_iot.protocol.topics import Kind, Topic

BEGAN_S = 1_800_000_000.0
CARD = ModelCard(app="digits", tensors=(TensorCard("w", (100,)),), loss="cross-entropy", version="1")
OTHER = bytes(8)
MEMBERS = ("truck-1", "truck-2", "truck-3", "truck-4")


class Fleet:
    """Four devices in two clusters, led by truck-1 and truck-3."""

    def __init__(self, past: Past | None = None, *, settle: bool = True) -> None:
        self.now = BEGAN_S
        self.observer = Observer("depot", self.now, past)
        self.observer.linked(BrokerView(host="broker"), self.now)
        if settle:
            self.say(Kind.CARD, COORDINATOR, Card(encode_card(CARD)))
            for name in MEMBERS:
                self.status(name)
                self.vitals(name)
            self.cluster(0, "truck-1", "truck-2")
            self.cluster(1, "truck-3", "truck-4")

    def say(self, kind: Kind, sender: str, message: Message, receiver: str = "", **more: Any) -> None:
        topic = Topic(kind, DeviceId(sender), DeviceId(receiver) if receiver else None, more.pop("index", 0))
        payload = encode(message)
        self.observer.arrived(topic, decode(kind, payload), len(payload), self.now, **more)

    def status(self, name: str, *, online: bool = True, model: bytes = CARD.digest, **more: Any) -> None:
        retained = more.pop("retained", False)
        status = Status(online, 1, 120, model, 100, **{"device_type": "nano", "software": "0.2.0", **more})
        self.say(Kind.STATUS, name, status, retained=retained)

    def vitals(self, name: str, *, retained: bool = False, **more: Any) -> None:
        self.say(Kind.VITALS, name, Vitals(**{"version": "0.2.0", "gamma_up": 0.1, **more}), retained=retained)

    def cluster(self, index: int, leader: str, *others: str, clusters: int = 2, **more: Any) -> None:
        term, reason = more.pop("term", 1), more.pop("reason", "clustered")
        note = ClusterNote(clusters, term, leader, (leader, *others), reason=reason, previous=more.pop("previous", ""))
        self.say(Kind.CLUSTER_NOTE, COORDINATOR, note, index=index, **more)

    def refuse(self, by: str, name: str, code: str, reason: str = "why", dropped: int = 1) -> None:
        self.say(Kind.REFUSAL, by, Refusal(code, reason, dropped), receiver=name)

    def open_round(self, number: int, *leaders: str, **more: Any) -> None:
        seats = tuple(Seat(name, 1) for name in leaders)
        self.say(Kind.ROUND_OPEN, COORDINATOR, RoundOpen(number, 0, seats, number - 1, 60.0, b"k" * 16), **more)

    def end_round(self, number: int, parts: dict[str, tuple[str, ...]], **more: Any) -> None:
        said = {name: more.pop(name) for name in ("retained",) if name in more}
        contributions = tuple(
            ContributionNote(leader, 1, "included", 1 / len(parts), len(names), 3, 100, 1.0, contributors=names)
            for leader, names in parts.items()
        )
        note = RoundNote(
            **{
                "round_no": number,
                "attempt": 0,
                "closed": True,
                "encrypted": True,
                "contributions": contributions,
                "collect_s": 3.0,
                "aggregate_s": 1.0,
                "version": "0.2.0",
                **more,
            }
        )
        self.say(Kind.ROUND_NOTE, COORDINATOR, note, **said)

    def later(self, seconds: float) -> None:
        """Let time pass, a second a tick."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.observer.tick(self.now)

    def view(self) -> FleetView:
        return self.observer.view(self.now)

    def device(self, name: str) -> DeviceView:
        found = self.view().device(name)
        assert found is not None
        return found
