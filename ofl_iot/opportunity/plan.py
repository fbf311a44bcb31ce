"""How much of the model a device can send and fetch with what it has left (Eq. 4).

    maximise   gamma_up + gamma_down                                   objective "linear", the paper's
               log(gamma_up) + log(gamma_down)                         objective "fair", the default
    such that  (C_R,up · gamma_up + C_R,down · gamma_down) · |theta| <= L_R    for each of five resources R
               0 <= gamma_up, gamma_down <= 1

The linear optimum is a corner: all of a scarce resource goes to the cheaper direction, so that some devices
never upload. The proportional-fair optimum over the same constraints gives both directions a share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Literal

from ofl_iot.errors import ConfigError

Objective = Literal["fair", "linear"]

NOTHING = "nothing"
"""The binding constraint of a device that can exchange its whole model."""


def _check_amount(amount: float, what: str, *, finite: bool) -> None:
    if math.isnan(amount) or amount < 0 or (finite and math.isinf(amount)):
        raise ConfigError(f"{what} is {amount}: give {'a finite' if finite else 'a'} number that is not negative")


@dataclass(frozen=True)
class Limits:
    """L_R: what a device may spend until the contact ends; infinity where nothing limits it."""

    computing_s: float = math.inf
    """Seconds of computing."""
    communication_bytes: float = math.inf
    """Bytes over the link, both directions together."""
    data_examples: float = math.inf
    """Training examples that still teach something: fresh or not yet seen too often, discounted by skew."""
    availability_j: float = math.inf
    """Joules until the device would have to switch off."""
    privacy_units: float = math.inf
    """Noisy training steps that the ledger still allows; the paper's mode knows no limit."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_amount(getattr(self, field.name), f"the limit {field.name}", finite=False)


@dataclass(frozen=True)
class Cost:
    """C_R,up and C_R,down of one resource, for one parameter."""

    up: float = 0.0
    down: float = 0.0

    def __post_init__(self) -> None:
        _check_amount(self.up, "an upload's cost", finite=True)
        _check_amount(self.down, "a download's cost", finite=True)


@dataclass(frozen=True)
class Costs:
    """The price of one parameter in each resource, in the units of `Limits`, for a model of `parameters`."""

    parameters: int
    computing_s: Cost = Cost()
    communication_bytes: Cost = Cost()
    data_examples: Cost = Cost()
    availability_j: Cost = Cost()
    privacy_units: Cost = Cost()

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ConfigError(f"a model of {self.parameters} parameters cannot be planned for: it needs at least one")


@dataclass(frozen=True)
class Plan:
    """The shares of the model to send and to fetch, and the resource that keeps them from being larger."""

    gamma_up: float
    gamma_down: float
    binding: str


@dataclass(frozen=True)
class _Row:
    """One constraint up·gamma_up + down·gamma_down <= limit."""

    name: str
    up: float
    down: float
    limit: float


def limits_of(
    *,
    link_bytes_per_s: float = math.inf,
    contact_s: float = math.inf,
    computing_share: float = 1.0,
    examples: float = math.inf,
    passes: float = 1.0,
    balance: float = 1.0,
    energy_j: float = math.inf,
    privacy_units_left: float = math.inf,
) -> Limits:
    """What telemetry says is left, as limits.

    computing = contact_s · computing_share; communication = link_bytes_per_s · contact_s; data = examples · passes
    · balance (`label_balance`): training on skewed data drifts sooner. A measured amount below zero means nothing left.
    """
    return Limits(
        computing_s=_product(contact_s, computing_share),
        communication_bytes=_product(link_bytes_per_s, contact_s),
        data_examples=_product(examples, passes, balance),
        availability_j=_product(energy_j),
        privacy_units=_product(privacy_units_left),
    )


def label_balance(counts: Sequence[int]) -> float:
    """How even a device's labels are: exp(entropy) / classes, from 1 / classes (one class alone) to 1 (all alike).

    `counts` are the samples of each class; without any sample it is 1.
    """
    total = sum(counts)
    shares = [count / total for count in counts if count > 0]
    return min(1.0, math.exp(-math.fsum(share * math.log(share) for share in shares)) / len(counts)) if shares else 1.0


