"""`ofl swarm`: many real agents over one broker, in few processes, to see what a broker and a coordinator bear."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from urllib.parse import urlsplit

import msgspec

from ofl_agents import program
from ofl_agents.cli import add_app_options, environment, overrides_of
from ofl_agents.swarm import Slice, SwarmError, run_slice
from ofl_iot.errors import ConfigError
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many, where, what they learn."""
    parser.add_argument("--agents", type=int, required=True, metavar="N", help="agents of the swarm")
    parser.add_argument("--processes", type=int, metavar="P", help="processes they share (default: one a processor)")
    parser.add_argument("--broker", metavar="URL", help="mqtt://HOST[:PORT] (default: the settings' mqtt.hosts)")
    parser.add_argument("--prefix", default="swarm", help="beginning of the agents' ids (default: swarm)")
    parser.add_argument("--slice", metavar="K/P", help=argparse.SUPPRESS)
    add_app_options(parser)
    program.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop, then say what the agents did."""
    given = {**overrides_of(options), **broker_of(options.broker)}
    settings = load_settings(Settings, options.config, environment(), given).settings
    if settings.mqtt.identity is not None:
        raise ConfigError("a swarm has no certificates: it is for brokers in the clear or with a password")
    if options.agents < 1:
        raise ConfigError(f"--agents {options.agents}: a swarm needs at least 1")
    part = slice_of(options)
    if part.of == 1 or options.slice is not None:
        tallies = [msgspec.to_builtins(run_slice(settings, program.state_folder(options), part))]
    else:
        program.state_folder(options)
        tallies = _run_processes(_command(options, given), part.of)
    sys.stdout.write(json.dumps(total(tallies)) + "\n")
    return 0


def broker_of(url: str | None) -> dict[str, str]:
    """The settings that a broker's address stands for."""
    if url is None:
        return {}
    parsed = urlsplit(url if "://" in url else f"mqtt://{url}")
    if parsed.scheme != "mqtt" or not parsed.hostname or parsed.path.strip("/"):
        raise ConfigError(f"--broker {url}: write it as mqtt://HOST:PORT; for TLS use the settings mqtt.*")
    try:
        port = parsed.port
    except ValueError as error:
        raise ConfigError(f"--broker {url}: {error}") from None
    host = parsed.hostname
    return {"mqtt.hosts": json.dumps([host]), **({"mqtt.port": str(port)} if port else {})}


def slice_of(options: argparse.Namespace) -> Slice:
    """Which agents this process runs, among how many processes."""
    if options.slice is not None:
        number, _, count = options.slice.partition("/")
        return Slice(options.agents, int(number) - 1, int(count), options.prefix)
    processes = options.processes or len(os.sched_getaffinity(0))
    if processes < 1:
        raise ConfigError(f"--processes {processes}: a swarm needs at least 1")
    return Slice(options.agents, 0, min(processes, options.agents), options.prefix)


def total(tallies: Sequence[dict[str, float]]) -> dict[str, float]:
    """The processes' tallies, summed up."""
    summed = {name: round(sum(each[name] for each in tallies), 2) for name in tallies[0]}
    return {**summed, "processes": len(tallies)}


def _command(options: argparse.Namespace, given: dict[str, str]) -> list[str]:
    """What each process is started with."""
    command = [sys.executable, "-m", "ofl_agents", "--log-level", options.log_level, "swarm"]
    command += ["--agents", str(options.agents), "--prefix", options.prefix]
    if options.state is not None:
        command += ["--state", str(options.state)]
    for file in options.config:
        command += ["--config", str(file)]
    for key, value in given.items():
        command += ["--set", f"{key}={value}"]
    return command


def _run_processes(command: list[str], count: int) -> list[dict[str, float]]:
    """Run a process for each slice; what stops this one stops all, and so does the failure of one."""
    running = [
        subprocess.Popen([*command, "--slice", f"{number}/{count}"], stdout=subprocess.PIPE, text=True)  # noqa: S603  # ourselves
        for number in range(1, count + 1)
    ]

    def stop_all(_number: int, _frame: FrameType | None) -> None:
        for process in running:
            process.terminate()

    before = {number: signal.signal(number, stop_all) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        said = []
        for process in running:
            said.append(process.communicate()[0])
            if process.returncode != 0:
                raise SwarmError(f"a process of the swarm ended with status {process.returncode}")
    finally:
        stop_all(0, None)
        for process in running:
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    return [json.loads(text.splitlines()[-1]) for text in said]
