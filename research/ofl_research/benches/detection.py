"""How well each s-factor form protects a federation of production machines from malicious leaders, in virtual time.

Ten leaders with two devices each, Dirichlet 0.5. A malicious leader's devices hold poisoned data, or the leader
poisons its cluster's update before it protects it. Rounds are in the clear, where the coordinator judges the same
numbers; one federation is run under encryption too, and every verdict on ciphertext compared with the one on the
updates behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ofl_agents.sim.simulation import device_names
from ofl_iot.ids import COORDINATOR
from ofl_iot.jobs.clear_round import aggregate_clear
from ofl_iot.jobs.toolbox import Toolbox
from ofl_iot.robust.sfactors import DEFAULT_FORM, FORMS
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.events import Event, RoundAggregated, Vector
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.rounds import AggregateRound, FinishRound, ProtectContribution, ScoreRound, WeighRound
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import RoundClosed
from ofl_iot.runtime.virtual import VirtualWorld
from ofl_iot.workloads.dense import DenseNet
from ofl_iot.workloads.idx import data_folder
from ofl_research.benches.attack_cases import ATTACKS, Attack, leader_cases
from ofl_research.benches.detection_report import Outcome, averages, check_targets, markdown
from ofl_research.benches.learning_cases import Case, Laboratory, Scale
from ofl_research.benches.learning_data import CLASSES, Corpus, ImageWorkload, Part, deal, load_corpus
from ofl_research.benches.learning_federation import Judge, Member, Observer, make_world

__all__ = ["DetectionTrials", "Size", "markdown", "run"]


@dataclass(frozen=True)
class Size:
    """How large the bench is."""

    leaders: int = 10
    devices_per_cluster: int = 2
    rounds: int = 15
    train: int = 4_000
    hidden: int = 32
    seeds: tuple[int, ...] = (0, 1, 2)


QUICK = Size(rounds=8, seeds=(0,))


@dataclass
class Record(Observer):
    """Who was excluded in each closed round."""

    excluded: list[frozenset[str]] = field(default_factory=list)

    def listen(self, name: str, report: Report, now: float) -> None:
        """Note what a party reports."""
        super().listen(name, report, now)
        if isinstance(report, RoundClosed):
            self.excluded.append(frozenset(report.excluded))


class MaliciousLeader:
    """A device that poisons its cluster's update when it leads."""

    def __init__(self, inner: Toolbox, attack: Attack, rng: np.random.Generator) -> None:
        self.inner = inner
        self._attack = attack
        self._rng = rng

    def run(self, job: Job) -> Event:
        """Run a job as any device does, but protect poison."""
        if isinstance(job, ProtectContribution) and self._attack.poison_update is not None:
            job = replace(job, update=np.asarray(self._attack.poison_update(job.update, self._rng), np.float32))
        return self.inner.run(job)


@dataclass
class Shadow:
    """Sees the updates behind the ciphertexts, and judges each encrypted round again in the clear."""

    size: int
    form: str
    updates: dict[tuple[str, int], Vector] = field(default_factory=dict)
    rounds: int = 0
    same_verdicts: int = 0
    worst_error: float = 0.0
    _score: ScoreRound | None = None
    _evidence: dict[str, float] = field(default_factory=dict)

    def watch(self, world: VirtualWorld) -> None:
        """Stand between every party and its jobs, behind the poison."""
        for party in world.parties.values():
            if isinstance(party.toolbox, MaliciousLeader):
                party.toolbox.inner = _Watched(party.toolbox.inner, self)
            else:
                party.toolbox = _Watched(party.toolbox, self)

    def see(self, job: Job, result: Event) -> None:
        """Note what goes in and compare what comes out."""
        if isinstance(job, ProtectContribution):
            self.updates[job.me, job.round_no] = job.update
        elif isinstance(job, ScoreRound):
            self._score = job
        elif isinstance(job, WeighRound):
            self._evidence = job.evidence
        elif isinstance(job, FinishRound) and isinstance(result, RoundAggregated) and self._score:
            self._compare(result, self._score)

    def _compare(self, result: RoundAggregated, score: ScoreRound) -> None:
        plain = tuple(
            replace(each, payload=self.updates[each.leader, score.round_no].astype("<f4").tobytes())
            for each in score.contributions
            if each.leader not in result.refused
        )
        clear = aggregate_clear(AggregateRound(score.round_no, plain, self._evidence), self.size, self.form)
        self.rounds += 1
        self.same_verdicts += clear.excluded == result.excluded
        self.worst_error = max(self.worst_error, float(np.abs(clear.update - result.update).max()))


@dataclass
class _Watched:
    inner: Toolbox
    shadow: Shadow

    def run(self, job: Job) -> Event:
        result = self.inner.run(job)
        self.shadow.see(job, result)
        return result