def costs_of(
    parameters: int,
    *,
    local_steps: int,
    batch_size: int,
    step_s: float,
    bytes_up: float,
    bytes_down: float,
    computing_w: float = 0.0,
    radio_j_per_byte: float = 0.0,
    privacy_units: float = 0.0,
) -> Costs:
    """The cost model: what `local_steps` of training and the transfer cost, amortised over the parameters.

    One step over `batch_size` examples takes `step_s` seconds; one parameter takes `bytes_up` or `bytes_down` on the
    wire; computing takes `computing_w` watts; one whole upload takes `privacy_units`.
    """
    train_s = local_steps * step_s / max(1, parameters)
    return Costs(
        parameters=parameters,
        computing_s=Cost(train_s, 0.0),
        communication_bytes=Cost(bytes_up, bytes_down),
        data_examples=Cost(local_steps * batch_size / max(1, parameters), 0.0),
        availability_j=Cost(
            computing_w * train_s + radio_j_per_byte * bytes_up,
            radio_j_per_byte * bytes_down,
        ),
        privacy_units=Cost(privacy_units / max(1, parameters), 0.0),
    )


def plan(costs: Costs, limits: Limits, objective: Objective = "fair") -> Plan:
    """Solve Eq. 4 exactly.

    The best gamma_down for a given gamma_up is the lower envelope of the constraints: concave and piecewise
    linear. The optimum is at one of its corners or, for the fair objective, where the product gamma_up · gamma_down
    is largest along one constraint, at gamma_up = L / (2 · C_up · |theta|).
    """
    if objective not in ("fair", "linear"):
        raise ConfigError(f"plan objective {objective!r}: use 'fair' or 'linear'")
    rows = _rows(costs, limits)
    widest = min([1.0, *(row.limit / row.up for row in rows if row.up > 0)])
    best = max(((up, _deepest(rows, up)) for up in _corners(rows, widest, objective)), key=_WORTH[objective])
    return Plan(*best, binding=_binding(rows, *best))


def _rows(costs: Costs, limits: Limits) -> list[_Row]:
    rows = []
    for field in fields(limits):
        cost: Cost = getattr(costs, field.name)
        limit: float = getattr(limits, field.name)
        row = _Row(field.name.rsplit("_", 1)[0], cost.up * costs.parameters, cost.down * costs.parameters, limit)
        if math.isinf(row.up) or math.isinf(row.down):
            raise ConfigError(f"the cost of the whole model in {field.name} is beyond measure: check its unit")
        if (row.up > 0 or row.down > 0) and not math.isinf(limit):
            rows.append(row)
    return rows


def _deepest(rows: list[_Row], up: float) -> float:
    """The largest gamma_down that all constraints allow beside gamma_up = `up`."""
    return min([1.0, *(max(0.0, row.limit - row.up * up) / row.down for row in rows if row.down > 0)])


def _corners(rows: list[_Row], widest: float, objective: Objective) -> list[float]:
    """Every gamma_up at which the optimum can lie."""
    ups = [0.0, widest]
    lines = [*((row.up, row.down, row.limit) for row in rows), (0.0, 1.0, 1.0)]
    for (a, b, c), (d, e, f) in combinations(lines, 2):
        determinant = a * e - b * d
        if determinant:
            ups.append((c * e - b * f) / determinant)
    if objective == "fair":
        ups += [row.limit / (2 * row.up) for row in rows if row.up > 0 and row.down > 0]
    return [up for up in ups if 0.0 <= up <= widest]


def _fair_worth(gammas: tuple[float, float]) -> tuple[float, float]:
    return gammas[0] * gammas[1], gammas[0] + gammas[1]


def _linear_worth(gammas: tuple[float, float]) -> tuple[float, float]:
    return gammas[0] + gammas[1], min(gammas)


_WORTH = {"fair": _fair_worth, "linear": _linear_worth}


def _binding(rows: list[_Row], up: float, down: float) -> str:
    """The constraint with the least slack, relative to its limit."""
    if up >= 1.0 and down >= 1.0:
        return NOTHING
    slack = {row.name: row.limit - row.up * up - row.down * down for row in rows}
    limits = {row.name: row.limit for row in rows}
    return min(slack, key=lambda name: slack[name] / limits[name] if limits[name] else 0.0)


def _product(*amounts: float) -> float:
    """Their product, nothing if one of them is zero or less (so that zero times infinity is zero)."""
    if any(math.isnan(amount) for amount in amounts):
        raise ConfigError("telemetry holds a value that is not a number: leave out what is not measured")
    return 0.0 if min(amounts) <= 0 else math.prod(amounts)
