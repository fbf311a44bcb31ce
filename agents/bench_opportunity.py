"""How fast a device prepares a release and a leader merges it, measured against one `numpy.argpartition`.

The reference is `argpartition` of the update itself, 1,000,000 float32 parameters, gamma 0.1; its time depends on the
values by a third, so it is the median over five updates. The parts take turns on one thread and the fastest run of each
counts, because other load only ever slows down.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ofl_iot.opportunity.blocks import Vector
from ofl_iot.opportunity.merge import Mileage, merge_update, new_mileage
from ofl_iot.opportunity.release import Mode, ReleaseSettings, prepare_release
from ofl_iot.privacy.noise import ENTROPY_BYTES, noise_generator
from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind

PARAMETERS = 1_000_000
GAMMA = 0.1
SEEDS = (1, 2, 3, 4, 5)
ROUNDS = 12
RUNS = 4
"""Consecutive runs of a part in each round: the reference gets its warm caches, too."""
STATE_BYTES = 12
"""A parameter's float32 theta0, theta1 and unreleased update, which a device keeps beside its model."""


@dataclass(frozen=True)
class _Device:
    """A device after training: its update and the states of its last two syncs."""

    update: Vector
    theta0: Vector
    theta1: Vector
    rng: np.random.Generator

    def release(self, mode: Mode) -> list[bytes]:
        """O-factor, selection, perturbation and chunk encoding."""
        settings = ReleaseSettings(mode=mode, eps1=10.0, eps2=10.0)
        selected = prepare_release(self.update, self.theta0, self.theta1, GAMMA, settings, self.rng)
        head = ChunkHead(term=1, model=b"8 bytes.", size=len(self.update), base_round=0, weight=100.0)
        pieces = split_update(head, selected.indices, selected.values, selected.utility)
        return [encode(piece.chunk) for piece in pieces]


def run() -> dict[str, float]:
    """Ratios to one argpartition, bytes on the wire and memory.

    `release_ratio` and `device_bytes_per_param` are of the default, rigorous mode, in which selection needs no noise
    and perturbation happened in training; `paper_…` are of the paper's mode.
    """
    device = _device(1)
    payloads = device.release("rigorous")
    model, mileage = np.zeros(PARAMETERS, np.float32), new_mileage(PARAMETERS)
    parts: dict[str, Callable[[], object]] = {
        "release": lambda: device.release("rigorous"),
        "paper release": lambda: device.release("paper"),
        "merge": lambda: _merge(payloads, model, mileage),
    }
    references = {f"argpartition {seed}": _argpartition(_device(seed).update) for seed in SEEDS}
    fastest = _fastest(parts | references)
    unit = float(np.median([fastest[name] for name in references]))
    return {
        "release_ratio": fastest["release"] / unit,
        "merge_ratio": fastest["merge"] / unit,
        "bytes_per_selected": sum(map(len, payloads)) / (GAMMA * PARAMETERS),
        "device_bytes_per_param": STATE_BYTES + _peak_bytes(lambda: device.release("rigorous")) / PARAMETERS,
        "paper_release_ratio": fastest["paper release"] / unit,
        "paper_device_bytes_per_param": STATE_BYTES + _peak_bytes(lambda: device.release("paper")) / PARAMETERS,
        "argpartition_ms": 1e3 * unit,
    }


def _device(seed: int) -> _Device:
    rng = np.random.default_rng(seed)

    def normal(deviation: float) -> Vector:
        values = rng.standard_normal(PARAMETERS, dtype=np.float32)
        values *= np.float32(deviation)
        return values

    theta0 = normal(0.1)
    return _Device(normal(0.01), theta0, theta0 + normal(0.01), noise_generator(bytes(ENTROPY_BYTES)))


def _argpartition(update: Vector) -> Callable[[], object]:
    return lambda: np.argpartition(update, round((1 - GAMMA) * PARAMETERS))


def _merge(payloads: list[bytes], model: Vector, mileage: Mileage) -> None:
    """Decode every chunk and merge it."""
    for payload in payloads:
        chunk = decode(Kind.UPDATE, payload)
        if isinstance(chunk, Chunk):
            merge_update(model, mileage, chunk.read_indices(), chunk.read_values(), weight=0.1)


def _fastest(parts: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least seconds that a run of each part took, the parts in turn."""
    least = dict.fromkeys(parts, float("inf"))
    for _ in range(ROUNDS):
        for name, part in parts.items():
            for _ in range(RUNS):
                start = time.perf_counter()
                part()
                least[name] = min(least[name], time.perf_counter() - start)
    return least


def _peak_bytes(part: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        part()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main(arguments: list[str] | None = None) -> None:
    """Run the bench and print, or write as JSON, what it measured."""
    parser = argparse.ArgumentParser(prog="python -m agents.bench_opportunity", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as one JSON object")
    target: Path | None = parser.parse_args(arguments).json
    figures = run()
    if target is not None:
        target.write_text(json.dumps(figures, indent=2) + "\n")
    for name, value in figures.items():
        print(f"{name:30s} {value:8.3f}")


if __name__ == "__main__":
    main()
