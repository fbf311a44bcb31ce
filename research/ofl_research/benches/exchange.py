"""What a device and its leader pay for a pull, a receipt and a snapshot, of a model of 1,000,000 parameters.

`blocks_ms` is the same pull for a device of 0.1.0, which reads blocks one by one: their ratio is within one run. Times
are the processor's for this thread, of the fastest of some runs, because other load only ever slows down.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.messages import Blocks, Pull
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import ModelStore
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.downloads import answer_to
from ofl_iot.roles.part_sender import PartSender
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Put

PARAMETERS = 1_000_000
TRAININGS = 32
RUNS = 5
MODEL = b"8 bytes."


def run() -> dict[str, float]:
    """Milliseconds, microseconds and bytes."""
    layout, rng = BlockLayout(PARAMETERS, LeaderRules().block_size), np.random.default_rng(1)
    cluster = ClusterModel(layout, 1, ())
    cluster.round_no = 0
    cluster.model[:] = rng.normal(0, 0.05, PARAMETERS)
    cluster.cumulative_change[:] = rng.random(layout.count)
    model = LocalModel(layout, MODEL)
    payloads = _answer(cluster, packed=True)
    answer_ms, apply_ms = (
        _fastest_ms(lambda: _answer(cluster, packed=True)),
        _fastest_ms(lambda: _apply(payloads, model)),
    )
    blocks = _answer(cluster, packed=False)
    blocks_ms = _fastest_ms(lambda: _answer(cluster, packed=False)) + _fastest_ms(lambda: _apply(blocks, model))
    return {
        "pull_answer_ms": answer_ms,
        "pull_apply_ms": apply_ms,
        "pull_ms": answer_ms + apply_ms,
        "blocks_ms": blocks_ms,
        "pull_bytes_per_param": sum(map(len, payloads)) / PARAMETERS,
        "receipt_us_of_1000_parts": _receipt_us(1000),
        "receipt_us_of_10000_parts": _receipt_us(10_000),
        "stored_bytes_per_param": _stored_bytes(model, rng) / PARAMETERS,
    }


def _answer(cluster: ClusterModel, *, packed: bool) -> list[bytes]:
    """A leader's answer to a pull of the whole model."""
    seen = np.full(cluster.layout.count, -1.0, "<f8").tobytes()
    pull = Pull(1, seen, cluster.layout.count, packed)
    return [encode(each) for each in answer_to(pull, cluster, LeaderRules())]


def _apply(payloads: list[bytes], model: LocalModel) -> None:
    """What the device does with it."""
    for payload in payloads:
        message = decode(Kind.BLOCKS, payload)
        if isinstance(message, Blocks):
            for batch in message.read_batches():
                model.downloaded(batch, 1)


def _receipt_us(parts: int) -> float:
    """Taking a receipt and looking for what is due, with so many parts."""
    sender = PartSender(split_body(bytes(parts), 1, 1, "s", 1))

    def send_all() -> None:
        sender.restart()
        while not sender.done:
            for part in sender.due(0.0):
                sender.confirm((part.part,))

    return 1e3 * _fastest_ms(send_all) / parts


def _stored_bytes(model: LocalModel, rng: np.random.Generator) -> float:
    """Mean of what a training stores: all parameters change, a tenth is released, half of the blocks came down."""
    store, written = ModelStore(model), 0
    store.snapshot(1)
    for seq in range(2, 2 + TRAININGS):
        model.trained(model.local, model.local + rng.normal(0, 0.01, PARAMETERS).astype(np.float32))
        model.base[rng.random(PARAMETERS) < 0.1] += 0.01
        model.base[: PARAMETERS // 2] += 0.001
        written += sum(len(op.value) for op in store.snapshot(seq) if isinstance(op, Put))
    return written / TRAININGS


def _fastest_ms(work: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(RUNS):
        start = time.thread_time()
        work()
        least = min(least, time.thread_time() - start)
    return 1e3 * least
