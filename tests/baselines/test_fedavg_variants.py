"""FedAvg with a server's momentum, and with OFL's codec: what they come to where the arithmetic is known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.chunks import ChunkHead, split_update
from ofl_iot.protocol.codec import encode
from ofl_research.baselines.fedavg import FedAvg
from ofl_research.baselines.fedavg_variants import (
    ChunkPacking,
    CodecOptions,
    FedAvgM,
    FedAvgMOptions,
    FedAvgWithCodec,
)
from ofl_research.baselines.letters import Hello, Reply, Vector, pack_dense
from ofl_research.reproduction.settings import plan_for

HELLOS = {"anna": Hello(30), "bert": Hello(10)}


def dense(*models: Vector) -> dict[str, Reply]:
    return {name: Reply(1, pack_dense(model)) for name, model in zip(HELLOS, models, strict=True)}


def test_momentum_goes_on_in_the_direction_of_the_last_round() -> None:
    server = FedAvgM(np.zeros(2, np.float32), FedAvgMOptions(beta=0.5))
    server.begin(HELLOS)
    one = np.array([1.0, 0.0], np.float32)
    server.combine(1, dense(one, one))
    np.testing.assert_array_equal(server.model, one)
    server.combine(2, dense(server.model, server.model))
    np.testing.assert_array_equal(server.model, [1.5, 0.0])


@given(st.integers(0, 2**32 - 1))
def test_without_momentum_it_is_fedavg(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain, momentum = FedAvg(np.zeros(5, np.float32)), FedAvgM(np.zeros(5, np.float32), FedAvgMOptions(beta=0.0))
    for server in (plain, momentum):
        server.begin(HELLOS)
    for number in range(3):
        replies = dense(*rng.normal(size=(2, 5)).astype(np.float32))
        for server in (plain, momentum):
            server.combine(number, replies)
    np.testing.assert_allclose(momentum.model, plain.model, rtol=1e-5, atol=1e-6)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.5, 1.0]))
def test_what_the_codec_holds_back_comes_with_later_rounds(seed: int, share: float) -> None:
    """Sum of what was sent plus what waits is what was trained."""
    rng = np.random.default_rng(seed)
    packing, server = ChunkPacking(CodecOptions(share)), FedAvgWithCodec(np.zeros(200, np.float32))
    server.begin({"anna": Hello(7)})
    trained = np.zeros(200)
    for number in range(4):
        update = rng.normal(size=200).astype(np.float32)
        trained += update
        work = server.combine(number, {"anna": Reply(number, packing.pack(np.zeros(200, np.float32), update))})
        assert work == round(share * 200)
    np.testing.assert_allclose(server.model + packing._residual, trained, atol=1e-4)


def test_a_reply_of_another_model_is_refused() -> None:
    server = FedAvgWithCodec(np.zeros(5, np.float32))
    server.begin({"anna": Hello(1)})
    head = ChunkHead(0, b"baseline", 9, 0, 1.0)
    (piece,) = split_update(head, np.array([8]), np.ones(1, np.float32), np.ones(1, np.float32))
    with pytest.raises(DecodeError):
        server.combine(1, {"anna": Reply(1, msgspec.msgpack.encode([encode(piece.chunk)]))})


@pytest.mark.parametrize("dataset", ["mnist", "cora"])
def test_in_quick_runs_the_baselines_have_the_same_steps(dataset: str) -> None:
    plans = [plan_for(dataset, system, quick=True) for system in ("fedavg", "fedavgm", "fedavg-codec", "cfl", "rfl-ha")]
    assert len({plan.rounds * plan.steps for plan in plans}) == 1
