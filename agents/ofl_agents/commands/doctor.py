"""`ofl doctor`: examines a party's surroundings; each finding says what to do, the exit code how bad it is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ofl_agents.cli import add_app_options
from ofl_agents.doctor import broker, machine
from ofl_agents.doctor.app import app
from ofl_agents.doctor.findings import Finding, exit_code, skipped
from ofl_agents.doctor.identity import enrolled_name, identity
from ofl_agents.doctor.state import is_running, state
from ofl_agents.program import settings_of
from ofl_iot.ids import RESERVED, DeviceId, device_id, federation_id
from ofl_iot.runtime.settings import Settings

MARKS = {"ok": "ok     ", "skipped": "-      ", "warning": "warning", "error": "ERROR  "}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Whose surroundings."""
    from ofl_agents import program

    add_app_options(parser)
    program.add_options(parser)
    parser.add_argument("--id", metavar="NAME", help="the party (default: the name in its certificate, or its store's)")
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="patience with the broker (%(default)s)"
    )
    parser.epilog = "Exit code: 0 all well, 1 warnings, 2 errors."


def run(options: argparse.Namespace) -> int:
    """Examine everything, tell it, and judge."""
    settings = settings_of(options)
    findings = []
    for finding in examine(settings, _folder(options), options.id, options.timeout):
        findings.append(finding)
        if not options.json:
            _tell(finding)
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    return exit_code(findings)


def examine(settings: Settings, folder: Path, given: str | None, timeout_s: float) -> Iterator[Finding]:
    """All findings, what is near first."""
    yield from machine.versions()
    yield from machine.disk(folder, settings.upload.max_outbox_bytes)
    yield from machine.clock(folder)
    stores = sorted(folder.glob("*.sqlite"))
    known = given or enrolled_name(settings.mqtt) or (stores[0].stem if len(stores) == 1 else None)
    name = known if known in RESERVED else known and device_id(known)
    yield from identity(settings.mqtt, given)
    yield from app(settings, folder, name)
    if name:
        yield from state(folder / f"{name}.sqlite", settings.privacy, settings.training.steps)
    else:
        yield skipped("state", "whose? Name the party with --id")
    yield from broker.ports(settings.mqtt)
    if not name:
        yield skipped("broker", "as whom? Name the party with --id")
    elif is_running(folder / f"{name}.sqlite"):
        yield skipped("access", f"{name} runs, and a second session would take its name over: stop it to examine this")
    else:
        federation = federation_id(settings.federation.id)
        yield from broker.session(settings.mqtt, federation, DeviceId(name), timeout_s)


def _folder(options: argparse.Namespace) -> Path:
    """Where the store would be; the doctor makes no folder."""
    return Path(options.state or os.environ.get("STATE_DIRECTORY", "ofl-state"))


def _tell(finding: Finding) -> None:
    sys.stdout.write(f"{MARKS[finding.level]} {finding.check:<9}{finding.said}\n")
    if finding.advice:
        sys.stdout.write(f"{'':17}-> {finding.advice}\n")
    sys.stdout.flush()
