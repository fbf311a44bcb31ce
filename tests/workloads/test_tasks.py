"""A task deals one data set to devices that share one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.digits import digits_federation, load_digits
from ofl_iot.workloads.splits import Split
from ofl_iot.workloads.tasks import TASKS, Task, load_task
from tests.workloads.datafiles import know, write_idx_set, write_svhn


def test_the_digits_task_deals_all_training_digits_to_devices_of_one_model() -> None:
    task = load_task("digits", devices=8, seed=1)
    assert (task.name, len(task.devices)) == ("digits", 8)
    assert sum(device.sample_count for device in task.devices) == 1347
    assert (task.validation.sample_count, task.test.sample_count) == (144, 306)
    assert {device.digest for device in task.devices} == {task.validation.digest, task.test.digest}
    assert {device.size for device in task.devices} == {64 * 32 + 32 + 32 * 10 + 10}


def test_a_task_repeats_for_its_seed_and_can_be_made_smaller() -> None:
    one, again, other = (
        load_task("digits", devices=4, seed=seed, split=Split("shards"), samples=200, hidden=5) for seed in (1, 1, 2)
    )
    histograms = [[device.label_histogram().tolist() for device in task.devices] for task in (one, again, other)]
    assert histograms[0] == histograms[1] != histograms[2]
    assert np.array_equal(np.sum(histograms[0], axis=0), np.bincount(load_digits().train.labels[:200], minlength=10))
    assert one.test.size == 64 * 5 + 5 + 5 * 10 + 10


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("mnsit", {}, f"unknown task 'mnsit': use one of {', '.join(TASKS)}"),
        ("digits", {"samples": 0}, "samples must be at least 1"),
        ("digits", {"hidden": 0}, "hidden must be at least 1"),
        ("digits", {"devices": 0}, "at least 1 device"),
        ("digits", {"samples": 3}, "3 samples are too few for 4 devices"),
    ],
)
def test_an_impossible_task_says_what_to_change(name: str, change: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_task(name, **{"devices": 4, "seed": 0, **change})  # type: ignore[arg-type]


def test_parties_with_different_models_are_no_task() -> None:
    (device,), judge = digits_federation(1, 0)
    _, other = digits_federation(1, 0, hidden=7)
    with pytest.raises(ConfigError, match="the same model for all"):
        Task("mixed", (device,), judge, other)
    with pytest.raises(ConfigError, match="at least one device"):
        Task("empty", (), judge, judge)


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_an_image_task_is_learned_by_devices_that_share_the_paper_s_network(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    write_idx_set(tmp_path / folder / "raw")
    know(monkeypatch, tmp_path, name)
    monkeypatch.setenv("OFL_DATA", str(tmp_path))
    task = load_task(name, devices=4, seed=0, hidden=16)
    assert sum(device.sample_count for device in task.devices) == 220
    assert (task.validation.sample_count, task.test.sample_count) == (20, 60)
    assert load_task(name, devices=1, seed=0).test.size == 815_810
    params = task.test.initial(0)
    job = TrainJob(steps=4, batch_size=16, learning_rate=0.05, momentum=0.5)
    for step in range(20):
        trained = [device.train(params, job, np.random.default_rng(step)).params for device in task.devices]
        params = np.average(trained, axis=0, weights=[device.sample_count for device in task.devices])
        params = params.astype(np.float32)
    assert task.test.evaluate(params).accuracy > 0.9
    assert task.test.evaluate(task.test.initial(0)).accuracy < 0.3
    assert task.test.evaluate(params).count == 60


def test_house_numbers_of_the_published_layout_make_a_task(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_svhn(tmp_path / "SVHN")
    task = load_task("svhn", tmp_path, devices=3, seed=0, samples=90, split=Split("iid"))
    assert [device.sample_count for device in task.devices] == [30, 30, 30]
    assert np.sum([device.label_histogram() for device in task.devices], axis=0).tolist() == [9] * 10
    assert task.test.size == 1_061_570
