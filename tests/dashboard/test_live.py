"""The dashboard of fleets that run: beside a simulation in a real browser, and of a broker that comes and goes."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ofl_agents.dashboard.server import Place, serving
from ofl_broker.embedded import EmbeddedBroker
from ofl_iot.fleet_view.rounds import ClusterView
from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.runtime.fleet_watch import watch_fleet
from ofl_iot.runtime.settings import Settings
from tests.dashboard.fleets import REPLACE
from tests.dashboard.test_command import running
from tests.e2e.processes import OFL, Federation, until

if TYPE_CHECKING:
    from tests.dashboard.browsing import Page

SIMULATION = "ofl sim --app digits --devices 6 --rounds 8 --dashboard 0 --set fleet.clusters=2 --set privacy.mode=off"
LIMIT_S = 120.0
"""Only reached when something is wrong."""


def test_a_simulated_run_is_followed_in_a_browser(page: Page, tmp_path: Path) -> None:
    page.size(1440, 900)
    page.console()
    page.hosts()
    with subprocess.Popen(  # noqa: S603  # our own program
        [OFL, *shlex.split(SIMULATION)[1:], "--out", str(tmp_path / "out")],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url = next(line.split()[1] for line in process.stdout if line.startswith("dashboard: "))
            page.open(url)
            page.until(lambda: page.text("#tiles a:nth-child(1) .big") == "6 of 6", "all devices", LIMIT_S)
            page.until(
                lambda: page.run("return document.querySelectorAll('.hex.leader').length") == 2, "two leaders", LIMIT_S
            )
            page.watch_shifts()
            page.until(lambda: page.text("#tiles a:nth-child(2) .big").endswith(" %"), "the first accuracy", LIMIT_S)
            first = _rounds(page)
            page.until(lambda: _rounds(page) >= first + 2, "two more rounds", LIMIT_S)
            assert page.text("#tiles a:nth-child(6) .big").startswith("On")
            assert page.shifted() < 0.001
            page.run("location.hash = '#/device/device-01'")
            page.until(lambda: "said by the" in page.text("#why"), "evidence", LIMIT_S)
            assert [line for line in page.console() if "net::ERR_" not in line] == []
            assert page.hosts() == {url.strip("/").partition("//")[2]}
            page.until(lambda: "No word from the observer" in page.text("#banner"), "the end of the run", LIMIT_S)
            _, complaints = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            page.driver.get("about:blank")
            page.console()
    assert (process.returncode, complaints) == (0, "")


def _rounds(page: Page) -> int:
    done: int = page.driver.execute_async_script(
        "const done = arguments[0]; import('/page/store.js').then((m) => done(m.closedRounds().length));"
    )
    return done


@pytest.mark.slow
@pytest.mark.parametrize("open_broker", ["mosquitto"], indirect=True)
async def test_the_death_of_a_leader_is_seen_and_explained_within_three_seconds(
    page: Page, tmp_path: Path, open_broker: Any
) -> None:
    """Counted from when the observer hears of the heir: how long a leader may be away is the fleet's setting."""
    page.size(1440, 900)
    page.console()
    async with open_broker() as port:
        federation = Federation(tmp_path, port, 500)
        async with (
            federation.running(),
            watch_fleet(federation.settings) as fleet,
            serving(fleet, Place(port=0)) as served,
        ):
            await asyncio.to_thread(page.open, served.url)
            await until(lambda: len(fleet.view().clusters) == 2 and fleet.view().rounds, federation, LIMIT_S)
            cluster = max(fleet.view().clusters, key=lambda each: each.members)
            federation.processes[cluster.leader].kill()
            await until(lambda: _heir_of(fleet, cluster.leader), federation, LIMIT_S)
            heir = _heir_of(fleet, cluster.leader)

            def read() -> None:
                titles = "return [...document.querySelectorAll('.cluster h3')].map((each) => each.textContent)"
                page.until(lambda: any(f"{heir.leader} leads" in title for title in page.run(titles)), "the heir", 3.0)
                page.until(lambda: heir.leader in page.text("#feed"), "the event", 3.0)
                page.run("location.hash = `#/device/${arguments[0]}`", heir.leader)
                page.until(lambda: "Why it leads" in page.text("#why"), "the heir's page")
                assert "has not told why" not in page.text("#why")
                page.run("location.hash = `#/device/${arguments[0]}`", cluster.leader)
                page.until(lambda: "It is offline" in page.text(".big-why"), "the page of the one who died")
                assert page.console() == []

            await asyncio.to_thread(read)
            await asyncio.to_thread(page.driver.get, "about:blank")


def _heir_of(fleet: FleetSource, former: str) -> ClusterView | None:
    """The cluster that another than the former leader leads by now."""
    return next((each for each in fleet.view().clusters if each.previous == former and each.leader != former), None)


async def test_a_broker_that_comes_and_goes_is_told_as_such(free_port: int) -> None:
    mqtt = {"hosts": ("127.0.0.1",), "port": free_port, "backoff_min_s": 0.02, "backoff_max_s": 0.2}
    settings = Settings()
    settings = REPLACE(settings, mqtt=REPLACE(settings.mqtt, **mqtt))
    async with watch_fleet(settings) as fleet, serving(fleet, Place(port=0)) as served:

        async def link() -> str:
            async with httpx.AsyncClient(base_url=served.url) as client:
                told: str = (await client.get("/api/view")).json()["observer"]["link"]
                return told

        async def until_link(state: str) -> None:
            while await link() != state:  # noqa: ASYNC110  # the other side is a web server
                await asyncio.sleep(0.02)

        assert await link() == "down"
        async with EmbeddedBroker(f"127.0.0.1:{free_port}"):
            await asyncio.wait_for(until_link("up"), LIMIT_S)
        await asyncio.wait_for(until_link("down"), LIMIT_S)


def test_the_dashboard_of_a_broker_serves_without_its_broker_and_keeps_its_history(
    tmp_path: Path, free_port: int
) -> None:
    command = f"ofl dashboard --set mqtt.port={free_port} --history fleet.db"
    with running(command, tmp_path) as (process, url):
        assert httpx.get(f"{url}api/view").json()["observer"]["link"] == "down"
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert (tmp_path / "fleet.db").is_file()


def test_a_simulation_in_virtual_time_has_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    from ofl_agents.cli import main

    assert main(["sim", "--runtime", "virtual", "--dashboard"]) == 2
    assert "leave --runtime virtual out" in capsys.readouterr().err
