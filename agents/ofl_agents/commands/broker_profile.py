"""`ofl broker profile`: writes a working configuration of a production broker and says what to do next."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ofl_agents.cli import add_settings_options
from ofl_agents.program import settings_of
from ofl_broker.mosquitto import MAX_QUEUED_BYTES, MEMORY_LIMIT_BYTES, TLS_PORT, MosquittoProfile, mosquitto_profile
from ofl_broker.nats import CLIENT_PORT, CLUSTER_PORT, MQTT_PORT, NatsProfile, nats_profile, new_password, password_in
from ofl_broker.profile import Profile, TlsFiles, write_profile
from ofl_iot.errors import ConfigError
from ofl_iot.identity.names import PARTIES
from ofl_iot.ids import DeviceId, device_id, federation_id
from ofl_iot.transport.identity import CA, CERTIFICATE, CRL, KEY


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which broker, where, with which certificates."""
    kinds = parser.add_subparsers(metavar="BROKER", required=True)
    mosquitto = kinds.add_parser("mosquitto", help="one machine, up to some ten thousand devices")
    mosquitto.set_defaults(profile=_mosquitto)
    _add_common(mosquitto, TLS_PORT)
    mosquitto.add_argument(
        "--host", dest="listen", default=MosquittoProfile.host, help="address to listen on (default: %(default)s)"
    )
    mosquitto.add_argument("--user", default="mosquitto", help="whom it becomes when root starts it (%(default)s)")
    mosquitto.add_argument(
        "--shared", action="store_true", help="a broker of several federations: once for each, with a --port of its own"
    )
    mosquitto.add_argument("--crl", type=Path, metavar="FILE", help="certificates the CA revoked")
    mosquitto.add_argument("--max-connections", type=int, default=-1, metavar="N", help="(default: no limit)")
    mosquitto.add_argument(
        "--max-queued-bytes", type=int, default=MAX_QUEUED_BYTES, metavar="N", help="for one absent party (%(default)s)"
    )
    mosquitto.add_argument(
        "--memory-limit-bytes", type=int, default=MEMORY_LIMIT_BYTES, metavar="N", help="of the broker (%(default)s)"
    )
    nats = kinds.add_parser("nats", help="several machines: a cluster that survives the loss of one")
    nats.set_defaults(profile=_nats)
    _add_common(nats, MQTT_PORT)
    nats.add_argument("--nodes", type=int, default=3, metavar="N", help="(default: %(default)s)")
    nats.add_argument("--at", nargs="+", default=[], metavar="HOST", help="where the nodes run (default: all here)")
    nats.add_argument("--client-port", type=int, default=CLIENT_PORT, metavar="PORT", help="(default: %(default)s)")
    nats.add_argument("--cluster-port", type=int, default=CLUSTER_PORT, metavar="PORT", help="(default: %(default)s)")
    nats.add_argument("--devices", type=Path, metavar="FILE", help="ids of the devices, one a line")
    nats.add_argument("--no-tls", action="store_true", help="without identity; for trials on this machine only")


def _add_common(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the broker's folder, made if need be")
    parser.add_argument("--force", action="store_true", help="overwrite a profile that is there")
    parser.add_argument("--port", dest="listen_port", type=int, default=port, help="(default: %(default)s)")
    parser.add_argument(
        "--identity", type=Path, metavar="DIR", help="the broker's folder of `ofl enroll join`, instead of these three"
    )
    parser.add_argument("--ca", type=Path, metavar="FILE", help="the federation's CA (default: DIR/ca.pem)")
    parser.add_argument("--cert", type=Path, metavar="FILE", help="the broker's certificate (default: DIR/broker.pem)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the broker's key (default: DIR/broker.key)")
    add_settings_options(parser)


def run(options: argparse.Namespace) -> int:
    """Write the profile; nothing is started."""
    profile: Profile = options.profile(options)
    write_profile(profile, options.out, force=options.force)
    sys.stdout.write("".join(f"wrote {options.out / name}\n" for name in profile.files))
    sys.stdout.write("next:\n" + "".join(f"  {number}. {step}\n" for number, step in enumerate(profile.next_steps, 1)))
    return 0


def _mosquitto(options: argparse.Namespace) -> Profile:
    settings = settings_of(options)
    wanted = MosquittoProfile(
        federation=federation_id(settings.federation.id),
        tls=_tls_files(options),
        host=options.listen,
        port=options.listen_port,
        user=options.user,
        max_connections=options.max_connections,
        max_packet_bytes=settings.mqtt.max_packet_bytes,
        max_queued_bytes=options.max_queued_bytes,
        memory_limit_bytes=options.memory_limit_bytes,
        shared=options.shared,
    )
    return mosquitto_profile(wanted, options.out)


def _nats(options: argparse.Namespace) -> Profile:
    settings = settings_of(options)
    wanted = NatsProfile(
        federation=federation_id(settings.federation.id),
        nodes=options.nodes,
        hosts=tuple(options.at),
        port=options.listen_port,
        client_port=options.client_port,
        cluster_port=options.cluster_port,
        tls=None if options.no_tls else _tls_files(options),
        devices=_devices(options.devices) if options.devices else (),
        cluster_password=password_in(options.out) or new_password(),
    )
    return nats_profile(wanted, options.out)


def _devices(file: Path) -> tuple[DeviceId, ...]:
    """The ids in a file; the parties with a name of their own need not be there, and may."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--devices {file}: it cannot be read ({error}); name a file with one id a line") from error
    ids = dict.fromkeys(line.strip() for line in lines)
    return tuple(device_id(each) for each in ids if each and each not in PARTIES)


def _tls_files(options: argparse.Namespace) -> TlsFiles:
    folder: Path = options.out
    if options.identity is not None:
        if options.ca or options.cert or options.key:
            raise ConfigError("--identity names the folder of all certificates: leave --ca, --cert and --key out")
        held: Path = options.identity
        crl = getattr(options, "crl", None) or (held / CRL if (held / CRL).is_file() else None)
        return TlsFiles(ca=held / CA, cert=held / CERTIFICATE, key=held / KEY, crl=crl)
    return TlsFiles(
        ca=options.ca or folder / "ca.pem",
        cert=options.cert or folder / "broker.pem",
        key=options.key or folder / "broker.key",
        crl=getattr(options, "crl", None),
    )
