"""Scores on ciphertext: distance, band energies, Gram matrix and a projection against wrap-around (for Eq. 6).

With D_i = θ_i - θ_global, sums over rows of ciphertext products give, without rotation or rescaling,

    <D_i, D_j>   = constant coefficient of Σ D_i·conj(D_j)           distance ||D_i||² for i = j
    band energy  = constant coefficient of W·Σ D_i·conj(D_i)         W an integer filter
    <D_i, r>     = constant coefficient of Σ D_i·conj(r)             r of uniform -1, 0, 1, drawn after the uploads

A product a00 + a10·s + a11·s·conj(s) becomes b0 + b1·s by the relinearisation key; its constant coefficient alone is
then decrypted by ServerDec, PartDec and FinDec as for models. Larger energies than the plan allows wrap around modulo
Q; the projection shows it, because <D, r>² is then far above the reported energy. Two things keep an attacker from
fitting its update to the projection: with signs ±1 alone, an even number of coordinates at Q/2 would vanish from it, so
r has zeros; and coordinates at Q/gain would vanish, so its gain is drawn after the uploads, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import noise, sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, Values, encode
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.filters import HIGH_BAND, Filter
from ofl_iot.crypto.params import ERROR_SIGMA, ParameterSet
from ofl_iot.crypto.relinearisation import RelinKey, relinearise
from ofl_iot.crypto.ring import Residues, Ring, ring_of
from ofl_iot.crypto.scalars import (
    HeldScalars,
    Query,
    ScalarCiphertexts,
    ScalarRequest,
    ScalarShare,
    final_scalars,
    least_sigma,
    server_scalars,
)
from ofl_iot.errors import ConfigError, CryptoError, WrongShareError
from ofl_iot.ids import COORDINATOR, DeviceId

BINDING = "#"
"""In place of a second leader: the query is for one coefficient of a sketch."""
_WRAP_LIMIT = 40.0
"""<D, r>² over its expectation 2/3·||D||² is about χ² with one degree of freedom: honest leaders exceed 40 once in
4·10^9 projections."""


@dataclass(frozen=True)
class ScorePlan:
    """What the coordinator asks of a round's models."""

    max_energy: float = 64.0
    """Largest ||D||² for which band energies do not wrap; distances and inner products reach 2^bits times further.
    The error of a score shrinks with its square root: choose it a few times what honest updates have."""
    filters: tuple[Filter, ...] = (HIGH_BAND,)
    projections: int = 2
    """A coordinate that makes an energy wrap escapes each projection with odds of at most two thirds."""
    gram: bool = True

    def largest_energy(self, params: ParameterSet) -> float:
        """The most that `max_energy` can be: a filtered energy must stay below a quarter of Q."""
        bits = max((chosen.bits for chosen in self.filters), default=0)
        return params.modulus / math.ldexp(4.0, 2 * params.scale_bits + bits)

    def energy_gain(self, params: ParameterSet) -> int:
        """Power of two that lifts `max_energy` to what Q has room for."""
        largest = self.largest_energy(params)
        if not 0 < self.max_energy <= largest:
            raise ConfigError(
                f"max_energy {self.max_energy:g}: choose more than 0 and at most {largest:.0f} for parameter set "
                f"{params.name!r} with these filters"
            )
        return 1 << math.floor(math.log2(largest / self.max_energy))

    def projection_gain(self, params: ParameterSet, entropy: Entropy) -> int:
        """A random odd number that leaves a projection 2^12 times the length of the largest update planned."""
        reach = math.ldexp(math.sqrt(self.max_energy), params.scale_bits + 12)
        half = 1 << max(1, math.floor(math.log2(params.modulus / (8 * reach))))
        return half + int.from_bytes(entropy.random_bytes(16), "little") % half | 1

    def queries(self, leaders: int) -> int:
        """How many numbers a round with that many leaders decrypts, the control among them."""
        pairs = leaders * (leaders - 1) // 2 if self.gram else 0
        return leaders * (1 + len(self.filters) + self.projections) + pairs + 1


