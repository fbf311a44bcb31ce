"""Puts a role of a federation in place as a systemd service: which files there must be, and what that changes.

Units and drop-ins are ours and are written anew; what an operator writes (settings, which device this is) is made
once and then left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ofl_iot.apps.builtin import Part
from ofl_iot.errors import ConfigError
from ofl_iot.ids import FederationId, device_id
from ofl_iot.runtime.settings import ServiceSettings, Settings
from ofl_iot.runtime.settings_file import Loaded, load_settings, show

Role = Literal["agent", "coordinator", "decryptor", "broker"]
Step = Literal["create", "replace", "unchanged", "keep", "remove"]
ROLES: tuple[Role, ...] = ("agent", "coordinator", "decryptor", "broker")
_UNITS, _TMPFILES = Path("etc/systemd/system"), Path("etc/tmpfiles.d")
_EXECUTABLE_IN_UNIT = "/usr/local/bin/ofl"
_HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108  # what the sandbox does not show
_TEGRA = Path("etc/nv_tegra_release")
"""What a Jetson has and no other machine."""
_JETSON_GROUPS = ("video", "render", "jtop")
"""Who may use its GPU, and ask jetson-stats."""


@dataclass(frozen=True)
class File:
    """A file that must be there; one that is the operator's is never overwritten. Without a text it must not be."""

    path: Path
    """Below the root."""
    text: str | None
    mode: int = 0o644
    operators: bool = False


@dataclass(frozen=True)
class Place:
    """Where the files of a federation's parties are: the machine's only one, or one of several with a name."""

    federation: FederationId | None = None

    @property
    def folder(self) -> Path:
        """Settings, identity and the device's name, below the root."""
        return Path("etc/ofl") / (self.federation or "")

    @property
    def settings(self) -> Path:
        """The settings file."""
        return self.folder / "ofl.toml"

    @property
    def identity(self) -> Path:
        """What `ofl enroll join` leaves."""
        return self.folder / "identity"

    @property
    def agent_env(self) -> Path:
        """Which device this is."""
        return self.folder / "agent.env"

    @property
    def tmpfiles(self) -> File:
        """Makes the folders anew after a reset of the machine."""
        name = f"ofl-{self.federation}.conf" if self.federation else "ofl.conf"
        folders = "".join(f"d /{each} 0755 root root\n" for each in dict.fromkeys((Path("etc/ofl"), self.folder)))
        return File(_TMPFILES / name, f"{folders}d /{self.identity} 0700 root root\n")

    def unit(self, name: str, kind: str = "service") -> str:
        """What systemd calls one of our units, for example `ofl-agent@north.service`."""
        return f"ofl-{name}@{self.federation}.{kind}" if self.federation else f"ofl-{name}.{kind}"

    def unit_file(self, name: str, executable: Path, kind: str = "service") -> File:
        """The unit; for a federation with a name a template, which all federations of the machine share."""
        text = unit_text(f"ofl-{name}.{kind}", executable)
        if self.federation is None:
            return File(_UNITS / f"ofl-{name}.{kind}", text)
        return File(_UNITS / f"ofl-{name}@.{kind}", template_text(text))

    def state(self, role: Role) -> Path:
        """Where systemd keeps the state of a role."""
        return Path("/var/lib") / (f"ofl-{role}-{self.federation}" if self.federation else f"ofl-{role}")


