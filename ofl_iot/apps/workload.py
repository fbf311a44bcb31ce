"""An app behind the seam that agents, coordinators and simulations know: parameters in, parameters out."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ofl_iot.apps.runner import Description, Look, Runner
from ofl_iot.errors import ConfigError
from ofl_iot.protocol.model_card import ModelCard
from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector

log = logging.getLogger(__name__)


class AppWorkload:
    """One party of an app; `party` is None for a coordinator without held-out data.

    Values that do not travel (`personal`) are kept here between trainings and, with `keep_at`, in a file.
    """

    def __init__(
        self,
        runner: Runner,
        party: int | None = 0,
        *,
        private: bool = True,
        repeats: bool = False,
        live: bool = False,
        keep_at: Path | None = None,
    ) -> None:
        self._runner = runner
        self._party = party
        self._private = private
        self._repeats = repeats
        """Whether noise is drawn from the generator that `train` is given: for simulations, which repeat themselves."""
        self.live = live
        """Whether records may come and go between two trainings."""
        self._keep_at = keep_at
        self._described: Description = runner.describe()
        self._own: Vector | None = None
        self._looked: Look | None = None
        self._told: dict[str, str] = {}

    @property
    def card(self) -> ModelCard:
        """What the model is."""
        return self._described.card

    @property
    def name(self) -> str:
        """The app's name."""
        return self.card.app

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify the model."""
        return self.card.digest

    @property
    def size(self) -> int:
        """Number of parameters that travel."""
        return self.card.size

    @property
    def sample_count(self) -> int:
        """Number of this party's records now; 0 while there are none."""
        return self.look().count

    def look(self) -> Look:
        """Freeze the records of the next training; tell what could not be used, once."""
        if self._party is None:
            return Look(0)
        self._looked = look = self._runner.look(self._party, private=self._private)
        for name, reason in look.set_aside.items():
            if self._told.get(name) != reason:
                log.warning("data set aside app=%s what=%s reason=%s", self.name, name, reason)
        self._told = dict(look.set_aside)
        for note in look.notes:
            log.info("model probed app=%s note=%s", self.name, note)
        return look

    def initial(self, seed: int) -> Vector:
        """Return untrained parameters, the same for the same seed."""
        return self._runner.initial(seed)[: self.size]

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on the records of the last look."""
        look = self._looked or self.look()
        self._looked = None
        if not look.count or self._party is None:
            raise ConfigError("no samples to train on yet: they are used as soon as there are some")
        entropy = rng.bytes(32) if self._repeats else None
        vector, report = self._runner.train(self._party, self._whole(params), job, count=look.count, entropy=entropy)
        self._keep(vector[self.size :])
        return TrainResult(
            params=vector[: self.size].copy(),
            loss=report.loss,
            steps=report.steps,
            sampling_rate=report.sampling_rate,
        )

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on this party's records; nothing is measured without any."""
        if self._party is None:
            return Evaluation(accuracy=0.0, loss=0.0, count=0)
        judged = self._runner.evaluate(self._party, self._whole(params))
        return Evaluation(
            accuracy=judged.metrics.get("accuracy", 0.0), loss=judged.loss, count=judged.count, metrics=judged.metrics
        )

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's records have each label."""
        look = self._looked or self.look()
        return np.array(look.histogram or (0,), dtype=np.int64)

    def _whole(self, params: Vector) -> Vector:
        """Return the parameters with this party's own values behind them."""
        if params.shape != (self.size,) or params.dtype != np.float32:
            raise ConfigError(
                f"the model has {self.size} float32 parameters, not {params.dtype} of shape {params.shape}: "
                "all parties of a federation must use the same model"
            )
        if self._described.size == self.size:
            return params
        if self._own is None:
            self._own = self._kept()
        return np.concatenate([params, self._own])

    def _kept(self) -> Vector:
        """Return this party's own values: those of its last training, or untrained ones."""
        own = self._described.size - self.size
        if self._keep_at is not None and self._keep_at.is_file():
            stored = np.fromfile(self._keep_at, np.float32)
            if len(stored) == own and np.isfinite(stored).all():
                return stored
            log.warning("personal parameters dropped file=%s reason=they are of another model", self._keep_at)
        return self._runner.initial(0)[self.size :]

    def _keep(self, own: Vector) -> None:
        if not len(own):
            return
        self._own = own.copy()
        if self._keep_at is not None:
            fresh = self._keep_at.with_suffix(".new")
            fresh.touch(mode=0o600)
            self._own.tofile(fresh)
            os.replace(fresh, self._keep_at)  # noqa: PTH105  # atomic, and says so
