"""`--model-out` and `--on-model`: a running party's newest model as a file, and a command after each change."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ofl_agents.cli import check_writable
from ofl_iot.errors import ConfigError, OflError
from ofl_iot.local.messages import ModelReply
from ofl_iot.models.files import check_suffix, write_atomically, write_tensors
from ofl_iot.models.stored import copy_of_reply

EXPORT_S = 600.0
"""Time for a network to be written by a process of its own."""
_LAST_WORDS, _MAX_SAID = 300, 100_000


class OutputError(OflError):
    """A model could not be handed on; the party goes on."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the newest model goes."""
    parser.add_argument(
        "--model-out",
        type=Path,
        metavar="FILE",
        help="keep the newest complete model there (.npz, .safetensors, .pt, .onnx), and FILE.version beside it",
    )
    parser.add_argument(
        "--on-model",
        metavar="CMD",
        help="run after each change, without a shell; the file is in $OFL_MODEL, its round in $OFL_ROUND",
    )
    parser.add_argument(
        "--on-model-timeout", type=float, default=60.0, metavar="S", help="then CMD is ended (%(default)s)"
    )


def output_of(options: argparse.Namespace, state: Path) -> ModelOutput | None:
    """Return what the options ask for, checked before the party starts; None if they ask for nothing."""
    if options.model_out is None:
        if options.on_model:
            raise ConfigError("--on-model runs after --model-out has changed: name that file too")
        return None
    check_suffix(options.model_out)
    if not options.model_out.absolute().parent.is_dir():
        check_writable("--model-out", options.model_out)
    command = shlex.split(options.on_model) if options.on_model else []
    if command and shutil.which(command[0]) is None:
        raise ConfigError(f"--on-model: there is no program {command[0]!r}")
    if options.on_model_timeout <= 0:
        raise ConfigError(f"--on-model-timeout {options.on_model_timeout:g}: it must be positive")
    return ModelOutput(options.model_out.absolute(), state.absolute(), tuple(command), options.on_model_timeout)


@dataclass(frozen=True)
class ModelOutput:
    """Writes each new model, then its version, then runs the command."""

    out: Path
    state: Path
    command: tuple[str, ...] = ()
    command_s: float = 60.0

    async def deliver(self, reply: ModelReply, body: bytes) -> None:
        """Hand one model on; OutputError or ConfigError says what went wrong."""
        about = copy_of_reply(reply, body).about()
        if self.out.suffix in (".npz", ".safetensors"):
            await asyncio.to_thread(self._write, reply, body)
        else:
            about = await self._export(reply.party)
        await asyncio.to_thread(self._write_version, about)
        if self.command:
            await self._run(about)

    def _write(self, reply: ModelReply, body: bytes) -> None:
        write_tensors(self.out, copy_of_reply(reply, body).named())

    async def _export(self, party: str) -> dict[str, str]:
        """Let `ofl model export` write the whole network: it loads torch and the app, which this process does not."""
        where = ("--state", str(self.state), "--id", party, "--out", str(self.out), "--json")
        said = await _finished((sys.executable, "-m", "ofl_agents", "model", "export", *where), {}, EXPORT_S)
        try:
            about: dict[str, str] = json.loads(said)["about"]
        except (ValueError, KeyError) as error:
            raise OutputError(f"`ofl model export` said something unexpected: {said[-_LAST_WORDS:]!r}") from error
        return about

    def _write_version(self, about: Mapping[str, str]) -> None:
        """Say which model the file holds; whoever reads both can tell by the hash that they belong together."""
        version = {**about, "file": self.out.name, "sha256": _sha256(self.out)}
        text = json.dumps(version, indent=2, sort_keys=True).encode() + b"\n"
        write_atomically(version_path(self.out), lambda file: file.write(text))

    async def _run(self, about: Mapping[str, str]) -> None:
        variables = {"OFL_MODEL": str(self.out), "OFL_ROUND": about.get("round", ""), "OFL_PARTY": about["party"]}
        await _finished(self.command, variables, self.command_s)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def version_path(out: Path) -> Path:
    """Return the file that says which model another one holds."""
    return out.with_name(f"{out.name}.version")


async def _finished(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> str:
    """Run a command in a session of its own and return what it wrote; OutputError if it fails or takes too long."""
    kept = {name: value for name, value in os.environ.items() if not _is_ours(name)}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                env={**kept, **variables},
                start_new_session=True,
            )
        except OSError as error:
            raise OutputError(f"{command[0]} cannot be run: {error.strerror}") from error
        try:
            code = await asyncio.wait_for(process.wait(), limit_s)
        except asyncio.TimeoutError:
            raise OutputError(f"{command[0]} took longer than {limit_s:g} s and was ended") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if code:
            raise OutputError(f"{command[0]} ended with {code}: {_end_of(complained) or 'it said nothing'}")
        return _end_of(said, _MAX_SAID)


def _end_of(file: IO[bytes], limit: int = _LAST_WORDS) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
    return file.read(limit).decode(errors="replace").strip()


def _is_ours(name: str) -> bool:
    """Whether a variable is the service manager's or a secret: neither is a command's business."""
    return name in {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY", "OFL_TOKEN"} or (
        name.startswith("OFL_") and "PASSWORD" in name
    )
