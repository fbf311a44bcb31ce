"""Who is let in: by which names, with which token, from which pages."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from ofl_agents.dashboard.access import MAX_SESSIONS, SESSION_S, Access, Forbidden, access_for
from ofl_iot.errors import ConfigError

TOKEN = "a-token-of-one's-own-choice"  # noqa: S105  # opens nothing


def status_of(access: Access, host: str, **headers: str) -> int:
    try:
        access.check_origin(host, {name.replace("_", "-"): value for name, value in headers.items()})
    except Forbidden as error:
        return error.status
    return HTTPStatus.OK


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost", "LOCALHOST:9", "[::1]:8420", "127.9.9.9"])
def test_on_loopback_the_names_of_loopback_are_ours(host: str) -> None:
    assert status_of(access_for("127.0.0.1", None, ()), host) == HTTPStatus.OK


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.7:8420",
     "[::1", "127.0.0.1@evil.example", "2130706433", "evil.example#127.0.0.1"],
)  # fmt: skip
def test_a_name_that_somebody_else_pointed_here_is_refused(host: str) -> None:
    assert status_of(access_for("127.0.0.1", None, ()), host) == HTTPStatus.MISDIRECTED_REQUEST


def test_beyond_loopback_addresses_and_chosen_names_are_ours_and_others_not() -> None:
    access = access_for("0.0.0.0", None, ["Depot.Example"])  # noqa: S104  # that is the case
    assert access.token is not None
    assert len(access.token) >= 32
    assert status_of(access, "192.168.0.7:8420") == HTTPStatus.OK
    assert status_of(access, "depot.example:8420") == HTTPStatus.OK
    assert status_of(access, "evil.example") == HTTPStatus.MISDIRECTED_REQUEST


def test_what_another_sites_page_asks_is_refused() -> None:
    access = access_for("127.0.0.1", None, ())
    host = "127.0.0.1:8420"
    for site in ("cross-site", "same-site"):
        assert status_of(access, host, sec_fetch_site=site, sec_fetch_mode="cors") == HTTPStatus.FORBIDDEN
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999"):
        assert status_of(access, host, origin=origin) == HTTPStatus.FORBIDDEN
    assert status_of(access, host, sec_fetch_site="same-origin", origin=f"http://{host}") == HTTPStatus.OK
    visit = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert status_of(access, host, **visit) == HTTPStatus.OK
    assert status_of(access, host, **{**visit, "sec_fetch_dest": "iframe"}) == HTTPStatus.FORBIDDEN


def test_without_a_token_nobody_is_asked_and_with_one_everybody() -> None:
    access_for("127.0.0.1", None, ()).check_reader("", "")
    access = access_for("127.0.0.1", TOKEN, ())
    for authorization in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff"):
        with pytest.raises(Forbidden, match="asks for its token"):
            access.check_reader("", authorization)
    access.check_reader("", f"Bearer {TOKEN}")
    access.check_reader("", f"bearer {TOKEN} ")


def test_a_session_ends_and_there_are_not_more_than_so_many() -> None:
    now = [0.0]
    access = Access(loopback=True, token=TOKEN, clock=lambda: now[0])
    first = access.admit(TOKEN)
    access.check_reader(first, "")
    now[0] = SESSION_S - 1
    access.check_reader(first, "")
    now[0] = SESSION_S
    with pytest.raises(Forbidden):
        access.check_reader(first, "")
    sessions = [access.admit(TOKEN) for _ in range(MAX_SESSIONS + 1)]
    access.check_reader(sessions[-1], "")
    with pytest.raises(Forbidden):
        access.check_reader(sessions[0], "")
    with pytest.raises(Forbidden, match="not the token"):
        access.admit("guess")


def test_nobody_gets_in_by_a_token_where_there_is_none() -> None:
    with pytest.raises(Forbidden):
        access_for("127.0.0.1", None, ()).admit("")


@pytest.mark.parametrize("token", ["", "short", "x" * 19, "ü" * 30, "x" * 30 + "\n"])
def test_a_weak_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="openssl rand"):
        access_for("127.0.0.1", token, ())
