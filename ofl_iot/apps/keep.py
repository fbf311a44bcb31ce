"""Keep rules: which records a source that grows holds on to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ofl_iot.apps.data import Records, fits, joined
from ofl_iot.errors import ConfigError


def _at_least_one(count: int, name: str) -> None:
    if count < 1:
        raise ConfigError(f"{name}({count}): keep at least 1 record")


@dataclass(frozen=True)
class Newest:
    """Keep the newest `count` records."""

    count: int

    def __post_init__(self) -> None:
        _at_least_one(self.count, "newest")


@dataclass(frozen=True)
class Reservoir:
    """Keep `count` records, each one ever seen with the same chance (reservoir sampling)."""

    count: int
    seed: int | None = None

    def __post_init__(self) -> None:
        _at_least_one(self.count, "reservoir")


KeepRule: TypeAlias = Newest | Reservoir
newest, reservoir = Newest, Reservoir
DEFAULT_KEEP = Newest(100_000)


class Buffer:
    """Records that a keep rule bounds; each remembers the number of the batch it came with."""

    def __init__(self, keep: KeepRule = DEFAULT_KEEP) -> None:
        self._keep = keep
        self._records: Records | None = None
        self._batch: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._rng = np.random.default_rng(keep.seed if isinstance(keep, Reservoir) else None)
        self.seen = 0
        """Records ever added."""

    @property
    def records(self) -> Records | None:
        """What is kept; None before the first record."""
        return self._records

    def add(self, records: Records, batch: int = 0) -> None:
        """Take records in; ConfigError if they have another shape than those held."""
        self.add_all([(records, batch)])

    def add_all(self, batches: Sequence[tuple[Records, int]]) -> None:
        """Take several batches in, in order."""
        batches = [(records, number) for records, number in batches if len(records)]
        if not batches:
            return
        held = self._records if self._records is not None else batches[0][0].take(slice(0, 0))
        for records, _ in batches:
            if reason := fits(records, held.shapes):
                raise ConfigError(reason)
        every = joined([held, *(records for records, _ in batches)])
        numbers = np.concatenate([self._batch, *(np.full(len(records), number) for records, number in batches)])
        new = len(every) - len(held)
        rows = self._rows(len(held), new)
        self._records, self._batch = every.take(rows), numbers[rows]
        self.seen += new

    def drop(self, batch: int) -> None:
        """Forget the records of a batch, as when its file was deleted."""
        if self._records is not None:
            rows = np.flatnonzero(self._batch != batch)
            self._records, self._batch = self._records.take(rows), self._batch[rows]

    def _rows(self, held: int, new: int) -> npt.NDArray[np.int64]:
        """Which of the `held` records and the `new` ones behind them stay."""
        if isinstance(self._keep, Newest):
            return np.arange(max(0, held + new - self._keep.count), held + new)
        place = list(range(held))
        for number in range(new):
            if len(place) < self._keep.count:
                place.append(held + number)
            elif (drawn := int(self._rng.integers(self.seen + number + 1))) < self._keep.count:
                place[drawn] = held + number
        return np.array(place, dtype=np.int64)
