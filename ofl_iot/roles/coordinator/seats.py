"""Terms and revisions: what numbers the assignments of each leader."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

MAX_TERM_STEP = 2**32
"""How far a coordinator that takes over moves its term counter: more terms than a federation can have used."""
MAX_LONE_TERM_STEP = 1000
"""How far it moves for what a single device claims, beyond the others."""


class Seats(msgspec.Struct, frozen=True, array_like=True):
    """Terms and revisions of the clusters, by leader."""

    term: int
    """The highest number given so far."""
    terms: dict[str, int]
    revisions: dict[str, int]

    def raised(self, term: int) -> Seats:
        """Return the seats with a term counter of at least `term`, by a bounded step: nobody can use the terms up."""
        return msgspec.structs.replace(self, term=min(max(term, self.term), self.term + MAX_TERM_STEP))

    def raised_by_claims(self, claims: Iterable[int]) -> Seats:
        """Return the seats with a counter above the terms that devices claim to hold.

        A single claim moves the counter little; what two devices hold counts in full.
        """
        highest, witnessed = [*sorted(claims, reverse=True), 0, 0][:2]
        return self.raised(min(highest, max(witnessed, self.term) + MAX_LONE_TERM_STEP))

    def next_term(self) -> Seats:
        """Return the seats after a term was taken."""
        return msgspec.structs.replace(self, term=self.term + 1)

    def all_of(self, leaders: Collection[str], term: int) -> Seats:
        """Return the seats where these leaders, and nobody else, begin in `term`."""
        return Seats(term, dict.fromkeys(leaders, term), dict.fromkeys(leaders, 0))

    def opened(self, leader: str) -> Seats:
        """Return the seats where a leader begins under a new term."""
        term = self.term + 1
        return Seats(term, {**self.terms, leader: term}, {**self.revisions, leader: 0})

    def revised(self, leader: str) -> Seats:
        """Return the seats after a change within a leader's cluster; one that has no seat gets one."""
        if leader not in self.terms:
            return self.opened(leader)
        revisions = {**self.revisions, leader: self.revisions[leader] + 1}
        return msgspec.structs.replace(self, revisions=revisions)

    def without(self, leader: str) -> Seats:
        """Return the seats without a leader's."""
        return msgspec.structs.replace(self, terms={each: term for each, term in self.terms.items() if each != leader})

    def cleared(self) -> Seats:
        """Return the counter alone."""
        return Seats(self.term, {}, {})
