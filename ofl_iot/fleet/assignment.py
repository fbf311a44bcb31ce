"""The fleet's plan for a term: who is in which cluster, who leads, who stands by.

A cluster is known by its leader's id, because its topics carry it. Plans are plain frozen data: the
coordinator journals one before it publishes a single assignment, and resumes from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.clustering import (
    NEWCOMER,
    Clustering,
    ClusteringSettings,
    capacity,
    cluster,
    cluster_count,
    place,
)
from ofl_iot.fleet.election import (
    Candidate,
    ElectionSettings,
    Service,
    after_election,
    elect,
    fit_to_serve,
    link_serves,
    resource_scores,
    typical_mbps,
)
from ofl_iot.fleet.features import FeatureScale, FeatureWeights, features
from ofl_iot.fleet.report import FloatArray, IntArray, Report
from ofl_iot.fleet.trust import Evidence, Standing, Trusted, TrustSettings, assess
from ofl_iot.ids import DeviceId, Term


@dataclass(frozen=True)
class DeviceView:
    """A live device as the coordinator knows it: its last report and what was observed of it."""

    report: Report
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True)
class FleetSettings:
    """All that an operator may set about the fleet."""

    features: FeatureWeights = field(default_factory=FeatureWeights)
    clustering: ClusteringSettings = field(default_factory=ClusteringSettings)
    election: ElectionSettings = field(default_factory=ElectionSettings)
    trust: TrustSettings = field(default_factory=TrustSettings)


@dataclass(frozen=True)
class ClusterPlan:
    """One cluster; `members` are all of them in order of succession: the leader, its deputies, the rest."""

    leader: DeviceId
    deputies: tuple[DeviceId, ...]
    members: tuple[DeviceId, ...]
    centre: tuple[float, ...] = ()


@dataclass(frozen=True)
class FleetPlan:
    """The clusters of a term, what it cost to get there, and what planning the next one needs."""

    term: Term
    clusters: tuple[ClusterPlan, ...]
    churn: float = 0.0
    """Share of the devices known before that changed their cluster."""
    service: dict[DeviceId, Service] = field(default_factory=dict)
    scale: FeatureScale | None = None
    distrusted: tuple[DeviceId, ...] = ()
    """Devices whose reports disagree with what was observed of them."""


def plan_assignments(
    devices: Mapping[DeviceId, DeviceView],
    previous: FleetPlan | None,
    term: Term,
    settings: FleetSettings,
    rng: np.random.Generator,
    *,
    failing: Collection[DeviceId] = (),
) -> FleetPlan:
    """Cluster all live devices and elect a leader in each cluster, none of the failing if there is another.

    The same devices, previous plan, settings and rng state give the same plan, whatever the mapping's order.
    """
    if previous is not None and term <= previous.term:
        raise ConfigError(f"term {term} cannot follow term {previous.term}: terms only grow")
    service = previous.service if previous else {}
    ids = sorted(devices)
    if not ids:
        return FleetPlan(term, (), service=service)
    reports = [devices[i].report for i in ids]
    trusted = assess(reports, [devices[i].evidence for i in ids], settings.trust)
    points, scale = features(reports, trusted, settings.features, settings.trust.prior, None)
    grouping = _group(points, trusted, _labels(previous, ids), settings.clustering, rng)
    members = _members(ids, grouping.labels, len(grouping.centres))
    sitting = frozenset(leaders(previous)) if previous else frozenset()
    candidates = _candidates(ids, reports, trusted, sitting, settings.election)
    typical = typical_mbps(devices[i].evidence for i in ids)
    poor = {i for i in ids if not link_serves(devices[i].report, devices[i].evidence, typical, settings.election)}
    for device in sorted(candidates.keys() & {*failing, *poor}):
        candidates[device] = replace(candidates[device], fit=False)
    spread_leaders(members, candidates)
    offices = elect(members, candidates, service, sitting, settings.election)
    clusters = tuple(
        ClusterPlan(offices[j].leader, offices[j].deputies, offices[j].succession, tuple(centre.tolist()))
        for j, centre in enumerate(grouping.centres)
    )
    served = after_election(service, (c.leader for c in clusters), settings.election)
    distrusted = tuple(i for i in ids if candidates[i].standing == Standing.DISTRUSTED)
    return FleetPlan(term, clusters, grouping.churn, served, scale, distrusted)


def with_joiners(
    plan: FleetPlan, joiners: Mapping[DeviceId, DeviceView], settings: FleetSettings | None = None
) -> FleetPlan:
    """Place late joiners at once, each in the nearest cluster with room, last in its succession; idempotent."""
    settings = settings or FleetSettings()
    placed = {device for c in plan.clusters for device in c.members}
    ids = sorted(joiners.keys() - placed)
    if not ids:
        return plan
    if not plan.clusters:
        return with_joiners(_founded(plan, ids[0], joiners[ids[0]], settings), joiners, settings)
    points, _ = _points([joiners[device] for device in ids], plan.scale, settings)
    sizes = np.array([len(c.members) for c in plan.clusters])
    limit = capacity(int(sizes.sum()) + len(ids), len(sizes), settings.clustering)
    places = place(points, np.array([c.centre for c in plan.clusters]), sizes, limit)
    for index in np.unique(places).tolist():
        joined = (device for device, at in zip(ids, places.tolist(), strict=True) if at == index)
        plan = _succeeded(plan, index, (*plan.clusters[index].members, *joined), settings)
    return plan


def with_leader_lost(plan: FleetPlan, leader: DeviceId, settings: FleetSettings | None = None) -> FleetPlan:
    """Promote the first deputy of a lost leader, who stays a plain member and last in succession.

    A leader without other members has no successor: its cluster is dissolved. The caller decides whether a
    new term begins. Unchanged when `leader` leads no cluster, so that a loss reported twice promotes once.
    """
    found = cluster_of(plan, leader)
    if found is None or found[1].leader != leader:
        return plan
    index, old = found
    if len(old.members) == 1:
        return replace(plan, clusters=plan.clusters[:index] + plan.clusters[index + 1 :])
    return _succeeded(plan, index, (*(m for m in old.members if m != leader), leader), settings or FleetSettings())


def leaders(plan: FleetPlan) -> tuple[DeviceId, ...]:
    """The leaders in the order of the clusters."""
    return tuple(c.leader for c in plan.clusters)


def cluster_of(plan: FleetPlan, device: DeviceId) -> tuple[int, ClusterPlan] | None:
    """The place and the cluster of a device; for all devices at once use `assignments`."""
    for index, candidate in enumerate(plan.clusters):
        if device in candidate.members:
            return index, candidate
    return None


def assignments(plan: FleetPlan) -> dict[DeviceId, ClusterPlan]:
    """Each device's cluster."""
    return {device: c for c in plan.clusters for device in c.members}


