"""The learning bench deals data as it says, its federations learn, and its figures say what they were asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ofl_agents.cli import main
from ofl_iot.errors import ConfigError
from ofl_iot.roles.events import Event, JobFailed, Trained
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.idx import FILES
from ofl_research.benches import learning as bench_learning
from ofl_research.benches.attack_cases import ATTACKS
from ofl_research.benches.learning import COMPENSATED, DENSE, SPARSE, check_targets, guarded, markdown
from ofl_research.benches.learning_cases import OWN_CLASSES, Case, Laboratory, Scale
from ofl_research.benches.learning_data import VALIDATION, deal, deal_own_classes, load_corpus, load_mnist
from ofl_research.benches.learning_federation import Outcome, PoisonedToolbox
from tests.workloads.datafiles import know, write_idx_set

TINY = Scale(devices=6, hidden=8, rounds=2, rounds_slow=2, rounds_private=2, seeds=(1,), slow=2, malicious=2)


@pytest.fixture
def laboratory(monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    monkeypatch.delenv("OFL_DATA", raising=False)
    return Laboratory(load_corpus(None, 100), TINY)


def test_without_a_folder_the_digits_serve() -> None:
    corpus = load_corpus(None, 1)
    assert corpus.name == "digits"
    assert corpus.pixels == 64
    assert corpus.held_out("test") is corpus.test
    assert corpus.held_out("validation") is corpus.validation


def test_mnist_is_halved_and_its_validation_images_are_not_trained_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ofl_iot.workloads.idx import IdxImages

    count = VALIDATION + 30
    train = np.zeros((count, 28, 28), np.uint8)
    raw = IdxImages(train, np.arange(count) % 10, train[:7], np.arange(7))
    monkeypatch.setattr("ofl_research.benches.learning_data.load_idx", lambda _: raw)
    corpus = load_corpus(tmp_path / "fashion", 30)
    assert corpus.name == "fashion, halved"
    assert corpus.pixels == 14 * 14
    assert len(corpus.train.labels) == 30
    assert len(corpus.validation.labels) == VALIDATION
    with pytest.raises(ConfigError, match="1 to 30"):
        load_corpus(tmp_path, 31)


def published(monkeypatch: pytest.MonkeyPatch, data: Path, name: str, test: int) -> None:
    """A small data set of the format, taken for the published one of that name."""
    write_idx_set(data / DATA_SETS[name].folder, train=VALIDATION + 12, test=test)
    know(monkeypatch, data, name)


def test_a_corpus_is_called_by_its_files_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(monkeypatch, tmp_path / "data", "mnist", test=10)
    published(monkeypatch, tmp_path / "data", "fashion-mnist", test=20)
    assert load_corpus(tmp_path / "data", 9).name == load_mnist(tmp_path / "data", 9).name == "MNIST, halved"
    assert load_corpus(tmp_path / "data/FashionMNIST", 9).name == "Fashion-MNIST, halved"
    (tmp_path / "data/FashionMNIST").rename(tmp_path / "clothes")
    assert load_corpus(tmp_path / "clothes", 9).name == "Fashion-MNIST, halved"
    with pytest.raises(ConfigError, match="holds no train-images"):
        load_mnist(tmp_path / "clothes", 9)
    with pytest.raises(ConfigError, match="--data DIR"):
        load_mnist(None, 9)


def test_damaged_files_are_not_taken_for_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(monkeypatch, tmp_path, "mnist", test=10)
    labels = tmp_path / "MNIST/raw" / FILES[1]
    labels.write_bytes(labels.read_bytes() + b"more")
    for load in (load_corpus, load_mnist):
        with pytest.raises(ConfigError, match="is not the published file"):
            load(tmp_path, 9)


def test_own_classes_are_with_the_slow_devices_alone() -> None:
    labels = np.arange(2000) % 10
    parts = deal_own_classes(labels, 8, 4, OWN_CLASSES, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(2000))
    for place, rows in enumerate(parts):
        held = set(labels[rows].tolist()) & set(OWN_CLASSES)
        assert len(held) == (1 if place >= 4 else 0)
    assert [len(rows) for rows in deal(labels, 8, 3)] == [len(rows) for rows in deal(labels, 8, 3)]


def test_a_federation_learns_and_the_same_seed_gives_the_same_run(laboratory: Laboratory) -> None:
    first, again = laboratory.run(SPARSE, 1), laboratory.run(SPARSE, 1)
    assert first.accuracy > 0.5
    assert first.rounds == 2
    assert replace(first, wall_s=0.0) == replace(again, wall_s=0.0)
    assert first.attackers_refused is None
    assert first.slow_among_slow is None
    assert laboratory.run(DENSE, 1).bytes_up > first.bytes_up


def test_slow_devices_are_heard_and_counted(laboratory: Laboratory) -> None:
    outcome = laboratory.run(COMPENSATED, 1)
    assert outcome.slow_among_slow is not None
    assert outcome.silent == 0
    assert outcome.clusters == 1
    assert outcome.honest_refused == 0.0


def test_a_private_federation_pays(laboratory: Laboratory) -> None:
    privacy = {"mode": "rigorous", "planned_steps": 200}
    outcome = laboratory.run(Case("private", {"privacy": privacy, "training": {"momentum": 0.0}}), 1)
    assert 0 < outcome.epsilon <= 8


@pytest.mark.parametrize("attack", ["sign flip x3", "backdoor x5"])
def test_attackers_are_there(laboratory: Laboratory, attack: str) -> None:
    outcome = laboratory.run(guarded(attack, gate=True), 1)
    assert outcome.attackers_refused is not None
    assert outcome.honest_refused <= 0.5


def test_the_gate_of_a_cluster_keeps_loud_attackers_out_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    laboratory = Laboratory(load_corpus(None, 100), replace(TINY, devices=8, hidden=16, rounds=4))

    def run(attack: str, *, gate: bool) -> Outcome:
        sections = {"fleet": {"clusters": 1}, "merge": {"gate": gate}}
        return laboratory.run(Case(f"{attack}, {gate}", sections, attack=attack), 1)

    spoilt = run("sign flip x3", gate=False)
    assert spoilt.attackers_refused == 0.0
    for attack in ("sign flip x3", "backdoor x5"):
        guarded = run(attack, gate=True)
        assert guarded.attackers_refused is not None
        assert guarded.attackers_refused > 0.8
        assert guarded.honest_refused == 0.0
        assert guarded.accuracy > spoilt.accuracy + 0.3
    assert run("none", gate=True).honest_refused == 0.0


class Trainer:
    """Adds 1 to every parameter; fails when told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.starts: list[float] = []

    def run(self, job: Job) -> Event:
        if self.fails or not isinstance(job, TrainLocally):
            return JobFailed(type(job), "told to")
        self.starts.append(float(job.params[0]))
        return Trained(job.params, job.params + 1, 0.0, 1, 0.0)


