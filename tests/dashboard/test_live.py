"""The dashboard of fleets that run: beside a simulation in a real browser, and of a broker that comes and goes."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from ofl_agents.commands.dashboard import HISTORY
from ofl_agents.dashboard.server import Place, serving
from ofl_broker.embedded import EmbeddedBroker
from ofl_iot.runtime.fleet_watch import watch_fleet
from ofl_iot.runtime.settings import Settings
from tests.dashboard.fleets import REPLACE
from tests.dashboard.test_command import running
from tests.e2e.processes import OFL

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


async def test_a_broker_that_comes_and_goes_is_told_as_such(free_port: int) -> None:
    mqtt = {"hosts": ("127.0.0.1",), "port": free_port, "backoff_min_s": 0.02, "backoff_max_s": 0.2}
    settings = Settings()
    settings = REPLACE(settings, mqtt=REPLACE(settings.mqtt, **mqtt))
    async with watch_fleet(settings) as fleet, serving(fleet, Place(port=0)) as served:

        async def link() -> str:
            async with httpx.AsyncClient(base_url=served.url) as client:
                told: str = (await client.get("/api/view")).json()["observer"]["link"]
                return told

        async def until(state: str) -> None:
            while await link() != state:  # noqa: ASYNC110  # the other side is a web server
                await asyncio.sleep(0.02)

        assert await link() == "down"
        async with EmbeddedBroker(f"127.0.0.1:{free_port}"):
            await asyncio.wait_for(until("up"), LIMIT_S)
        await asyncio.wait_for(until("down"), LIMIT_S)


def test_the_dashboard_of_a_broker_serves_without_its_broker_and_keeps_its_history(
    tmp_path: Path, free_port: int
) -> None:
    command = f"ofl dashboard --set mqtt.port={free_port} --state state/observer"
    with running(command, tmp_path) as (process, url):
        assert httpx.get(f"{url}api/view").json()["observer"]["link"] == "down"
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert (tmp_path / "state" / "observer" / HISTORY).is_file()


def test_a_simulation_in_virtual_time_has_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    from ofl_agents.cli import main

    assert main(["sim", "--runtime", "virtual", "--dashboard"]) == 2
    assert "leave --runtime virtual out" in capsys.readouterr().err
