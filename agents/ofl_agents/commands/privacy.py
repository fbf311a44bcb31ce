"""`ofl privacy`: states what was spent on a device's data, and plays a distinguishing game against the training."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from ofl_agents.cli import EXIT_FAILED, add_settings_options
from ofl_agents.program import settings_of
from ofl_iot import __version__
from ofl_iot.errors import ConfigError
from ofl_iot.ids import RESERVED
from ofl_iot.privacy.events import Budget
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.privacy.statement import Section, Subject, as_html, as_text, statement
from ofl_iot.roles.device.privacy_guard import TABLE, PrivacyGuard
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.store import read_store

_LABELS_ONLY = "graph convolutional"
"""In the name of a source whose records are nodes as targets: clipping protects their labels (`workloads/gcn.py`)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Two actions, each with its own options."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    stated = actions.add_parser("statement", help="unit, neighbours, epsilon, mechanisms, trust, settings, by device")
    stated.add_argument(
        "--state", type=Path, required=True, metavar="DIR", help="a state folder, or one that holds some"
    )
    stated.add_argument("--html", type=Path, metavar="FILE", help="write a page instead of text")
    add_settings_options(stated)
    stated.set_defaults(action=_statement)
    audited = actions.add_parser("audit", help="a lower bound on epsilon by a distinguishing game, beside the claim")
    audited.add_argument("--runs", type=int, default=1000, metavar="N", help="trainings in each world (%(default)s)")
    audited.add_argument("--steps", type=int, default=5, metavar="N", help="steps of one training (%(default)s)")
    audited.add_argument("--rate", type=float, default=1.0, metavar="Q", help="sampling rate of a step (%(default)s)")
    add_settings_options(audited)
    audited.set_defaults(action=_audit)


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    code: int = options.action(options)
    return code


def _statement(options: argparse.Namespace) -> int:
    settings, now = settings_of(options), time.time()
    sections = [
        section
        for store in sorted(options.state.rglob("*.sqlite"))
        if store.stem not in RESERVED
        for section in _stated(store, settings, now)
    ]
    if not sections:
        raise ConfigError(f"{options.state} holds no device's store: name the folder given to `ofl agent --state`")
    if options.html:
        options.html.write_text(as_html(sections), encoding="utf-8")
        sys.stdout.write(f"written to {options.html}\n")
    else:
        sys.stdout.write(as_text(sections))
    return 0


def _stated(store: Path, settings: Settings, now: float) -> Iterator[Section]:
    kept = read_store(store).get(TABLE, {}).get("ledger")
    ledger = Ledger.from_plain(msgspec.msgpack.decode(kept)) if kept else Ledger(settings.privacy.budget)
    privacy = settings.privacy
    shown = {
        "privacy": msgspec.structs.asdict(privacy),
        "training": {"steps": settings.training.steps, "batch_size": settings.training.batch_size},
        "upload": {"gamma": settings.upload.gamma, "values": settings.upload.values},
        "protection": {"mode": settings.protection.mode, "server_dec": settings.protection.server_dec},
    }
    named = tuple((f"{part}.{name}", str(value)) for part, fields in shown.items() for name, value in fields.items())
    guard = PrivacyGuard(privacy, steps=settings.training.steps)
    guard.ledger = ledger
    subject = Subject(
        device=store.stem,
        federation=settings.federation.id,
        software=f"ofl-iot {__version__}",
        settings=named,
        balance=guard.words(now),
        unit="label" if _LABELS_ONLY in ledger.source else "record",
    )
    yield from statement(subject, ledger, now, _date)


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _audit(options: argparse.Namespace) -> int:
    from ofl_agents.privacy_game import NETWORKS, Game, audit
    from ofl_iot.privacy.noise import noise_generator

    privacy = settings_of(options).privacy
    if not 0 < options.rate <= 1 or options.steps < 1:
        raise ConfigError("--rate lies in (0, 1], --steps is at least 1")
    game = Game(Budget(privacy.epsilon, privacy.delta), privacy.clip_norm, options.rate, options.steps)
    found = False
    for network in NETWORKS:
        result = audit(network, game, options.runs, noise_generator())
        found = found or result.violated
        best = max(result.lower, result.lower_gaussian if result.gaussian else 0.0)
        verdict = "VIOLATED" if result.violated else "not violated"
        sys.stdout.write(
            f"{network}: claimed epsilon {result.claimed:.2f}, at least {best:.2f} at {result.confidence:.0%} "
            f"confidence ({result.runs} trainings in each world): {verdict}\n"
        )
    return EXIT_FAILED if found else 0