@dataclass(frozen=True)
class Installation:
    """What is asked for."""

    role: Role
    root: Path
    executable: Path
    given: Loaded[Settings]
    """From the command line, for a settings file that is not there yet."""
    device: str | None = None
    part: str | None = None
    identity: bool = True
    place: Place = Place()

    def files(self) -> list[File]:
        """Everything that must be in place, in the order in which it is written."""
        place = self.place
        dropins = _UNITS / f"{place.unit(self.role)}.d"
        files = [
            place.tmpfiles,
            File(place.settings, settings_text(self._first_settings()), operators=True),
            place.unit_file(self.role, self.executable),
            File(dropins / "10-limits.conf", limits_text(self._effective().service, place.settings)),
        ]
        if self.role != "broker":
            files.append(File(dropins / "20-identity.conf", self._identity_text()))
        if self.role != "broker" and self.identity:
            files += [place.unit_file("renew", self.executable, kind) for kind in ("service", "timer")]
        if self.role == "agent":
            files.append(File(place.agent_env, self._agent_env(), operators=True))
            if (self.root / _TEGRA).exists():
                files.append(File(dropins / "30-jetson.conf", self._jetson_text()))
        return files

    def steps(self) -> Iterator[tuple[Step, File]]:
        """What each file needs."""
        for file in self.files():
            there = _read(self.root / file.path)
            if file.text is None:
                if there is not None:
                    yield "remove", file
            elif there is None:
                yield "create", file
            elif there == file.text:
                yield "unchanged", file
            else:
                yield "keep" if file.operators else "replace", file

    def carry_out(self, step: Step, file: File) -> None:
        """Do what a step says."""
        path = self.root / file.path
        try:
            if step == "remove":
                path.unlink()
            elif step in ("create", "replace"):
                _write(path, file.text or "", file.mode)
        except OSError as error:
            raise ConfigError(f"cannot {step} {path} ({error.strerror}): run it as root, or choose --root") from error

    def make_folders(self) -> None:
        """The folder of the identity, which only root may read."""
        folder = self.root / self.place.identity
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"cannot make {folder} ({error.strerror}): run it as root, or choose --root") from error

    def next_steps(self, kept: list[Path]) -> Iterator[str]:
        """What is left to the operator."""
        if str(self.executable).startswith(_HIDDEN):
            yield f"the service cannot see {self.executable}: install ofl-iot below /opt or /usr/local, then this again"
        asked = {file.path for file in self.files() if file.path != self.place.settings or _anything_given(self.given)}
        for path in (path for path in kept if path.relative_to(self.root) in asked):
            yield f"{path} is yours and was left as it is: compare it with the options you gave"
        if self.role != "broker" and self.identity and not (self.root / self.place.identity / "key.pem").exists():
            yield f"enrol with `ofl enroll join` into /{self.place.identity}, or install again with --without-identity"
        renewal = f" {self.place.unit('renew', 'timer')}" if self.role != "broker" and self.identity else ""
        unit = self.place.unit(self.role).removesuffix(".service")
        yield f"systemctl daemon-reload && systemctl enable --now {unit}{renewal}"
        if self.role != "broker":
            yield from self._about_the_doctor()

    def _about_the_doctor(self) -> Iterator[str]:
        """How to examine the party, to whom its service hands the identity over while the doctor must be told."""
        named, identity, settings = self._effective().mqtt.identity, self.place.identity, self.place.settings
        if not self.identity and named == f"/{identity}":
            yield f"remove `identity` of [mqtt] from /{settings}, or let the service's user read that folder"
        where = f" --set mqtt.identity=/{identity}" if self.identity and named is None else ""
        yield f"ofl doctor --config /{settings} --state {self.place.state(self.role)}{where} tells whether all is well"

    def _effective(self) -> Settings:
        """The settings as they will be found in their file."""
        installed = self.root / self.place.settings
        there = load_settings(Settings, [installed], {}, {}) if installed.exists() else self._first_settings()
        if self.place.federation not in (None, there.settings.federation.id):
            raise ConfigError(
                f"/{self.place.settings} has federation.id = {there.settings.federation.id!r}: change it there, or "
                f"install with --federation {there.settings.federation.id}"
            )
        return there.settings

    def _first_settings(self) -> Loaded[Settings]:
        """What was given, which federation it is, and where the identity is."""
        settings, mqtt, origin = self.given.settings, self.given.settings.mqtt, dict(self.given.origin)
        name = self.place.federation
        if name is not None and origin.get("federation.id", "default") == "default":
            settings = msgspec.structs.replace(
                settings, federation=msgspec.structs.replace(settings.federation, id=name)
            )
            origin["federation.id"] = "installation"
        if self.role != "broker" and self.identity and mqtt.identity is None and mqtt.tls is None:
            mqtt = msgspec.structs.replace(mqtt, identity=f"/{self.place.identity}")
            settings = msgspec.structs.replace(settings, mqtt=mqtt)
            origin["mqtt.identity"] = "installation"
        return Loaded(settings, origin)

    def _identity_text(self) -> str | None:
        """Return the drop-in that clears `LoadCredential=`; None if the unit uses an identity."""
        if self.identity:
            return None
        return "# Installed with --without-identity\n[Service]\nLoadCredential=\nSetCredential=\n"

    def _jetson_text(self) -> str:
        """Devices as the machine's groups allow; a group that does not exist would keep the unit from starting.

        `ProtectClock` allows the clock's device, and thereby, in systemd 249, no other: not the GPU's either.
        """
        known = {line.partition(":")[0] for line in (_read(self.root / "etc/group") or "").splitlines()}
        groups = " ".join(group for group in _JETSON_GROUPS if group in known)
        return f"[Service]\nPrivateDevices=no\nProtectClock=no\nPrivateUsers=no\nSupplementaryGroups={groups}\n"

    def _agent_env(self) -> str:
        there = _read(self.root / self.place.agent_env)
        if self.device is None:
            if there is not None:
                return there
            raise ConfigError("which device is this? Add --id, for example --id truck-017")
        part = Part.parse(self.part) if self.part is not None else None
        options = f"DEVICE_OPTIONS=--part {part.number}/{part.count}\n" if part else ""
        return f"DEVICE_ID={device_id(self.device)}\n{options}"


