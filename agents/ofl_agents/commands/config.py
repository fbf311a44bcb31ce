"""`ofl config`: the effective settings with their origin, and the reference of all settings."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from ofl_agents.cli import add_settings_options, environment, overrides_of
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import Loaded, load_settings, show
from ofl_iot.runtime.settings_reference import markdown, settings_of

HEADING = """\
# Settings

Every setting with its type, default and meaning. This page is made by `ofl config reference > docs/settings.md`; a test
compares it with the code. A setting is given in a TOML file (`--config`), in the environment (`round.deadline_s` is
`OFL_ROUND__DEADLINE_S`) or on the command line (`--set round.deadline_s=30`); the later of these wins.
`ofl config show` prints the effective values and where each comes from; `--describe` adds the meanings, `--json` is for
programs.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to do with the settings."""
    parser.add_argument("action", choices=["show", "reference"])
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--describe", action="store_true", help="show: each setting with its meaning")
    form.add_argument("--json", action="store_true", help="show: as JSON, with origins and meanings")
    add_settings_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the settings."""
    if options.action == "reference":
        sys.stdout.write(markdown(Settings, HEADING))
        return 0
    loaded = load_settings(Settings, options.config, environment(), overrides_of(options))
    if options.json:
        sys.stdout.write(json.dumps(_plain(loaded), indent=2) + "\n")
    else:
        sys.stdout.write((_described(loaded) if options.describe else show(loaded)).rstrip() + "\n")
    return 0


def _plain(loaded: Loaded[Settings]) -> dict[str, dict[str, object]]:
    """Return value, origin and meaning by key; a password is not shown."""
    entries = {}
    for setting in settings_of(Settings):
        value: object = loaded.settings
        for name in setting.key.split("."):
            value = getattr(value, name, None)
        if setting.key == "mqtt.password" and value is not None:
            value = "(not shown)"
        origin = loaded.origin.get(setting.key, "default")
        entries[setting.key] = {
            "value": msgspec.to_builtins(value),
            "origin": origin,
            "description": setting.description,
        }
    return entries


def _described(loaded: Loaded[Settings]) -> str:
    """Return the TOML of `show` with each setting's meaning above it."""
    meaning = {setting.key: setting.description for setting in settings_of(Settings)}
    lines, section = [], ""
    for line in show(loaded).splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        key = section + line.lstrip("# ").partition(" ")[0]
        if key in meaning:
            lines.append(f"# {meaning[key]}")
        lines.append(line)
    return "\n".join(lines)
