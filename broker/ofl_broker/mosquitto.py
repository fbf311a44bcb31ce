"""A production configuration of mosquitto 2: mutual TLS 1.3, names from certificates, access by the policy, limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ofl_broker.policy import Action, Party, denied_to, granted
from ofl_broker.profile import Profile, TlsFiles, checked_host, checked_path, checked_port
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, FederationId
from ofl_iot.protocol.topics import Topics

CONFIG, ACL, DATA = "mosquitto.conf", "mosquitto.acl", "data"
FEDERATIONS = "federations"
"""Folder of a shared broker with a listener and an access policy for each federation."""
TLS_PORT = 8883
MAX_PACKET_BYTES = 2**20 + 4096
"""The largest message and its topic."""
MAX_QUEUED_BYTES = 32 * 2**20
MEMORY_LIMIT_BYTES = 512 * 2**20
_USER = "%u"
"""mosquitto's placeholder for the user name in patterns."""
_OWN_IDS = """\
# The certificate's common name is the user name and the client id: nobody takes over another's session.
use_username_as_clientid true
"""
_SHARED_IDS = """\
# Two federations may have parties of one name, so client ids are the parties' own: federation, name and, for enrolled
# ones, a secret made from their key, so that nobody else can tell it and take over the session.
use_username_as_clientid false
"""


@dataclass(frozen=True)
class MosquittoProfile:
    """What an operator chooses."""

    federation: FederationId
    tls: TlsFiles
    host: str = "0.0.0.0"  # noqa: S104 -- a production broker serves the network, to holders of a certificate only
    port: int = TLS_PORT
    user: str = "mosquitto"
    """Whom mosquitto becomes when it is started by root."""
    max_connections: int = -1
    """-1: as many as the system allows."""
    max_packet_bytes: int = MAX_PACKET_BYTES
    """No less than the `mqtt.max_packet_bytes` of the parties."""
    max_queued_bytes: int = MAX_QUEUED_BYTES
    """What is kept for one absent party; beyond it the broker drops, and the parties send again."""
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES
    """Limit of the whole broker, so that nobody uses up the machine; at most an eighth waits for one party."""
    autosave_s: int = 60
    session_days: int = 14
    """How long an absent party's session is kept."""
    shared: bool = False
    """Whether the broker serves several federations, each by a listener of its own."""

    def __post_init__(self) -> None:
        for name in ("max_packet_bytes", "max_queued_bytes", "memory_limit_bytes", "autosave_s", "session_days"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: choose at least 1")
        if self.memory_limit_bytes < 8 * self.max_queued_bytes:
            raise ConfigError(
                f"memory_limit_bytes = {self.memory_limit_bytes}: choose at least 8 times the {self.max_queued_bytes} "
                "that may wait for one party"
            )
        if not self.user.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"user {self.user!r}: give the name of a system user")
        if self.max_connections != -1 and self.max_connections < 1:
            raise ConfigError(f"max_connections = {self.max_connections}: choose at least 1, or -1 for no limit")


def mosquitto_profile(wanted: MosquittoProfile, folder: Path) -> Profile:
    """The files of a broker that lives in `folder`."""
    folder = checked_path(folder)
    acl = acl_text(wanted.federation)
    if not wanted.shared:
        whole = f"{_broker_text(wanted, folder)}{_listener_text(wanted, folder / ACL)}"
        return Profile({CONFIG: whole, ACL: acl}, (DATA,), _next_steps(wanted, folder))
    _check_listeners(wanted, folder / FEDERATIONS)
    own = f"{FEDERATIONS}/{wanted.federation}"
    files = {
        CONFIG: f"{_broker_text(wanted, folder)}include_dir {folder / FEDERATIONS}\n",
        f"{own}.acl": acl,
        f"{own}.conf": _listener_text(wanted, folder / f"{own}.acl"),
    }
    return Profile(files, (DATA, FEDERATIONS), _next_steps(wanted, folder))


def _check_listeners(wanted: MosquittoProfile, folder: Path) -> None:
    """Refuse a port that another federation of the same broker has."""
    others = [file for file in sorted(folder.glob("*.conf")) if file.stem != wanted.federation]
    for other in others:
        if re.search(rf"^listener {wanted.port} ", other.read_text(), re.MULTILINE):
            raise ConfigError(f"port {wanted.port} belongs to federation {other.stem} at this broker: choose --port")


