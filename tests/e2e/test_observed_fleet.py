"""An operator sees four faults at once, over mosquitto with mutual TLS: by `ofl why`, in the metrics, on the dashboard.

A leader is killed, a member floods, a device has spent its privacy budget, another trains another model. Privacy is on
on the one device whose budget is spent; cluster models travel in the clear.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ofl_agents.cli import main
from ofl_iot.ids import OBSERVER, DeviceId
from ofl_iot.protocol.topics import Kind
from tests.conftest import MOSQUITTO
from tests.e2e.hostile import Field, Foreigner
from tests.e2e.processes import OflProcess
from tests.e2e.test_hostile_member import announced
from tests.roles.parties import chunk_of

pytestmark = [pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"), pytest.mark.slow]

SENTENCES = {
    "flood": "sends far more than|flood|held back",
    "wrong-model": "trains another model than the federation",
    "spent": "privacy budget is spent",
    "offline": "It is offline",
}
"""What the page says for each code."""
MALLORY, STRANGER, SPENT = "mallory", DeviceId("stranger"), DeviceId("truck-4")


def observer_options(field: Field) -> list[str]:
    settings = {"hosts": json.dumps([f"127.0.0.1:{field.broker.port}"]), **field.identities.files(OBSERVER)}
    return ["--set=federation.id=e2e", *(f"--set=mqtt.{key}={value}" for key, value in settings.items())]


def figures(address: str) -> dict[str, str]:
    """The code of each device, as Prometheus reads it."""
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 -- our own server's address
        text = answer.read().decode()
    return dict(
        re.findall(r'^ofl_device_why\{federation="e2e",device="([^"]+)",state="[^"]+",code="([^"]+)"\} 1$', text, re.M)
    )


def why(field: Field, capsys: pytest.CaptureFixture[str], history: Path, device: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["why", device, "--json", f"--history={history}", *observer_options(field)]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


async def test_four_faults_are_read_from_why_from_the_metrics_and_from_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field = Field(tmp_path, MALLORY, STRANGER, OBSERVER)
    tiny = ["--set=privacy.mode=rigorous", "--set=privacy.lifetime=1 rounds", "--set=privacy.epsilon=2"]
    processes = field.federation.processes
    processes[SPENT].arguments += tiny
    other = [each.replace("truck-4", STRANGER) for each in processes[SPENT].arguments if each not in tiny]
    processes[STRANGER] = OflProcess([*other, "--set=federation.app=machines"], tmp_path / "stranger.log")
    history = tmp_path / "history.sqlite"
    metrics = OflProcess(
        ["metrics", "--listen=127.0.0.1:0", f"--history={history}", *observer_options(field)], tmp_path / "metrics.log"
    )
    await metrics.start()
    async with field.running():
        await field.until(lambda: "/metrics" in metrics.output)
        address = metrics.output.split(" at ")[1].split()[0]
        with field.foreigner(MALLORY) as mallory:
            await _flood(field, mallory, address)
            leader = next(name for name in sorted(field.watch.leaders) if name not in (MALLORY, SPENT))
            processes[DeviceId(leader)].kill()
            wanted = {MALLORY: "flood", STRANGER: "wrong-model", SPENT: "spent", leader: "offline"}

            async def all_seen() -> bool:
                told = await asyncio.to_thread(figures, address)
                return all(told.get(name) == code for name, code in wanted.items())

            await _until(all_seen, metrics, lambda: _push(field, mallory))
            metrics.kill(signal.SIGTERM)
            assert await metrics.ended() == 0
            answers = {name: await asyncio.to_thread(why, field, capsys, history, name) for name in wanted}
            shown = await _browsed(field, tmp_path, history, wanted, lambda: _push(field, mallory))
    assert {name: each["code"] for name, each in answers.items()} == wanted
    assert all(each["evidence"] for each in answers.values())
    assert {name for name, text in shown.items() if not re.search(SENTENCES[wanted[name]], text)} == set(), shown
    assert answers[leader]["state"] == "offline"
    assert any("chunks up to" in text for _, text, _ in answers[MALLORY]["evidence"])
    assert any(by == "device" for _, _, by in answers[STRANGER]["evidence"])


def _push(field: Field, mallory: Foreigner) -> None:
    """A chunk of a number that nobody may give yet."""
    held, mine = mallory.assignment, announced(field)
    if held is not None and held.leader != MALLORY:
        mallory.say(
            Kind.UPDATE, chunk_of(2**62 - 1, {0: 1e-3}, term=held.term, size=mine.size, model=mine.model), held.leader
        )


async def _browsed(
    field: Field, folder: Path, history: Path, wanted: dict[str, str], again: Callable[[], None]
) -> dict[str, str]:
    """The sentence on each device's page, in a real browser; nothing where there is none."""
    browsing = pytest.importorskip("tests.dashboard.browsing", exc_type=ImportError)
    if not (browsing.CHROMIUM and browsing.CHROMEDRIVER):
        return {}
    dashboard = OflProcess(
        ["dashboard", "--port=0", f"--history={history}", *observer_options(field)], folder / "dashboard.log"
    )
    await dashboard.start()
    await field.until(lambda: "dashboard: " in dashboard.output)
    url = dashboard.output.split("dashboard: ")[1].split()[0]
    shown: dict[str, str] = {}

    def browse() -> None:
        with browsing.chromium(folder / "profile") as driver:
            page = browsing.Page(driver)
            page.open(url)
            page.until_live()
            for name, code in wanted.items():
                page.run("location.hash = `#/device/${arguments[0]}`", name)
                page.until(lambda name=name: page.text("h1") == name, name)
                for _ in range(60):
                    shown[name] = page.text(".big-why")
                    if re.search(SENTENCES[code], shown[name]):
                        break
                    field_loop.call_soon_threadsafe(again)
                    time.sleep(0.5)
            assert page.console() == []
            assert page.hosts() == {url.strip("/").partition("//")[2]}

    field_loop = asyncio.get_running_loop()
    await asyncio.to_thread(browse)
    dashboard.kill(signal.SIGTERM)
    assert await dashboard.ended() == 0
    return shown


async def _flood(field: Field, mallory: Foreigner, address: str) -> None:
    mallory.say(Kind.STATUS, announced(field), retain=True)
    await field.until(lambda: mallory.assignment is not None)

    async def seen() -> bool:
        return (await asyncio.to_thread(figures, address)).get(MALLORY) == "flood"

    await _until(seen, None, lambda: _push(field, mallory))


async def _until(condition: Any, process: OflProcess | None, again: Any) -> None:
    for _ in range(120):
        if await condition():
            return
        again()
        await asyncio.sleep(1.0)
    raise AssertionError(f"not within two minutes; {process.output[-500:] if process else ''}")
