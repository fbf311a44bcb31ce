"""What the version before said is still read: its messages lack the fields that were appended since."""

from __future__ import annotations

import pytest

from ofl_iot.protocol.codec import decode, decode_body
from tests.protocol.test_golden import BODIES, GOLDEN

MESSAGES = {
    "status": (
        "920199a6737461747573c30378c4080102030405060708cd03e8a141c4204b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b"
        "4b4b4b4b4b4b4b4b4b4b4b4bc400"
    ),
    "assignment": (
        "920198aa61737369676e6d656e740301a7747275636b2d31920492060991a7747275636b2d329193a7747275636b2d319204"
        "9078c4036f6e65"
    ),
    "packed blocks": "920196a6626c6f636b73030b90c39195a162c40402000000c4080000000000000000c4040000803fc4020181",
    "pull": "920195a470756c6c03c408000000000000f0bf10c3",
    "receipt": ("920196a7726563656970740392050892049206060809"),
    "dense chunk": (
        "92019ea56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a03a164c400a165c406003c00c0003809"
    ),
    "gap chunk": (
        "92019ea56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000acd037ba167c40600ff22ffff59a165"
        "c406003c00c0003809"
    ),
    "bitmap chunk": (
        "92019ea56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a05a162c4011ba165c408003c00c00038004409"
    ),
    "byte chunk": (
        "92019ea56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a03a164c400a162c4070000803f7ffe0009"
    ),
    "float32 chunk": (
        "92019ea56368756e6b0301c4080102030405060708cd03e807cb405e0000000000000a01a164c400a166c40400b8884709"
    ),
    "vitals": (
        "9201dc0018a6766974616c73a5302e322e3003cd03840000cb0000000000000000cb0000000000000000a0cb3fe000000000"
        "000000a468656174a000c0c0cb3ff0000000000000cb4057000000000000c0c0c0c0c0c0"
    ),
}
OLD_BODIES = {
    "contribution": (
        "920197ac636f6e747269627574696f6ec4077061796c6f61649192a7747275636b2d3292050878029195a7747275636b2d32"
        "04cb3ff800000000000009cb3fe0000000000000cb4004000000000000"
    ),
    "books": ("920193a5626f6f6b730781a7747275636b2d329205920809"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_the_version_before_is_read(name: str) -> None:
    kind, message, golden = GOLDEN[name]
    assert MESSAGES[name] != golden
    assert decode(kind, bytes.fromhex(MESSAGES[name])) == message


@pytest.mark.parametrize("name", OLD_BODIES)
def test_a_body_of_the_version_before_is_read(name: str) -> None:
    body, golden = BODIES[name]
    assert OLD_BODIES[name] != golden
    assert decode_body(type(body), bytes.fromhex(OLD_BODIES[name])) == body
