"""Threshold decryption of single numbers: the constant coefficient of W·(c0 + c1·s), and nothing else of it.

ServerDec is the models' own. PartDec answers each query with λ_i·cc(W·c1·share_i) + z_i, one number modulo q_dec
instead of a polynomial, where cc is the constant coefficient and W the query's filter (1 without one).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from ofl_iot.crypto import noise, sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import PublicKey
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.filters import Filter
from ofl_iot.crypto.frames import Framed, Kind, Note, as_ids
from ofl_iot.crypto.keygen import KeyShare
from ofl_iot.crypto.params import DECRYPTION_LIMBS, ParameterSet
from ofl_iot.crypto.ring import Residues, Ring, ring_of
from ofl_iot.crypto.threshold import check_answers, check_request, lagrange, request_digest, switch_to_decryption
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR, DeviceId


class Query(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One number to decrypt: a row, a filter (-1 for none) and the leaders it speaks of (none: the control)."""

    row: int
    filter_no: int
    first: str
    second: str
    """The other leader of an inner product, the same for an energy, empty for a projection."""


class _FilterNote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    taps: tuple[int, ...]
    bits: int


class _CiphertextsNote(Note, frozen=True):
    contributors: tuple[str, ...]
    filters: tuple[_FilterNote, ...]
    queries: tuple[Query, ...]
    gains: tuple[str, ...]
    sigmas: tuple[float, ...]


class _RequestNote(Note, frozen=True):
    active: tuple[str, ...]
    contributors: tuple[str, ...]
    filters: tuple[_FilterNote, ...]
    queries: tuple[Query, ...]
    sigmas: tuple[float, ...]


class _HeldNote(Note, frozen=True):
    active: tuple[str, ...]
    request_id: bytes
    filters: tuple[_FilterNote, ...]
    queries: tuple[Query, ...]
    gains: tuple[str, ...]
    sigmas: tuple[float, ...]


class _AnswerNote(Note, frozen=True):
    request_id: bytes
    values: tuple[tuple[int, ...], ...]


def _notes(filters: Sequence[Filter]) -> tuple[_FilterNote, ...]:
    return tuple(_FilterNote(chosen.name, chosen.taps, chosen.bits) for chosen in filters)


def _filters(notes: Sequence[_FilterNote]) -> tuple[Filter, ...]:
    return tuple(Filter(note.name, note.taps, note.bits) for note in notes)


def _check_queries(title: str, queries: Sequence[Query], rows: int, filters: int) -> None:
    for query in queries:
        if not (0 <= query.row < rows and -1 <= query.filter_no < filters):
            raise CryptoError(f"{title}: it asks for row {query.row} and filter {query.filter_no}, which it lacks")
    if len({(query.row, query.filter_no) for query in queries}) != len(queries):
        raise CryptoError(f"{title}: it asks for the same number twice")


def _check_sigmas(title: str, sigmas: Sequence[float], rows: int) -> None:
    if len(sigmas) != rows or not all(0 <= sigma < np.inf for sigma in sigmas):
        raise CryptoError(f"{title}: {len(sigmas)} noise levels for {rows} rows, or such as cannot be")


def _hex(gains: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{gain:x}" for gain in gains)  # they may exceed msgpack's 64 bits


def _gains(title: str, gains: Sequence[str], rows: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(gain, 16) for gain in gains)
    except ValueError as error:
        raise CryptoError(f"{title}: a gain that is no number") from error
    if len(numbers) != rows or not all(0 < number < 1 << 256 for number in numbers):
        raise CryptoError(f"{title}: {len(numbers)} gains for {rows} rows, or such as cannot be")
    return numbers


@dataclass(frozen=True, eq=False)
class ScalarCiphertexts(Framed):
    """Score ciphertexts as they were computed, before ServerDec: nobody may be asked to decrypt these."""

    kind = Kind.SCORES
    note_type = _CiphertextsNote

    origin: Origin
    contributors: tuple[DeviceId, ...]
    filters: tuple[Filter, ...]
    queries: tuple[Query, ...]
    gains: tuple[int, ...]
    """What each row was multiplied by."""
    sigmas: tuple[float, ...]
    """Smudging that each row needs."""
    c0: Residues
    c1: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes), len(params.primes))

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        note = _CiphertextsNote(self.contributors, _notes(self.filters), self.queries, _hex(self.gains), self.sigmas)
        return note, (self.c0, self.c1)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> ScalarCiphertexts:
        assert isinstance(note, _CiphertextsNote)  # noqa: S101 - decoded as note_type
        c0, c1 = stacks
        rows = c0.shape[1]
        _check_queries("scores", note.queries, rows, len(note.filters))
        _check_sigmas("scores", note.sigmas, rows)
        filters, gains = _filters(note.filters), _gains("scores", note.gains, rows)
        return cls(origin, as_ids(note.contributors), filters, note.queries, gains, note.sigmas, c0, c1)


