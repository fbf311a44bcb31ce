"""Leaders and a coordinator that make a key and decrypt together, with or without a decryptor.

Real cryptographic jobs, and a post that misbehaves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId, FederationId
from ofl_iot.jobs.coordinator_crypto import CoordinatorCrypto
from ofl_iot.jobs.decrypt import DecryptorCrypto
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.jobs.toolbox import Tools, run_job
from ofl_iot.protocol.key_messages import KeyMember
from ofl_iot.protocol.messages import Message, Part, PartReceipt, RoundOpen
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import Machine, collect
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Persist, Publish, SetTimer
from ofl_iot.roles.decryption.decryptor import DecryptorMachine
from ofl_iot.roles.decryption.remote import RemoteDecryption
from ofl_iot.roles.decryption.requester import DEADLINE, Decryption, RoundDecryption, SealedRound
from ofl_iot.roles.events import (
    Arrived,
    ContributionProtected,
    DecryptionRequested,
    Event,
    JobFailed,
    KeysMade,
    LinkUp,
    OpenBody,
    RoundAggregated,
    Started,
    TimerFired,
)
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import (
    AnswerDecryption,
    AnswerLean,
    BeginKeys,
    FinalDecrypt,
    FinishKeys,
    MakeKeys,
    MakeSealingKey,
    ServerDecrypt,
)
from ofl_iot.roles.job_kinds.lean import FinishLean, OpenLean, PrepareLean, ScoreLean, WeighLean
from ofl_iot.roles.job_kinds.rounds import Contributed, FinishRound, ProtectContribution, ScoreRound, WeighRound
from ofl_iot.roles.keys.ceremony import KeyCeremony
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.runtime.store import MemoryStore

FEDERATION = FederationId("circle")
RULES = ProtectionRules(
    params="main", s_factor="mean", key_deadline_s=60.0, decryption_deadline_s=30.0, resend_s=2.0, threshold="majority"
)
SIZE = 40


def names(count: int) -> list[DeviceId]:
    return [DeviceId(f"leader-{number}") for number in range(count)]


def tools_of(seed: int, rules: ProtectionRules = RULES) -> Tools:
    leader = LeaderCrypto(FEDERATION, rules, SeededEntropy(seed))
    coordinator = CoordinatorCrypto(FEDERATION, rules, SeededEntropy(seed))
    decryptor = DecryptorCrypto(FEDERATION, SeededEntropy(seed))
    return {
        MakeSealingKey: leader.make_sealing_key,
        BeginKeys: leader.begin_keys,
        FinishKeys: leader.finish_keys,
        AnswerDecryption: leader.answer,
        ProtectContribution: leader.protect,
        AnswerLean: leader.lean.answer,
        PrepareLean: coordinator.lean.prepare,
        ScoreLean: coordinator.lean.score,
        WeighLean: coordinator.lean.weigh,
        OpenLean: coordinator.lean.open,
        FinishLean: coordinator.lean.finish,
        MakeKeys: coordinator.make_keys,
        ScoreRound: coordinator.score,
        WeighRound: coordinator.weigh,
        FinishRound: coordinator.finish,
        ServerDecrypt: decryptor.server_decrypt,
        FinalDecrypt: decryptor.final_decrypt,
    }


@dataclass
class Contribution:
    """What a leader contributed, as its keeper sees it."""

    open_body: OpenBody | None = None
    pin: tuple[tuple[str, int], ...] | None = None


class Office:
    """The coordinator as far as keys and decryption go."""

    def __init__(self, rules: ProtectionRules) -> None:
        self.maker = KeyCeremony(rules)
        self.decryption: RoundDecryption | None = None
        self.result: RoundAggregated | None = None
        self.failures: list[JobFailed] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        return collect(self._decide(event, now), event)

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            self.maker.restore(event.stored)
            yield from self.maker.resume(now)
        elif isinstance(event, Arrived):
            assert isinstance(event.message, Part | PartReceipt)
            if event.topic.kind is Kind.KEYS:
                yield from self.maker.receive(event.topic.sender, event.message, now)
            elif self.decryption:
                yield from self.decryption.receive(event.topic.sender, event.message, now)
        elif isinstance(event, KeysMade):
            yield from self.maker.made(event)
            yield from self.maker.install()
        elif isinstance(event, DecryptionRequested):
            assert self.decryption is not None
            yield from self.decryption.requested(event, now)
        elif isinstance(event, RoundAggregated):
            self.result = event
        elif isinstance(event, JobFailed):
            self.failures.append(event)
            if self.decryption and (event.culprits or event.suspects):
                yield from self.decryption.failed(event)
        elif isinstance(event, TimerFired):
            yield from self._timer(event.name, now)

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == DEADLINE and self.decryption:
            yield from self.decryption.deadline(now)
        elif name.startswith("coordinator.decryption") and self.decryption:
            yield from self.decryption.send_due(now)
        elif name == "coordinator.keys.resend":
            yield from self.maker.send_due(now)
        elif name == "coordinator.keys.deadline" and not self.maker.expired(now):
            yield from self.maker.overdue(now)


Fate = Callable[[str, str, Message], int]
"""How often a message from a sender to a receiver arrives."""


@dataclass
class Circle:
    """Some leaders, their coordinator, and the post between them."""

    leaders: list[DeviceId]
    seed: int = 0
    rules: ProtectionRules = RULES
    fate: Fate = lambda _from, _to, _message: 1
    shuffled: bool = False
    now: float = 0.0
    keepers: dict[str, KeyHolder] = field(default_factory=dict)
    bodies: dict[str, Contribution] = field(default_factory=dict)
    told: list[tuple[str, Report]] = field(default_factory=list)
    done: list[tuple[str, Job]] = field(default_factory=list)
    """Jobs that were run, by party."""
    sent: list[tuple[str, Topic, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._post: list[tuple[str, Event]] = []
        everyone = [*self.leaders, COORDINATOR, DECRYPTOR]
        self.stores: dict[str, MemoryStore] = {name: MemoryStore() for name in everyone}
        self.timers: dict[str, dict[str, float]] = {name: {} for name in everyone}
        self.tools = {name: tools_of(100 * self.seed + number, self.rules) for number, name in enumerate(everyone)}
        self.office = Office(self.rules)
        self.decryptor = DecryptorMachine(self.rules)
        for name in [*self.leaders, DECRYPTOR]:
            self.restart(name)
        self.deliver()

    # --- lives

    def restart(self, name: str) -> None:
        """A new process with what the old one stored; what it knew otherwise is gone."""
        self.timers[name] = {}
        if name == COORDINATOR:
            self.office = Office(self.rules)
        elif name == DECRYPTOR:
            self.decryptor = DecryptorMachine(self.rules)
        else:
            self.keepers[name] = KeyHolder(DeviceId(name), self.rules.resend_s, self.rules.server)
            self.keepers[name].bodies = self.bodies.setdefault(name, Contribution())
        self.give(name, Started(self.stores[name].load()))
        self.give(name, LinkUp())

    def give(self, name: str, event: Event) -> list[Command]:
        machines: dict[str, Machine] = {COORDINATOR: self.office, DECRYPTOR: self.decryptor, **self.keepers}
        commands = machines[name].handle(event, self.now)
        self.carry_out(name, commands)
        return commands

    def carry_out(self, name: str, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Publish):
                self._send(name, command)
            elif isinstance(command, Persist):
                self.stores[name].apply(command.ops)
            elif isinstance(command, SetTimer):
                self.timers[name][command.name] = command.at
            elif isinstance(command, CancelTimer):
                self.timers[name].pop(command.name, None)
            elif isinstance(command, Compute):
                self.done.append((name, command.job))
                self._post.append((name, run_job(self.tools[name], command.job)))
            elif isinstance(command, Report):
                self.told.append((name, command))

    def _send(self, name: str, command: Publish) -> None:
        assert not isinstance(command.message, bytes)
        receiver = command.topic.receiver or (self.rules.server if command.topic.kind is Kind.SHARE else COORDINATOR)
        self.sent.append((name, command.topic, command.message))
        for _ in range(self.fate(name, receiver, command.message)):
            self._post.append((receiver, Arrived(command.topic, command.message)))

    # --- time

    def deliver(self) -> None:
        """Until nothing is under way."""
        while self._post:
            at = self._rng.randrange(len(self._post)) if self.shuffled else 0
            self.give(*self._post.pop(at))

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, timers fire and the post arrive."""
        end = self.now + seconds
        self.deliver()
        while not until():
            due = [(at, name, timer) for name, timers in self.timers.items() for timer, at in timers.items()]
            if not due or min(due)[0] > end:
                break
            self.now, name, timer = min(due)
            del self.timers[name][timer]
            self.give(name, TimerFired(timer))
            self.deliver()
        self.now = max(self.now, end) if not until() else self.now

    # --- what is done together

    def make_key(self, term: int = 1, members: Iterable[str] | None = None, wait_s: float = 50.0) -> bool:
        called = tuple(
            KeyMember(name, self.keepers[name].sealing_public, self.keepers[name].certificate)
            for name in sorted(members or self.leaders)
        )
        self.carry_out(COORDINATOR, list(self.office.maker.begin(term, called, self.now)))
        self.wait(wait_s, lambda: not self.office.maker.under_way)
        key = self.office.maker.key
        if self.office.maker.under_way or key is None or key.opened.term != term:
            return False
        for name in sorted(members or self.leaders):
            self.give(name, Arrived(Topic(Kind.ROUND_OPEN, COORDINATOR), RoundOpen(1, 0, (), 0, 1.0, key.key_id)))
        return True

    def contributions(self, updates: Mapping[str, np.ndarray], round_no: int = 1) -> tuple[Contributed, ...]:
        """Each leader's update, encrypted."""
        out = []
        for name, update in updates.items():
            job = ProtectContribution(round_no, update, DeviceId(name), self.keepers[name].material)
            protected = run_job(self.tools[name], job)
            assert isinstance(protected, ContributionProtected), protected
            self.contributed(name, round_no)
            out.append(Contributed(name, protected.payload, 10, 1, 1))
        return tuple(out)

    def contributed(self, name: str, round_no: int) -> None:
        """The leader has an open contribution to this round."""
        material = self.keepers[name].material
        assert material is not None
        self.bodies[name].open_body = OpenBody(round_no, material.key_id, SIZE)

    def sealed(self, contributions: tuple[Contributed, ...], round_no: int = 1, **more: Any) -> SealedRound:
        """Contributions under the key that was made."""
        key = self.office.maker.key
        assert key is not None
        return SealedRound(key, round_no, contributions, SIZE, **more)

    def decrypt(
        self, contributions: tuple[Contributed, ...], round_no: int = 1, *, wait_s: float = 200.0, attempt: int = 0
    ) -> RoundAggregated | None:
        """The rounds' part: scores, weights, model."""
        self.office.result = None
        self.office.failures = []
        form = Decryption if self.rules.server == COORDINATOR else RemoteDecryption
        self.office.decryption = form(self.sealed(contributions, round_no, attempt=attempt), self.rules)
        self.carry_out(COORDINATOR, list(self.office.decryption.begin()))
        self.wait(wait_s, lambda: self.office.result is not None)
        return self.office.result

    def ran(self, job: type[Job], name: str | None = None) -> int:
        return sum(isinstance(done, job) and name in (None, who) for who, done in self.done)


def updates_of(leaders: Iterable[str], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {str(name): rng.normal(0, 0.1, SIZE).astype(np.float32) for name in leaders}


def mean_of(updates: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.mean(list(updates.values()), axis=0)


def lossy(chance: float, seed: int, *, twice: float = 0.0) -> Fate:
    """A post that loses some messages and doubles some."""
    rng = random.Random(seed)

    def fate(_sender: str, _receiver: str, _message: Message) -> int:
        if rng.random() < chance:
            return 0
        return 2 if rng.random() < twice else 1

    return fate
