"""The `ofl` command. Each subcommand is imported only when it is called, so that `ofl` itself starts at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ofl_iot import __version__
from ofl_iot.errors import ConfigError, OflError
from ofl_iot.runtime.logs import start_logging

COMMANDS = {
    "sim": ("ofl_agents.commands.sim", "run a whole federation on this machine"),
    "broker": ("ofl_agents.commands.broker", "run the embedded MQTT broker (for demos and tests)"),
    "coordinator": ("ofl_agents.commands.coordinator", "run the coordinator of a federation"),
    "agent": ("ofl_agents.commands.agent", "run the agent of one device"),
    "chaos": ("ofl_agents.commands.chaos", "break a federation on purpose; count what is lost or doubled"),
    "swarm": ("ofl_agents.commands.swarm", "run many agents over one broker, to see what it bears"),
    "decryptor": ("ofl_agents.commands.decryptor", "decrypt with the leaders in the coordinator's place"),
    "ca": ("ofl_agents.commands.ca", "make the federation's certificate authority, or show it"),
    "enroll": ("ofl_agents.commands.enroll", "let parties in by token, renew their certificates, revoke them"),
    "dashboard": ("ofl_agents.commands.dashboard", "show the fleet in a web page that follows it"),
    "install": ("ofl_agents.commands.install", "put an agent, coordinator, decryptor or broker in place as a service"),
    "doctor": ("ofl_agents.commands.doctor", "check broker, identity, clock, access, disk, versions, keys and budget"),
    "status": ("ofl_agents.commands.status", "the fleet at a glance, or parties on this machine (--local)"),
    "top": ("ofl_agents.commands.top", "the fleet as a live table, what needs attention first"),
    "why": ("ofl_agents.commands.why", "why a device does what it does, from evidence"),
    "fleet": ("ofl_agents.commands.fleet", "order devices to pause or go on; make join tokens for many"),
    "metrics": ("ofl_agents.commands.metrics", "serve the fleet's figures to Prometheus"),
    "new": ("ofl_agents.commands.new", "write a project to start from: app, data, test, settings"),
    "model": ("ofl_agents.commands.model", "show, export and compare trained models, while their party runs or not"),
    "privacy": ("ofl_agents.commands.privacy", "state what was spent on a device's data; audit the private training"),
    "config": ("ofl_agents.commands.config", "show the effective settings and where each comes from"),
    "reproduce": (
        "ofl_research.commands.reproduce",
        "measure the paper's tables and figures, beside its numbers",
    ),
    "data": ("ofl_agents.commands.data", "check or fetch the public data sets, show how one is dealt to devices"),
    "bench": ("ofl_research.commands.bench", "measure the opportunistic phase, the cryptography, the detection"),
}
RESEARCH = "ofl_research"
EXTRAS = {
    "amqtt": "sim",
    "rich": "sim",
    "matplotlib": "charts",
    "torch": "torch",
    "torch_geometric": "graph",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
}
"""Packages that a base install does not have, and the extra that brings each."""
EXIT_FAILED, EXIT_USAGE = 1, 2
NOT_SETTINGS = {"OFL_DATA", "OFL_TOKEN"}
Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; the exit code is 0 only when it did what it says."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser(arguments).parse_args(arguments)
    except ConfigError as error:
        return _complain(error, EXIT_USAGE)
    start_logging(options.log_level)
    run: Run = options.run
    try:
        with _missing_extras():
            return run(options)
    except ConfigError as error:
        return _complain(error, EXIT_USAGE)
    except OflError as error:
        return _complain(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """The options by which every program takes its settings."""
    parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, such as round.deadline_s=30"
    )


def add_app_options(parser: argparse.ArgumentParser) -> None:
    """What is learnt, and from which data."""
    parser.add_argument(
        "--app",
        dest="chosen_app",
        metavar="APP",
        help="FILE.py:NAME, MODULE:NAME, an installed or a built-in app (default: federation.app)",
    )
    parser.add_argument(
        "--data",
        dest="chosen_data",
        metavar="PATH",
        help="where its data are on this machine (default: federation.data)",
    )


def environment() -> dict[str, str]:
    """The environment's settings; variables that are no setting but a folder or a secret are left out.

    A service manager that hands the identity over (LoadCredential) sets $CREDENTIALS_DIRECTORY: that is a setting too.
    """
    given = {name: value for name, value in os.environ.items() if name not in NOT_SETTINGS}
    handed_over = os.environ.get("CREDENTIALS_DIRECTORY")
    if handed_over and Path(handed_over, "certificate.pem").is_file():
        given.setdefault("OFL_MQTT__IDENTITY", handed_over)
    return given


def overrides_of(options: argparse.Namespace) -> dict[str, str]:
    """The `--set` options, and `--app` and `--data` where the program takes them."""
    given: dict[str, str] = {}
    for name in ("app", "data"):
        if getattr(options, f"chosen_{name}", None) is not None:
            given[f"federation.{name}"] = getattr(options, f"chosen_{name}")
    for text in options.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r}: write it as key=value, for example --set round.deadline_s=30")
        given[key.strip()] = value
    return given


def check_writable(option: str, file: Path | None) -> None:
    """Refuse a file that cannot be written before the work for it is done; None is no file."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigError(f"{option} {file}: there is no folder {file.parent}")
    try:
        file.open("a").close()
    except OSError as error:
        raise ConfigError(f"{option} {file}: it cannot be written ({error.strerror}); name another file") from error


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ofl", description="Opportunistic federated learning over MQTT.")
    parser.add_argument("--version", action="version", version=f"ofl {__version__}")
    parser.add_argument(
        "--log-level", default="warning", choices=["debug", "info", "warning", "error"], help="(default: %(default)s)"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sub = subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name in arguments:
            command = _load(module)
            command.add_options(sub)
            sub.set_defaults(run=command.run)
    return parser


def _load(module: str) -> ModuleType:
    """Import a subcommand; the benches and the reproduction are a distribution of their own."""
    try:
        with _missing_extras():
            return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != RESEARCH:
            raise
        raise ConfigError(
            "benches and reproduction are not installed: run `pip install ./research` in a checkout of ofl-iot"
        ) from error


@contextmanager
def _missing_extras() -> Iterator[None]:
    """Name the extra that brings a package which a base install lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise ConfigError(f"this command needs {package}: pip install 'ofl-iot[{EXTRAS[package]}]'") from error


def _complain(error: OflError, code: int) -> int:
    sys.stderr.write(f"ofl: {error}\n")
    return code