@dataclass(frozen=True, eq=False)
class ScalarRequest(Framed):
    """The second halves of score ciphertexts at q_dec, and which numbers of them are asked for."""

    kind = Kind.SCORE_REQUEST
    note_type = _RequestNote

    origin: Origin
    active: tuple[DeviceId, ...]
    contributors: tuple[DeviceId, ...]
    filters: tuple[Filter, ...]
    queries: tuple[Query, ...]
    sigmas: tuple[float, ...]
    """Smudging a row needs; a leader adds at least what rounding alone needs."""
    c1: Residues

    @cached_property
    def ciphertext_id(self) -> bytes:
        """Digest of the ciphertexts alone: a leader never answers the same ones for two requests."""
        return hashlib.sha256(self.c1.astype("<u4").tobytes()).digest()[:16]

    @cached_property
    def request_id(self) -> bytes:
        """Digest of the ciphertexts and of everything said about them."""
        return request_digest(self.origin, self.ciphertext_id, self.body()[0])

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        note = _RequestNote(self.active, self.contributors, _notes(self.filters), self.queries, self.sigmas)
        return note, (self.c1,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> ScalarRequest:
        assert isinstance(note, _RequestNote)  # noqa: S101 - decoded as note_type
        rows = stacks[0].shape[1]
        _check_queries("score request", note.queries, rows, len(note.filters))
        _check_sigmas("score request", note.sigmas, rows)
        active, contributors = as_ids(note.active), as_ids(note.contributors)
        return cls(origin, active, contributors, _filters(note.filters), note.queries, note.sigmas, stacks[0])


@dataclass(frozen=True, eq=False)
class HeldScalars(Framed):
    """What ServerDec keeps until the shares are in: the flooded first halves."""

    kind = Kind.HELD_SCORES
    note_type = _HeldNote

    origin: Origin
    active: tuple[DeviceId, ...]
    request_id: bytes
    filters: tuple[Filter, ...]
    queries: tuple[Query, ...]
    gains: tuple[int, ...]
    """What each row was multiplied by."""
    sigmas: tuple[float, ...]
    c0: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        note = _HeldNote(
            self.active, self.request_id, _notes(self.filters), self.queries, _hex(self.gains), self.sigmas
        )
        return note, (self.c0,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> HeldScalars:
        assert isinstance(note, _HeldNote)  # noqa: S101 - decoded as note_type
        _check_queries("held scores", note.queries, stacks[0].shape[1], len(note.filters))
        active, filters = as_ids(note.active), _filters(note.filters)
        gains = _gains("held scores", note.gains, stacks[0].shape[1])
        return cls(origin, active, note.request_id, filters, note.queries, gains, note.sigmas, stacks[0])


@dataclass(frozen=True, eq=False)
class ScalarShare(Framed):
    """PartDec's answers, by query and prime; store them before they are sent."""

    kind = Kind.SCORE_SHARE
    note_type = _AnswerNote

    origin: Origin
    request_id: bytes
    values: tuple[tuple[int, ...], ...]

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return ()

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _AnswerNote(self.request_id, self.values), ()

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> ScalarShare:  # noqa: ARG003
        assert isinstance(note, _AnswerNote)  # noqa: S101 - decoded as note_type
        primes = origin.context.params.primes[:DECRYPTION_LIMBS]
        for residues in note.values:
            if len(residues) != DECRYPTION_LIMBS or not all(0 <= r < p for r, p in zip(residues, primes, strict=True)):
                raise CryptoError(f"score share from {origin.sender}: a number is not modulo q_dec")
        return cls(origin, note.request_id, note.values)


def _constants(
    ring: Ring, rows: Residues, filters: Sequence[Filter], queries: Sequence[Query]
) -> list[tuple[int, ...]]:
    """cc(W·row) of every query, by prime."""
    weights = [ring.from_integers(chosen.polynomial(ring.degree), len(rows))[:, 0] for chosen in filters]
    out = []
    for query in queries:
        row = rows[:, query.row]
        out.append(ring.constant(row if query.filter_no < 0 else ring.multiply(row, weights[query.filter_no])))
    return out


def least_sigma(context: KeyContext) -> float:
    """Smudging at q_dec that rounding alone needs: 2^smudging_bits times its noise."""
    return math.ldexp(noise.rounding_noise(context.params, context.leaders), context.params.smudging_bits)


def server_scalars(
    key: PublicKey,
    ciphertexts: ScalarCiphertexts,
    active: Sequence[DeviceId],
    entropy: Entropy,
    *,
    server: DeviceId = COORDINATOR,
) -> tuple[HeldScalars, ScalarRequest]:
    """ServerDec of every row. `server` is who runs it, and in whose name the leaders are asked."""
    context = key.context
    if ciphertexts.origin.context != context:
        raise CryptoError("the scores are encrypted under another key")
    context.check_active(tuple(active))
    floods = np.maximum(ciphertexts.sigmas, least_sigma(context))
    c0, c1 = switch_to_decryption(key, ciphertexts.c0, ciphertexts.c1, floods, entropy)
    origin = replace(ciphertexts.origin, sender=server)
    filters, queries, sigmas = ciphertexts.filters, ciphertexts.queries, ciphertexts.sigmas
    request = ScalarRequest(origin, tuple(active), ciphertexts.contributors, filters, queries, sigmas, c1)
    held = HeldScalars(origin, request.active, request.request_id, filters, queries, ciphertexts.gains, sigmas, c0)
    return held, request


def partial_scalars(share: KeyShare, request: ScalarRequest, entropy: Entropy, most_queries: int) -> ScalarShare:
    """PartDec of every query. Call once for a request, store the result, resend that.

    `most_queries` is what the round's plan reveals (`ScorePlan.queries`); more is refused.
    """
    context = share.context
    check_request(share, request.origin, request.active, request.contributors, 1)
    if len(request.queries) > most_queries:
        raise CryptoError(
            f"score request: {len(request.queries)} numbers asked for, at most {most_queries} were agreed"
        )
    ring = ring_of(context.params)
    moduli = ring.moduli[:DECRYPTION_LIMBS]
    floor = least_sigma(context)
    products = ring.multiply(request.c1, share.values[:, None])
    factors = [lagrange(context, request.active, share.owner, p) for p in moduli]
    values = []
    for query, residues in zip(
        request.queries, _constants(ring, products, request.filters, request.queries), strict=True
    ):
        enlarged = 1.0 if query.filter_no < 0 else max(1.0, request.filters[query.filter_no].norm)
        sigma = max(floor, request.sigmas[query.row]) * enlarged
        smudging = int(sampling.gaussian((1,), sigma, entropy)[0])
        values.append(tuple((r * f + smudging) % p for r, f, p in zip(residues, factors, moduli, strict=True)))
    return ScalarShare(replace(request.origin, sender=share.owner), request.request_id, tuple(values))


def final_scalars(held: HeldScalars, shares: Sequence[ScalarShare]) -> list[int]:
    """FinDec: the centred integer of every query."""
    check_answers("score share", held.active, held.request_id, shares)
    ring = ring_of(held.origin.context.params)
    moduli = ring.moduli[:DECRYPTION_LIMBS]
    totals = _constants(ring, held.c0, held.filters, held.queries)
    for share in shares:
        if len(share.values) != len(totals):
            raise CryptoError(f"score share from {share.origin.sender}: {len(share.values)} numbers, not {len(totals)}")
        totals = [
            tuple((a + b) % p for a, b, p in zip(total, value, moduli, strict=True))
            for total, value in zip(totals, share.values, strict=True)
        ]
    return [ring.centred(total) for total in totals]
