"""Leader election: the most resourceful serves, and owes the others a rest (Algorithm 1, line 11).

The paper takes argmax CS[c], and lets a leader's stale local model make room for others. Here that is
explicit: service adds to a debt which fades while others serve,

    effective_i = score_i - fairness |C| (1 - fade) debt_i,      debt_i <- fade debt_i + (1 if i serves)

so that in the long run the share of terms is f_i = (1 + (score_i - mean score) / fairness) / |C| where that is
positive: strong devices serve more, weak ones sometimes, and nobody more than `max_in_row` terms in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.report import FloatArray, Report
from ofl_iot.fleet.trust import Evidence, Standing, Trusted
from ofl_iot.ids import DeviceId

FLOOR = 0.05
"""Least value of a resource relative to the fleet: one bad reading must not erase a device."""


@dataclass(frozen=True)
class ElectionSettings:
    """Weights of the score, the rotation, and the limits that end service."""

    pace: float = 0.5
    network: float = 0.2
    availability: float = 0.15
    headroom: float = 0.15
    fairness: float = 0.25
    """The lead in score that doubles a device's service: greater spreads it more evenly."""
    fade: float = 0.9
    hysteresis: float = 0.1
    """The sitting leader stays while nobody's effective score exceeds its own by more."""
    max_in_row: int = 3
    deputies: int = 2
    min_battery: float = 0.2
    """Below this charge service ends; it begins only 0.1 above."""
    max_temperature_c: float = 85.0
    """Above this temperature service ends; it begins only 5 degrees below."""
    min_contact: float = 0.5
    """A device that was seen for less than this share of the time is elected only where there is nobody else."""
    min_rate: float = 0.1
    """So is one whose observed rate is below this share of the fleet's median rate,"""
    min_mbps: float = 0.25
    """and one that says itself that its link carries less."""

    def __post_init__(self) -> None:
        weights = (self.pace, self.network, self.availability, self.headroom)
        if min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError("election: the weights of the score are at least 0, one of them positive")
        if self.fairness <= 0 or not 0 <= self.fade < 1 or self.hysteresis < 0:
            raise ConfigError("election: need fairness > 0, 0 <= fade < 1, hysteresis >= 0")
        if self.max_in_row < 1 or self.deputies < 0:
            raise ConfigError("election: max_in_row is at least 1, deputies at least 0")


@dataclass(frozen=True)
class Service:
    """What a device has served; plain numbers, so that the coordinator can journal it."""

    debt: float = 0.0
    in_row: int = 0
    terms: int = 0

    def served(self, fade: float) -> Service:
        """After a term in office."""
        return Service(debt=fade * self.debt + 1.0, in_row=self.in_row + 1, terms=self.terms + 1)

    def rested(self, fade: float) -> Service:
        """After a term out of office."""
        return Service(debt=fade * self.debt, in_row=0, terms=self.terms)


@dataclass(frozen=True)
class Candidate:
    """A device as the election sees it."""

    score: float
    standing: Standing = Standing.VERIFIED
    fit: bool = True
    """Whether battery, temperature and link allow service."""


@dataclass(frozen=True)
class Office:
    """The outcome in one cluster: all members in order of succession, the leader first."""

    succession: tuple[DeviceId, ...]
    deputy_count: int

    @property
    def leader(self) -> DeviceId:
        return self.succession[0]

    @property
    def deputies(self) -> tuple[DeviceId, ...]:
        return self.succession[1 : 1 + self.deputy_count]


def resource_scores(reports: Sequence[Report], trusted: Trusted, settings: ElectionSettings) -> FloatArray:
    """Each device's resources in (0, 1]: a weighted geometric mean of believed resources, times trust.

    score = trust Π_q max(0.05, min(1, x_q / Q90(x_q)))^(w_q / Σw), q: pace, network, availability, headroom.
    """
    headroom = np.array([_headroom(report) for report in reports], dtype=np.float64)
    parts = (
        (trusted.steps_per_s, settings.pace),
        (trusted.network_mbps, settings.network),
        (trusted.availability, settings.availability),
        (headroom, settings.headroom),
    )
    total = sum(weight for _, weight in parts)
    exponent = np.zeros(len(reports))
    for values, weight in parts:
        exponent += weight / total * np.log(_relative(values))
    return np.asarray(trusted.trust * np.exp(exponent), dtype=np.float64)


