"""The dashboard's web application: the page's files, the view, its changes, one device, one round, the door."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ofl_agents.dashboard.access import Access, Forbidden
from ofl_agents.dashboard.feed import Feed

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types ofl-template"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
MAX_STREAMS = 100
MAX_BODY = 2048
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str
    tag: str


def load_page() -> dict[str, Asset]:
    """Return the page's files by name: what is not here cannot be asked for."""
    assets = {}
    for entry in resources.files("ofl_agents.dashboard").joinpath("page").iterdir():
        suffix = f".{entry.name.rpartition('.')[2]}"
        if suffix in TYPES:
            content = entry.read_bytes()
            tag = hashlib.sha256(content).hexdigest()[:24]
            assets[entry.name] = Asset(content, TYPES[suffix], f'"{tag}"')
    return assets


class Refusal(msgspec.Struct):
    """The body of every answer that is not what was asked for."""

    error: str


class Token(msgspec.Struct):
    """The body of `POST /api/session`."""

    token: str


class Site:
    """The endpoints."""

    def __init__(self, feed: Feed, access: Access, *, cookie: str, secure: bool) -> None:
        self._feed = feed
        self._access = access
        self._cookie = cookie
        self._secure = secure
        self._assets = load_page()
        self._streams = 0

    def routes(self) -> list[Route]:
        """Every address there is."""
        return [
            Route("/", self.page),
            Route("/page/{name}", self.page),
            Route("/api/session", self.open_session, methods=["POST"]),
            Route("/api/view", self._guarded(self.view)),
            Route("/api/events", self._guarded(self.events)),
            Route("/api/devices/{name:path}", self._guarded(self.device)),
            Route("/api/rounds/{number:int}", self._guarded(self.round)),
        ]

    async def page(self, request: Request) -> Response:
        """Send a file of the page; it holds nothing of the fleet."""
        asset = self._assets.get(request.path_params.get("name", "index.html"))
        if asset is None:
            return _refuse(HTTPStatus.NOT_FOUND, "there is no such file")
        headers = {"etag": asset.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    async def open_session(self, request: Request) -> Response:
        """Exchange the token for a cookie, which an event stream can send."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                return _refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "that is no token")
        try:
            given = msgspec.json.decode(body, type=Token).token
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _refuse(HTTPStatus.BAD_REQUEST, 'send {"token": "…"}')
        answer = _json(b"{}")
        answer.set_cookie(
            self._cookie, self._access.admit(given), path="/api", httponly=True, samesite="strict", secure=self._secure
        )
        return answer

    async def view(self, _: Request) -> Response:
        """Send all that a page begins with."""
        if self._feed.broken:
            return _refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the fleet can no longer be followed; the log says why")
        return _json(self._feed.whole())

    async def events(self, request: Request) -> Response:
        """Stream changes from where the page stands."""
        if self._streams >= MAX_STREAMS:
            return _refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_STREAMS} pages are open; close one")
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._counted(after), media_type="text/event-stream", headers=headers)

    async def device(self, request: Request) -> Response:
        """Send one device with its evidence, what to do, and its day."""
        found = self._feed.device(request.path_params["name"])
        if found is None:
            return _refuse(HTTPStatus.NOT_FOUND, "nobody in this fleet is called so")
        return _json(msgspec.json.encode({"device": found[0], "details": found[1]}))

    async def round(self, request: Request) -> Response:
        """Send one round with its contributors."""
        found = self._feed.round(request.path_params["number"])
        if found is None:
            return _refuse(HTTPStatus.NOT_FOUND, "that round is not known, or not any more")
        return _json(msgspec.json.encode(found))

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            session = request.cookies.get(self._cookie, "")
            self._access.check_reader(session, request.headers.get("authorization", ""))
            return await endpoint(request)

        return answer

    async def _counted(self, after: str) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            async for frame in self._feed.stream(after):
                yield frame
        finally:
            self._streams -= 1


class Door:
    """Checks a request's origin before anything looks at it, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in ours if each[0] not in present)]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._access.check_origin(headers.get("host", ""), headers)
        except Forbidden as error:
            await _refuse(error.status, error.reason)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def make_app(feed: Feed, access: Access, *, cookie: str = "ofl_dashboard", secure: bool = False) -> ASGIApp:
    """Return the application; `secure`: it is served over TLS."""

    async def forbid(_: Request, error: Exception) -> Response:
        return _refuse(error.status, error.reason) if isinstance(error, Forbidden) else _refuse_broken()

    site = Site(feed, access, cookie=cookie, secure=secure)
    app = Starlette(routes=site.routes(), exception_handlers={Forbidden: forbid})
    return Door(GZipMiddleware(app, minimum_size=1000, compresslevel=5), access)


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json", headers={"cache-control": "no-store"})


def _refuse(status: HTTPStatus, reason: str) -> Response:
    return JSONResponse({"error": reason}, status_code=status, headers={"cache-control": "no-store"})


def _refuse_broken() -> Response:
    return _refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the dashboard failed; its log says why")
