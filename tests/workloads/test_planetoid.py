"""Citation graphs are read from verified files only, in private, and make tasks that devices learn together."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.graph_views import GraphSplit
from ofl_iot.workloads.planetoid import load_graph
from ofl_iot.workloads.splits import Split
from ofl_iot.workloads.tasks import load_task
from tests.workloads.datafiles import know, write_planetoid
from tests.workloads.graphs_made import graph_of

pytest.importorskip("torch_geometric")


@pytest.fixture
def cora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small Cora."""
    write_planetoid(tmp_path / "Planetoid/Cora/raw", "cora")
    know(monkeypatch, tmp_path, "cora")
    return tmp_path


def test_a_graph_is_read_as_published_and_nothing_is_written_beside_it(cora: Path) -> None:
    before = sorted(cora.rglob("*"))
    graph = load_graph("cora", cora)
    assert (graph.count, graph.classes, graph.features.shape[1]) == (600, 3, 24)
    assert [len(part) for part in graph.parts] == [12, 500, 60]
    assert graph.labels.tolist() == [node % 3 for node in range(600)]
    assert np.allclose(graph.features.multiply(graph.features).sum(axis=1), 100, rtol=1e-5)
    assert (graph.links != graph.links.T).nnz == 0
    assert graph.links.diagonal().sum() == 0
    assert graph.links.max() == 1
    assert sorted(cora.rglob("*")) == before


def test_a_pickle_that_is_not_the_published_one_is_never_opened(tmp_path: Path) -> None:
    write_planetoid(tmp_path / "Planetoid/Cora/raw", "cora")
    harmful = b"cbuiltins\nexec\n(S'raise SystemExit(\"ran\")'\ntR."
    (tmp_path / "Planetoid/Cora/raw/ind.cora.x").write_bytes(harmful)
    with pytest.raises(ConfigError, match=r"ind\.cora\.x is not the published file \(its sha256 differs\)"):
        load_graph("cora", tmp_path)


def test_without_torch_geometric_the_error_says_what_to_install(cora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.io", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[graph\]' in a checkout"):
        load_graph("cora", cora)


def test_labelled_nodes_are_those_published_or_more(cora: Path) -> None:
    graph = load_graph("cora", cora)
    public, full, rand = (graph.labelled(which) for which in ("public", "full", "random"))  # type: ignore[arg-type]
    assert [len(part) for part in public] == [12, 500, 60]
    assert [len(part) for part in full] == [600 - 560, 500, 60]
    assert [len(part) for part in rand] == [360, 120, 120]
    for train, validation, test in (public, full, rand):
        assert len(np.unique(np.concatenate([train, validation, test]))) == len(train) + len(validation) + len(test)
    with pytest.raises(ConfigError, match="use one of full, public, random"):
        graph.labelled("most")  # type: ignore[arg-type]


def test_nodes_without_features_are_not_trained_on() -> None:
    graph = graph_of(features=3)
    empty = np.flatnonzero(np.diff(graph.features.indptr) == 0)
    assert len(empty)
    for which in ("full", "random"):
        assert not np.isin(graph.labelled(which)[0], empty).any()  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [GraphSplit("random"), GraphSplit("random", regions=True, contrast=0.1)])
def test_devices_learn_a_graph_together(cora: Path, split: GraphSplit) -> None:
    task = load_task("cora", cora, devices=4, seed=1, split=Split("iid"), hidden=16, graph_split=split)
    assert sum(device.sample_count for device in task.devices) == 360
    assert np.sum([device.label_histogram() for device in task.devices], axis=0).tolist() == [120] * 3
    assert task.devices[0].name == "cora graph convolutional 24-64-64-16-3"
    params = task.test.initial(0)
    job = TrainJob(steps=10, batch_size=32, learning_rate=0.02, momentum=0.9)
    for step in range(15):
        trained = [device.train(params, job, np.random.default_rng(step)).params for device in task.devices]
        params = np.mean(trained, axis=0, dtype=np.float32)
    assert task.test.evaluate(params).accuracy > 0.75
    assert task.devices[0].evaluate(params).count == task.devices[0].sample_count


def test_fewer_samples_make_a_smaller_graph_task(cora: Path) -> None:
    task = load_task("cora", cora, devices=2, seed=1, samples=20, graph_split=GraphSplit("random"))
    assert sum(device.sample_count for device in task.devices) == 20
