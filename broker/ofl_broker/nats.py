"""A cluster of NATS servers with MQTT listeners: sessions and retained messages are replicated by JetStream.

Each party is a user of its own, told by its certificate, so the devices must be known when the profile is written; a
running cluster takes a new list on `SIGHUP`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ofl_broker.policy import Action, Party, granted_to
from ofl_broker.profile import Profile, TlsFiles, checked_host, checked_path, checked_port
from ofl_iot.errors import ConfigError
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.protocol.topics import Topics

CONFIG, ACCESS, DATA = "nats.conf", "access.conf", "data"
MQTT_PORT, CLIENT_PORT, CLUSTER_PORT = 8883, 4222, 6222
MAX_PAYLOAD_BYTES = 2**20 + 4096
"""The largest message and its topic."""
MAX_STORE_BYTES = 4 * 2**30
MAX_PENDING_BYTES = 32 * 2**20
MAX_REPLICAS = 5
_TLS_1_3 = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
_DELIVERIES = "$MQTT.sub.>"
"""Where JetStream hands QoS 1 messages to a session. MQTT clients cannot name it; others are kept out below."""


def new_password() -> str:
    """A password for a cluster's nodes."""
    return secrets.token_hex(24)


@dataclass(frozen=True)
class NatsProfile:
    """What an operator chooses."""

    federation: FederationId
    nodes: int = 3
    hosts: tuple[str, ...] = ()
    """Where the nodes run, one each; empty: all on this machine, at consecutive ports."""
    port: int = MQTT_PORT
    client_port: int = CLIENT_PORT
    cluster_port: int = CLUSTER_PORT
    tls: TlsFiles | None = None
    """None: no encryption and no identity, for trials on one machine only."""
    devices: tuple[DeviceId, ...] = ()
    cluster_password: str = field(default_factory=new_password)
    """Keeps everybody but the nodes from the cluster's ports, where no policy holds."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.nodes == 2:
            raise ConfigError(f"nodes = {self.nodes}: choose 3 or 5, which survive the loss of 1 or 2; 1 is for trials")
        if self.hosts and len(self.hosts) != self.nodes:
            raise ConfigError(f"{self.nodes} nodes at {len(self.hosts)} hosts: name a host for each, or none")
        if self.tls is None and any(not host.startswith("127.") for host in self.hosts):
            raise ConfigError(
                "without TLS anybody could take part: give --ca, --cert and --key, or stay on this machine"
            )

    @property
    def replicas(self) -> int:
        """On how many nodes each message is kept."""
        return min(self.nodes, MAX_REPLICAS)

    def addresses(self, first_port: int) -> list[str]:
        """Return the address of every node, as `host:port`."""
        if self.hosts:
            return [f"{checked_host(host)}:{checked_port(first_port)}" for host in self.hosts]
        return [f"127.0.0.1:{checked_port(first_port + number)}" for number in range(self.nodes)]


def password_in(folder: Path) -> str | None:
    """The password of a cluster whose profile is here already: nodes that run keep to it, so a new profile must too."""
    try:
        texts = [file.read_text() for file in sorted(folder.glob(f"node-*/{CONFIG}"))]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the profile in {folder} ({error}): choose another folder with --out") from error
    found = [match[1] for text in texts if (match := re.search(r'user: "node", password: "([0-9a-f]+)"', text))]
    return found[0] if found else None


def nats_profile(wanted: NatsProfile, folder: Path) -> Profile:
    """One folder a node, `node-1`, `node-2` …"""
    folder = checked_path(folder)
    files = {}
    for number in range(wanted.nodes):
        files[f"node-{number + 1}/{CONFIG}"] = _config(wanted, number, folder / f"node-{number + 1}")
        if wanted.tls is not None:
            files[f"node-{number + 1}/{ACCESS}"] = access_text(wanted.federation, wanted.devices)
    folders = tuple(f"node-{number + 1}/{DATA}" for number in range(wanted.nodes))
    return Profile(files=files, folders=folders, next_steps=_next_steps(wanted, folder))


def access_text(federation: FederationId, devices: Sequence[DeviceId]) -> str:
    """The access policy as users of NATS, one for each certificate; they may speak MQTT and nothing else."""
    named = [DeviceId(party.value) for party in Party if party is not Party.MEMBER]
    users = "\n".join(_user(Topics(federation), name) for name in (*named, *devices))
    return (
        f"# Access policy of federation {federation}, generated: do not edit, write the profile again instead.\n"
        f"authorization {{\n  timeout: 5\n  users: [\n{users}\n  ]\n}}\n"
    )


def _user(topics: Topics, name: DeviceId) -> str:
    publish, subscribe = (_subjects(granted_to(topics, name, action)) for action in Action)
    # To NATS an empty list allows everything.
    publishing = json.dumps(publish) if publish else '{ deny: ">" }'
    return (
        f'    {{ user: "CN={name}", allowed_connection_types: ["MQTT"], permissions: {{\n'
        f"      publish: {publishing}\n"
        f"      subscribe: {json.dumps([*subscribe, _DELIVERIES])} }} }}"
    )


def _subjects(patterns: Iterable[str]) -> list[str]:
    """MQTT patterns as subjects of NATS; ids have no dots, so nothing else changes."""
    return [pattern.replace("/", ".").replace("+", "*") for pattern in patterns]


def _config(wanted: NatsProfile, number: int, folder: Path) -> str:
    host, _, mqtt_port = wanted.addresses(wanted.port)[number].rpartition(":")
    client_port = wanted.addresses(wanted.client_port)[number].rpartition(":")[2]
    tls = _tls_block(wanted.tls, "verify_and_map: true") if wanted.tls else ""
    access = f'include "./{ACCESS}"\n' if wanted.tls else ""
    return f"""\