class DetectionTrials:
    """Runs federations of one size on one corpus under attack."""

    def __init__(self, corpus: Corpus, size: Size) -> None:
        self.size = size
        self._devices = size.leaders * size.devices_per_cluster
        scale = Scale(devices=self._devices, rounds=size.rounds, train=size.train, hidden=size.hidden)
        self._laboratory = Laboratory(corpus, scale)
        self._clusters: dict[int, list[tuple[str, ...]]] = {}

    @property
    def corpus(self) -> str:
        """The name of the data."""
        return self._laboratory.corpus.name

    @cached_property
    def _net(self) -> DenseNet:
        return DenseNet((self._laboratory.corpus.pixels, self.size.hidden, CLASSES))

    def run(self, attack: str, malicious: int, form: str, seed: int) -> Outcome:
        """One federation from its beginning to its last round."""
        world, judge, record, bad = self._federation(attack, malicious, form, seed, mode="clear")
        self._finish(world)
        flagged = [len(excluded & bad) for excluded in record.excluded]
        wronged = [len(excluded - bad) for excluded in record.excluded]
        rounds = max(1, len(record.excluded))
        _, accuracy, success = judge.verdict()
        return Outcome(
            accuracy=accuracy,
            attack_success=success,
            true_positive_rate=sum(flagged) / (rounds * malicious) if malicious else None,
            false_positive_rate=sum(wronged) / (rounds * (self.size.leaders - malicious)),
        )

    def compare_encrypted(self, attack: str, malicious: int, seed: int, rounds: int) -> dict[str, Any]:
        """The same under encryption: in how many rounds the verdict was that of the plain updates."""
        world, *_ = self._federation(attack, malicious, DEFAULT_FORM, seed, mode="threshold")
        shadow = Shadow(self._net.size, DEFAULT_FORM)
        shadow.watch(world)
        self._finish(world, lambda: shadow.rounds >= rounds)
        return {
            "attack": attack,
            "malicious": malicious,
            "rounds": shadow.rounds,
            "same_verdicts": shadow.same_verdicts,
            "largest_difference_of_a_parameter": round(shadow.worst_error, 6),
        }

    def _finish(self, world: VirtualWorld, until: Callable[[], bool] = lambda: False) -> None:
        def done() -> bool:
            machine = world.parties[COORDINATOR].machine
            return until() or (isinstance(machine, CoordinatorMachine) and machine.finished)

        world.run(done, limit_s=120 + 10 * self.size.rounds)
        world.run(lambda: False, limit_s=world.now + 1.0)  # the last model is judged

    def _federation(
        self, attack: str, malicious: int, form: str, seed: int, *, mode: str
    ) -> tuple[VirtualWorld, Judge, Record, frozenset[str]]:
        clusters = self._clusters_of(seed)
        chosen = np.random.default_rng(seed).permutation(len(clusters))[:malicious]
        bad = [clusters[place] for place in chosen]
        poisoned = {device for cluster in bad for device in cluster}
        world, judge, record = self._world(ATTACKS[attack], poisoned, form, seed, mode=mode)
        for number, cluster in enumerate(bad):
            leader = world.parties[cluster[0]]
            leader.toolbox = MaliciousLeader(leader.toolbox, ATTACKS[attack], np.random.default_rng([seed, number]))
        return world, judge, record, frozenset(cluster[0] for cluster in bad)

    def _clusters_of(self, seed: int) -> list[tuple[str, ...]]:
        """Members of each cluster, the leader first: what a seed leads to, whatever is learnt."""
        if seed not in self._clusters:
            world, _, record = self._world(ATTACKS["none"], set(), DEFAULT_FORM, seed, mode="clear")
            world.run(lambda: record.clusters > 0, limit_s=60.0)
            machine = world.parties[COORDINATOR].machine
            assert isinstance(machine, CoordinatorMachine)  # noqa: S101  # it was just added
            plan = machine.roster.plan
            assert plan is not None  # noqa: S101  # they were clustered
            self._clusters[seed] = [tuple(str(device) for device in cluster.members) for cluster in plan.clusters]
        return self._clusters[seed]

    def _world(
        self, attack: Attack, poisoned: set[str], form: str, seed: int, *, mode: str
    ) -> tuple[VirtualWorld, Judge, Record]:
        sections: dict[str, dict[str, Any]] = {
            "fleet": {"clusters": self.size.leaders, "gather_s": 2.0},
            "round": {"interval_s": 5.0, "deadline_s": 20.0, "recluster_every": 0, "count": self.size.rounds},
            "training": {"pause_s": 2.0},  # two or three trainings a round
            "upload": {"gamma": 1.0},
            "download": {"gamma": 1.0},
            "protection": {"mode": mode, "params": "main", "s_factor": form},
        }
        settings = self._laboratory.settings(Case("detection", sections), seed)
        train = self._laboratory.corpus.train
        train = Part(train.images[: self.size.train], train.labels[: self.size.train])
        members = []
        for name, rows in zip(device_names(self._devices), deal(train.labels, self._devices, seed), strict=True):
            own = Part(train.images[rows], train.labels[rows])
            if name in poisoned and attack.poison_data is not None:
                own = Part(*attack.poison_data(own.images, own.labels))
            members.append(Member(ImageWorkload(self._net, own)))
        judge, record = Judge(self._net, self._laboratory.corpus.held_out("test")), Record()
        return make_world(settings, members, judge, record.listen), judge, record


def run(
    data: Path | None = None,
    *,
    quick: bool = False,
    size: Size | None = None,
    forms: Iterable[str] = tuple(FORMS),
    cases: Iterable[tuple[str, int]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The whole table: one row per attack, number of malicious leaders and form, averaged over the seeds."""
    began = time.perf_counter()
    size = size or (QUICK if quick else Size())
    trials = DetectionTrials(load_corpus(data_folder(data), size.train), size)
    rows = []
    for attack, malicious in leader_cases(size.leaders) if cases is None else cases:
        for form in forms:
            progress(f"{attack}, {malicious} of {size.leaders} malicious, {form}")
            outcomes = [trials.run(attack, malicious, form, seed) for seed in size.seeds]
            row = {"data": trials.corpus, "attack": attack, "malicious": malicious, "form": form}
            rows.append({**row, **averages(outcomes)})
    progress("under encryption")
    encrypted = trials.compare_encrypted("sign flip", round(0.2 * size.leaders), size.seeds[0], min(6, size.rounds))
    return {
        "setting": asdict(size),
        "seeds": list(size.seeds),
        "rows": rows,
        "targets": check_targets(rows, size.leaders),
        "encrypted": encrypted,
        "seconds": round(time.perf_counter() - began, 1),
    }
