"""Messages of every kind, drawn by hypothesis: whatever a party may say on each topic."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import strategies as st

from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.messages import (
    Assignment,
    Block,
    Blocks,
    Echo,
    Inclusion,
    KeyMessage,
    Manifest,
    Member,
    Message,
    Part,
    PartReceipt,
    Pull,
    Receipt,
    RoundOpen,
    Seat,
    Settlement,
    Status,
)
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind

counts = st.integers(0, 2**53 - 1)
seqs = st.integers(1, 2**62 - 1)
ids = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,3}", fullmatch=True)
texts = st.text(max_size=200)
digests = st.binary(min_size=8, max_size=8)
body_digests = st.binary(min_size=16, max_size=16)
seq_sets = st.builds(
    lambda upto, more: SeqSet(upto).union(more), st.integers(0, 2**40), st.sets(st.integers(1, 2**41), max_size=5)
)


def tuples_of(items: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(items, max_size=4).map(tuple)


@st.composite
def sparse_updates(draw: st.DrawFn, max_size: int = 3000, max_value: float = 1e6) -> tuple[int, np.ndarray, np.ndarray]:
    """Size of a model, ascending places in it, values."""
    size = draw(st.integers(1, max_size))
    seed, share = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.0, 0.002, 0.1, 0.5, 0.97, 1.0]))
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(size) < share)
    scale = draw(st.sampled_from([0.0, 1e-6, 1.0, max_value]))
    return size, places, (scale * rng.uniform(-1, 1, len(places))).astype(np.float32)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    size, places, values = draw(sparse_updates(max_size=300))
    if not len(places):
        places, values = np.array([size - 1]), np.ones(1, np.float32)
    weight = draw(st.floats(0, 1e12, exclude_min=True, allow_subnormal=False))
    head = ChunkHead(draw(counts), draw(digests), size, draw(counts), weight)
    pieces = split_update(head, places, values, np.abs(values), half_precision=draw(st.booleans()))
    return msgspec.structs.replace(pieces[0].chunk, seq=draw(seqs))


@st.composite
def parts(draw: st.DrawFn) -> Part:
    number, more = draw(st.integers(0, 999)), draw(st.integers(1, 1000))
    return Part(
        draw(counts), draw(counts), draw(texts), number, number + more, draw(body_digests), draw(st.binary(max_size=99))
    )


shares = st.floats(0, 1)
telemetries = st.builds(
    Telemetry,
    device_type=st.sampled_from(["", "A", "xavier nx"]),
    power_mode=st.sampled_from(["", "15W"]),
    cpu_count=st.integers(1, 4096),
    cpu_ghz=st.floats(0.01, 20),
    cpu_load=shares,
    memory_total_mib=st.just(2**20),
    memory_free_mib=st.integers(0, 2**20),
    gpu_load=st.none() | shares,
    battery=st.none() | shares,
    label_sketch=st.none() | st.binary(min_size=1, max_size=128),
    samples=st.integers(0, 10**12),
    staleness=st.integers(0, 10**9),
)
blocks = st.builds(Block, counts, st.floats(0, 1e30), st.binary(max_size=64))
members = st.builds(Member, ids, seq_sets, counts)

MESSAGES: dict[Kind, st.SearchStrategy[Message]] = {
    Kind.STATUS: st.builds(Status, st.booleans(), counts, counts, digests, counts, st.text(max_size=24), counts),
    Kind.TELEMETRY: telemetries,
    Kind.ECHO: st.builds(Echo, counts),
    Kind.ASSIGNMENT: st.builds(Assignment, counts, counts, ids, seq_sets, tuples_of(ids), tuples_of(members)),
    Kind.RECEIPT: st.builds(Receipt, counts, tuples_of(seqs), seq_sets, counts)
    | st.builds(PartReceipt, counts, counts, texts, tuples_of(counts)),
    Kind.BLOCKS: st.builds(Blocks, counts, counts, st.sampled_from("ef"), tuples_of(blocks), st.booleans()),
    Kind.UPDATE: chunks(),
    Kind.PULL: st.builds(Pull, counts, st.binary(max_size=64), counts),
    Kind.ROUND_OPEN: st.builds(
        RoundOpen, counts, counts, tuples_of(st.builds(Seat, ids, counts)), counts, st.floats(0, 1e9)
    ),
    Kind.CONTRIBUTION: parts(),
    Kind.DECRYPT: parts(),
    Kind.SHARE: parts(),
    Kind.KEYS: st.builds(KeyMessage, counts, counts, texts, st.binary(max_size=99)),
    Kind.MANIFEST: st.builds(
        Manifest,
        counts,
        digests,
        counts,
        body_digests,
        tuples_of(st.builds(Inclusion, ids, counts, body_digests)),
        st.booleans(),
    ),
    Kind.GLOBAL_PART: parts(),
}
"""A strategy for each kind of topic; a kind added to the protocol must be added here (a test checks)."""

settlements = st.builds(Settlement, ids, tuples_of(seqs))