def acl_text(federation: FederationId) -> str:
    """The access policy as mosquitto's ACL file: patterns for every member, topics for those with their own name."""
    topics = Topics(federation)
    lines = [
        f"# Access policy of federation {federation}, generated: do not edit, write the profile again instead.",
        "# The user name (%u) is the common name of the certificate. mosquitto warns of patterns without it; they are",
        "# meant: every member reads those topics.",
    ]
    for party in Party:
        word, me = ("pattern", _USER) if party is Party.MEMBER else ("topic", party.value)
        lines += ["", *([f"user {me}"] if word == "topic" else [])]
        lines += [f"topic deny {each}" for each in denied_to(topics, me)] if word == "topic" else []
        lines += [f"{word} {action.value} {each}" for action in Action for each in granted(topics, party, action, me)]
    return "\n".join(lines) + "\n"


def _broker_text(wanted: MosquittoProfile, folder: Path) -> str:
    """What holds for the whole broker."""
    of = "several federations" if wanted.shared else f"federation {wanted.federation}"
    apart = "# Certificates and access rules are each listener's own.\nper_listener_settings true\n"
    return f"""\
# Broker of {of}, generated: do not edit, write the profile again instead.
user {wanted.user}
{apart if wanted.shared else ""}
# Sessions and retained messages survive a restart. A kill -9 loses what came since the last save; the federation sends
# that again.
persistence true
persistence_location {folder / DATA}/
autosave_interval {wanted.autosave_s}
persistent_client_expiration {wanted.session_days}d

# The limit for each absent party is one of bytes, for chunks differ in size. The number of messages must not be 0 (no
# limit): mosquitto 2.0 then disconnects whoever publishes where it may not, instead of dropping that message.
max_queued_messages 1000000
max_queued_bytes {wanted.max_queued_bytes}
max_packet_size {wanted.max_packet_bytes}
max_inflight_messages 20

# Whoever would make the broker take more is disconnected and named in its log; the others go on.
memory_limit {wanted.memory_limit_bytes}

log_dest stderr
log_type error
log_type warning
log_type notice
connection_messages true

"""


def _listener_text(wanted: MosquittoProfile, acl: Path) -> str:
    """How the parties of the federation come in, and what they may do."""
    tls = wanted.tls
    crl = f"crlfile {checked_path(tls.crl)}\n" if tls.crl is not None else ""
    session = _SHARED_IDS if wanted.shared else _OWN_IDS
    return f"""\
listener {checked_port(wanted.port)} {checked_host(wanted.host)}
allow_anonymous false
# mosquitto 2.0 and 2.1 read this; 2.1 calls it deprecated in favour of its acl-file plugin, which reads the same file.
acl_file {acl}
max_connections {wanted.max_connections}
cafile {checked_path(tls.ca)}
certfile {checked_path(tls.cert)}
keyfile {checked_path(tls.key)}
{crl}tls_version tlsv1.3
require_certificate true
use_identity_as_username true
{session}"""


def _next_steps(wanted: MosquittoProfile, folder: Path) -> tuple[str, ...]:
    steps = [f"put {file} there" for file in wanted.tls.missing()]
    steps.append(f"let the broker read and write: chown -R {wanted.user}: {folder} (and let it read {wanted.tls.key})")
    steps.append("allow it more open files than there are devices: ulimit -n, or LimitNOFILE in its systemd unit")
    again = " (again, if it runs: a listener is opened at the start only)" if wanted.shared else ""
    steps.append(f"start it{again}: mosquitto -c {folder / CONFIG}")
    if wanted.tls.crl is not None:
        steps.append("after each revocation renew the CRL file and send SIGHUP")
    steps.append(
        f"point the parties at it: mqtt.hosts, mqtt.port = {wanted.port}, and mqtt.identity for each "
        f"(`ofl enroll join`), or mqtt.tls.ca, .cert and .key with the party's id as common name ('{COORDINATOR}' for "
        "the coordinator)"
    )
    return tuple(steps)
