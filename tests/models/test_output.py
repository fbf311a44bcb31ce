"""`--model-out` and `--on-model`: files that belong together, commands without a shell, failures that stop nothing."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofl_agents.models.output import ModelOutput, OutputError, add_options, output_of, version_path
from ofl_iot.errors import ConfigError
from ofl_iot.local.messages import ModelReply
from ofl_iot.local.server import Answer
from ofl_iot.models.files import read_tensors
from ofl_iot.protocol.model_card import ModelCard, TensorCard, encode_card
from ofl_iot.roles.reports.device import ModelDownloaded, PullUnanswered
from ofl_iot.runtime.desk import NoModelError
from ofl_iot.runtime.model_watch import ModelWatch

CARD = ModelCard(app="trial", tensors=(TensorCard("w", (2, 3)),), loss="mse", version="1")


def model(round_no: int, fill: float = 1.0) -> tuple[ModelReply, bytes]:
    values = np.full(6, fill, "<f4")
    reply = ModelReply(
        "truck-1", "agent", "federation", round_no, CARD.digest, 6, complete=True, final=False, card=encode_card(CARD)
    )
    return reply, values.tobytes()


def deliver(output: ModelOutput, round_no: int = 3) -> None:
    asyncio.run(output.deliver(*model(round_no)))


@pytest.mark.parametrize("name", ["net.npz", "net.safetensors"])
def test_the_version_beside_the_file_tells_which_model_it_holds(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    for round_no in (3, 4):
        deliver(ModelOutput(out, tmp_path), round_no)
        version = json.loads(version_path(out).read_text())
        assert (version["round"], version["app"], version["party"]) == (str(round_no), "trial", "truck-1")
        assert version["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert read_tensors(out).tensors["w"].shape == (2, 3)
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.version"}


def test_the_command_gets_the_file_and_the_round_and_no_shell(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "words = [os.environ['OFL_MODEL'], os.environ['OFL_ROUND'], *sys.argv[2:]]\n"
        "open(sys.argv[1], 'w').write(' '.join(words))"
    )
    out, seen = tmp_path / "net.npz", tmp_path / "seen"
    harm = tmp_path / "harm"
    deliver(ModelOutput(out, tmp_path, (sys.executable, "-c", code, str(seen), f"; touch {harm}", f"$(touch {harm})")))
    assert seen.read_text() == f"{out} 3 ; touch {harm} $(touch {harm})"
    assert not harm.exists()


def test_secrets_of_the_service_do_not_reach_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFL_MQTT__PASSWORD", "hunter-17")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    code = "import os, sys; open(sys.argv[1], 'w').write(repr(dict(os.environ)))"
    deliver(ModelOutput(tmp_path / "net.npz", tmp_path, (sys.executable, "-c", code, str(tmp_path / "seen"))))
    assert "hunter-17" not in (tmp_path / "seen").read_text()
    assert "NOTIFY_SOCKET" not in (tmp_path / "seen").read_text()


def test_a_command_that_fails_or_hangs_is_told_and_ended_with_its_children(tmp_path: Path) -> None:
    fails = (sys.executable, "-c", "import sys; sys.exit('no room on the shelf')")
    with pytest.raises(OutputError, match="ended with 1: no room on the shelf"):
        deliver(ModelOutput(tmp_path / "net.npz", tmp_path, fails))
    hangs = ("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(OutputError, match=r"took longer than 0\.5 s"):
        deliver(ModelOutput(tmp_path / "net.npz", tmp_path, hangs, command_s=0.5))
    child = (tmp_path / "child").read_text().strip() if (tmp_path / "child").exists() else ""
    until = time.monotonic() + 20.0
    while child and _lives(child):
        assert time.monotonic() < until


def _lives(process: str) -> bool:
    try:
        return "State:\tZ" not in Path("/proc", process, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_chatty_command_fills_no_memory(tmp_path: Path) -> None:
    chatty = (sys.executable, "-c", "import sys; sys.stderr.write('x' * 5_000_000); sys.exit(3)")
    with pytest.raises(OutputError) as told:
        deliver(ModelOutput(tmp_path / "net.npz", tmp_path, chatty))
    assert len(str(told.value)) < 1000


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--on-model", "true"], "name that file too"),
        (["--model-out", "net.h5"], "ends in .npz"),
        (["--model-out", "nowhere/net.npz"], "there is no folder"),
        (["--model-out", "net.npz", "--on-model", "no-such-program-here x"], "there is no program"),
        (["--model-out", "net.npz", "--on-model", "true", "--on-model-timeout", "0"], "must be positive"),
    ],
)
def test_what_cannot_work_is_refused_before_the_party_starts(
    given: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        output_of(options(*given), tmp_path)
    assert output_of(options(), tmp_path) is None


class Desk:
    """Stands where a PartyDesk stands: the watch needs its model and its party's name."""

    def __init__(self) -> None:
        self.party = argparse.Namespace(name="truck-1")
        self.now: tuple[ModelReply, bytes] | None = None

    def model(self, which: str) -> Answer:
        if self.now is None:
            raise NoModelError("nothing yet")
        return Answer(*self.now)


async def test_a_watch_hands_on_what_is_new_and_tells_a_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[int] = []
    broken = False

    async def take(reply: ModelReply, _body: bytes) -> None:
        if broken:
            raise OutputError("the shelf is full")
        taken.append(reply.round_no)

    with caplog.at_level(logging.WARNING):
        desk: Any = Desk()
        watch = ModelWatch(take, every_s=0.0)
        await watch.deliver_news(desk)
        desk.now = model(1)
        await watch.deliver_news(desk)
        await watch.deliver_news(desk)
        desk.now = model(2)
        await watch.deliver_news(desk)
        assert taken == [1]  # the values are the same
        broken = True
        for fill in (2.0, 3.0):
            desk.now = model(3, fill)
            await watch.deliver_news(desk)
        broken = False
        await watch.deliver_news(desk)
        assert taken == [1, 3]
    assert [record.getMessage().count("the shelf is full") for record in caplog.records] == [1]


async def test_a_watch_waits_for_news_and_delivers_the_rest_at_the_end() -> None:
    taken: list[int] = []

    async def story() -> None:
        first = asyncio.Event()

        async def take(reply: ModelReply, _body: bytes) -> None:
            taken.append(reply.round_no)
            first.set()

        desk: Any = Desk()
        watch = ModelWatch(take, every_s=0.001)
        task = asyncio.create_task(watch.attend(desk))
        desk.now = model(1)
        watch.listen("truck-1", ModelDownloaded(1), 0.0)
        await first.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        desk.now = model(2, 7.0)
        watch.listen("truck-1", PullUnanswered("leader"), 0.0)
        await watch.flush(desk)
        assert taken == [1]
        watch.listen("truck-1", ModelDownloaded(2), 0.0)
        await watch.flush(desk)
        assert taken == [1, 2]

    await asyncio.wait_for(story(), 20)
