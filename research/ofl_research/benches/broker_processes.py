"""Production brokers as processes of a bench: from their profiles, on loopback, gone with their folder."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ofl_broker.mosquitto import CONFIG as MOSQUITTO_CONFIG
from ofl_broker.mosquitto import MosquittoProfile, mosquitto_profile
from ofl_broker.nats import CONFIG as NATS_CONFIG
from ofl_broker.nats import NatsProfile, nats_profile
from ofl_broker.profile import TlsFiles, write_profile
from ofl_iot.errors import ConfigError
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.transport.settings import TlsSettings

START_S = 30.0
_SBIN = "/usr/sbin:/usr/local/sbin"


@dataclass(frozen=True)
class RunningBroker:
    """A broker's addresses and what its processes use."""

    hosts: tuple[str, ...]
    processes: tuple[Any, ...]
    """psutil's view of each node."""
    tls: dict[DeviceId, TlsSettings] | None = None

    def cpu_s(self) -> float:
        """Seconds of processor time so far, all nodes together."""
        times = [process.cpu_times() for process in self.processes]
        return float(sum(each.user + each.system for each in times))

    def rss_bytes(self) -> int:
        """Resident memory, all nodes together."""
        return int(sum(process.memory_info().rss for process in self.processes))


def installed(program: str) -> str:
    """Where a broker's program is, or ConfigError."""
    found = shutil.which(program) or shutil.which(program, path=_SBIN)
    if found is None:
        raise ConfigError(f"{program} is not installed: install the package of that name, or measure another broker")
    return found


@contextlib.asynccontextmanager
async def mosquitto(
    folder: Path, federation: FederationId, names: Sequence[DeviceId], *, tls: bool
) -> AsyncIterator[RunningBroker]:
    """The production profile, with mutual TLS or (to know what it costs) without."""
    port = _free_ports(1)
    files = TlsFiles(folder / "ca.pem", folder / "broker.pem", folder / "broker.key")
    identities = _certify(folder, federation, names) if tls else None
    wanted = MosquittoProfile(federation, files, host="127.0.0.1", port=port, user=_me())
    write_profile(mosquitto_profile(wanted, folder), folder, force=True)
    config = folder / MOSQUITTO_CONFIG
    if not tls:
        head = config.read_text().partition("cafile ")[0]
        config.write_text(head.replace("allow_anonymous false", "allow_anonymous true"))
    async with _running([[installed("mosquitto"), "-c", str(config)]], [port], folder) as processes:
        yield RunningBroker((f"127.0.0.1:{port}",), processes, identities)


@contextlib.asynccontextmanager
async def nats(folder: Path, federation: FederationId, nodes: int) -> AsyncIterator[RunningBroker]:
    """A cluster without TLS: what replication costs."""
    port = _free_ports(3 * nodes)
    wanted = NatsProfile(federation, nodes, port=port, client_port=port + nodes, cluster_port=port + 2 * nodes)
    write_profile(nats_profile(wanted, folder), folder, force=True)
    commands = [
        [installed("nats-server"), "-c", str(folder / f"node-{number + 1}" / NATS_CONFIG)] for number in range(nodes)
    ]
    async with _running(commands, range(port, port + nodes), folder) as processes:
        yield RunningBroker(tuple(wanted.addresses(port)), processes)


@contextlib.asynccontextmanager
async def _running(commands: list[list[str]], ports: Sequence[int], folder: Path) -> AsyncIterator[tuple[Any, ...]]:
    import psutil

    started = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"log-{number}").open("wb") as log:
                started.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
        for port, process in zip(ports, started, strict=True):
            await _until_listening(port, process, folder)
        yield tuple(psutil.Process(process.pid) for process in started)
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _until_listening(port: int, process: asyncio.subprocess.Process, folder: Path) -> None:
    until = time.monotonic() + START_S
    while process.returncode is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise ConfigError(f"the broker did not start on port {port}: {_last_words(folder)}")


def _last_words(folder: Path) -> str:
    return "".join(log.read_text()[-300:] for log in sorted(folder.glob("log-*")))


def _certify(folder: Path, federation: FederationId, names: Sequence[DeviceId]) -> dict[DeviceId, TlsSettings]:
    """A certificate for the broker and each party, from an authority that exists for this bench only."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from ofl_iot.crypto.entropy import SystemEntropy
    from ofl_iot.identity.certificates import Request, SigningAuthority, Validity
    from ofl_iot.identity.names import BROKER, Bearer

    now, entropy = time.time(), SystemEntropy()
    authority = SigningAuthority.found(federation, ec.generate_private_key(ec.SECP256R1()), now, entropy)
    (folder / "ca.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    for name in (BROKER, *names):
        key = ec.generate_private_key(ec.SECP256R1())
        request = Request(Bearer(federation, name), key.public_key())
        hosts = ("127.0.0.1",) if name == BROKER else ()
        certificate = authority.issue(request, Validity.beginning(now, 3600), entropy, hosts)
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    at = str(folder)
    return {name: TlsSettings(ca=f"{at}/ca.pem", cert=f"{at}/{name}.pem", key=f"{at}/{name}.key") for name in names}


def _me() -> str:
    """mosquitto becomes another user only when root starts it; here it stays who starts it."""
    import getpass

    return getpass.getuser()


def _free_ports(count: int) -> int:
    """The first of so many consecutive ports that nobody listens on."""
    for _ in range(50):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
            for port in range(first + 1, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise ConfigError(f"there are no {count} free ports in a row: try again")
