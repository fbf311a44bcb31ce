"""`ofl config show`: the effective settings with their origin."""

from __future__ import annotations

import argparse
import sys

from ofl_agents.cli import add_settings_options, environment, overrides_of
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings, show


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to do with the settings."""
    parser.add_argument("action", choices=["show"])
    add_settings_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the settings as TOML."""
    loaded = load_settings(Settings, options.config, environment(), overrides_of(options))
    sys.stdout.write(show(loaded).rstrip() + "\n")
    return 0