# Node {number + 1} of {wanted.nodes} of federation {wanted.federation}, generated: do not edit.
server_name: "{wanted.federation}-{number + 1}"
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: {MAX_PENDING_BYTES}

# Only for tools on this machine; the parties speak MQTT.
host: "127.0.0.1"
port: {client_port}
{tls}
jetstream {{
  store_dir: "{folder / DATA}"
  max_memory_store: {MAX_STORE_BYTES // 16}
  max_file_store: {MAX_STORE_BYTES}
}}

mqtt {{
  host: "{host}"
  port: {mqtt_port}
  ack_wait: "5s"
  max_ack_pending: 1000
  stream_replicas: {wanted.replicas}
  {tls}}}

{_cluster_block(wanted, number)}{access}"""


def _cluster_block(wanted: NatsProfile, number: int) -> str:
    """The ways to the other nodes; a single node has none, and refuses to start with an empty list of them."""
    if wanted.nodes == 1:
        return ""
    addresses = wanted.addresses(wanted.cluster_port)
    login = f"node:{wanted.cluster_password}"
    routes = [f"nats-route://{login}@{address}" for other, address in enumerate(addresses) if other != number]
    return f"""\
cluster {{
  name: "{wanted.federation}"
  listen: "{addresses[number]}"
  authorization {{ user: "node", password: "{wanted.cluster_password}", timeout: 5 }}
  routes: {json.dumps(routes)}
  {_tls_block(wanted.tls, "verify: true") if wanted.tls else ""}}}
"""


def _tls_block(files: TlsFiles, verification: str) -> str:
    """NATS 2.9 has no least version, but without a suite of TLS 1.2 there is no TLS 1.2."""
    return (
        f'tls {{ ca_file: "{checked_path(files.ca)}", cert_file: "{checked_path(files.cert)}", '
        f'key_file: "{checked_path(files.key)}", {verification}, timeout: 5, '
        f"cipher_suites: {json.dumps(_TLS_1_3)} }}\n"
    )


def _next_steps(wanted: NatsProfile, folder: Path) -> tuple[str, ...]:
    addresses = wanted.addresses(wanted.port)
    steps = [f"put {file} there" for file in wanted.tls.missing()] if wanted.tls else []
    if wanted.tls and not wanted.devices:
        steps.append(
            "no device is known yet: list them (ofl enroll list --ca CA | awk '$2 == \"valid\" {print $1}' > FILE) and "
            "write the profile again with --devices FILE --force"
        )
    if wanted.hosts:
        steps.append(
            "copy each node's folder to its machine, to the same path; open the cluster port to the nodes only"
        )
    steps.append(f"start each: nats-server -c {folder}/node-N/{CONFIG}")
    if wanted.tls:
        steps.append(f"after new devices replace node-N/{ACCESS} and send SIGHUP to each node")
    hosts = ", ".join(f'"{each}"' for each in addresses)
    steps.append(f"point the parties at all of them: mqtt.hosts = [{hosts}], mqtt.spread = true, mqtt.qos = 0")
    return tuple(steps)
