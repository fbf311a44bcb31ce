"""The detection bench: malicious leaders are those it says, verdicts are counted right, encryption changes none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ofl_agents.cli import main
from ofl_iot.ids import DeviceId
from ofl_iot.roles.events import ContributionProtected, Event, JobFailed
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.reports.coordinator import RoundClosed
from ofl_research.benches import detection as bench_detection
from ofl_research.benches.attack_cases import ATTACKS, BY_DEVICES, BY_LEADERS, leader_cases
from ofl_research.benches.detection import DetectionTrials, MaliciousLeader, Record, Shadow, Size, run
from ofl_research.benches.detection_report import check_targets, markdown
from ofl_research.benches.learning_data import load_corpus

TINY = Size(leaders=5, rounds=3, hidden=8, seeds=(0,))


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> DetectionTrials:
    monkeypatch.delenv("OFL_DATA", raising=False)
    return DetectionTrials(load_corpus(None, TINY.train), TINY)


class Echo:
    """Gives back what it was to protect."""

    def run(self, job: Job) -> Event:
        if isinstance(job, ProtectContribution):
            return ContributionProtected(job.round_no, job.update.tobytes())
        return JobFailed(type(job), "not asked for")


def test_a_malicious_leader_poisons_what_it_contributes_and_nothing_else() -> None:
    update = np.arange(4, dtype=np.float32)
    leader = MaliciousLeader(Echo(), ATTACKS["sign flip"], np.random.default_rng(0))
    protected = leader.run(ProtectContribution(1, update, DeviceId("a")))
    assert isinstance(protected, ContributionProtected)
    assert np.array_equal(np.frombuffer(protected.payload, np.float32), -update)
    assert isinstance(leader.run(TrainLocally(update, 1)), JobFailed)
    honest = MaliciousLeader(Echo(), ATTACKS["label flip"], np.random.default_rng(0))
    protected = honest.run(ProtectContribution(1, update, DeviceId("a")))
    assert isinstance(protected, ContributionProtected)
    assert np.array_equal(np.frombuffer(protected.payload, np.float32), update)


def test_the_record_holds_who_was_excluded_round_by_round() -> None:
    record = Record()
    for excluded in ((), ("a",), ("a", "b")):
        record.listen("coordinator", RoundClosed(1, 1, {}, tuple(excluded)), 0.0)
    assert record.excluded == [frozenset(), {"a"}, {"a", "b"}]


def test_every_leader_has_a_cluster_and_a_seed_leads_to_the_same_ones(trials: DetectionTrials) -> None:
    clusters = trials._clusters_of(0)
    assert len(clusters) == TINY.leaders
    assert sorted(len(cluster) for cluster in clusters) == [2] * TINY.leaders
    assert DetectionTrials(load_corpus(None, TINY.train), TINY)._clusters_of(0) == clusters


def test_leaders_that_flip_their_sign_spoil_the_mean_and_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    size = Size(rounds=5, hidden=8)
    trials = DetectionTrials(load_corpus(None, size.train), size)
    spoilt = trials.run("sign flip", 4, "mean", 0)
    guarded = trials.run("sign flip", 4, "ledger", 0)
    assert spoilt.true_positive_rate == 0.0
    assert guarded.true_positive_rate is not None
    assert guarded.true_positive_rate > 0.5
    assert guarded.accuracy > spoilt.accuracy


def test_on_ciphertext_the_verdicts_are_those_of_the_updates(trials: DetectionTrials) -> None:
    same = trials.compare_encrypted("sign flip", 1, 0, 3)
    assert same["rounds"] == same["same_verdicts"] == 3
    assert same["largest_difference_of_a_parameter"] < 2e-3


def test_a_shadow_without_a_round_compares_nothing() -> None:
    shadow = Shadow(4, "mean")
    shadow.see(TrainLocally(np.zeros(4, np.float32), 1), JobFailed(TrainLocally, "x"))
    assert shadow.rounds == 0


def test_every_attack_by_leaders_is_tried_at_both_shares() -> None:
    cases = leader_cases(10)
    assert len(cases) == 1 + 2 * len(BY_LEADERS)
    assert {bad for _, bad in cases} == {0, 2, 4}
    assert set(BY_LEADERS) | set(BY_DEVICES) | {"none"} == ATTACKS.keys()


def test_a_missed_target_is_said() -> None:
    row = {"data": "d", "attack": "none", "malicious": 0, "fpr": 0.2, "accuracy": 0.5}
    checks = check_targets([{**row, "form": "mean", "accuracy": 0.9}, {**row, "form": "ledger"}], 10)
    assert [check["holds"] for check in checks] == [False, False]


def test_the_command_writes_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    result = run(size=TINY, forms=("mean", "ledger"), cases=(("none", 0), ("sign flip", 2)))
    assert [(row["attack"], row["form"]) for row in result["rows"]] == [
        (attack, form) for attack in ("none", "sign flip") for form in ("mean", "ledger")
    ]
    assert any("accuracy gained over mean" in check["what"] for check in result["targets"])
    monkeypatch.setattr(bench_detection, "run", lambda *, quick, progress: result)
    out, shown = tmp_path / "detection.json", tmp_path / "table.md"
    assert main(["bench", "detection", "--json", str(out), "--markdown", str(shown), "--quick"]) == 0
    assert json.loads(out.read_text())["rows"] == json.loads(capsys.readouterr().out)["rows"] == result["rows"]
    assert shown.read_text() == markdown(result) + "\n"
    assert "| digits | sign flip | 2 |" in shown.read_text()
    assert "Under encryption" in shown.read_text()