def turnover(plan: FleetPlan, live: Iterable[DeviceId]) -> float:
    """How much the fleet changed since the plan: (joined + departed) / planned."""
    planned = {device for c in plan.clusters for device in c.members}
    return len(planned.symmetric_difference(live)) / max(len(planned), 1)


def _points(
    views: Sequence[DeviceView], scale: FeatureScale | None, settings: FleetSettings
) -> tuple[FloatArray, FeatureScale]:
    """The devices as points among the clusters of a plan with this scale."""
    reports = [view.report for view in views]
    trusted = assess(reports, [view.evidence for view in views], settings.trust)
    return features(reports, trusted, settings.features, settings.trust.prior, scale)


def _founded(plan: FleetPlan, device: DeviceId, view: DeviceView, settings: FleetSettings) -> FleetPlan:
    """A plan without clusters gets its first one, of a single device."""
    (point,), scale = _points([view], plan.scale, settings)
    alone = ClusterPlan(device, (), (device,), tuple(point.tolist()))
    record = plan.service.get(device, Service()).served(settings.election.fade)
    return replace(plan, clusters=(alone,), scale=scale, service={**plan.service, device: record})


def _labels(previous: FleetPlan | None, ids: Sequence[DeviceId]) -> IntArray:
    where = {device: j for j, c in enumerate(previous.clusters) for device in c.members} if previous else {}
    return np.array([where.get(device, NEWCOMER) for device in ids], dtype=np.int64)


