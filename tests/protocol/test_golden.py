"""Each message's bytes, literally: a change of the wire must be noticed, and needs a new `codec.VERSION`."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from ofl_iot.protocol.block_batch import BlockBatch
from ofl_iot.protocol.chunks import ChunkHead, split_update
from ofl_iot.protocol.codec import Body, decode, decode_body, encode, encode_body
from ofl_iot.protocol.fleet_notes import ClusterNote, ContributionNote, Refusal, RoundNote, Vitals
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.key_messages import KeyMember, KeyOne, KeyOpen, PartDecAsk, ServerDecAnswer, ServerDecAsk
from ofl_iot.protocol.lean import LeanAnswer, LeanUpload, OpenAsk, ScoresAsk, SignedHeader, SketchAsk, VouchAsk
from ofl_iot.protocol.messages import (
    Assignment,
    Block,
    Blocks,
    Books,
    Card,
    ClusterChange,
    Contribution,
    Echo,
    Follower,
    Inclusion,
    Manifest,
    Member,
    Message,
    Observation,
    PartReceipt,
    Pull,
    Receipt,
    RoundOpen,
    Seat,
    Settlement,
    Standing,
    Status,
)
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import Precision, join_segments
from tests.protocol.samples import message_classes

MODEL = b"\x01\x02\x03\x04\x05\x06\x07\x08"
KEY = 32 * b"K"
HEAD = ChunkHead(term=3, model=MODEL, size=1000, base_round=7, weight=120.0, update_no=9)


def chunk_of(places: list[int], values: list[float], precision: Precision = "half") -> Message:
    numbers = np.array(values, np.float32)
    return split_update(HEAD, np.array(places), numbers, np.abs(numbers), precision=precision)[0].chunk


BATCH = BlockBatch("b", b"\x02\0\0\0", bytes(8), b"\0\0\x80\x3f", b"\x01\x81")
SEGMENTED_BATCH = BlockBatch(
    "s", b"\x02\0\0\0", bytes(8), b"", join_segments(np.array([1, 254], np.float32), np.ones(2, int), np.array([1, 2]))
)
SEGMENTED = split_update(
    HEAD, np.arange(3), np.array([127, -1, 0.5], np.float32), np.ones(3, np.float32), bounds=np.array([0, 1])
)[0].chunk
GOLDEN: dict[str, tuple[Kind, Message, str]] = {
    "status": (
        Kind.STATUS,
        Status(online=True, term=3, sample_count=120, model=MODEL, size=1000, device_type="A", sealing_key=KEY),
        (
            "92019ea6737461747573c30378c4080102030405060708cd03e8a141c4204b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b"
            "4b4b4b4b4b4b4b4b4b4b4b4bc400c400a000a0a0"
        ),
    ),
    "telemetry": (
        Kind.TELEMETRY,
        Telemetry(cpu_count=4, cpu_ghz=1.5, cpu_load=0.25, memory_total_mib=8192, memory_free_mib=4096, battery=0.5),
        (
            "9201dc0015a974656c656d65747279a0a004cb3ff8000000000000cb3fd0000000000000cd2000cd1000c0cb3f"
            "e0000000000000c0c0c0c0cb3ff000000000000000cb3ff000000000000000cb0000000000000000c0a0"
        ),
    ),
    "vitals": (
        Kind.VITALS,
        Vitals(
            version="0.2.0",
            outbox_chunks=3,
            outbox_bytes=900,
            budget_left=0.5,
            held_back="heat",
            temperature_c=92.0,
        ),
        (
            "9201dc001ca6766974616c73a5302e322e3003cd03840000cb0000000000000000cb0000000000000000a0cb3fe000000000"
            "000000a468656174a000c0c0cb3ff0000000000000cb4057000000000000c0c0c0c0c0c00000a000"
        ),
    ),
    "order": (
        Kind.ORDER,
        Order("depot", "truck-1", 1_800_000_000_000, 1.8e9, "pause", b"cert", b"sig"),
        (
            "920198a56f72646572a56465706f74a7747275636b2d31cf000001a3185c5000cb41dad27480000000a57061757365c40463"
            "657274c403736967"
        ),
    ),
    "refusal": (
        Kind.REFUSAL,
        Refusal("wrong-model", "why", 3),
        "920194a77265667573616cab77726f6e672d6d6f64656ca377687903",
    ),
    "cluster note": (
        Kind.CLUSTER_NOTE,
        ClusterNote(2, 5, "truck-1", ("truck-1", "truck-2"), ("truck-2",), "truck-3", "offline"),
        (
            "920198ab636c75737465726e6f74650205a7747275636b2d3192a7747275636b2d31a7747275636b2d3291a7747275636b2d"
            "32a7747275636b2d33a76f66666c696e65"
        ),
    ),
    "round note": (
        Kind.ROUND_NOTE,
        RoundNote(
            round_no=12,
            attempt=0,
            closed=True,
            encrypted=True,
            contributions=(ContributionNote("truck-1", 5, "included", 0.5, 2, 7, 120, 1.5, 0.25, "", ("truck-2",)),),
            collect_s=4.5,
            aggregate_s=2.5,
            threshold=2,
            key_term=5,
            decrypted_by=("truck-1",),
            not_answered=("truck-2",),
            metrics={"accuracy": 0.5},
            version="0.2.0",
        ),
        (
            "92019fa9726f756e646e6f74650c00c3c3919ba7747275636b2d3105a8696e636c75646564cb3fe0000000000000020778cb"
            "3ff8000000000000cb3fd0000000000000a091a7747275636b2d32cb4012000000000000cb4004000000000000020591a774"
            "7275636b2d3191a7747275636b2d32a081a86163637572616379cb3fe0000000000000a5302e322e30"
        ),
    ),
    "card": (Kind.CARD, Card(b"{}"), "920192a463617264c4027b7d"),
    "echo": (Kind.ECHO, Echo(77), "920192a46563686f4d"),
    "assignment": (
        Kind.ASSIGNMENT,
        Assignment(3, 1, "truck-1", SeqSet(4, (6, 9)), ("truck-2",), (Member("truck-1", SeqSet(4), 120),), b"one"),
        (
            "92019caa61737369676e6d656e740301a7747275636b2d31920492060991a7747275636b2d329196a7747275636b2d319204"
            "9078c40092000000c4036f6e65c4009200000000"
        ),
    ),
    "receipt": (
        Kind.RECEIPT,
        Receipt(3, (5, 8), SeqSet(4, (6, 6)), 8, highest=9),
        ("920198a7726563656970740392050892049206060809c400920000"),
    ),
    "part receipt": (
        Kind.RECEIPT,
        PartReceipt(3, 12, "contribute", (0, 1)),
        "920195ab7061727472656365697074030caa636f6e74726962757465920001",
    ),
    "blocks": (
        Kind.BLOCKS,
        Blocks(3, 11, (Block(2, 0.5, "e", b"\x00\x3c"),), last=True),
        "920197a6626c6f636b73030b919402cb3fe0000000000000a165c402003cc390c0",
    ),
    "packed blocks": (
        Kind.BLOCKS,
        Blocks(3, 11, (), last=True, batches=(BATCH,)),
        "920197a6626c6f636b73030b90c39195a162c40402000000c4080000000000000000c4040000803fc4020181c0",
    ),
    "blocks for a follower": (
        Kind.BLOCKS,
        Blocks(3, 11, (), last=True, batches=(BATCH,), standing=Standing(5, 7, 1, KEY)),
        (
            "920197a6626c6f636b73030b90c39195a162c40402000000c4080000000000000000c4040000803fc402018194050701c420"
            "4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b"
        ),
    ),
    "cluster change": (
        Kind.CLUSTER_CHANGE,
        ClusterChange(term=3, version=5, part=0, parts=2, round_no=11, body=b"sealed"),
        "920197a66368616e6765030500020bc4067365616c6564",
    ),
    "pull": (
        Kind.PULL,
        Pull(3, bytes.fromhex("000000000000f0bf"), 16, packed=True),
        "920197a470756c6c03c408000000000000f0bf10c3c0c2",
    ),
    "report of a follower": (
        Kind.PULL,
        Pull(3, b"", 0, packed=True, follower=Follower(5, 7), segmented=True),
        "920197a470756c6c03c40000c3920507c3",
    ),
    "blocks in segments": (
        Kind.BLOCKS,
        Blocks(3, 11, (), last=True, batches=(SEGMENTED_BATCH,)),
        (
            "920197a6626c6f636b73030b90c39195a173c40402000000c4080000000000000000c400c4120200000001000000803f0100"
            "00000040017fc0"
        ),
    ),
    "dense chunk": (
        Kind.UPDATE,
        chunk_of([10, 11, 12], [1.0, -2.0, 0.5]),
        (
            "9201dc0010a56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a03a164c400a165c406003c00c0"
            "003809c400920000"
        ),
    ),
    "gap chunk": (
        Kind.UPDATE,
        chunk_of([10, 300, 900], [1.0, -2.0, 0.5]),
        (
            "9201dc0010a56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000acd037ba167c40600ff22ffff59"
            "a165c406003c00c0003809c400920000"
        ),
    ),
    "bitmap chunk": (
        Kind.UPDATE,
        chunk_of([10, 11, 13, 14], [1.0, -2.0, 0.5, 4.0]),
        (
            "9201dc0010a56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a05a162c4011ba165c408003c00"
            "c00038004409c400920000"
        ),
    ),
    "byte chunk": (
        Kind.UPDATE,
        chunk_of([10, 11, 12], [127.0, -2.0, 0.4], "byte"),
        (
            "9201dc0010a56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a03a164c400a162c4070000803f"
            "7ffe0009c400920000"
        ),
    ),
    "float32 chunk": (
        Kind.UPDATE,
        chunk_of([10], [70_000.0]),
        (
            "9201dc0010a56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a01a164c400a166c40400b88847"
            "09c400920000"
        ),
    ),
    "round open": (
        Kind.ROUND_OPEN,
        RoundOpen(12, 0, (Seat("truck-1", 3),), 11, 60.0),
        "920198a46f70656e0c009192a7747275636b2d31030bcb404e000000000000c400c400",
    ),
    "part": (
        Kind.CONTRIBUTION,
        split_body(b"body", 3, 12, "contribute")[0],
        ("920198a470617274030caa636f6e747269627574650001c41006b721c380b2160c50903e9f6c636b28c404626f6479"),
    ),
    "chunk in segments": (
        Kind.UPDATE,
        SEGMENTED,
        (
            "9201dc0010a56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000003a164c400a173c41302000000"
            "01000000803f02000020013c7f813f09c400920000"
        ),
    ),
    "manifest": (
        Kind.MANIFEST,
        Manifest(12, MODEL, 1000, bytes(range(16)), (Inclusion("truck-1", 12, bytes(16)),), term=3, incarnation=b"one"),
        (
            "92019aa86d616e69666573740cc4080102030405060708cd03e8c410000102030405060708090a0b0c0d0e0f91"
            "93a7747275636b2d310cc41000000000000000000000000000000000c203c4036f6e65c400"
        ),
    ),
}
SIGNED = SignedHeader(b"header", b"signature")
BODIES: dict[str, tuple[Body, str]] = {
    "lean upload": (
        LeanUpload(SIGNED, b"body", {"truck-2": b"box"}),
        (
            "920194aa6c65616e75706c6f616492c406686561646572c4097369676e6174757265c404626f647981a7747275636b2d"
            "32c403626f78"
        ),
    ),
    "sketch ask": (
        SketchAsk((SIGNED,), {"truck-2": b"box"}),
        "920193a9736b6574636861736b9192c406686561646572c4097369676e617475726581a7747275636b2d32c403626f78",
    ),
    "scores ask": (
        ScoresAsk(
            (SIGNED,), {"truck-2": b"sketch"}, ("truck-1", "truck-2"), 1, {"truck-2": b"box"}, {"truck-2": b"signature"}
        ),
        (
            "920197a973636f72657361736b9192c406686561646572c4097369676e617475726581a7747275636b2d32c406736b65"
            "74636892a7747275636b2d31a7747275636b2d320181a7747275636b2d32c403626f7881a7747275636b2d32c4097369"
            "676e6174757265"
        ),
    ),
    "vouch ask": (
        VouchAsk((SIGNED,), {"truck-1": 1, "truck-2": 2}),
        ("920193a8766f75636861736b9192c406686561646572c4097369676e617475726582a7747275636b2d3101a7747275636b2d3202"),
    ),
    "open ask": (
        OpenAsk((SIGNED,), {"truck-1": 1}, {"truck-1": b"signature"}, {"truck-1": b"box"}),
        (
            "920195a76f70656e61736b9192c406686561646572c4097369676e617475726581a7747275636b2d310181a774727563"
            "6b2d31c4097369676e617475726581a7747275636b2d31c403626f78"
        ),
    ),
    "lean answer": (
        LeanAnswer(b"data", ("truck-2",), b"numbers", b"signature"),
        "920195aa6c65616e616e73776572c4046461746191a7747275636b2d32c4076e756d62657273c4097369676e6174757265",
    ),
    "contribution": (
        Contribution(
            b"payload", (Settlement("truck-2", (5, 8)),), 120, 2, (Observation("truck-2", 4, 1.5, 9, 0.5),), 2.5
        ),
        (
            "920197ac636f6e747269627574696f6ec4077061796c6f61649194a7747275636b2d32920508c40092000078029195a77472"
            "75636b2d3204cb3ff800000000000009cb3fe0000000000000cb4004000000000000"
        ),
    ),
    "key open": (
        KeyOpen(3, 1, (KeyMember("truck-1", KEY),), 2, "main"),
        (
            "920196a76b65796f70656e03019193a7747275636b2d31c420"
            "4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4bc40002a46d61696e"
        ),
    ),
    "serverdec ask": (
        ServerDecAsk(
            round_no=12,
            attempt=1,
            turn=2,
            stage="scores",
            opened=KeyOpen(3, 1, (KeyMember("truck-1", KEY),), 2, "main"),
            public=b"public",
            active=("truck-1",),
            contributors=("truck-1", "truck-2"),
            ciphertext=b"ciphertext",
        ),
        (
            "92019aac73657276657264656361736b0c0102a673636f72657396a76b65796f70656e03019193a7747275636b2d31c4204b"
            "4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4bc40002a46d61696ec4067075626c696391a774"
            "7275636b2d3192a7747275636b2d31a7747275636b2d32c40a63697068657274657874"
        ),
    ),
    "serverdec answer": (
        ServerDecAnswer(b"values", ("truck-1",), ("truck-2",), "why"),
        "920195af736572766572646563616e73776572c40676616c75657391a7747275636b2d3191a7747275636b2d32a3776879",
    ),
    "partdec ask": (
        PartDecAsk(bytes(range(16)), b"request"),
        "920193aa7061727464656361736bc410000102030405060708090a0b0c0d0e0fc40772657175657374",
    ),
    "books": (
        Books(7, {"truck-2": SeqSet(5, (8, 9))}),
        ("920195a5626f6f6b730781a7747275636b2d3292059208098080"),
    ),
    "key one": (KeyOne(b"contribution", b"relin"), "920193a66b65796f6e65c40c636f6e747269627574696f6ec40572656c696e"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_of_a_message_have_not_changed(name: str) -> None:
    kind, message, golden = GOLDEN[name]
    assert encode(message).hex() == golden
    assert decode(kind, bytes.fromhex(golden)) == message


@pytest.mark.parametrize("name", BODIES)
def test_the_bytes_of_a_body_have_not_changed(name: str) -> None:
    body, golden = BODIES[name]
    assert encode_body(body).hex() == golden
    assert decode_body(type(body), bytes.fromhex(golden)) == body


def test_an_assignment_of_before_the_fleet_was_counted_is_read() -> None:
    kind, message, _ = GOLDEN["assignment"]
    of_old = (
        "92019aaa61737369676e6d656e740301a7747275636b2d31920492060991a7747275636b2d329196a7747275636b2d319204"
        "9078c40092000000c4036f6e65c400920000"
    )
    assert decode(kind, bytes.fromhex(of_old)) == message


def test_every_message_has_a_golden_vector() -> None:
    assert {type(message) for _, message, _ in GOLDEN.values()} == message_classes()
    assert {type(body) for body, _ in BODIES.values()} == set(get_args(Body))
