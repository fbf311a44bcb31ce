"""Messages of every kind, drawn by hypothesis from their own schema: whatever a party may say on each topic.

A message or field that is added to the protocol is drawn without a change here.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np
from hypothesis import strategies as st
from msgspec import inspect

from ofl_iot.protocol.block_batch import BlockBatch
from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.messages import MESSAGES_ON, Block, ClusterChange, Message, Part
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import BlockPrecision, Precision, encode_values

ids = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,3}", fullmatch=True)
counts = st.integers(0, 2**53 - 1)
seqs = st.integers(1, 2**62 - 1)
digests = st.binary(min_size=8, max_size=8)
precisions = st.sampled_from(get_args(Precision))
block_precisions = st.sampled_from(get_args(BlockPrecision))
seq_sets = st.builds(
    lambda upto, more: SeqSet(upto).union(more), st.integers(0, 2**40), st.sets(st.integers(1, 2**41), max_size=5)
)


# --- messages whose fields depend on each other


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
    head = ChunkHead(draw(counts), draw(digests), size, draw(counts), weight, draw(counts))
    pieces = split_update(head, places, values, np.abs(values), precision=draw(precisions))
    return msgspec.structs.replace(pieces[0].chunk, seq=draw(seqs))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    size, places, values = draw(sparse_updates(max_size=300))
    dense = np.zeros(size, np.float32)
    dense[places] = values
    return Block(
        draw(st.integers(0, 2**32 - 1)), draw(st.floats(0, 1e30)), *encode_values(dense, draw(block_precisions))
    )


@st.composite
def parts(draw: st.DrawFn) -> Part:
    number, more = draw(st.integers(0, 999)), draw(st.integers(1, 1000))
    digest, body = draw(st.binary(min_size=16, max_size=16)), draw(st.binary(max_size=99))
    return Part(draw(counts), draw(counts), draw(st.text(max_size=200)), number, number + more, digest, body)


@st.composite
def changes(draw: st.DrawFn) -> ClusterChange:
    number, more = draw(st.integers(0, 999)), draw(st.integers(1, 1000))
    version, body = draw(st.integers(1, 2**53 - 1)), draw(st.binary(max_size=99))
    return ClusterChange(draw(counts), version, number, number + more, draw(counts), body)


shares = st.floats(0, 1)
telemetries = st.builds(
    Telemetry,
    device_type=st.sampled_from(["", "A", "xavier nx"]),
    cpu_count=st.integers(1, 4096),
    cpu_ghz=st.floats(0.01, 20),
    cpu_load=shares,
    memory_total_mib=st.just(2**20),
    memory_free_mib=st.integers(0, 2**20),
    gpu_load=st.none() | shares,
    battery=st.none() | shares,
    samples=st.integers(0, 10**12),
    staleness=st.integers(0, 10**9),
)
_BY_HAND: dict[type, st.SearchStrategy[Any]] = {
    Block: blocks(),
    BlockBatch: blocks().map(Block.as_batch),
    Chunk: chunks(),
    ClusterChange: changes(),
    Part: parts(),
    SeqSet: seq_sets,
    Telemetry: telemetries,
}


# --- all others


def drawn(schema: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value that a schema allows."""
    if isinstance(schema, inspect.StructType):
        if schema.cls in _BY_HAND:
            return _BY_HAND[schema.cls]
        return st.builds(schema.cls, **{field.name: drawn(field.type) for field in schema.fields})
    if isinstance(schema, inspect.UnionType):
        return st.one_of(*map(drawn, schema.types))
    if isinstance(schema, inspect.VarTupleType):
        return st.lists(drawn(schema.item_type), max_size=4).map(tuple)
    if isinstance(schema, inspect.DictType):
        return st.dictionaries(drawn(schema.key_type), drawn(schema.value_type), max_size=3)
    return st.booleans() if isinstance(schema, inspect.BoolType) else _plain(schema)


def _plain(schema: inspect.Type) -> st.SearchStrategy[Any]:
    if isinstance(schema, inspect.IntType):
        low = schema.ge if schema.ge is not None else -(2**63)
        return st.integers(low, schema.le if schema.le is not None else (schema.lt or 2**63) - 1)
    if isinstance(schema, inspect.FloatType):
        return st.floats(schema.ge, schema.le, allow_nan=False)
    if isinstance(schema, inspect.NoneType | inspect.LiteralType):
        return st.sampled_from(getattr(schema, "values", (None,)))
    if isinstance(schema, inspect.BytesType):
        return st.binary(min_size=schema.min_length or 0, max_size=min(99, schema.max_length or 99))
    assert isinstance(schema, inspect.StrType), f"draw {schema} here"
    if schema.pattern is None:
        return st.text(max_size=schema.max_length or 50)
    return ids if schema.max_length else st.from_regex(schema.pattern, fullmatch=True)


MESSAGES: dict[Kind, st.SearchStrategy[Message]] = {
    kind: drawn(inspect.type_info(message)) for kind, message in MESSAGES_ON.items()
}


def message_classes() -> set[type]:
    """Every struct that travels as a message of its own."""
    infos = [inspect.type_info(message) for message in MESSAGES_ON.values()]
    flat = [each for info in infos for each in (info.types if isinstance(info, inspect.UnionType) else (info,))]
    return {each.cls for each in flat if isinstance(each, inspect.StructType)}
