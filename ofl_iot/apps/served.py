"""An app at work: its model, and the data of one party or of several. This is where user code runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ofl_iot.apps.app import App, NumpyApp, Reader
from ofl_iot.apps.data import Records, Shapes, as_records
from ofl_iot.apps.dealing import deal_records, hold_out, layout_of
from ofl_iot.apps.metrics import as_metrics
from ofl_iot.apps.numpy_model import NumpyModel
from ofl_iot.apps.runner import Description, Judged, Look, TrainReport
from ofl_iot.apps.sources import Source
from ofl_iot.errors import ConfigError
from ofl_iot.protocol.model_card import ModelCard
from ofl_iot.torch_training.job import EngineName
from ofl_iot.workloads.base import TrainJob, Vector


class Model(Protocol):
    """A model whose values live in a vector that is given."""

    card: ModelCard
    size: int
    notes: tuple[str, ...]

    def bind(self, vector: Vector) -> None:
        """Let the values live in `vector`."""
        ...

    def initial(self, seed: int) -> None:
        """Write untrained values, the same for the same seed."""
        ...

    def probe(self, records: Records, *, private: bool) -> tuple[str, ...]:
        """Refuse what cannot be trained, before anything is paid; return notes worth telling."""
        ...

    def train(
        self, records: Records, job: TrainJob, entropy: bytes | None, progress: Callable[[], None]
    ) -> TrainReport:
        """Train in place."""
        ...

    def outputs(self, records: Records) -> tuple[Any, Any, float]:
        """Return outputs, targets and the mean loss."""
        ...


@dataclass
class Party:
    """Where one party's records come from, and those that its next training uses."""

    read: Callable[[], Any]
    source: Source | None = None
    dataset: tuple[Any, int, Records] | None = None
    """A Dataset that was read, its length then, and what it held."""
    frozen: Records | None = None


@dataclass(frozen=True)
class Computing:
    """How a torch app computes (settings `training.engine`, `training.device`)."""

    engine: EngineName = "auto"
    device: str = "auto"


def model_of(app: App, computing: Computing) -> Model:
    """Make the app's model."""
    if isinstance(app, NumpyApp):
        return NumpyModel(app)
    from ofl_iot.apps.torch_model import TorchModel

    return TorchModel(app, computing.engine, computing.device)


DEFAULT_COMPUTING = Computing()


class ServedApp:
    """A Runner in this process: for the process that a TrainerProcess starts, and for programs that are the agent."""

    def __init__(
        self, app: App, vector: Callable[[int], Vector] | None = None, computing: Computing = DEFAULT_COMPUTING
    ) -> None:
        self._app = app
        self._metrics = as_metrics(app.metrics)
        self._model = model_of(app, computing)
        self._vector = (vector or (lambda size: np.zeros(size, np.float32)))(self._model.size)
        self._model.bind(self._vector)
        self._parties: dict[int, Party] = {}
        self._probed: set[tuple[Shapes, bool]] = set()

    def describe(self) -> Description:
        """Return what the app's model is."""
        better = {name: each.better for name, each in self._metrics.items()}
        return Description(
            self._model.card, self._model.size, better, self._model.notes, judged=self._app.judge is not None
        )

    def open(self, party: int, where: str, *, held_out: bool = False) -> None:
        """Say where a party's data are."""
        reader: Reader | None = self._app.judge if held_out else self._app.samples
        if reader is None:
            raise ConfigError(f"{self._app.name} has no held-out data: it says judge=None")
        self._parties[party] = Party(lambda: reader(where))

    def deal(self, where: str, devices: int, *, seed: int, alpha: float) -> str:
        """Give each of the first parties a part of the data, and the next one records to judge on."""
        layout = layout_of(where, devices)
        if layout.parts:
            shares = [self._all(self._app.samples, part) for part in layout.parts]
            how = f"each device has its own of {devices} parts of {where}"
        else:
            records = self._all(self._app.samples, layout.rest)
            shares = deal_records(records, devices, seed=seed, alpha=alpha)
            how = f"{len(records)} records are dealt to {devices} devices (Dirichlet, alpha {alpha:g})"
        if layout.held_out:
            held_out = self._all(self._app.judge or self._app.samples, layout.held_out)
            how += f"; {layout.held_out} is held out"
        else:
            shares, held_out = hold_out(shares, seed)
            how += f"; {len(held_out)} of them are held out to judge models on"
        for party, share in enumerate([*shares, held_out]):
            self._parties[party] = Party(lambda share=share: share)  # type: ignore[misc]
        return how

    def _all(self, reader: Reader, where: str) -> Records:
        records = self._read(Party(lambda: reader(where)))
        if records is None:
            raise ConfigError(f"{where or self._app.name} holds no records")
        return records

    def look(self, party: int, *, private: bool) -> Look:
        """Freeze the party's records; the first time they are probed before anything is paid for."""
        held = self._parties[party]
        held.frozen = self._read(held)
        aside = held.source.set_aside() if held.source else {}
        if held.frozen is None:
            return Look(0, (), aside)
        aside |= {f"records {reason}": str(count) for reason, count in held.frozen.set_aside.items()}
        notes: tuple[str, ...] = ()
        shapes = held.frozen.shapes
        if (shapes, private) not in self._probed:
            notes = self._model.probe(held.frozen, private=private)
            self._probed.add((shapes, private))
        return Look(len(held.frozen), tuple(held.frozen.histogram().tolist()), aside, notes)

    def initial(self, seed: int) -> Vector:
        """Return untrained values."""
        self._model.initial(seed)
        return np.array(self._vector)

    def train(
        self,
        party: int,
        vector: Vector,
        job: TrainJob,
        *,
        count: int,
        entropy: bytes | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> tuple[Vector, TrainReport]:
        """Train on the frozen records, if they are as many as were paid for."""
        held = self._parties[party]
        records, held.frozen = held.frozen, None
        if records is None or len(records) != count:
            raise ConfigError(f"{count} records were paid for, {len(records or ())} are frozen: look again")
        if vector is not self._vector:
            self._vector[:] = vector
        report = self._model.train(records, job, entropy, progress)
        return np.array(self._vector), report

    def evaluate(self, party: int, vector: Vector) -> Judged:
        """Judge the values on the party's records."""
        records = self._read(self._parties[party])
        if records is None:
            raise ConfigError("no records to evaluate on: give this party data")
        if vector is not self._vector:
            self._vector[:] = vector
        outputs, targets, loss = self._model.outputs(records)
        return Judged(loss, len(records), {name: each(outputs, targets) for name, each in self._metrics.items()})

    def stop(self) -> None:
        """Nothing is held that the garbage collector does not free."""

    def _read(self, party: Party) -> Records | None:
        """Return the records there are now; None for none."""
        if party.source is None:
            given = party.read()
            if isinstance(given, Source):
                party.source = given
        if party.source is not None:
            return party.source.collect()
        if not isinstance(given, tuple | list | Records) and not hasattr(given, "shape"):
            return self._read_dataset(party, given)
        records = as_records(given)
        return records if len(records) else None

    def _read_dataset(self, party: Party, dataset: Any) -> Records | None:
        """Read a Dataset, unless it is the one of last time and has not grown."""
        known = party.dataset
        if known is not None and known[0] is dataset and known[1] == len(dataset):
            return known[2]
        if hasattr(dataset, "__len__") and not len(dataset):
            return None
        records = as_records(dataset)
        party.dataset = (dataset, len(dataset), records)
        return records if len(records) else None
