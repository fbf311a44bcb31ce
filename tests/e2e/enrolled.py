"""A federation of enrolled processes on mosquitto: mutual TLS, signatures, and whoever else is enrolled beside it."""

from __future__ import annotations

import time
from pathlib import Path

from ofl_agents.enrolment.authority import Authority
from ofl_iot.ids import COORDINATOR, FederationId
from ofl_iot.transport.identity import CA, CERTIFICATE, KEY
from tests.e2e.identities import WATCHER, Identities
from tests.e2e.processes import NAMES, Federation
from tests.e2e.test_identity_mosquitto import enrol


class Enrolled(Identities):
    """Every party in its own identity folder, certified by the federation's authority."""

    def __init__(self, folder: Path, *others: str) -> None:
        ca = Authority.found(folder / "ca", FederationId("e2e"), time.time())
        self._folder = folder
        for name in (*NAMES, COORDINATOR, WATCHER, *others):
            enrol(ca, folder / name, name)
        enrol(ca, folder / "broker", "broker", ("127.0.0.1",))

    @property
    def broker_options(self) -> list[str]:
        files = self.files("broker")
        return [f"--ca={files['tls.ca']}", f"--cert={files['tls.cert']}", f"--key={files['tls.key']}"]

    def enrol_all(self, federation: Federation, port: int) -> None:
        """Let every process use its identity."""
        for name, process in federation.processes.items():
            settings = {"hosts": f'["127.0.0.1:{port}"]', "identity": str(self._folder / name)}
            process.arguments += [f"--set=mqtt.{key}={value}" for key, value in settings.items()]

    def files(self, name: str) -> dict[str, str]:
        at = self._folder / name
        return {"tls.ca": str(at / CA), "tls.cert": str(at / CERTIFICATE), "tls.key": str(at / KEY)}
