"""What a leader hands down fits its messages, reaches old and new devices alike, and costs no work block by block."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ofl_iot.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from ofl_iot.protocol.messages import Blocks, Pull
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.downloads import answer_to
from ofl_iot.roles.settings import LeaderRules
from tests.counting import count_calls
from tests.roles.parties import MODEL


def leading(layout: BlockLayout, seed: int = 0) -> ClusterModel:
    cluster, rng = ClusterModel(layout, 1, ()), np.random.default_rng(seed)
    cluster.round_no = 0
    cluster.model[:] = rng.normal(0, 0.05, layout.size)
    cluster.cumulative_change[:] = rng.random(layout.count)
    return cluster


def pull_all(layout: BlockLayout, *, packed: bool) -> Pull:
    return Pull(1, np.full(layout.count, -1.0, "<f8").tobytes(), layout.count, packed)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("block_size", [1, 256])
def test_the_largest_answer_fits_a_message_whatever_is_in_its_blocks(block_size: int, packed: bool) -> None:
    layout = BlockLayout(30_000 if block_size == 1 else 256 * 4000, block_size)
    cluster = ClusterModel(layout, 1, ())
    cluster.round_no = 0
    cluster.model[::block_size] = 1e9  # one loud parameter in each block, too large for halves
    cluster.cumulative_change[:] = 1.0
    rules = LeaderRules(block_size=block_size, blocks_bytes=192 * 1024)
    answers = answer_to(pull_all(layout, packed=packed), cluster, rules)
    if block_size > 1:
        assert {batch.dtype for answer in answers for batch in answer.read_batches()} == {"f"}
    assert all(len(encode(answer)) <= MAX_MESSAGE_BYTES for answer in answers)


@pytest.mark.parametrize("packed", [True, False])
def test_a_device_of_either_release_gets_the_same_model(packed: bool) -> None:
    layout = BlockLayout(256 * 40 + 17, 256)
    cluster = leading(layout)
    cluster.model[300], cluster.model[600] = 40.0, 1e7  # one block of halves, one of floats
    model = LocalModel(layout, MODEL)
    for answer in answer_to(pull_all(layout, packed=packed), cluster, LeaderRules(blocks_bytes=4096)):
        message = decode(Kind.BLOCKS, encode(answer))
        assert isinstance(message, Blocks)
        assert bool(message.batches) is packed
        for batch in message.read_batches():
            model.downloaded(batch, 7)
    assert model.complete
    np.testing.assert_array_equal(model.seen, cluster.cumulative_change)
    np.testing.assert_allclose(model.local, cluster.model, rtol=2.0**-11, atol=0.26 / 127)
    assert model.local[600] == cluster.model[600]


def test_batches_take_fewer_bytes_than_blocks() -> None:
    layout = BlockLayout(256 * 100, 256)
    sizes = [
        sum(len(encode(each)) for each in answer_to(pull_all(layout, packed=packed), leading(layout), LeaderRules()))
        for packed in (True, False)
    ]
    assert sizes[0] < sizes[1] < 1.15 * layout.size


def test_an_answer_costs_the_same_work_however_many_blocks_it_holds() -> None:
    """Calls of functions from the pull to the device's model; block by block they were 40 a block."""

    def calls(blocks: int) -> int:
        layout = BlockLayout(blocks * 64, 64)
        cluster, model = leading(layout), LocalModel(layout, MODEL)
        rules = msgspec.structs.replace(LeaderRules(block_size=64), blocks_bytes=80 * 2000)

        def carry() -> None:
            for answer in answer_to(pull_all(layout, packed=True), cluster, rules):
                message = decode(Kind.BLOCKS, encode(answer))
                assert isinstance(message, Blocks)
                for batch in message.read_batches():
                    model.downloaded(batch, 1)

        carry()  # what is imported or cached at the first call is not counted
        return count_calls(carry)

    assert calls(2000) <= 1.1 * calls(20)
