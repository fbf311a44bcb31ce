"""A party's local socket: who may ask, what is answered, and what strangers, silence and long paths do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.local.address import MAX_PATH_BYTES, connect, socket_path
from ofl_iot.local.client import LocalError, LocalParty, NotRunningError
from ofl_iot.local.messages import (
    MAX_REQUEST_BYTES,
    VERSION,
    ModelReply,
    ModelRequest,
    Request,
    StatusReply,
    StatusRequest,
    decode_request,
    frame,
    parse_head,
)
from ofl_iot.local.server import MAX_VISITORS, Answer, LocalServer

ME = "truck-1"
VALUES = np.arange(3_000_000, dtype="<f4")
STATUS = StatusReply(ME, "agent", "1", 7, 1.0, linked=True, ready=True, overdue="", said="well", details={"term": 3})
_T = TypeVar("_T")


async def answer(request: Request) -> Answer:
    if isinstance(request, StatusRequest):
        return Answer(STATUS)
    if request.which == "own":
        raise ConfigError("no such model")
    reply = ModelReply(ME, "agent", request.which, 4, b"12345678", len(VALUES), complete=True, final=False, card=b"{}")
    return Answer(reply, VALUES.data)


@contextlib.asynccontextmanager
async def served(folder: Path, **more: Any) -> AsyncIterator[LocalServer]:
    server = LocalServer(socket_path(folder, ME), answer, **more)
    assert await server.start()
    try:
        yield server
    finally:
        await server.close()


def visit(folder: Path, ask: Callable[[LocalParty], _T], **more: Any) -> _T:
    """What a visitor in another thread gets from a server in this one."""

    async def story() -> _T:
        async with served(folder, **more):
            return await asyncio.to_thread(ask, LocalParty(folder, ME))

    return asyncio.run(story())


def raw(folder: Path, sent: bytes) -> bytes:
    """All that comes back for some bytes."""
    with connect(socket_path(folder, ME), 20.0) as visitor:
        with contextlib.suppress(BrokenPipeError):
            visitor.sendall(sent)
        read = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := visitor.recv(65536):
                read += piece
        return read


def test_status_and_a_model_of_twelve_megabytes_come_whole(tmp_path: Path) -> None:
    assert visit(tmp_path, LocalParty.status) == STATUS
    reply, body = visit(tmp_path, LocalParty.model)
    assert (reply.round_no, reply.size, reply.body_bytes) == (4, len(VALUES), 4 * len(VALUES))
    assert np.array_equal(np.frombuffer(body, "<f4"), VALUES)


async def test_the_file_is_its_owners_alone_and_goes_with_the_party(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        mode = server.path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not server.path.exists()


def test_a_reason_is_told_to_the_visitor(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="refused: no such model"):
        visit(tmp_path, lambda party: party.model("own"))


def test_another_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="only this party's user and root"):
        visit(tmp_path, LocalParty.status, welcome=lambda uid: uid == os.geteuid() + 1)


def test_the_kernel_says_who_asks(tmp_path: Path) -> None:
    seen: list[int] = []
    visit(tmp_path, LocalParty.status, welcome=lambda uid: not seen.append(uid))  # type: ignore[func-returns-value]
    assert seen == [os.geteuid()]


def test_nobody_there_is_told_apart_from_a_party_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match="does not run here"):
        LocalParty(tmp_path, ME).status()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(socket_path(tmp_path, ME)))
        deaf.listen()
        with pytest.raises(LocalError, match="did not answer"):
            LocalParty(tmp_path, ME, timeout_s=0.05).status()
    with pytest.raises(NotRunningError):
        LocalParty(tmp_path, ME).status()


def test_a_socket_left_by_a_dead_party_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(tmp_path, ME)))
    assert visit(tmp_path, LocalParty.status) == STATUS


async def test_a_file_that_is_no_socket_is_left_alone_and_the_party_runs_without(tmp_path: Path) -> None:
    precious = socket_path(tmp_path, ME)
    precious.write_text("somebody's")

    async def story() -> bool:
        server = LocalServer(precious, answer)
        started = await server.start()
        await server.close()
        return started

    assert await story() is False
    assert precious.read_text() == "somebody's"


def test_a_folder_whose_path_is_longer_than_a_sockets_may_be(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    assert len(str(socket_path(deep, ME))) > MAX_PATH_BYTES
    assert visit(deep, LocalParty.status) == STATUS


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x00\x00\x00\x02" + bytes((VERSION,)) + b"\xc1\xc1", b"not a request"),
        ((MAX_REQUEST_BYTES + 1).to_bytes(4, "big") + bytes((VERSION,)), b"at most"),
        (b"\x00\x00\x00\x00" + bytes((VERSION + 1,)), b"use the same ofl-iot"),
        (b"GET / HTTP/1.1\r\n\r\n", b"version"),
    ],
)
def test_what_is_no_request_is_refused_in_words(sent: bytes, reason: bytes, tmp_path: Path) -> None:
    assert reason in visit(tmp_path, lambda party: raw(party.state, sent))


def test_every_prefix_of_a_request_gets_no_answer_and_harms_nobody(tmp_path: Path) -> None:
    whole = frame(ModelRequest())

    def story(party: LocalParty) -> None:
        for length in range(len(whole)):
            with connect(socket_path(party.state, ME), 20.0) as visitor:
                visitor.sendall(whole[:length])
                visitor.shutdown(socket.SHUT_WR)
                assert visitor.recv(1) == b""
        assert party.status() == STATUS

    visit(tmp_path, story)


def test_a_visitor_that_says_nothing_is_sent_away(tmp_path: Path) -> None:
    assert visit(tmp_path, lambda party: raw(party.state, b""), request_s=0.02) == b""


def test_a_visitor_that_takes_nothing_of_its_answer_is_sent_away(tmp_path: Path) -> None:
    def story(party: LocalParty) -> bytes:
        with connect(socket_path(party.state, ME), 20.0) as visitor:
            visitor.sendall(frame(ModelRequest()))
            hung_up = select.poll()
            hung_up.register(visitor, select.POLLHUP)
            assert hung_up.poll(20_000)
            read = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := visitor.recv(1 << 20):
                    read += piece
        return read

    assert len(visit(tmp_path, story, stall_s=0.05)) < 4 * len(VALUES)


def test_more_visitors_than_seats_are_asked_to_come_again(tmp_path: Path) -> None:
    def story(party: LocalParty) -> None:
        with contextlib.ExitStack() as seats:
            silent = [seats.enter_context(connect(socket_path(party.state, ME), 20.0)) for _ in range(MAX_VISITORS)]
            with pytest.raises(LocalError, match="try again"):
                party.status()
            silent[0].sendall(frame(StatusRequest()))
            assert silent[0].recv(1) != b""
            silent[1].close()
            until, answered = time.monotonic() + 20.0, None
            while answered is None and time.monotonic() < until:
                with contextlib.suppress(LocalError):
                    answered = party.status()
            assert answered == STATUS

    visit(tmp_path, story, request_s=60.0)


async def test_the_loop_goes_on_while_a_model_is_sent_slowly(tmp_path: Path) -> None:
    async with served(tmp_path):
        ticks = 0
        taking = asyncio.create_task(asyncio.to_thread(LocalParty(tmp_path, ME).model))
        while not taking.done():
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 10


def test_requests_of_another_kind_are_not_known() -> None:
    packed = frame(ModelRequest("own"))
    assert decode_request(packed[5 : 5 + parse_head(packed[:5], MAX_REQUEST_BYTES)]) == ModelRequest("own")
