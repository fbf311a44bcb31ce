"""The dashboard's server, over real sockets: its answers, its headers, its stream, its door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ofl_agents.dashboard import app as site
from ofl_agents.dashboard import feed
from ofl_agents.dashboard.server import Place, Served, serving
from ofl_iot.errors import ConfigError
from tests.certificates import Authority
from tests.dashboard.fleets import ChangingFleet, recorded_view

TOKEN = "twenty-letters-at-least"  # noqa: S105  # opens nothing
LIMIT_S = 20.0
Story = Callable[[httpx.AsyncClient, ChangingFleet, Served], Awaitable[None]]


def tell(story: Story, place: Place | None = None) -> None:
    """Serve a recorded fleet and let a client of it tell a story."""

    async def run() -> None:
        fleet = ChangingFleet(recorded_view())
        async with serving(fleet, place or Place(port=0)) as served, httpx.AsyncClient(base_url=served.url) as client:
            await asyncio.wait_for(story(client, fleet, served), LIMIT_S)

    asyncio.run(run())


async def frames(lines: AsyncIterator[str], count: int) -> list[tuple[str, str, Any]]:
    """The next server-sent events but ticks: name, id, data; fewer if the stream ends."""
    found: list[tuple[str, str, Any]] = []
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "event" in fields and fields["event"] != "tick":
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
        fields = {}
        if len(found) == count:
            break
    return found


def test_the_page_its_files_and_nothing_else_is_served() -> None:
    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, _served: Served) -> None:
        page = await client.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        names = {word.split('"')[0] for word in page.text.split('"page/')[1:]}
        assert {"app.js", "base.css", "icon.svg"} <= names
        for name in names:
            file = await client.get(f"/page/{name}")
            assert file.status_code == 200, name
            again = await client.get(f"/page/{name}", headers={"if-none-match": file.headers["etag"]})
            assert again.status_code == 304
        for path in (
            "/page/app.py",
            "/page/..%2Fapp.py",
            "/page/../app.py",
            "/page/%2e%2e/access.py",
            "/etc/passwd",
            "/api",
        ):
            assert (await client.get(path)).status_code == 404, path

    tell(story)


def test_every_answer_has_the_headers_that_keep_others_out() -> None:
    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, _served: Served) -> None:
        for path in ("/", "/page/app.js", "/api/view", "/nowhere"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; ")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "server" not in headers
            assert "access-control-allow-origin" not in headers

    tell(story)


def test_the_view_one_device_and_one_round_are_answered() -> None:
    async def story(client: httpx.AsyncClient, fleet: ChangingFleet, _served: Served) -> None:
        answer = await client.get("/api/view")
        view = answer.json()
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["cache-control"] == "no-store"
        assert (view["schema"], view["federation"]["id"]) == ("ofl.fleet-view/1", "north-depot")
        assert len(view["devices"]) == len(fleet.view().devices)
        truck = (await client.get("/api/devices/truck-03")).json()
        assert truck["device"]["why"]["evidence"][0][2] == "device"
        assert len(truck["details"]["contact"]) == 96
        assert (await client.get("/api/devices/truck-17")).json()["details"] is None
        missing = await client.get("/api/devices/..%2F..%2Fetc%2Fpasswd")
        assert (missing.status_code, fleet.asked) == (404, ["truck-03", "truck-17"])
        last = fleet.view().rounds[-1].round_no
        assert "contributors" in (await client.get(f"/api/rounds/{last}")).json()["contributions"][0]
        for path in ("/api/rounds/9999999", "/api/rounds/x", "/api/rounds/-1"):
            assert (await client.get(path)).status_code == 404

    tell(story)


def test_what_changes_is_streamed_and_a_broken_stream_goes_on_where_it_stopped() -> None:
    async def story(client: httpx.AsyncClient, fleet: ChangingFleet, _served: Served) -> None:
        view = (await client.get("/api/view")).json()
        after = f"{view['epoch']}-{view['seq']}"
        async with client.stream("GET", "/api/events", params={"after": after}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            fleet.set_device("truck-01", budget_left=0.5)
            ((event, place, data),) = await frames(answer.aiter_lines(), 1)
        assert (event, data["seq"]) == ("delta", view["seq"] + 1)
        assert data["devices"] == [{"id": "truck-01", "budget_left": 0.5}]
        fleet.set_device("truck-12", budget_left=0.25)
        async with client.stream("GET", "/api/events?after=old-0", headers={"last-event-id": place}) as answer:
            ((event, _, data),) = await frames(answer.aiter_lines(), 1)
        assert (event, data["devices"]) == ("delta", [{"id": "truck-12", "budget_left": 0.25}])

    tell(story)


@pytest.mark.parametrize("after", ["", "nobody-1", "-", "EPOCH-99999", "EPOCH--1", "EPOCH-²", "EPOCH-" + "9" * 400])
def test_a_place_that_is_not_known_is_answered_by_a_reset(after: str) -> None:
    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, _served: Served) -> None:
        epoch = (await client.get("/api/view")).json()["epoch"]
        async with client.stream("GET", "/api/events", params={"after": after.replace("EPOCH", epoch)}) as answer:
            assert [event for event, _, _ in await frames(answer.aiter_lines(), 1)] == ["reset"]

    tell(story)


def test_a_page_that_was_away_too_long_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "KEPT", 2)
    fleet = ChangingFleet(recorded_view())

    async def story() -> list[bytes]:
        kept = feed.Feed(fleet)
        epoch = json.loads(kept.whole())["epoch"]
        for number in range(3):
            fleet.set_device("truck-01", budget_left=number / 10)
            kept.take()
        stream = kept.stream(f"{epoch}-0")
        late = [await anext(stream), await anext(stream)]
        stream = kept.stream(f"{epoch}-1")
        return [*late, *[await anext(stream) for _ in range(3)]]

    _, reset, _, second, third = asyncio.run(story())
    assert reset.startswith(b"event: reset")
    assert b'"budget_left":0.1' in second
    assert b'"budget_left":0.2' in third


def test_silence_is_filled_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TICK_S", 0.01)

    async def story(client: httpx.AsyncClient, fleet: ChangingFleet, _served: Served) -> None:
        view = (await client.get("/api/view")).json()
        async with client.stream("GET", "/api/events", params={"after": f"{view['epoch']}-{view['seq']}"}) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: tick":
                    break
            assert json.loads((await anext(lines)).partition(": ")[2]) == {"now_s": fleet.view().now_s}

    tell(story)


def test_streams_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MAX_STREAMS", 1)

    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, _served: Served) -> None:
        async with client.stream("GET", "/api/events") as first:
            assert first.status_code == 200
            await frames(first.aiter_lines(), 1)
            second = await client.get("/api/events")
            assert (second.status_code, second.json()["error"]) == (503, "1 pages are open; close one")
        for _ in range(100):  # the server notices that the first is gone when it next writes to it
            async with client.stream("GET", "/api/events") as third:
                if third.status_code == 200:
                    break
            await asyncio.sleep(0.05)
        assert third.status_code == 200

    tell(story)


def test_a_source_that_fails_ends_the_streams_instead_of_showing_old_numbers(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(ChangingFleet):
        async def changed(self, after: int) -> int:
            await super().changed(after)
            raise OSError(5, "the history cannot be read")

    async def run() -> None:
        fleet = Failing(recorded_view())
        async with serving(fleet, Place(port=0)) as served, httpx.AsyncClient(base_url=served.url) as client:
            async with client.stream("GET", "/api/events") as answer:
                lines = answer.aiter_lines()
                await frames(lines, 1)
                fleet.set_device("truck-01", budget_left=0.5)
                assert await asyncio.wait_for(frames(lines, 99), LIMIT_S) == []
            assert (await client.get("/api/view")).status_code == 503

    asyncio.run(run())
    assert "the fleet can no longer be followed" in caplog.text


def test_a_stranger_is_refused_before_anything_looks_at_the_request() -> None:
    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, _served: Served) -> None:
        for path in ("/", "/api/view", "/page/app.js"):
            answer = await client.get(path, headers={"host": "evil.example"})
            assert (answer.status_code, "content-security-policy" in answer.headers) == (421, True)
            assert "north-depot" not in answer.text
        foreign = await client.get("/api/view", headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await client.request(method, "/api/view")).status_code == 405

    tell(story)


def test_with_a_token_nothing_of_the_fleet_is_told_without_it() -> None:
    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, served: Served) -> None:
        assert served.invitation().endswith(f"/#token={TOKEN}")
        for path in ("/api/view", "/api/events", "/api/devices/truck-03", "/api/rounds/148"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (401, {"error": "this dashboard asks for its token"})
        assert (await client.get("/")).status_code == 200
        wrong = await client.post("/api/session", json={"token": "twenty-letters-at-leasT"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = await client.post("/api/session", json={"token": TOKEN})
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert (await client.get("/api/view")).status_code == 200
        client.cookies.clear()
        bearer = await client.get("/api/view", headers={"authorization": f"Bearer {TOKEN}"})
        assert bearer.status_code == 200

    tell(story, Place(port=0, token=TOKEN))


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [(b"{", "application/json", 400), (b"[]", "application/json", 400), (b'{"token": 5}', "application/json", 400),
     (b"\xff\xfe", "application/json", 400), (b'{"token": "x"}', "text/plain", 415), (b"", "application/json", 400),
     (b'{"token": "' + b"x" * 4000 + b'"}', "application/json", 413)],
)  # fmt: skip
def test_what_is_no_token_is_refused(content: bytes, media_type: str, status: int) -> None:
    async def story(client: httpx.AsyncClient, _fleet: ChangingFleet, _served: Served) -> None:
        answer = await client.post("/api/session", content=content, headers={"content-type": media_type})
        assert answer.status_code == status

    tell(story, Place(port=0, token=TOKEN))


def test_over_tls_the_cookie_stays_on_tls(tmp_path: Path) -> None:
    Authority(tmp_path).issue("127.0.0.1", file="page")
    certificate, key = tmp_path / "page.pem", tmp_path / "page.key"

    async def run() -> None:
        place = Place(port=0, token=TOKEN, certificate=certificate, key=key)
        async with serving(ChangingFleet(recorded_view()), place) as served:
            assert served.url.startswith("https://")
            assert not served.in_clear
            async with httpx.AsyncClient(base_url=served.url, verify=False) as client:  # noqa: S501  # its own certificate
                answer = await client.post("/api/session", json={"token": TOKEN})
                assert "secure" in answer.headers["set-cookie"].lower()

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_beyond_loopback_it_says_that_the_way_is_open() -> None:
    async def story(_client: httpx.AsyncClient, _fleet: ChangingFleet, served: Served) -> None:
        assert served.token is not None
        assert "without TLS whoever is on the way reads it" in served.invitation()

    tell(story, Place(host="0.0.0.0", port=0))  # noqa: S104  # that is the case


def test_a_port_that_is_taken_and_an_address_that_is_not_ours_are_refused_in_words() -> None:
    async def story(_client: httpx.AsyncClient, fleet: ChangingFleet, served: Served) -> None:
        port = int(served.url.rpartition(":")[2])
        for place, words in (
            (Place(port=port), "is in use: choose another with --port"),
            (Place(host="192.0.2.1", port=0), "cannot listen on 192.0.2.1:0"),
            (Place(port=700000), "--port 700000: a port is a number"),
            (Place(port=0, certificate=Path("/nowhere.pem"), key=Path("/nowhere.key")), "cannot be used"),
        ):
            with pytest.raises(ConfigError, match=words):
                async with serving(fleet, place):
                    pass

    tell(story)
