"""`ofl install`: puts a role in place as a systemd service, or shows what that would change."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from ofl_agents.cli import add_app_options, add_settings_options, overrides_of
from ofl_agents.install.installation import ROLES, Installation, Place
from ofl_iot.ids import federation_id
from ofl_iot.jobs.prepared_kernels import prepare, prepared_folder
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which role, where, and what its first settings are."""
    parser.add_argument("--role", required=True, choices=ROLES)
    parser.add_argument("--id", metavar="DEVICE", help="the device's id (role agent)")
    parser.add_argument(
        "--federation",
        metavar="NAME",
        help="one of several on this machine: units ofl-ROLE@NAME, files in /etc/ofl/NAME",
    )
    parser.add_argument("--part", metavar="K/N", help="part of a built-in app's data (role agent)")
    add_app_options(parser)
    parser.add_argument("--without-identity", action="store_true", help="no certificate: for a broker without TLS")
    parser.add_argument("--dry-run", action="store_true", help="show every file with its text, change nothing")
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="of the system (default: /)")
    parser.add_argument(
        "--ofl", type=Path, default=_this_command(), metavar="PATH", help="what the service starts (default: this one)"
    )
    add_settings_options(parser)


def run(options: argparse.Namespace) -> int:
    """Write what is missing or ours; never what the operator changed."""
    installation = Installation(
        role=options.role,
        root=options.root,
        executable=options.ofl,
        given=load_settings(Settings, options.config, {}, overrides_of(options)),
        device=options.id,
        part=options.part,
        identity=not options.without_identity,
        place=Place(federation_id(options.federation) if options.federation is not None else None),
    )
    steps = list(installation.steps())
    if not options.dry_run:
        installation.make_folders()
    for step, file in steps:
        path = options.root / file.path
        sys.stdout.write(f"{step:<10}{path}\n")
        if options.dry_run and step in ("create", "replace"):
            sys.stdout.write("".join(f"    {line}\n" for line in (file.text or "").splitlines()))
        elif not options.dry_run:
            installation.carry_out(step, file)
    if options.role != "broker" and options.root == Path("/") and not options.dry_run:
        _compile_kernels()
    kept = [options.root / file.path for step, file in steps if step == "keep"]
    sys.stdout.write("nothing was changed; then:\n" if options.dry_run else "then:\n")
    sys.stdout.write("".join(f"  {line}\n" for line in installation.next_steps(kept)))
    return 0


def _this_command() -> Path:
    return Path(sys.executable).with_name("ofl")


def _compile_kernels() -> None:
    """Compile the ring kernels for the services of this environment; without them a first round is seconds slower."""
    folder = prepared_folder()
    try:
        prepare(folder)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stdout.write(f"kernels are not compiled ahead in {folder} ({error}): services compile them themselves\n")
    else:
        sys.stdout.write(f"compiled  {folder}\n")