@dataclass(frozen=True, eq=False)
class Scores:
    """What the coordinator learns of a round's models: these numbers, and nothing else of a single model."""

    distance: dict[DeviceId, float]
    """||D||²."""
    bands: dict[str, dict[DeviceId, float]]
    """Energy of D in each filter's band."""
    projections: dict[DeviceId, tuple[float, ...]]
    """<D, r> for each random r."""
    gram: npt.NDArray[np.float64] | None
    """<D_i, D_j> in the order of `distance`."""
    precision: float
    """Deviation of the noise in distances and inner products."""
    projection_precision: float
    """Deviation of the noise in projections."""

    def wrapped(self) -> tuple[DeviceId, ...]:
        """Leaders whose reported energy cannot be true: negative, or far below a projection's square."""
        suspects = []
        for leader, energy in self.distance.items():
            expected = 2 / 3 * (max(energy, 0.0) + 8 * self.precision) + self.projection_precision**2
            if energy < -8 * self.precision or any(y * y > _WRAP_LIMIT * expected for y in self.projections[leader]):
                suspects.append(leader)
        return tuple(suspects)


@dataclass(frozen=True)
class _Rows:
    """Score ciphertexts before ServerDec: one polynomial pair a row, with the noise each decryption must add."""

    ring: Ring
    c0: list[Residues] = field(default_factory=list)
    c1: list[Residues] = field(default_factory=list)
    gains: list[int] = field(default_factory=list)
    sigmas: list[float] = field(default_factory=list)

    def append(self, c0: Residues, c1: Residues, gain: int, sigma: float) -> int:
        """Add a row, multiplied by its gain; returns its number."""
        self.c0.append(self.ring.scale(c0, gain))
        self.c1.append(self.ring.scale(c1, gain))
        self.gains.append(gain)
        self.sigmas.append(sigma)
        return len(self.sigmas) - 1


def energy_sigma(context: KeyContext, plan: ScorePlan) -> float:
    """Smudging of an energy at q_dec: 2^smudging_bits times the noise of rounding, of D·e and of relinearisation."""
    params, leaders = context.params, context.leaders
    shrink = plan.energy_gain(params) * params.decryption_modulus / params.modulus
    product = 2 * math.sqrt(plan.max_energy) * params.scale * noise.fresh_noise(params, leaders) * shrink
    key_noise = ERROR_SIGMA * leaders * math.sqrt(2 * params.degree) + ERROR_SIGMA * math.sqrt(leaders)
    digits = math.sqrt(sum(p * p for p in params.primes) / 12 * params.degree)
    total = math.hypot(noise.rounding_noise(params, leaders), product, digits * key_noise * shrink)
    sigma = math.ldexp(total, params.smudging_bits)
    if 64 * sigma > params.decryption_modulus:
        raise ConfigError(f"max_energy {plan.max_energy:g} is so small that the scores would drown in noise")
    return sigma


def projection_sigma(context: KeyContext, gain: int, coefficients: int) -> float:
    """Smudging of a projection at q_dec: 2^smudging_bits times the noise of rounding and of Σ e·r."""
    params, leaders = context.params, context.leaders
    shrink = gain * params.decryption_modulus / params.modulus
    total = noise.fresh_noise(params, leaders) * math.sqrt(coefficients) * shrink
    return math.ldexp(math.hypot(noise.rounding_noise(params, leaders), total), params.smudging_bits)


def inner_product(
    key: RelinKey, x: tuple[Residues, Residues], y: tuple[Residues, Residues]
) -> tuple[Residues, Residues]:
    """(b0, b1) whose decryption has <x, y> as constant coefficient, for ciphertext stacks x and y.

    conj(y1·s) counts like y1·s with everything else conjugated, because a constant coefficient is its own conjugate:
    b1 = x1·conj(y0) + y1·conj(x0), and x1·conj(y1)·s·conj(s) is relinearised.
    """
    ring = ring_of(key.origin.context.params)
    b0 = ring.correlate(x[0], y[0])
    b1 = ring.correlate(x[1], y[0])
    b1 = ring.add(b1, b1 if x is y else ring.correlate(y[1], x[0]))
    extra0, extra1 = relinearise(key, ring.correlate(x[1], y[1]))
    return ring.add(b0, extra0), ring.add(b1, extra1)


