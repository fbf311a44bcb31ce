"""A broker's configuration as files, and how they are written without destroying what is there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ofl_iot.errors import ConfigError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of the broker: whom it trusts, who it is, and optionally whom it trusts no more."""

    ca: Path
    cert: Path
    key: Path
    crl: Path | None = None

    def missing(self) -> list[Path]:
        """Those that do not exist yet."""
        return [file for file in (self.ca, self.cert, self.key, self.crl) if file is not None and not file.is_file()]


@dataclass(frozen=True)
class Profile:
    """Files by their path below the profile's folder, folders to make, and what the operator does next."""

    files: dict[str, str]
    folders: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = field(default=())


def write_profile(profile: Profile, folder: Path, *, force: bool) -> None:
    """Write the files, readable by their owner and group; one that is there with another text needs `force`."""
    there = [name for name, text in profile.files.items() if _differs(folder / name, text)]
    if there and not force:
        raise ConfigError(
            f"{folder} has {', '.join(there)} already: choose another folder with --out, or overwrite with --force"
        )
    try:
        for name in ("", *profile.folders):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o750)
        for name, text in profile.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            _write(folder / name, text)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out") from error


def _differs(file: Path, text: str) -> bool:
    try:
        return file.read_text() != text
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, UnicodeDecodeError):
        return True


def _write(file: Path, text: str) -> None:
    """Closed to others before the first byte is in it: it may hold a password."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(descriptor, 0o640)
        stream.write(text)


def checked_path(path: Path) -> Path:
    """An absolute path that can stand in a configuration file."""
    absolute = path.absolute()
    if not re.fullmatch(r"[\w./+@:-]+", str(absolute)):
        raise ConfigError(f"{str(absolute)!r} has characters a broker's configuration cannot hold: use letters, digits")
    return absolute


def checked_host(host: str) -> str:
    """An address or name to listen on."""
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ConfigError(f"cannot listen on {host!r}: give an address or name of the broker's machine")
    return host


def checked_port(port: int) -> int:
    """A port that exists."""
    if not 1 <= port <= 65_535:
        raise ConfigError(f"port {port} does not exist: choose 1 to 65535")
    return port