def _group(
    points: FloatArray,
    trusted: Trusted,
    previous: IntArray,
    settings: ClusteringSettings,
    rng: np.random.Generator,
) -> Clustering:
    """Let the trusted shape the clusters and place the others in them.

    So no cluster consists of devices nobody vouches for, and forgers cannot gather in one of their own. While
    fewer than half the fleet is verified, the unknown take part.
    """
    shaping = trusted.standing == Standing.VERIFIED
    if 2 * shaping.sum() < len(points):
        shaping = trusted.standing != Standing.DISTRUSTED
    if not shaping.any():
        shaping = np.ones(len(points), dtype=np.bool_)
    before = int(previous.max()) + 1 if np.any(previous != NEWCOMER) else None
    k = cluster_count(len(points), settings, before)
    k = max(1, min(k, int(shaping.sum()) // settings.min_size))
    core = cluster(points[shaping], k, settings, rng, previous[shaping])
    if shaping.all():
        return core
    labels = np.empty(len(points), dtype=np.int64)
    labels[shaping] = core.labels
    sizes = np.bincount(core.labels, minlength=k)
    labels[~shaping] = place(points[~shaping], core.centres, sizes, capacity(len(points), k, settings))
    return Clustering(labels, core.centres, core.churn)


def _members(ids: Sequence[DeviceId], labels: IntArray, k: int) -> list[list[DeviceId]]:
    members: list[list[DeviceId]] = [[] for _ in range(k)]
    for device, label in zip(ids, labels.tolist(), strict=True):
        members[label].append(device)
    return members


def spread_leaders(members: list[list[DeviceId]], candidates: Mapping[DeviceId, Candidate]) -> None:
    """Swap members so that no cluster consists of devices that cannot lead while another has several that can.

    Devices with poor links are alike, and clusters are of devices that are alike: somebody must lead them.
    """

    def able(cluster: list[DeviceId]) -> list[DeviceId]:
        fit = [d for d in cluster if candidates[d].fit and candidates[d].standing != Standing.DISTRUSTED]
        return sorted(fit, key=lambda device: (-candidates[device].score, device))

    for cluster_of_unable in members:
        donor = max(members, key=lambda each: len(able(each)))
        if able(cluster_of_unable) or len(able(donor)) < 2:
            continue
        comes, goes = able(donor)[1], min(cluster_of_unable)
        donor[donor.index(comes)] = goes
        cluster_of_unable[cluster_of_unable.index(goes)] = comes
        donor.sort()
        cluster_of_unable.sort()


def _candidates(
    ids: Sequence[DeviceId],
    reports: Sequence[Report],
    trusted: Trusted,
    sitting: frozenset[DeviceId],
    settings: ElectionSettings,
) -> dict[DeviceId, Candidate]:
    scores = resource_scores(reports, trusted, settings)
    return {
        device: Candidate(
            score=float(scores[row]),
            standing=Standing(int(trusted.standing[row])),
            fit=fit_to_serve(reports[row], settings, sitting=device in sitting),
        )
        for row, device in enumerate(ids)
    }


def _succeeded(plan: FleetPlan, index: int, members: tuple[DeviceId, ...], settings: FleetSettings) -> FleetPlan:
    """The cluster at `index` with these members in succession; a new leader's service begins to count."""
    old, leader = plan.clusters[index], members[0]
    new = ClusterPlan(leader, members[1 : 1 + settings.election.deputies], members, old.centre)
    after = replace(plan, clusters=(*plan.clusters[:index], new, *plan.clusters[index + 1 :]))
    if leader == old.leader:
        return after
    record = plan.service.get(leader, Service()).served(settings.election.fade)
    return replace(after, service={**plan.service, leader: record})