def score_models(
    relin: RelinKey,
    models: Mapping[DeviceId, EncryptedModel],
    reference: Values,
    *,
    plan: ScorePlan,
    entropy: Entropy,
    places: Sequence[int] = (),
) -> ScalarCiphertexts:
    """Compute all scores of a round on ciphertext; of models of one row also the coefficients at `places`."""
    context = relin.origin.context
    params = context.params
    first = _check_models(context, models, reference)
    ring = ring_of(params)
    base = ring.from_integers(encode(params, reference, "the global model"), len(params.primes))
    updates = {leader: (ring.subtract_rows(model.c0, base), model.c1) for leader, model in models.items()}
    rows = _Rows(ring)
    queries = [
        *_energy_queries(relin, updates, plan, rows),
        *_coefficient_queries(context, updates, places, rows),
        *_projection_queries(context, updates, plan, rows, entropy),
        _control_query(context, rows),
    ]
    return ScalarCiphertexts(
        Origin(context, first.origin.round_no, COORDINATOR),
        tuple(models),
        plan.filters,
        tuple(queries),
        tuple(rows.gains),
        tuple(rows.sigmas),
        np.stack(rows.c0, axis=1),
        np.stack(rows.c1, axis=1),
    )


def request_scores(
    public: PublicKey,
    relin: RelinKey,
    models: Mapping[DeviceId, EncryptedModel],
    reference: Values,
    *,
    plan: ScorePlan,
    active: Sequence[DeviceId],
    entropy: Entropy,
) -> tuple[HeldScalars, ScalarRequest]:
    """Compute all scores of a round on ciphertext and run ServerDec on them."""
    public.context.check_active(tuple(active))
    return server_scalars(public, score_models(relin, models, reference, plan=plan, entropy=entropy), active, entropy)


def _check_models(context: KeyContext, models: Mapping[DeviceId, EncryptedModel], reference: Values) -> EncryptedModel:
    if not models:
        raise CryptoError("there is no model to score")
    first = next(iter(models.values()))
    for leader, model in models.items():
        if model.context != context or model.origin.sender != leader:
            raise CryptoError(f"model from {model.origin.sender}: not {leader}'s, or under another key")
        if model.origin.round_no != first.origin.round_no or model.scale_bits != context.params.scale_bits:
            raise CryptoError(f"model from {leader}: of another round, or not fresh")
        if model.n_params != reference.size:
            raise CryptoError(
                f"model from {leader}: {model.n_params} parameters, the global model has {reference.size}"
            )
    return first


def _energy_queries(
    relin: RelinKey, updates: Mapping[DeviceId, tuple[Residues, Residues]], plan: ScorePlan, rows: _Rows
) -> list[Query]:
    context = relin.origin.context
    gain = plan.energy_gain(context.params)
    sigma = energy_sigma(context, plan)
    pairs = [(leader, leader) for leader in updates]
    if plan.gram:
        pairs += list(itertools.combinations(updates, 2))
    queries = []
    for one, two in pairs:
        b0, b1 = inner_product(relin, updates[one], updates[two])
        row = rows.append(b0, b1, gain, sigma)
        queries.append(Query(row, -1, one, two))
        if one == two:
            queries += [Query(row, number, one, one) for number in range(len(plan.filters))]
    return queries


def _projection_queries(
    context: KeyContext,
    updates: Mapping[DeviceId, tuple[Residues, Residues]],
    plan: ScorePlan,
    rows: _Rows,
    entropy: Entropy,
) -> list[Query]:
    ring = rows.ring
    queries = []
    for _ in range(plan.projections):
        limbs, *shape = next(iter(updates.values()))[0].shape
        drawn = ring.from_integers(sampling.ternary((shape[0], shape[1]), entropy), limbs)
        gain = plan.projection_gain(context.params, entropy)
        sigma = projection_sigma(context, gain, math.prod(shape))
        for leader, (d0, d1) in updates.items():
            row = rows.append(ring.correlate(d0, drawn), ring.correlate(d1, drawn), gain, sigma)
            queries.append(Query(row, -1, leader, ""))
    return queries


def coefficient_gain(params: ParameterSet) -> int:
    """What a single coefficient is multiplied by: values within the bound stay below half of Q."""
    return 1 << (params.weight_bits - 1)


def coefficient_sigma(context: KeyContext) -> float:
    """Smudging of a single coefficient at q_dec: 2^smudging_bits times the noise of rounding and of a ciphertext."""
    params, leaders = context.params, context.leaders
    shrink = coefficient_gain(params) * params.decryption_modulus / params.modulus
    total = math.hypot(noise.rounding_noise(params, leaders), noise.fresh_noise(params, leaders) * shrink)
    return math.ldexp(total, params.smudging_bits)


