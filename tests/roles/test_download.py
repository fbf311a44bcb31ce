"""What a leader hands down fits its messages."""

from __future__ import annotations

import numpy as np

from ofl_iot.protocol.codec import MAX_MESSAGE_BYTES, encode
from ofl_iot.protocol.messages import Pull
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.downloads import answer_to
from ofl_iot.roles.settings import LeaderRules


def test_the_largest_answer_fits_a_message_whatever_is_in_its_blocks() -> None:
    layout = BlockLayout(256 * 4000, 256)
    cluster = ClusterModel(layout, 1, ())
    cluster.round_no = 0
    cluster.model[::256] = 1e9  # one loud parameter in each block, too large for halves
    pull_all = Pull(1, np.full(layout.count, -1.0, "<f8").tobytes(), layout.count)
    rules = LeaderRules(block_size=256, blocks_bytes=192 * 1024)
    answers = answer_to(pull_all, cluster, rules)
    assert {block.dtype for answer in answers for block in answer.blocks} == {"f"}
    assert all(len(encode(answer)) <= MAX_MESSAGE_BYTES for answer in answers)
