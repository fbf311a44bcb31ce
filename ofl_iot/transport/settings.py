"""What an operator says about the broker, checked where it enters the program."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ofl_iot.errors import ConfigError
from ofl_iot.transport.identity import IdentityFolder

MAX_KEEPALIVE_S = 65_535
MAX_MQTT_PACKET_BYTES = 268_435_455


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Will(msgspec.Struct, frozen=True):
    """What the broker publishes for us when we vanish without a goodbye."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM format; `cert` and `key` name this party to the broker."""

    ca: Annotated[str, Meta(description="PEM file of the authority that vouches for the broker.")]
    cert: Annotated[str | None, Meta(description="PEM file of this party's certificate.")] = None
    key: Annotated[str | None, Meta(description="PEM file of this party's private key.")] = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls: give both cert and key, or neither")

    def context(self) -> ssl.SSLContext:
        """A client context that speaks TLS 1.3 or newer and verifies the broker's name against `ca`."""
        for file in filter(None, (self.ca, self.cert, self.key)):
            if not Path(file).is_file():
                raise ConfigError(f"tls: there is no file {file!r}: correct the path or create the file")
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, OSError) as error:
            files = ", ".join(filter(None, (self.ca, self.cert, self.key)))
            raise ConfigError(f"tls: cannot use {files}: {error}; they must be PEM files that fit together") from error
        return context


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach and use an MQTT 3.1.1 broker."""

    hosts: Annotated[
        tuple[str, ...],
        Meta(description="Brokers, tried in turn: a name or address, or `name:port` where the port differs."),
    ] = ("127.0.0.1",)
    spread: Annotated[
        bool,
        Meta(
            description="Begin at a random host, so that a fleet spreads over a cluster; otherwise all prefer the "
            "first."
        ),
    ] = False
    port: Annotated[int, Meta(description="Port of hosts that name none.")] = 1883
    qos: Annotated[
        Literal[0, 1],
        Meta(
            description="QoS of publications and subscriptions. With 0 the broker keeps nothing for absent parties "
            "and the roles send again; a cluster that replicates every QoS 1 message then serves many "
            "more devices."
        ),
    ] = 1
    username: Annotated[str | None, Meta(description="User name; unset = the client id.")] = None
    password: Annotated[str | None, Meta(description="Password of `username`.")] = None
    tls: Annotated[TlsSettings | None, Meta(description="Certificates of your own making.")] = None
    identity: Annotated[
        str | None, Meta(description="Folder of `ofl enroll join`: TLS with this party's certificate. Excludes `tls`.")
    ] = None
    keepalive_s: Annotated[int, Meta(description="MQTT keep-alive in seconds.")] = 30
    connect_timeout_s: Annotated[float, Meta(description="Seconds for a connection attempt.")] = 10.0
    backoff_min_s: Annotated[float, Meta(description="Shortest wait before reconnecting, in seconds.")] = 0.5
    backoff_max_s: Annotated[float, Meta(description="Longest wait before reconnecting, in seconds.")] = 60.0
    max_inflight: Annotated[int, Meta(description="QoS 1 messages sent but not acknowledged; the rest waits.")] = 20
    max_pending_bytes: Annotated[
        int, Meta(description="Bytes accepted but not yet sent or acknowledged; beyond it publishing fails.")
    ] = 16 * 2**20
    max_packet_bytes: Annotated[int, Meta(description="Largest MQTT packet that is sent or accepted, in bytes.")] = (
        2**20 + 4096
    )
    echo_interval_s: Annotated[
        float, Meta(description="Seconds between two round trips through the broker that show that the link works.")
    ] = 30.0
    echo_timeout_s: Annotated[float, Meta(description="Seconds after which a missing echo ends the connection.")] = 10.0
    stop_timeout_s: Annotated[float, Meta(description="Seconds for an orderly disconnect.")] = 5.0

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ConfigError("hosts is empty: name at least one broker, for example ['broker.example']")
        self.addresses()
        if self.password is not None and self.username is None:
            raise ConfigError("password without username: MQTT needs both; add username")
        if self.tls is not None and self.identity is not None:
            raise ConfigError("both tls and identity: the identity folder has all that TLS needs; remove tls")
        if not 1 <= self.keepalive_s <= MAX_KEEPALIVE_S:
            raise ConfigError(f"keepalive_s = {self.keepalive_s}: choose 1 to {MAX_KEEPALIVE_S} seconds")
        for name in (
            "connect_timeout_s",
            "backoff_min_s",
            "echo_interval_s",
            "echo_timeout_s",
            "stop_timeout_s",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} = {getattr(self, name)}: choose a positive number of seconds")
        if not self.backoff_min_s <= self.backoff_max_s < float("inf"):
            raise ConfigError(
                f"backoff_max_s = {self.backoff_max_s}: choose at least backoff_min_s = {self.backoff_min_s}"
            )
        for name in ("max_inflight", "max_pending_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: choose at least 1")
        if not 1024 <= self.max_packet_bytes <= MAX_MQTT_PACKET_BYTES:
            raise ConfigError(
                f"max_packet_bytes = {self.max_packet_bytes}: choose 1024 to {MAX_MQTT_PACKET_BYTES} bytes, "
                "no more than the broker allows"
            )

    def addresses(self) -> tuple[Address, ...]:
        """The brokers in the order in which they are tried."""
        return tuple(_parse_address(host, self.port) for host in self.hosts)

    def context(self) -> ssl.SSLContext | None:
        """What TLS is spoken with, from the files as they are now; None without TLS."""
        if self.identity is not None:
            return IdentityFolder(Path(self.identity)).context()
        return self.tls.context() if self.tls is not None else None

    def client_id(self, federation: str, name: str) -> str:
        """The id of a party's session at the broker: federation, name, and what only an enrolled party knows.

        Two federations on one broker have a coordinator each, and may have devices of one name. Where the broker does
        not take ids from certificates, a member that could tell another's id could end its session.
        """
        parts = [federation, name] if federation else [name]
        if self.identity is not None:
            parts.append(IdentityFolder(Path(self.identity)).session_secret())
        return ".".join(parts)

    def __repr__(self) -> str:
        """All fields but the password."""
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={'***' if name == 'password' and value else repr(value)}" for name, value in fields)
        return f"{type(self).__name__}({', '.join(shown)})"


def _parse_address(text: str, default_port: int) -> Address:
    """Parse `name`, `name:port`, `[v6]`, `[v6]:port` or a bare v6 address."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        well_formed = bracket == "]" and (not port or port.startswith(":"))
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        well_formed = bool(port)
    else:
        host, port, well_formed = text, "", True
    number = int(port) if port.isdecimal() else default_port
    if not well_formed or not host or any(c.isspace() for c in host) or (port and not port.isdecimal()):
        raise ConfigError(f"broker {text!r}: write it as 'name', 'name:1883' or '[::1]:1883'")
    if not 1 <= number <= 65_535:
        raise ConfigError(f"broker {text!r}: port {number} does not exist; choose 1 to 65535")
    return Address(host, number)
