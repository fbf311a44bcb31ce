"""What a leader hands down: the blocks of its model that a device lacks most, in messages of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ofl_iot.errors import RefusedError
from ofl_iot.opportunity.merge import CumulativeChange, stalest_blocks
from ofl_iot.protocol.block_batch import BLOCK_OVERHEAD, BlockBatch, encode_batches
from ofl_iot.protocol.messages import Block, Blocks, Pull
from ofl_iot.protocol.values import BYTES_PER_VALUE, MAX_VALUE
from ofl_iot.roles.block_layout import NEVER, BlockLayout, BlockNumbers
from ofl_iot.roles.events import Vector
from ofl_iot.roles.settings import LeaderRules


class Source(Protocol):
    """A model that is handed down: a cluster's own, or what its leader published of it."""

    @property
    def layout(self) -> BlockLayout: ...
    @property
    def term(self) -> int: ...
    @property
    def round_no(self) -> int: ...
    @property
    def model(self) -> Vector: ...
    @property
    def cumulative_change(self) -> CumulativeChange: ...


def check_pull(pull: Pull, cluster: Source) -> None:
    """Raise RefusedError for a pull of a model with another number of blocks."""
    if len(pull.seen) != 8 * cluster.layout.count:
        raise RefusedError(
            f"it asks for {len(pull.seen) // 8} blocks, this model has {cluster.layout.count}: make its "
            f"leader.block_size {cluster.layout.block_size}",
            "block-size",
        )


def pulled_bytes(pull: Pull, layout: BlockLayout, rules: LeaderRules) -> tuple[float, float]:
    """About how many bytes answer a pull, and how many the whole model takes."""
    block_bytes = layout.block_size * BYTES_PER_VALUE[rules.values] + BLOCK_OVERHEAD
    return min(pull.max_blocks, layout.count) * block_bytes, layout.count * block_bytes


def answer_to(pull: Pull, cluster: Source, rules: LeaderRules, since: int = 0) -> list[Blocks]:
    """The stalest blocks, as many as the pull asks for; at least one message, for the device waits for the last.

    What a follower saw before the published version `since` is not comparable: to it every block is stale.
    """
    layout = cluster.layout
    check_pull(pull, cluster)
    seen = np.frombuffer(pull.seen, "<f8")
    if pull.follower and pull.follower.version < since:
        seen = np.full(layout.count, NEVER)
    chosen = stalest_blocks(cluster.cumulative_change, seen, pull.max_blocks)
    block_bytes = layout.block_size * BYTES_PER_VALUE[rules.values] + BLOCK_OVERHEAD
    at_once = max(1, int(rules.blocks_bytes / block_bytes))
    slices = [np.sort(chosen[at : at + at_once]) for at in range(0, len(chosen), at_once)] or [chosen]
    answers = []
    for number, blocks in enumerate(slices, 1):
        batches = _batches(blocks, cluster, rules, cut=pull.segmented and pull.packed) if len(blocks) else ()
        old = () if pull.packed else tuple(each for batch in batches for each in _blocks(batch, layout))
        answers.append(
            Blocks(cluster.term, cluster.round_no, old, number == len(slices), batches if pull.packed else ())
        )
    return answers


def _batches(blocks: BlockNumbers, cluster: Source, rules: LeaderRules, *, cut: bool) -> tuple[BlockBatch, ...]:
    layout = cluster.layout
    values = np.clip(layout.gather(cluster.model, blocks), -MAX_VALUE, MAX_VALUE)
    cuts = layout.cuts(blocks) if cut else np.zeros(0, np.int64)
    return encode_batches(
        blocks, cluster.cumulative_change[blocks], layout.lengths(blocks), values, rules.values, cuts=cuts
    )


def _blocks(batch: BlockBatch, layout: BlockLayout) -> Iterator[Block]:
    """The blocks one by one, for a device that does not read batches."""
    blocks, changes = batch.read_index(), batch.read_cumulative_change()
    width = len(batch.values) // batch.count
    ends = np.cumsum(layout.lengths(blocks)) * width
    starts = np.concatenate(([0], ends[:-1]))
    for at, (block, change, start, end) in enumerate(zip(blocks, changes, starts, ends, strict=True)):
        values = batch.scales[4 * at : 4 * at + 4] + batch.values[start:end]
        yield Block(int(block), float(change), batch.dtype, values)