def _coefficient_queries(
    context: KeyContext, updates: Mapping[DeviceId, tuple[Residues, Residues]], places: Sequence[int], rows: _Rows
) -> list[Query]:
    """Coefficient j is the constant coefficient of D·conj(X^j)."""
    queries = []
    for place in places:
        unit = np.zeros((1, context.params.degree), dtype=np.int64)
        unit[0, place] = 1
        power = rows.ring.from_integers(unit, len(context.params.primes))
        for leader, (d0, d1) in updates.items():
            halves = rows.ring.correlate(d0, power), rows.ring.correlate(d1, power)
            row = rows.append(*halves, coefficient_gain(context.params), coefficient_sigma(context))
            queries.append(Query(row, -1, leader, BINDING))
    return queries


def read_coefficients(asked: HeldScalars, values: Sequence[int]) -> dict[DeviceId, list[float]]:
    """The decrypted coefficients of each leader's sketch, in the order of the places."""
    params = asked.origin.context.params
    found: dict[DeviceId, list[float]] = {}
    for query, value in zip(asked.queries, values, strict=True):
        if query.second == BINDING:
            unit = asked.gains[query.row] * params.decryption_modulus / params.modulus * params.scale
            found.setdefault(DeviceId(query.first), []).append(value / unit)
    return found


def _control_query(context: KeyContext, rows: _Rows) -> Query:
    """An encryption of zero: if it does not decrypt to zero, no score of the request can be trusted."""
    params = context.params
    zero = np.zeros((len(params.primes), params.degree), dtype=np.uint32)
    return Query(rows.append(zero, zero, 1, least_sigma(context)), -1, "", "")


def decrypt_scores(held: HeldScalars, shares: Sequence[ScalarShare]) -> list[int]:
    """FinDec of every score, once every member of the active set has answered and the control shows zero."""
    values = final_scalars(held, shares)
    if abs(values[-1]) > 10 * least_sigma(held.origin.context) * math.sqrt(len(held.active) + 1):
        raise WrongShareError(
            f"round {held.origin.round_no}: the score shares of {', '.join(held.active)} do not decrypt the control: "
            "one of them is wrong",
            held.active,
        )
    return values


def combine_scores(held: HeldScalars, shares: Sequence[ScalarShare], plan: ScorePlan) -> Scores:
    """The scores in the clear, once every member of the active set has answered."""
    return read_scores(held, decrypt_scores(held, shares), len(held.active), plan)


def read_scores(
    asked: HeldScalars | ScalarCiphertexts, values: Sequence[int], decrypted_by: int, plan: ScorePlan
) -> Scores:
    """What the decrypted integers say, in units of the models; `decrypted_by` so many leaders, who all added noise."""
    params = asked.origin.context.params
    if len(values) != len(asked.queries):
        raise CryptoError(f"{len(values)} decrypted scores, not the {len(asked.queries)} that were asked for")
    units = [gain * params.decryption_modulus / params.modulus * params.scale for gain in asked.gains]
    leaders = list(dict.fromkeys(DeviceId(query.first) for query in asked.queries[:-1]))
    place = {leader: number for number, leader in enumerate(leaders)}
    bands: dict[str, dict[DeviceId, float]] = {chosen.name: {} for chosen in plan.filters}
    projections: dict[DeviceId, tuple[float, ...]] = dict.fromkeys(leaders, ())
    gram = np.zeros((len(leaders), len(leaders)))
    for query, value in zip(asked.queries[:-1], values[:-1], strict=True):
        leader = DeviceId(query.first)
        if query.second == BINDING:
            continue
        score = value / units[query.row]
        if not query.second:
            projections[leader] = (*projections[leader], score)
        elif query.filter_no >= 0:
            chosen = plan.filters[query.filter_no]
            bands[chosen.name][leader] = math.ldexp(score, -params.scale_bits - chosen.bits)
        else:
            one, two = place[leader], place[DeviceId(query.second)]
            gram[one, two] = gram[two, one] = math.ldexp(score, -params.scale_bits)
    distance = {leader: float(gram[number, number]) for leader, number in place.items()}
    sources = math.sqrt(decrypted_by + 1)
    precision = math.ldexp(asked.sigmas[0] * sources / units[0], -params.scale_bits)
    projection_precision = asked.sigmas[-2] * sources / units[-2] if plan.projections else 0.0
    return Scores(distance, bands, projections, gram if plan.gram else None, precision, projection_precision)
