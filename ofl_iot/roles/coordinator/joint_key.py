"""The joint key of the rounds: whether they need one, who is called to make it, who did not do its part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ofl_iot.crypto.lean.budget import model_requests, score_requests
from ofl_iot.crypto.params import LEAN, parameter_set
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Seat
from ofl_iot.roles.commands import Command
from ofl_iot.roles.coordinator.global_model import GlobalModel
from ofl_iot.roles.coordinator.roster import Roster
from ofl_iot.roles.decryption.requester import MODEL, SCORES
from ofl_iot.roles.events import DecryptionRequested, KeysMade, LeanAsked
from ofl_iot.roles.keys.ceremony import KeyCeremony
from ofl_iot.roles.reports.keys import KeyGenerationFailed, RoundsWithKey, RoundsWithoutKey
from ofl_iot.roles.settings import ProtectionRules


class JointKey:
    """The key of the leaders in office, or of those to come."""

    def __init__(self, model: GlobalModel, roster: Roster, rules: ProtectionRules) -> None:
        self._model = model
        self._roster = roster
        self._rules = rules
        self.maker = KeyCeremony(rules)
        self._failed: dict[DeviceId, float] = {}
        """Devices that did not do their part, and until when that is remembered."""
        self._lacking_since: float | None = None
        """Since when a round is due that has no key."""

    @property
    def needed(self) -> bool:
        """Whether rounds are encrypted. A single cluster's model is the global model: there is nothing to hide."""
        return self._rules.mode == "threshold" and len(self._roster.seats()) > 1

    @property
    def at_hand(self) -> bool:
        """Whether a round can be opened as far as keys go: enough leaders share one, and it may still decrypt."""
        key = self.maker.key
        if not self.needed:
            return True
        if key is None or self.maker.requests >= self._most_requests:
            return False
        return len(self.maker.covers(key, self._roster.terms)) >= max(2, key.opened.threshold)

    @property
    def awaited(self) -> bool:
        """Whether a round is due that has no key."""
        return self._lacking_since is not None

    def lacking(self, round_no: int, now: float) -> Iterator[Command]:
        """A round is due that has no key; tell it once."""
        if self._lacking_since is None:
            self._lacking_since = now
            yield RoundsWithoutKey(round_no=round_no)

    def found(self, round_no: int, now: float) -> Iterator[Command]:
        """A round can open as far as keys go; tell how long it waited, if it did."""
        if self._lacking_since is not None:
            waited_s, self._lacking_since = now - self._lacking_since, None
            yield RoundsWithKey(round_no=round_no, waited_s=waited_s)

    def seats(self) -> tuple[Seat, ...]:
        """The leaders that can take part in a round: in an encrypted one those that have a share of its key."""
        if not self.needed:
            return self._roster.seats()
        able = self.maker.covers(self.maker.key, self._roster.terms)
        return tuple(seat for seat in self._roster.seats() if seat.leader in able)

    @property
    def _lasts(self) -> bool:
        """Whether the key in use is that of all leaders in office and has half of its budget left."""
        left = self._most_requests - self.maker.requests
        return self.maker.fits(self._roster.terms) and 2 * left > self._most_requests

    def tend(self, now: float) -> Iterator[Command]:
        """Let the next key be made, beside the rounds, before the present one is used up or if it misses a leader."""
        done = not self.needed or self._lasts or self.maker.ready_for(self._roster.terms)
        if not done and not self.maker.under_way:
            yield from self.make(now)

    def renew(self) -> Iterator[Command]:
        """Between rounds: put the next key into use if the present one misses a leader or is used up."""
        ready = self.needed and self.maker.ready_for(self._roster.terms)
        used_up = self.maker.requests >= self._most_requests
        if ready and (used_up or not self.maker.fits(self._roster.terms)):
            yield from self.maker.install()

    @property
    def _most_requests(self) -> int:
        """How often the key may be asked for scores (lean) or models (main) before another one must be made."""
        key = self.maker.key
        if key is None:
            return 0
        if key.opened.params == LEAN.name:
            return score_requests(len(key.opened.members), key.opened.threshold)
        return model_requests(parameter_set(key.opened.params).rows(len(self._model.values)))

    def asked(self, event: DecryptionRequested | LeanAsked) -> Iterator[Command]:
        """Count, durably, what leaders are asked to decrypt: they count, too, and refuse what is beyond the budget."""
        counted = SCORES if isinstance(event, LeanAsked) else MODEL
        if event.stage == counted:
            yield from self.maker.asked()

    def prepare(self, term: int, leaders: Sequence[str], now: float) -> Iterator[Command]:
        """Let leaders make their key before the first round of their term; where it cannot be yet, it is made then."""
        if self._rules.mode == "threshold" and len(leaders) > 1:
            yield from self._make(term, leaders, now)

    def make(self, now: float) -> Iterator[Command]:
        """Let the leaders in office make their key; while one of them has not announced itself, nothing happens."""
        yield from self._make(self._roster.highest_term, self._roster.terms, now)

    def _make(self, term: int, leaders: Iterable[str], now: float) -> Iterator[Command]:
        members = self._roster.key_members(leaders)
        if members is not None:
            yield from self._model.claim_term()
            yield from self.maker.begin(term, members, now)

    def made(self, event: KeysMade) -> Iterator[Command]:
        """The joint key is here."""
        yield from self.maker.made(event)

    def failing(self, now: float) -> set[DeviceId]:
        """Devices that failed in making a key, for `key_failure_memory_s` after they did."""
        self._failed = {device: until for device, until in self._failed.items() if until > now}
        return set(self._failed)

    def late(self) -> list[str]:
        """Return the leaders to be given up for not having done their part in time: at most half of those in office."""
        return sorted(self.maker.missing())[: max(1, len(self._roster.terms) // 2)]

    def give_up(self, missing: Collection[str], now: float) -> Iterator[Command]:
        """The key was not made in time, or cannot be made, because of these leaders, which is remembered."""
        self._failed.update({DeviceId(leader): now + self._rules.key_failure_memory_s for leader in missing})
        yield KeyGenerationFailed(missing=tuple(sorted(missing)))
        yield from self.maker.stop()
