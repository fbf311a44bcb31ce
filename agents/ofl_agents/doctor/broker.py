"""The broker: whether it answers, its certificate is right, it lets us in, passes messages on and keeps others out.

Access is judged by effect. Both probes harm nobody if they succeed: a message to our own assignment topic, which only
the coordinator may write, and one to the cluster of a device that does not exist, which only that device may read.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import msgspec

from ofl_agents.doctor.findings import Finding, error, ok, skipped, warning
from ofl_agents.doctor.identity import expiry
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, RESERVED, DeviceId, FederationId
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.transport.link import Delivery, LinkEvent
from ofl_iot.transport.mqtt import MqttLink
from ofl_iot.transport.settings import Address, MqttSettings
from ofl_iot.transport.sockets import explain

NOBODY = DeviceId("doctor-nobody")
SLOW_S = 2.0
_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's codes of verification errors."""


def ports(settings: MqttSettings) -> Iterator[Finding]:
    """Every address of the broker: TCP, then TLS."""
    try:
        context = settings.context()
    except ConfigError:
        context = None  # the identity's findings tell
    for address in settings.addresses():
        yield from _port(address, context, settings.connect_timeout_s)


def _port(address: Address, context: ssl.SSLContext | None, timeout_s: float) -> Iterator[Finding]:
    try:
        plain = socket.create_connection(address, timeout_s)
    except OSError as problem:
        advice = "is it running, is the port right (mqtt.hosts, mqtt.port), does a firewall stand between?"
        yield error("ports", f"{address}: {explain(problem)}", advice)
        return
    with plain:
        yield ok("ports", f"{address} answers")
        if context is not None:
            yield _handshake(address, plain, context)


def _handshake(address: Address, plain: socket.socket, context: ssl.SSLContext) -> Finding:
    try:
        with context.wrap_socket(plain, server_hostname=address.host) as secured:
            shown = secured.getpeercert() or {}
            until, version = ssl.cert_time_to_seconds(str(shown["notAfter"])), secured.version()
    except ssl.SSLCertVerificationError as problem:
        return _distrusted(address, problem)
    except OSError as problem:
        advice = "does the broker speak TLS 1.3 on this port? See mqtt.port"
        return error("tls", f"{address}: {explain(problem)}", advice)
    return expiry("tls", f"{version} with {address}, whose certificate", until, "renew the broker's certificate")


def _distrusted(address: Address, problem: ssl.SSLCertVerificationError) -> Finding:
    if problem.verify_code == _NOT_YET_VALID:
        return error("clock", f"the certificate of {address} is not valid yet", "the clock here is behind: set it")
    if problem.verify_code == _EXPIRED:
        advice = "renew the broker's certificate; if it is fresh, the clock here is ahead"
        return error("tls", f"the certificate of {address} has expired", advice)
    advice = "connect by a name that its certificate bears, and trust the authority that issued it"
    return error("tls", f"{address}: {problem.verify_message}", advice)


def session(settings: MqttSettings, federation: FederationId, name: DeviceId, timeout_s: float) -> list[Finding]:
    """What a session as `name` shows; takes the name over from a party that runs, so ask that first."""
    # One attempt after the other, quickly: somebody waits for the answer.
    hasty = msgspec.structs.replace(settings, backoff_min_s=0.2, backoff_max_s=0.5)
    try:
        link = MqttLink(hasty, name, federation=federation)
    except ConfigError as problem:
        return [error("broker", str(problem), "mend the identity first")]
    strict = settings.tls is not None or settings.identity is not None
    return asyncio.run(_Session(link, Topics(federation), name, timeout_s, strict=strict).examine())


class _Session:
    """One visit at the broker."""

    def __init__(self, link: MqttLink, topics: Topics, name: DeviceId, timeout_s: float, *, strict: bool) -> None:
        self._open = error if strict else warning
        """Without TLS names mean nothing anyway."""
        self._link = link
        self._name = name
        self._timeout_s = timeout_s
        self._seen: set[bytes] = set()
        self._mine: set[bytes] = set()
        self._changed = asyncio.Event()
        self._echo = topics.build(Topic(Kind.ECHO, name))
        self._assignment = topics.build(Topic(Kind.ASSIGNMENT, COORDINATOR, name))
        self._foreign = topics.build(Topic(Kind.UPDATE, name, NOBODY))

    async def examine(self) -> list[Finding]:
        """Connect, speak to oneself, try what is forbidden, leave nothing behind."""
        probes = [self._echo, self._assignment, self._foreign] if self._name not in RESERVED else [self._echo]
        for topic in probes:
            self._link.subscribe(topic, 1)
        self._link.start(self._hear)
        try:
            if not await self._within(lambda: self._link.connected):
                return [self._refused()]
            findings = [ok("broker", f"lets {self._name} in")]
            await self._within(lambda: self._echo in self._link.granted)
            findings += await self._round_trip()
            if findings[-1].level == "error":
                return findings
            return [*findings, *await self._access(probes)]
        finally:
            for topic in probes:
                if topic != self._echo:  # the party itself wants that one
                    self._link.unsubscribe(topic)
            await self._link.stop()

    async def _round_trip(self) -> list[Finding]:
        began = time.monotonic()
        if not await self._comes_back(self._echo):
            advice = f"the broker must let {self._name} publish and read {self._echo}: check its access rules"
            return [error("broker", f"a message of {self._name} to itself did not come back", advice)]
        took_s = time.monotonic() - began
        if took_s > SLOW_S:
            return [warning("broker", f"a round trip takes {took_s:.1f} s", "the broker or the link is overloaded")]
        return [ok("broker", f"a round trip takes {1000 * took_s:.0f} ms")]

    async def _access(self, probes: list[str]) -> list[Finding]:
        if len(probes) == 1:
            return [skipped("access", f"tried as devices only, and this is the {self._name}")]
        advice = "load the access rules: `ofl broker profile` writes them"
        speaks, reads = [await self._passes(topic) for topic in (self._assignment, self._foreign)]
        findings = []
        if speaks:
            findings.append(self._open("access", "any device can speak as the coordinator", advice))
        if reads:
            findings.append(self._open("access", "any device can read what others send to their leaders", advice))
        return findings or [ok("access", "forbidden topics are closed")]

    async def _passes(self, topic: str) -> bool:
        """Whether a message gets through; a later one to ourselves tells when it would have been here."""
        payload = self._send(topic)
        await self._comes_back(self._echo)
        await self._comes_back(self._echo)
        return payload in self._seen

    async def _comes_back(self, topic: str) -> bool:
        payload = self._send(topic)
        return await self._within(lambda: payload in self._seen)

    def _send(self, topic: str) -> bytes:
        payload = b"ofl doctor " + secrets.token_bytes(8)
        self._mine.add(payload)
        self._link.publish(topic, payload, qos=1)
        return payload

    def _hear(self, event: LinkEvent) -> None:
        if isinstance(event, Delivery) and event.payload in self._mine:
            self._seen.add(event.payload)
            event.ack()  # what else waits for the party stays with the broker
        self._changed.set()

    async def _within(self, condition: Callable[[], bool]) -> bool:
        """Wait for it, as long as the visitor has patience."""
        until = time.monotonic() + self._timeout_s
        while not condition():
            self._changed.clear()
            if time.monotonic() > until:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), 0.05)
            except asyncio.TimeoutError:
                continue
        return True

    def _refused(self) -> Finding:
        reason = self._link.last_failure or f"no answer within {self._timeout_s:g} s"
        advice = "check mqtt.hosts and mqtt.port, the identity or password, and the broker's log"
        return error("broker", f"no session: {reason}", advice)
