"""The model of a `TorchApp`: a module whose values live in a vector that is given. Imports PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ofl_iot.apps.app import TorchApp
from ofl_iot.apps.data import Records, Shapes
from ofl_iot.apps.runner import TrainReport
from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import CipherNoise, noise_generator
from ofl_iot.privacy.tolerance import DEEP, INPUTS, Tolerance, curvature_of, deviation_borne
from ofl_iot.protocol.model_card import ModelCard, TensorCard
from ofl_iot.torch_training.device import fast_cipher
from ofl_iot.torch_training.flat import local_statistics
from ofl_iot.torch_training.job import EngineName, Job
from ofl_iot.torch_training.trainer import FlatModel, PlainTrainer, PrivateTrainer
from ofl_iot.workloads.base import TrainJob, Vector
from ofl_iot.workloads.training import at_rate_of

_AT_ONCE = 256
_BUILD_SEED = 0
"""Frozen weights that a factory draws must be the same everywhere."""


class TorchModel:
    """A module, its trainers, and a vector: parameters that travel, personal ones, statistics that stay here."""

    def __init__(self, app: TorchApp, engine: EngineName = "auto", device: str = "auto") -> None:
        self._app = app
        self._flat = FlatModel(_module_of(app, _BUILD_SEED), tuple(app.personal), device)
        self._statistics = local_statistics(self._flat.module)
        self._noise = _ExchangeableNoise(fast_cipher())
        self._private = PrivateTrainer(self._flat, app.loss, engine, self._noise)
        self.size = self._flat.full_size + sum(value.numel() for _, value in self._statistics)
        self._vector: Vector = np.zeros(self.size, np.float32)
        card = self._flat.card()
        tensors = tuple(TensorCard(name, shape) for name, shape in zip(card.names, card.shapes, strict=True))
        self.card = ModelCard(
            app=app.name, tensors=tensors, loss=_name_of(app.loss), version=app.version, frozen=card.frozen
        )
        self.notes = tuple(self._notes())
        self._tolerances: dict[Shapes, Tolerance] = {}

    def bind(self, vector: Vector) -> None:
        """Let the values live in `vector`; on a GPU they are copied for each job."""
        self._vector = vector
        vector[: self._flat.full_size] = self._flat.vector
        if self._flat.flat.device.type == "cpu":
            self._flat.bind(vector[: self._flat.full_size])
        self._store()

    def initial(self, seed: int) -> None:
        """Write untrained values: those of a module that was given, or of a new one from the factory."""
        fresh = _module_of(self._app, seed)
        values = dict(fresh.named_parameters())
        for slot in self._flat.slots:
            self._vector[slot.start : slot.stop] = values[slot.name].detach().cpu().reshape(-1).numpy()
        buffers = dict(fresh.named_buffers())
        with torch.no_grad():
            for name, value in self._statistics:
                value.copy_(buffers[name])
        self._store_statistics()

    def probe(self, records: Records, *, private: bool) -> tuple[str, ...]:
        """Refuse what cannot be trained, before anything is paid."""
        self._load()
        if not private:
            self._plain_trainer().probe(_inputs(records), records.targets)
            return (f"trains without privacy ({self._plain_trainer().engine})",)
        own = [name for name in ("schedule", "augment", "loop") if getattr(self._app, name) is not None]
        if callable(self._app.optimiser) or own:
            what = ", ".join([*own, *(["optimiser"] if callable(self._app.optimiser) else [])])
            raise ConfigError(
                f"{self._app.name}: {what} of your own cannot be used while records are protected: use optimiser='sgd' "
                "or 'adam', or set privacy.mode = \"off\" with the data owners' consent"
            )
        found = self._private.probe(_inputs(records), records.targets)
        return (f"engine {found.engine} ({found.seconds:.2f} s to probe)", *found.notes)

    def train(
        self, records: Records, job: TrainJob, entropy: bytes | None, progress: Callable[[], None]
    ) -> TrainReport:
        """Train in place."""
        self._load()
        rng = noise_generator(entropy)
        self._noise.exchange(None if entropy is None else CipherNoise.seeded(rng))
        trainer = self._plain_trainer() if job.clip_norm is None else self._private
        done = trainer.train(_inputs(records), records.targets, self._job(job, records), rng, lambda _: progress())
        self._store()
        rate = min(1.0, job.batch_size / len(records)) if done.sampling_rate is None else done.sampling_rate
        return TrainReport(done.steps, rate, done.loss)

    def outputs(self, records: Records) -> tuple[Any, Any, float]:
        """Return outputs, targets and the mean loss."""
        self._load()
        module, place = self._flat.module, self._flat.flat.device
        made, loss = [], 0.0
        was_training = module.training
        module.eval()
        try:
            with torch.inference_mode():
                for start in range(0, len(records), _AT_ONCE):
                    part = records.take(slice(start, start + _AT_ONCE))
                    inputs = tuple(torch.as_tensor(each).to(place) for each in part.inputs)
                    targets = torch.as_tensor(part.targets).to(place)
                    outputs = module(*inputs)
                    value = self._app.loss(outputs, targets)
                    loss += float(value if value.dim() == 0 else value.mean()) * len(part)
                    made.append(outputs)
                joined = _joined(made)
        finally:
            module.train(was_training)
        return joined, torch.as_tensor(records.targets), loss / len(records)

    def network(self) -> nn.Module:
        """Return a copy of the module as the vector has it, in eval mode, every tensor with storage of its own."""
        self._load()
        return copy.deepcopy(self._flat.module).cpu().eval()

    def _plain_trainer(self) -> PlainTrainer:
        app = self._app
        optimiser = app.optimiser if callable(app.optimiser) else None
        return PlainTrainer(
            self._flat, app.loss, optimiser=optimiser, schedule=app.schedule, augment=app.augment, loop=app.loop
        )

    def _job(self, job: TrainJob, records: Records) -> Job:
        count = len(records)
        planned = job.noise_a_rate > 0
        if planned:
            job = at_rate_of(job, self._tolerance(records))
        return Job(
            steps=job.steps,
            batch_size=job.batch_size if job.clip_norm is not None else min(job.batch_size, count),
            learning_rate=job.learning_rate,
            momentum=job.momentum,
            optimiser="sgd" if planned or callable(self._app.optimiser) else self._app.optimiser,
            clip_norm=job.clip_norm,
            noise_multiplier=job.noise_multiplier if job.clip_norm is not None else None,
            sampling_rate=job.sampling_rate or None,
        )

    def _tolerance(self, records: Records) -> Tolerance:
        """Measure what the untrained model bears, on random inputs of the records' shapes; once for each."""
        shapes = records.shapes
        if shapes not in self._tolerances:
            self._tolerances[shapes] = self._measured(records)
        return self._tolerances[shapes]

    def _measured(self, records: Records) -> Tolerance:
        rng, held = np.random.default_rng(0), self._vector.copy()
        shown = tuple(_random_like(each, INPUTS, rng) for each in records.inputs)
        self.initial(_BUILD_SEED)
        start, noise = self._vector.copy(), rng.standard_normal(self._flat.full_size, dtype=np.float32)

        def outputs_at(deviation: float) -> npt.NDArray[np.float32]:
            self._vector[:] = start
            self._vector[: len(noise)] += np.float32(deviation) * noise
            return self._flat_outputs(shown)

        try:
            borne = deviation_borne(outputs_at)
            self._vector[:] = start
            return Tolerance(borne, curvature_of(self._gradients(shown, records, rng)))
        except Exception:  # noqa: BLE001  # a loss or a module may refuse inputs that are no real records
            return DEEP
        finally:
            self._vector[:] = held
            self._load()

    def _flat_outputs(self, inputs: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[np.float32]:
        self._load()
        module = self._flat.module
        was_training = module.training
        module.eval()
        with torch.inference_mode():
            made = module(*(torch.from_numpy(each).to(self._flat.flat.device) for each in inputs))
        module.train(was_training)
        parts = made if isinstance(made, tuple | list) else (made,)
        return np.concatenate([part.reshape(-1).float().cpu().numpy() for part in parts])

    def _gradients(
        self, inputs: tuple[npt.NDArray[Any], ...], records: Records, rng: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        """Gradients of random records: labels that the outputs have room for, or standardised numbers."""
        self._load()
        module, place = self._flat.module, self._flat.flat.device
        trained = [value for value in module.parameters() if value.requires_grad]
        rows = []
        for row in range(INPUTS):
            outputs = module(*(torch.from_numpy(each[row : row + 1]).to(place) for each in inputs))
            target = _random_like(records.targets, 1, rng)
            if records.targets.ndim == 1 and records.targets.dtype.kind in "iu" and outputs.ndim > 1:
                target = rng.integers(0, outputs.shape[1], 1)
            loss = self._app.loss(outputs, torch.from_numpy(target).to(place)).sum()
            found = torch.autograd.grad(loss, trained, allow_unused=True)
            rows.append(torch.cat([each.reshape(-1) for each in found if each is not None]).cpu().numpy())
        return np.stack(rows)

    def _load(self) -> None:
        """Take the vector's values over where the module does not live in it."""
        if self._flat.flat.device.type != "cpu":
            self._flat.load(self._vector[: self._flat.full_size])
        start = self._flat.full_size
        with torch.no_grad():
            for _, value in self._statistics:
                part: npt.NDArray[np.float32] = self._vector[start : start + value.numel()]
                value.copy_(torch.from_numpy(part).reshape(value.shape))
                start += value.numel()

    def _store(self) -> None:
        if self._flat.flat.device.type != "cpu":
            self._vector[: self._flat.full_size] = self._flat.vector
        self._store_statistics()

    def _store_statistics(self) -> None:
        start = self._flat.full_size
        for _, value in self._statistics:
            self._vector[start : start + value.numel()] = value.detach().cpu().float().reshape(-1).numpy()
            start += value.numel()

    def _notes(self) -> list[str]:
        notes = []
        personal = [slot.name for slot in self._flat.slots if slot.personal]
        if personal:
            notes.append(f"personal, they stay on the device: {', '.join(personal)}")
        if self._statistics:
            layers = sorted({name.rpartition(".")[0] for name, _ in self._statistics})
            notes.append(f"statistics stay on the device: {', '.join(layers)}")
        frozen = sum(1 for value in self._flat.module.parameters() if not value.requires_grad)
        if frozen:
            notes.append(f"{frozen} frozen tensors do not travel")
        return notes


def _random_like(inputs: npt.NDArray[Any], count: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Random inputs of a record's shape and type: standardised numbers, or the first two of whatever is counted."""
    shape = (count, *inputs.shape[1:])
    if inputs.dtype.kind == "f":
        return rng.standard_normal(shape, dtype=np.float32)
    return rng.integers(0, 2, shape).astype(inputs.dtype)


class _ExchangeableNoise(CipherNoise):
    """Noise under a key of the operating system, or of a simulation that repeats itself."""

    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm=algorithm)
        self._other: CipherNoise | None = None

    def exchange(self, other: CipherNoise | None) -> None:
        """Use other noise from now on; None is the operating system's."""
        self._other = other

    def add_to(self, total: npt.NDArray[np.float32], deviation: float) -> None:
        """Add noise to each value."""
        if self._other is None:
            super().add_to(total, deviation)
        else:
            self._other.add_to(total, deviation)


def _module_of(app: TorchApp, seed: int) -> nn.Module:
    """Return a copy of the module that was given, or one that the factory makes with torch's generator seeded."""
    if isinstance(app.model, nn.Module):
        return copy.deepcopy(app.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = app.model()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"TorchApp {app.name}: model() returned a {type(made).__name__}, not a torch.nn.Module")
    return made


def _name_of(loss: Any) -> str:
    """Return a loss's name, without the path of the file it stands in, which differs from device to device."""
    if isinstance(loss, functools.partial):
        return f"{_name_of(loss.func)} {sorted(loss.keywords)}"
    return str(getattr(loss, "__qualname__", None) or type(loss).__qualname__)


def _inputs(records: Records) -> Any:
    return records.inputs if len(records.inputs) > 1 else records.inputs[0]


def _joined(outputs: list[Any]) -> Any:
    """Return the outputs of all batches as one tensor, or one for each output of the network."""
    if isinstance(outputs[0], tuple | list):
        return tuple(_joined([each[place] for each in outputs]) for place in range(len(outputs[0])))
    if not isinstance(outputs[0], Tensor):
        raise ConfigError(f"the model returns a {type(outputs[0]).__name__}: return a tensor, or a tuple of them")
    return torch.cat([each.cpu() for each in outputs])