def unit_text(name: str, executable: Path) -> str:
    """One of our units, with the `ofl` that it starts."""
    if not executable.is_absolute() or not re.fullmatch(r"[\w./+@:-]+", str(executable)):
        raise ConfigError(
            f"{str(executable)!r} cannot stand in a unit: name `ofl` by a plain absolute path, --ofl PATH"
        )
    package = Path(__file__).parents[1]
    for folder in (package / "units", package.parents[1] / "systemd"):  # in a wheel, in a working copy
        if (text := _read(folder / name)) is not None:
            return text.replace(_EXECUTABLE_IN_UNIT, str(executable))
    raise ConfigError(f"this installation of ofl-iot has no {name}: install it again")


def template_text(unit: str) -> str:
    """A unit as systemd's template: the instance `%i` is a federation with settings, state and cache of its own."""
    in_files = re.sub(r"/etc/ofl/", "/etc/ofl/%i/", unit)
    of_units = re.sub(r"\b(ofl-[a-z]+)\.service", r"\1@%i.service", in_files)
    folders = re.sub(r"(Directory=|%[CSt]/)(ofl-[a-z]+)", r"\1\2-%i", of_units)
    return re.sub(r"^(Description=.*)$", r"\1, federation %i", folders, flags=re.MULTILINE)


def limits_text(service: ServiceSettings, settings: Path) -> str:
    """A drop-in with the section [service] of the settings."""
    lines = [
        f"# From [service] of /{settings}; change it there and run `ofl install` again",
        "[Service]",
        f"WatchdogSec={service.watchdog_s:g}",
    ]
    if service.cpu_percent:
        lines.append(f"CPUQuota={service.cpu_percent}%")
    if service.memory_mib:
        # Above the first the kernel reclaims and slows down, at the second it ends the process.
        lines += [f"MemoryHigh={service.memory_mib * 9 // 10}M", f"MemoryMax={service.memory_mib}M"]
    return "\n".join([*lines, ""])


def settings_text(given: Loaded[Settings]) -> str:
    """A settings file with what was given and nothing else; what is not in it has its default."""
    lines = ["# Settings of this machine's parties; `ofl config show` tells all keys and their defaults."]
    section = ""
    for line in show(given).splitlines():
        setting, _, origin = line.rpartition("  # ")
        if line.startswith("["):
            section = line
        elif setting and origin != "default":
            lines += ["", section] if section else []
            lines.append(setting)
            section = ""
    return "\n".join([*lines, ""])


def _anything_given(given: Loaded[Settings]) -> bool:
    return any(origin != "default" for origin in given.origin.values())


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path} ({error}): run it as root, or remove the file") from error


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)
