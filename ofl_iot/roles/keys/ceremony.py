"""The coordinator's side of key generation: calls the leaders together, sums what is public, sees who is missing.

    begun ─▶ each leader's one ─▶ each leader's two ─▶ summed ─▶ ready ─▶ installed, when rounds need it

The key in use stays until the next one is installed. Every step is durable; a restarted coordinator goes on with it.
It learns the public key and the relinearisation key, and nothing of anybody's secret: deals pass it sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ofl_iot.crypto.context import threshold_of
from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, MAX_ID_LENGTH, DeviceId
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.key_messages import KeyMember, KeyOpen
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Persist, Publish, SetTimer
from ofl_iot.roles.events import KeysMade
from ofl_iot.roles.job_kinds.keys import CoordinatorKey, MakeKeys
from ofl_iot.roles.keys.participant import AGAIN, FAULT, MAX_BODY_BYTES, MAX_REPEATS, OPEN, ROUND1, ROUND2
from ofl_iot.roles.reports.keys import JointKeyReady, KeyGenerationBegun, KeyGenerationDisputed, KeyGenerationSlow
from ofl_iot.roles.resend import send_due
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored
from ofl_iot.roles.transfer import BodyExchange, receipt_of

TABLE = "coordinator.keys"
STEPS = "coordinator.ceremony"
"""The key generation under way, step by step."""
RESEND, DEADLINE = "coordinator.keys.resend", "coordinator.keys.deadline"
MOST_EXTENSIONS = 5
"""How often a key generation to which most leaders owe something is given more time."""
LONGEST = 10
"""Progress extends a key generation to at most so many times its deadline."""


class KeyCeremony:
    """The joint key in use, the one that is to follow it, and the making of it."""

    def __init__(self, rules: ProtectionRules) -> None:
        self._rules = rules
        self.key: CoordinatorKey | None = None
        self.ready: CoordinatorKey | None = None
        """A key that is complete and not yet in use."""
        self.requests = 0
        """How often leaders were asked to decrypt under the key what its budget counts."""
        self._opened: KeyOpen | None = None
        self._attempt = 0
        self._exchange: BodyExchange | None = None
        self._round1_shares: dict[str, bytes] = {}
        self._round2_shares: dict[str, bytes] = {}
        self._accused: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._restarts = 0
        self._reminded = False
        self._extensions = 0
        self._until = 0.0
        """When progress extends the key generation no further."""
        self._making = False

    def restore(self, stored: Stored) -> None:
        """Take up the stored keys and what the key generation under way has yielded; `resume` goes on with it."""
        rows = stored.get(TABLE, {})
        if "key" in rows:
            self.key = msgspec.msgpack.decode(rows["key"], type=CoordinatorKey)
        if "ready" in rows:
            self.ready = msgspec.msgpack.decode(rows["ready"], type=CoordinatorKey)
        self.requests = int.from_bytes(rows.get("requests", b""), "little")
        if "attempt" in rows:
            self._attempt = int.from_bytes(rows["attempt"], "little")
        steps = {str(name): row for name, row in stored.get(STEPS, {}).items()}
        if "opened" in steps:
            self._open(msgspec.msgpack.decode(steps["opened"], type=KeyOpen))
            self._restarts = int.from_bytes(steps.get("restarts", b""), "little") + 1
            for stage, held in ((ROUND1, self._round1_shares), (ROUND2, self._round2_shares)):
                prefix = f"{stage}."
                held.update({name.removeprefix(prefix): steps[name] for name in steps if name.startswith(prefix)})

    def resume(self, now: float) -> Iterator[Command]:
        """After a restart: ask leaders for what they owe, and go on."""
        opened, exchange = self._opened, self._exchange
        if opened is None or exchange is None:
            return
        yield Persist((Put(STEPS, "restarts", self._restarts.to_bytes(8, "little")),))
        for leader in _leaders(opened) - self._round2_shares.keys():
            exchange.send(leader, OPEN, encode_body(opened))
            exchange.send(leader, AGAIN, str(self._restarts).encode())
        yield from self._wait(now, anew=True)
        yield from self.send_due(now)
        yield from self._make_if_complete()

    def covers(self, key: CoordinatorKey | None, leaders: Mapping[str, int]) -> set[str]:
        """The leaders, of these with their terms, that have a share of a key: every term has a key of its own."""
        if key is None:
            return set()
        terms = {leader: term for leader, term in leaders.items() if term <= key.opened.term}
        return terms.keys() & _leaders(key.opened)

    def fits(self, leaders: Mapping[str, int]) -> bool:
        """Whether the key in use is that of exactly these leaders, with their terms."""
        return _fits(self.key, leaders)

    def ready_for(self, leaders: Mapping[str, int]) -> bool:
        """Whether the key that is to follow is that of exactly these leaders, with their terms."""
        return _fits(self.ready, leaders)

    def has_key_of(self, leaders: Mapping[str, int]) -> bool:
        """Whether exactly these leaders, with their terms, have made a key, in use or not."""
        return self.fits(leaders) or self.ready_for(leaders)

    def install(self) -> Iterator[Command]:
        """Put the key that is ready into use, in place of the old one."""
        if self.ready is None:
            return
        self.key, self.ready, self.requests = self.ready, None, 0
        row = Put(TABLE, "key", msgspec.msgpack.encode(self.key))
        yield Persist((row, Delete(TABLE, "ready"), Delete(TABLE, "requests")))

    @property
    def under_way(self) -> bool:
        """Whether a key is being made."""
        return self._opened is not None

    def is_making(self, term: int, attempt: int) -> bool:
        """Whether the key of this term and attempt is being made."""
        return self._opened is not None and (self._opened.term, self._opened.attempt) == (term, attempt)

    def is_making_for(self, leaders: Mapping[str, int]) -> bool:
        """Whether the key of exactly these leaders, with their terms, is being made."""
        opened = self._opened
        return opened is not None and _leaders(opened) == leaders.keys() and opened.term >= max(leaders.values())

    def waits_for(self, leader: str) -> bool:
        """Whether a leader still owes something to the key that is being made."""
        return self._opened is not None and leader in _leaders(self._opened) - self._round2_shares.keys()

    @property
    def slow(self) -> bool:
        """Whether most leaders owe something, so that the reason is load or the network rather than a leader."""
        if self._opened is None or self._accused or self._extensions >= MOST_EXTENSIONS:
            return False
        return 2 * len(self.missing()) > len(self._opened.members)

    def missing(self) -> set[str]:
        """Leaders that have not delivered what is due, or not what it must be.

        When nobody could finish, somebody's deals are missing, and the coordinator cannot see whose: it names nobody.
        """
        if self._opened is None:
            return set()
        members = _leaders(self._opened)
        if self._accused:
            return self._accused & members
        if not self._round1_shares.keys() >= members:
            return members - self._round1_shares.keys()
        return members - self._round2_shares.keys() if self._round2_shares else set()

    def begin(self, term: int, members: tuple[KeyMember, ...], now: float) -> Iterator[Command]:
        """Call the leaders together; an earlier attempt is void, the key in use stays."""
        self._attempt += 1
        threshold = threshold_of(self._rules.threshold, len(members))
        opened = KeyOpen(term, self._attempt, members, threshold, self._rules.params)
        exchange = self._open(opened)
        self.ready = None
        for member in members:
            exchange.send(member.leader, OPEN, encode_body(opened))
        yield Persist(
            (
                Put(TABLE, "attempt", self._attempt.to_bytes(8, "little")),
                Delete(TABLE, "ready"),
                DeleteTable(STEPS),
                Put(STEPS, "opened", msgspec.msgpack.encode(opened)),
            )
        )
        yield KeyGenerationBegun(
            term=term,
            attempt=self._attempt,
            leaders=len(members),
            threshold=threshold,
            collusion_bound=max(0, min(threshold - 1, len(members) - 2)),  # all but one: the sum
        )
        yield from self._wait(now, anew=True)
        yield from self.send_due(now)

    def _open(self, opened: KeyOpen) -> BodyExchange:
        self._opened = opened
        self._round1_shares, self._round2_shares, self._accused, self._making = {}, {}, set(), False
        self._repeats, self._restarts, self._reminded, self._extensions = {}, 0, False, 0
        exchange = BodyExchange(opened.term, opened.attempt, resend_s=self._rules.resend_s, max_bytes=MAX_BODY_BYTES)
        self._exchange = exchange
        return exchange

    def _wait(self, now: float, *, anew: bool = False) -> Iterator[Command]:
        """Give leaders their time: from now on, because something came, or since it all begins."""
        if anew:
            self._until = now + LONGEST * self._rules.key_deadline_s
        self._reminded = False
        yield SetTimer(DEADLINE, min(now + self._rules.key_deadline_s / 2, max(now, self._until)))

    def overdue(self, now: float) -> Iterator[Command]:
        """Half the time passed without progress: say the opening again to whoever owes; see `expired`."""
        if self._opened is None or self._exchange is None or self.expired(now):
            return
        self._reminded = True
        for leader in self._opened_to():
            self._exchange.send_again(leader)
        yield SetTimer(DEADLINE, now + self._rules.key_deadline_s / 2)
        yield from self.send_due(now)

    def expired(self, now: float) -> bool:
        """Whether the key generation is over: accused, or reminded in vain, or as long as progress may extend it."""
        return bool(self._accused) or self._reminded or now >= self._until

    def _opened_to(self) -> set[str]:
        return _leaders(self._opened) - self._round2_shares.keys() if self._opened else set()

    def go_on(self, now: float) -> Iterator[Command]:
        """Everybody is slow: wait as long again."""
        self._extensions += 1
        yield KeyGenerationSlow(missing=tuple(sorted(self.missing())))
        yield from self._wait(now, anew=True)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt of the key generation."""
        exchange = self._exchange
        if (
            exchange is None
            or self._opened is None
            or (message.term, message.round_no) != (exchange.term, exchange.number)
        ):
            if isinstance(message, Part):
                yield Publish(Topic(Kind.KEYS, COORDINATOR, sender), receipt_of(message))  # lest it is sent again
            raise LateError("a key generation that is over")
        if sender not in _leaders(self._opened):
            raise RefusedError(f"{sender} takes no part in this key generation")
        if isinstance(message, PartReceipt):
            exchange.confirm(sender, message)
            yield from self.send_due(now)
            return
        if message.stage not in (ROUND1, ROUND2, FAULT, AGAIN):
            raise RefusedError(f"the coordinator does not expect the stage {message.stage!r}")
        news = message.stage in (ROUND1, ROUND2) and not exchange.taken(sender, message)
        receipt, body = exchange.take(sender, message)
        if body is not None and message.stage in (ROUND1, ROUND2):
            (self._round2_shares if message.stage == ROUND2 else self._round1_shares)[sender] = body
            yield Persist((Put(STEPS, f"{message.stage}.{sender}", body),))
        yield Publish(Topic(Kind.KEYS, COORDINATOR, sender), receipt)
        if news and not self._accused:
            yield from self._wait(now)
        if body is not None:
            yield from self._take(sender, message.stage, body, now)
        yield from self._make_if_complete()

    def _make_if_complete(self) -> Iterator[Command]:
        if self._opened is None or self._making:
            return
        if self._round1_shares.keys() == self._round2_shares.keys() == _leaders(self._opened):
            self._making = True
            yield Compute(MakeKeys(self._opened, dict(self._round1_shares), dict(self._round2_shares)))

    def _take(self, sender: DeviceId, stage: str, body: bytes, now: float) -> Iterator[Command]:
        if stage == FAULT:
            accused = body[: MAX_ID_LENGTH + 1].decode(errors="replace")
            if self._opened is None or accused not in _leaders(self._opened):
                raise RefusedError(f"{sender} accuses somebody who takes no part in this key generation")
            self._accused.add(accused)
            yield KeyGenerationDisputed(leader=sender, accuses=accused)
            yield SetTimer(DEADLINE, now)
        elif stage == AGAIN:
            self._repeats[sender] = self._repeats.get(sender, 0) + 1
            if self._exchange and self._repeats[sender] <= MAX_REPEATS:
                self._exchange.send_again(sender)
                yield from self.send_due(now)

    def blame(self, culprits: Iterable[str]) -> None:
        """What these leaders sent cannot be used."""
        self._accused.update(culprits)

    def made(self, event: KeysMade) -> Iterator[Command]:
        """The joint key is complete; it comes into use at once if there is no other, else with `install`."""
        if self._opened is None or event.key.opened != self._opened:
            return
        self.ready = event.key
        yield Persist((Put(TABLE, "ready", msgspec.msgpack.encode(event.key)), DeleteTable(STEPS)))
        if self.key is None:
            yield from self.install()
        yield JointKeyReady(term=self._opened.term, leaders=len(self._opened.members))
        yield from self.stop()

    def asked(self) -> Iterator[Command]:
        """Leaders are asked to decrypt: noted before they are."""
        self.requests += 1
        yield Persist((Put(TABLE, "requests", self.requests.to_bytes(8, "little")),))

    def stop(self) -> Iterator[Command]:
        """End the making of a key."""
        if self._opened:
            yield Persist((DeleteTable(STEPS),))
        self._opened = self._exchange = None
        self._round1_shares, self._round2_shares, self._accused, self._making = {}, {}, set(), False
        yield CancelTimer(DEADLINE)
        yield CancelTimer(RESEND)

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self._exchange:
            self._exchange.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self._exchange is not None:
            yield from send_due(
                self._exchange,
                RESEND,
                lambda peer, part: Publish(Topic(Kind.KEYS, COORDINATOR, DeviceId(peer)), part),
                now,
            )


def _leaders(opened: KeyOpen) -> set[str]:
    return {member.leader for member in opened.members}


def _fits(key: CoordinatorKey | None, leaders: Mapping[str, int]) -> bool:
    """Whether a key is that of exactly these leaders: every term has a key of its own."""
    if key is None or key.opened.term < max(leaders.values(), default=0):
        return False
    return _leaders(key.opened) == leaders.keys()