def test_a_sign_flipper_trains_at_the_synced_model_and_turns_its_update_round() -> None:
    trainer = Trainer()
    toolbox = PoisonedToolbox(trainer, ATTACKS["sign flip x3"], np.random.default_rng(0))
    local, synced = np.full(3, 7, np.float32), np.full(3, 2, np.float32)
    toolbox.run(PrepareRelease(None, local, synced, synced, 0.1))  # type: ignore[arg-type]
    result = toolbox.run(TrainLocally(local, 1))
    assert isinstance(result, Trained)
    assert trainer.starts == [2.0]
    assert np.array_equal(result.params - result.start, np.full(3, -3, np.float32))


def test_a_failure_and_poisoned_data_pass_through() -> None:
    job = TrainLocally(np.zeros(2, np.float32), 1)
    failing = PoisonedToolbox(Trainer(fails=True), ATTACKS["sign flip x3"], np.random.default_rng(0))
    assert isinstance(failing.run(job), JobFailed)
    quiet = PoisonedToolbox(Trainer(), ATTACKS["label flip"], np.random.default_rng(0))
    result = quiet.run(job)
    assert isinstance(result, Trained)
    assert np.array_equal(result.params, np.ones(2, np.float32))


def test_targets_know_their_side() -> None:
    figures = {
        "sparse_loss_points": 1.6,
        "slow_classes_accuracy": 0.8,
        "slow_classes_accuracy_by_pace": 0.7,
        "privacy_loss_points": 1.5,
        "privacy_loss_points_linear": -0.2,
        "gate_tpr": 0.95,
        "gate_fpr": 0.0,
    }
    holds = {target["what"]: target["holds"] for target in check_targets(figures)}
    assert [what for what, held in holds.items() if not held] == ["sparse_loss_points", "slow_classes_accuracy_by_pace"]


def test_the_whole_bench_writes_its_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    monkeypatch.setattr(bench_learning, "QUICK", replace(TINY, devices=5, rounds=1, rounds_slow=1, rounds_private=1))
    files = ["--json", str(tmp_path / "f.json"), "--markdown", str(tmp_path / "f.md")]
    assert main(["bench", "learning", "--quick", *files]) == 0
    result = json.loads((tmp_path / "f.json").read_text())
    assert {"sparse_loss_points", "slow_classes_accuracy", "privacy_loss_points", "gate_tpr", "rows"} <= result.keys()
    assert result["data"] == "digits"
    assert result["quick"]
    assert (tmp_path / "f.md").read_text() == markdown(result) + "\n"
    assert json.loads(capsys.readouterr().out) == result
