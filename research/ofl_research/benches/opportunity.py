"""How fast a device prepares a release and a leader merges it, of 1,000,000 float32 parameters at gamma 0.1.

The yardstick is a *pass*: reading every parameter once and writing it once (`|update|` into a buffer). The processor's
memory bounds it, so it means the same under every version of numpy. `argpartition` of the update, once the yardstick,
does not: its time changed three- to fourfold between versions and by a third with the values. It is still reported (the
median over five updates), to be compared within one installation only. The parts take turns on one thread and the
fastest run of each counts, because other load only ever slows down.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.opportunity.blocks import Vector
from ofl_iot.opportunity.merge import CumulativeChange, merge_update, new_cumulative_change
from ofl_iot.opportunity.release import Mode, ReleaseSettings, prepare_release
from ofl_iot.privacy.noise import ENTROPY_BYTES, noise_generator
from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.messages import Assignment, Block, Blocks
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.protocol.values import Precision
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import Compute
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.events import Arrived, Event, LinkUp, ReleasePrepared, Started, Trained
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally

PARAMETERS = 1_000_000
GAMMA = 0.1
SEEDS = (1, 2, 3, 4, 5)
ROUNDS = 12
RUNS = 4
"""Consecutive runs of a part in each round: the reference gets its warm caches, too."""
MODEL_BYTES = 4
"""A parameter of the model itself."""


@dataclass(frozen=True)
class _Device:
    """A device after training: its update and the states of its last two syncs."""

    update: Vector
    theta0: Vector
    theta1: Vector
    rng: np.random.Generator

    def release(self, mode: Mode, values: Precision = "byte") -> list[bytes]:
        """O-factor, selection, perturbation and chunk encoding."""
        settings = ReleaseSettings(mode=mode, eps1=10.0, eps2=10.0)
        selected = prepare_release(self.update, self.theta0, self.theta1, GAMMA, settings, self.rng)
        head = ChunkHead(term=1, model=b"8 bytes.", size=len(self.update), base_round=0, weight=100.0)
        pieces = split_update(head, selected.indices, selected.values, selected.utility, precision=values, rng=self.rng)
        return [encode(piece.chunk) for piece in pieces]


def run() -> dict[str, float]:
    """Passes (`…_passes`), ratios to one argpartition (`…_ratio`), bytes on the wire and memory.

    `device_bytes_per_param` is the peak of a whole device machine beside its model.
    `release_ratio` and `device_bytes_per_param` are of the default, rigorous mode, in which selection needs no noise
    and perturbation happened in training; `paper_…` are of the paper's mode.
    """
    device = _device(1)
    payloads = device.release("rigorous")
    model, cumulative_change = np.zeros(PARAMETERS, np.float32), new_cumulative_change(PARAMETERS)
    parts: dict[str, Callable[[], object]] = {
        "release": lambda: device.release("rigorous"),
        "paper release": lambda: device.release("paper"),
        "merge": lambda: _merge(payloads, model, cumulative_change),
    }
    references = {f"argpartition {seed}": _argpartition(_device(seed).update) for seed in SEEDS}
    buffer = np.empty(PARAMETERS, np.float32)
    fastest = _fastest(parts | references | {"pass": lambda: np.abs(device.update, out=buffer)})
    one_pass, unit = fastest["pass"], float(np.median([fastest[name] for name in references]))
    return {
        "release_passes": fastest["release"] / one_pass,
        "merge_passes": fastest["merge"] / one_pass,
        "paper_release_passes": fastest["paper release"] / one_pass,
        "pass_ms": 1e3 * one_pass,
        "release_ratio": fastest["release"] / unit,
        "merge_ratio": fastest["merge"] / unit,
        "bytes_per_selected": sum(map(len, payloads)) / (GAMMA * PARAMETERS),
        "nibble_bytes_per_selected": sum(map(len, device.release("rigorous", "nibble"))) / (GAMMA * PARAMETERS),
        "device_bytes_per_param": _peak_bytes(lambda: _cycle("rigorous")) / PARAMETERS - MODEL_BYTES,
        "paper_release_ratio": fastest["paper release"] / unit,
        "paper_device_bytes_per_param": _peak_bytes(lambda: _cycle("paper")) / PARAMETERS - MODEL_BYTES,
        "argpartition_ms": 1e3 * unit,
    }


def _cycle(mode: Mode) -> None:
    """A device's machine from its first assignment to the release of an update: all the memory that takes.

    Commands are carried out one at a time, as a runtime does; the trained vector stands for the workload's result.
    """
    me, leader, model = DeviceId("device"), DeviceId("leader"), b"8 bytes."
    profile = DeviceProfile(me, model, PARAMETERS, 4096, 100)
    machine = DeviceMachine(profile, DeviceRules(privacy=PrivacyRules(mode="off")))
    events: deque[Event] = deque([Started(), LinkUp(), Arrived(Topic(Kind.ASSIGNMENT, COORDINATOR, me), _ASSIGNMENT)])
    events.extend(Arrived(Topic(Kind.BLOCKS, leader, me), blocks) for blocks in _blocks(machine.model.layout))
    rng = noise_generator(bytes(ENTROPY_BYTES))
    settings = ReleaseSettings(mode=mode, eps1=10.0, eps2=10.0)
    while events:
        for command in machine.handle(events.popleft(), now=0.0):
            if not isinstance(command, Compute):
                continue
            job = command.job
            if isinstance(job, TrainLocally) and not machine.outbox.unsettled:
                params = job.params + rng.standard_normal(PARAMETERS, dtype=np.float32)
                events.append(Trained(job.params, params, 0.0, job.steps, 1.0))
                del params
            elif isinstance(job, PrepareRelease):
                chosen = prepare_release(job.update, job.synced, job.synced_before, job.gamma, settings, rng)
                pieces = split_update(job.head, chosen.indices, chosen.values, chosen.utility)
                events.append(ReleasePrepared(tuple(pieces)))
            del job


_ASSIGNMENT = Assignment(1, 0, "leader", SeqSet())


def _blocks(layout: BlockLayout) -> Iterator[Blocks]:
    for index in range(layout.count):
        place = layout.bounds(index)
        block = Block(index, 1.0, "e", bytes(2 * (place.stop - place.start)))
        yield Blocks(1, 0, (block,), last=index == layout.count - 1)


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


def _merge(payloads: list[bytes], model: Vector, cumulative_change: CumulativeChange) -> None:
    """Decode every chunk and merge it."""
    for payload in payloads:
        chunk = decode(Kind.UPDATE, payload)
        if isinstance(chunk, Chunk):
            merge_update(model, cumulative_change, chunk.read_indices(), chunk.read_values(), weight=0.1)


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