def fit_to_serve(report: Report, settings: ElectionSettings, *, sitting: bool) -> bool:
    """Whether battery and temperature allow service; who does not sit needs a margin, against flapping."""
    least = settings.min_battery + (0.0 if sitting else 0.1)
    greatest = settings.max_temperature_c - (0.0 if sitting else 5.0)
    charged = report.battery is None or report.battery >= least
    cool = report.temperature_c is None or report.temperature_c <= greatest
    return charged and cool


def typical_mbps(evidence: Iterable[Evidence]) -> float:
    """The median of the rates that were observed; 0 if there are none."""
    rates = [each.network_mbps.value for each in evidence if each.network_mbps.count]
    return float(np.median(rates)) if rates else 0.0


def link_serves(report: Report, evidence: Evidence, typical: float, settings: ElectionSettings) -> bool:
    """Whether a device's link allows service, as observed and as it says itself: nobody gains by claiming less.

    Loss shows in the rate. The unobserved are not judged.
    """
    contact, rate = evidence.availability, evidence.network_mbps
    present = not contact.count or contact.value >= settings.min_contact
    if report.network_mbps is not None and report.network_mbps < settings.min_mbps:
        return False
    return present and (not rate.count or rate.value >= settings.min_rate * typical)


def elect(
    clusters: Sequence[Sequence[DeviceId]],
    candidates: Mapping[DeviceId, Candidate],
    service: Mapping[DeviceId, Service],
    sitting: Iterable[DeviceId],
    settings: ElectionSettings,
) -> dict[int, Office]:
    """Leader and order of succession of each cluster, by its place in `clusters`; no cluster may be empty.

    Whoever is not distrusted comes before whoever is, then the fit, the verified, those who may serve another
    term in a row, and last the effective score; ties go to the lesser id.
    """
    in_office = frozenset(sitting)

    def rank(device: DeviceId, cost: float) -> tuple[bool, bool, bool, bool, float]:
        candidate, record = candidates[device], service.get(device, Service())
        effective = candidate.score - cost * record.debt
        return (
            candidate.standing == Standing.DISTRUSTED,
            not candidate.fit,
            candidate.standing != Standing.VERIFIED,
            record.in_row >= settings.max_in_row,
            -effective - (settings.hysteresis if device in in_office else 0.0),
        )

    offices: dict[int, Office] = {}
    for index, members in enumerate(clusters):
        if not members:
            raise ConfigError(f"cluster {index} has no members to elect a leader from")
        cost = settings.fairness * len(members) * (1.0 - settings.fade)
        ranked = sorted((rank(device, cost), device) for device in members)
        offices[index] = Office(tuple(device for _, device in ranked), settings.deputies)
    return offices


def after_election(
    service: Mapping[DeviceId, Service], leaders: Iterable[DeviceId], settings: ElectionSettings
) -> dict[DeviceId, Service]:
    """The service records once `leaders` took office; devices that never served have none."""
    serving = frozenset(leaders)
    records = {device: record.rested(settings.fade) for device, record in service.items() if device not in serving}
    records.update({device: service.get(device, Service()).served(settings.fade) for device in serving})
    return dict(sorted(records.items()))


def _headroom(report: Report) -> float:
    """Geometric mean of idle CPU, free memory and charge, each share floored."""
    battery = 1.0 if report.battery is None else report.battery
    free = report.memory_free_mib / report.memory_total_mib
    shares = (1.0 - report.cpu_load, free, battery)
    product = 1.0
    for share in shares:
        product *= max(FLOOR, share)
    return float(product ** (1 / len(shares)))


def _relative(values: FloatArray) -> FloatArray:
    """Values relative to the fleet's 90 % quantile, within [FLOOR, 1]."""
    top = float(np.quantile(values, 0.9)) if len(values) else 0.0
    return np.clip(values / top, FLOOR, 1.0) if top > 0 else np.full(len(values), FLOOR)
