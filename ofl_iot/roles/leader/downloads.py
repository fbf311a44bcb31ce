"""What a leader hands down: the blocks of its model that a device lacks most, in messages of bounded size."""

from __future__ import annotations

import numpy as np

from ofl_iot.errors import RefusedError
from ofl_iot.opportunity.merge import stalest_blocks
from ofl_iot.protocol.messages import Block, Blocks, Pull
from ofl_iot.protocol.values import BYTES_PER_VALUE, MAX_VALUE, encode_model
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.settings import LeaderRules


def answer_to(pull: Pull, cluster: ClusterModel, rules: LeaderRules) -> list[Blocks]:
    """The stalest blocks, as many as the pull asks for; at least one message, for the device waits for the last."""
    layout = cluster.layout
    if len(pull.seen) != 8 * layout.count:
        raise RefusedError(f"a pull for {len(pull.seen) // 8} blocks, this model has {layout.count}")
    chosen = stalest_blocks(cluster.cumulative_change, np.frombuffer(pull.seen, "<f8"), pull.max_blocks)
    batch = max(1, int(rules.blocks_bytes / (layout.block_size * BYTES_PER_VALUE[rules.values])))
    batches = [chosen[at : at + batch] for at in range(0, len(chosen), batch)] or [chosen]
    return [
        Blocks(
            term=cluster.term,
            round_no=cluster.round_no,
            blocks=tuple(_block(int(index), cluster, rules) for index in blocks),
            last=number == len(batches),
        )
        for number, blocks in enumerate(batches, 1)
    ]


def _block(index: int, cluster: ClusterModel, rules: LeaderRules) -> Block:
    values = np.clip(cluster.model[cluster.layout.bounds(index)], -MAX_VALUE, MAX_VALUE)
    dtype, coded = encode_model(values, rules.values)
    return Block(index, float(cluster.cumulative_change[index]), dtype, coded)
