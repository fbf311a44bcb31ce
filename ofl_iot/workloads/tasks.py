"""A learning task by its name: what each device trains on, what settings are chosen by, what is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import Workload
from ofl_iot.workloads.catalogue import GRAPHS, IMAGES
from ofl_iot.workloads.cnn import DEFAULT_HIDDEN as DENSE_UNITS
from ofl_iot.workloads.cnn import ConvNet
from ofl_iot.workloads.dense import DenseNet
from ofl_iot.workloads.dense_workload import DenseWorkload
from ofl_iot.workloads.digits import CLASSES, DEFAULT_HIDDEN, NAME, PIXELS, load_digits
from ofl_iot.workloads.gcn import DEFAULT_HIDDEN as GRAPH_DENSE_UNITS
from ofl_iot.workloads.gcn import GraphNet
from ofl_iot.workloads.graph_views import GraphSplit, share_out
from ofl_iot.workloads.graphs import judges, learners
from ofl_iot.workloads.idx import data_folder
from ofl_iot.workloads.images import CLASSES as IMAGE_CLASSES
from ofl_iot.workloads.images import ImageWorkload, load_images
from ofl_iot.workloads.node_head import SUFFIX as NODE
from ofl_iot.workloads.node_head import NodeHeadWorkload
from ofl_iot.workloads.planetoid import load_graph
from ofl_iot.workloads.splits import Labels, Rows, Split
from ofl_iot.workloads.wavelet_images import SUFFIX as WAVELET
from ofl_iot.workloads.wavelet_images import FeatureStore, WaveletWorkload

TaskName: TypeAlias = Literal["digits", "mnist", "fashion-mnist", "svhn", "cora", "citeseer", "pubmed"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
"""Names of the paper's tasks; "digits" is bundled, the others are read from a folder."""
PRIVATE_TASKS: tuple[str, ...] = (*(name + WAVELET for name in IMAGES), *(name + NODE for name in GRAPHS))
"""The same data with models that learn under privacy: heads on fixed wavelet features, on nodes' own features."""
Deal: TypeAlias = Callable[[Labels], list[Rows]]
"""From the labels of the training samples to the rows of each device."""


@dataclass(frozen=True)
class Task:
    """The parties of one learning task; all share one architecture, so their parameters can be exchanged.

    Settings are chosen on `validation`; `test` is for what is reported, and for nothing else.
    """

    name: str
    devices: tuple[Workload, ...]
    validation: Workload
    test: Workload

    def __post_init__(self) -> None:
        shapes = {(party.size, party.digest) for party in (*self.devices, self.validation, self.test)}
        if not self.devices or len(shapes) != 1:
            raise ConfigError(f"task {self.name}: it needs at least one device, and the same model for all parties")


def load_task(
    name: str,
    folder: Path | None = None,
    *,
    devices: int,
    seed: int,
    split: Split | None = None,
    samples: int | None = None,
    hidden: int | None = None,
    graph_split: GraphSplit | None = None,
) -> Task:
    """Deal the named data set to devices, the same way for the same seed.

    `folder` holds the data sets, else the one that OFL_DATA names does ("digits" needs none). To make a task
    smaller, `samples` limits the training samples, to the first of the data set, and `hidden` sets the units of
    the dense layer. `graph_split` matters to graphs only.
    """
    if name not in (*TASKS, *PRIVATE_TASKS):
        raise ConfigError(f"unknown task {name!r}: use one of {', '.join((*TASKS, *PRIVATE_TASKS))}")
    for what, number in (("samples", samples), ("hidden", hidden)):
        if number is not None and number < 1:
            raise ConfigError(f"task {name}: {what} must be at least 1, not {number}")

    def deal(labels: Labels) -> list[Rows]:
        return (split or Split()).rows(labels[:samples], devices, seed)

    if name == "digits":
        return _digits(deal, hidden or DEFAULT_HIDDEN)
    if name in IMAGES:
        return _images(name, data_folder(folder), deal, hidden or DENSE_UNITS)
    if name in PRIVATE_TASKS:
        return _wavelets(name, folder, deal) if name.endswith(WAVELET) else _nodes(name, folder, deal)
    graph, views = load_graph(name, data_folder(folder)), graph_split or GraphSplit()
    train = graph.labelled(views.labelled)[0][:samples]
    parts = share_out(graph, train, devices, split or Split(), regions=views.regions, seed=seed)
    net = GraphNet(graph.features.shape[1], graph.classes, hidden or GRAPH_DENSE_UNITS)
    validation, test = judges(name, net, graph, views)
    return Task(name, tuple(learners(name, net, graph, views, parts, seed=seed)), validation, test)


def _digits(deal: Deal, hidden: int) -> Task:
    data, net = load_digits(), DenseNet((PIXELS, hidden, CLASSES))
    return Task(
        name="digits",
        devices=tuple(DenseWorkload(NAME, net, data.train, rows) for rows in deal(data.train.labels)),
        validation=DenseWorkload(NAME, net, data.validation),
        test=DenseWorkload(NAME, net, data.test),
    )


def _images(name: str, folder: Path | None, deal: Deal, hidden: int) -> Task:
    data = load_images(name, folder)
    _, channels, side, _ = data.train.pixels.shape
    net = ConvNet(channels, side, IMAGE_CLASSES, hidden)
    return Task(
        name=name,
        devices=tuple(ImageWorkload(name, net, data.train, rows) for rows in deal(data.train.labels)),
        validation=ImageWorkload(name, net, data.validation),
        test=ImageWorkload(name, net, data.test),
    )


def _wavelets(name: str, folder: Path | None, deal: Deal) -> Task:
    data = load_images(data_set_of(name), data_folder(folder))
    train, validation, test = (FeatureStore(part) for part in (data.train, data.validation, data.test))
    return Task(
        name=name,
        devices=tuple(WaveletWorkload(name, data.train, train, rows) for rows in deal(data.train.labels)),
        validation=WaveletWorkload(name, data.validation, validation),
        test=WaveletWorkload(name, data.test, test),
    )


def _nodes(name: str, folder: Path | None, deal: Deal) -> Task:
    graph = load_graph(data_set_of(name), data_folder(folder))
    train, validation, test = graph.labelled("full")
    return Task(
        name=name,
        devices=tuple(NodeHeadWorkload(name, graph, train[rows]) for rows in deal(graph.labels[train])),
        validation=NodeHeadWorkload(name, graph, validation),
        test=NodeHeadWorkload(name, graph, test),
    )


def data_set_of(task: str) -> str:
    """Return the name of the data set that a task is about."""
    return task.removesuffix(WAVELET).removesuffix(NODE)
