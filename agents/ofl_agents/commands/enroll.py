"""`ofl enroll`: let parties in, renew them, take them out.

At the authority: token, serve, list, revoke, crl, sign. On a device: join, renew, and request/accept where the two
cannot reach each other and files are carried.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ofl_agents.enrolment.authority import Authority
from ofl_agents.enrolment.client import Newcomer, fetch_crl, parse_server, renew
from ofl_agents.enrolment.files import write_private
from ofl_agents.enrolment.report import table
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.identity.certificates import DAY_S, certificate_from, federation_of, fingerprint_of, read
from ofl_iot.identity.dates import shown
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.identity.names import party_id
from ofl_iot.identity.tokens import JoinToken
from ofl_iot.ids import federation_id
from ofl_iot.transport.identity import CA, IdentityFolder

DEFAULT_PORT = 8884
TOKEN_VARIABLE = "OFL_TOKEN"  # noqa: S105  # where the secret is looked for, not the secret
Add = Callable[[argparse.ArgumentParser], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """One parser for each action."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, (summary, add, act) in ACTIONS.items():
        sub = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add(sub)
        sub.set_defaults(act=act)


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    options.act(options)
    return 0


# --- at the authority


def _add_token(parser: argparse.ArgumentParser) -> None:
    _add_ca(parser)
    parser.add_argument("--id", help="the only id it admits (default: any device that is not enrolled yet)")
    parser.add_argument("--valid-min", type=float, default=60.0, metavar="M", help="minutes (default: %(default)g)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write it there, for its owner's eyes (default: print)"
    )
    _add_certificate(parser)


def _token(options: argparse.Namespace) -> None:
    name = party_id(options.id) if options.id is not None else None
    lifetime_s = options.days * DAY_S if options.days is not None else None
    authority = Authority(options.ca)
    token = authority.make_token(name, time.time(), options.valid_min * 60.0, lifetime_s=lifetime_s, hosts=options.host)
    authority.close()
    _give(options.out, token.text().encode() + b"\n")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_ca(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")


def _serve(options: argparse.Namespace) -> None:
    from ofl_agents.enrolment.service import serve_until_signal

    authority = Authority(options.ca)
    try:
        asyncio.run(serve_until_signal(authority, options.host, options.port))
    finally:
        authority.close()


def _list(options: argparse.Namespace) -> None:
    authority = Authority(options.ca)
    sys.stdout.write(table(authority.books, time.time()))
    authority.close()


def _add_revoke(parser: argparse.ArgumentParser) -> None:
    _add_ca(parser)
    parser.add_argument("--id", required=True, help="whose certificates are taken back")
    parser.add_argument("--reason", default="", help="for the books")


def _revoke(options: argparse.Namespace) -> None:
    authority = Authority(options.ca)
    taken = authority.revoke(options.id, time.time(), options.reason)
    for each in taken:
        sys.stdout.write(f"revoked {each.name} serial={each.serial:x}\n")
    sys.stdout.write(f"bring {authority.folder / 'crl.pem'} to the broker and have it reload (SIGHUP)\n")
    authority.close()


def _add_crl(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ca", type=Path, metavar="DIR", help="at the authority: sign a fresh list")
    source.add_argument("--identity", type=Path, metavar="DIR", help="elsewhere: fetch it, as an enrolled party")
    _add_server(parser, required=False)
    _add_changed(parser, "somebody was revoked since the list that was here before")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there as well")


def _crl(options: argparse.Namespace) -> None:
    if options.ca is not None:
        authority = Authority(options.ca)
        authority.write_crl(time.time())
        data = authority.crl()
        authority.close()
    else:
        server, held = parse_server(options.server) if options.server else None, IdentityFolder(options.identity)
        before = _revoked_before(held)
        data = fetch_crl(held, server)
        if not held.revoked() <= before:
            _tell_change(options)
    if options.out is not None:
        write_private(options.out, data, 0o644)


def _revoked_before(held: IdentityFolder) -> frozenset[int]:
    """What the list says that is about to be replaced; nothing if it is damaged."""
    try:
        return held.revoked()
    except CryptoError:
        return frozenset()


def _add_sign(parser: argparse.ArgumentParser) -> None:
    _add_ca(parser)
    parser.add_argument("--id", required=True, help="whose request it must be; an earlier certificate of it ends")
    parser.add_argument("--request", type=Path, required=True, metavar="FILE", help="what `ofl enroll request` wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the answer, for `ofl enroll accept`")
    _add_certificate(parser)


def _sign(options: argparse.Namespace) -> None:
    authority = Authority(options.ca)
    lifetime_s = options.days * DAY_S if options.days is not None else None
    name = party_id(options.id)
    try:
        certificate = authority.sign(name, _read(options.request), time.time(), lifetime_s, options.host)
    finally:
        authority.close()
    write_private(options.out, certificate + (options.ca / "ca.pem").read_bytes(), 0o644)
    sys.stdout.write(f"signed {name} until {shown(read(certificate_from(certificate)).validity.not_after)}\n")


# --- on a device


def _add_join(parser: argparse.ArgumentParser) -> None:
    _add_identity(parser)
    _add_server(parser, required=True)
    parser.add_argument("--id", help="this party's id (default: the one the token is for)")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="visible to whoever lists processes; better is one of the others")
    token.add_argument(
        "--token-file", metavar="FILE", help=f"- is standard input (default: ${TOKEN_VARIABLE}, or it is asked for)"
    )


def _join(options: argparse.Namespace) -> None:
    token = JoinToken.parse(_token_text(options))
    if options.id is None and token.name is None:
        raise ConfigError("this token is for no id in particular: say which with --id")
    name = party_id(options.id) if options.id is not None else token.name
    assert name is not None  # noqa: S101  # one of the two has it
    _say(Newcomer(options.identity, name).join(parse_server(options.server), token))


def _add_renew(parser: argparse.ArgumentParser) -> None:
    _add_identity(parser)
    _add_server(parser, required=False)
    parser.add_argument("--if-due", action="store_true", help="only when less than a third of its time is left")
    _add_changed(parser, "there is a new certificate")


def _renew(options: argparse.Namespace) -> None:
    held = IdentityFolder(options.identity)
    enrolment = held.load()
    if not options.if_due or time.time() >= enrolment.credential.validity.renewal:
        enrolment = renew(held, parse_server(options.server) if options.server else None)
        _tell_change(options)
    _say(enrolment)


def _add_request(parser: argparse.ArgumentParser) -> None:
    _add_identity(parser)
    parser.add_argument("--id", required=True, help="this party's id")
    parser.add_argument("--federation", default="demo", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the request; it holds no secret")


def _request(options: argparse.Namespace) -> None:
    newcomer = Newcomer(options.identity, party_id(options.id))
    newcomer.check_free()
    write_private(options.out, newcomer.request(federation_id(options.federation)), 0o644)


def _add_accept(parser: argparse.ArgumentParser) -> None:
    _add_identity(parser)
    parser.add_argument("--id", required=True, help="this party's id")
    parser.add_argument("--answer", type=Path, required=True, metavar="FILE", help="what `ofl enroll sign` wrote")
    parser.add_argument("--fingerprint", required=True, help="of the authority, as `ofl ca show` prints it")


def _accept(options: argparse.Namespace) -> None:
    certificate, marker, authority = _read(options.answer).partition(b"-----END CERTIFICATE-----\n")
    if not authority:
        raise ConfigError(f"{options.answer} does not hold two certificates: it is not what `ofl enroll sign` wrote")
    parsed = certificate_from(authority)
    if fingerprint_of(parsed).hex() != options.fingerprint.strip().lower():
        raise ConfigError(f"{options.answer} is not of the authority with this fingerprint: ask the operator")
    federation_of(parsed)
    write_private(options.identity / CA, authority)
    _say(Newcomer(options.identity, party_id(options.id)).accept(certificate + marker))


# --- what they share


def _add_ca(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ca", type=Path, required=True, metavar="DIR", help="the authority's folder")


def _add_identity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--identity", type=Path, required=True, metavar="DIR", help="where the party's identity is kept"
    )


def _add_server(parser: argparse.ArgumentParser, *, required: bool) -> None:
    default = "" if required else " (default: the one it was enrolled by)"
    parser.add_argument("--server", required=required, metavar="HOST:PORT", help=f"the enrolment service{default}")


def _add_changed(parser: argparse.ArgumentParser, when: str) -> None:
    parser.add_argument(
        "--changed", type=Path, metavar="FILE", help=f"make this file if {when}: services read that at their start"
    )


def _tell_change(options: argparse.Namespace) -> None:
    if options.changed is not None:
        write_private(options.changed, b"")


def _add_certificate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=float, metavar="D", help="the certificate's lifetime (default: 30; broker: 365)")
    parser.add_argument("--host", action="append", default=[], metavar="NAME", help="a broker's host name or address")


def _token_text(options: argparse.Namespace) -> str:
    if options.token is not None:
        return str(options.token)
    if options.token_file == "-":  # noqa: S105  # standard input
        return sys.stdin.read()
    if options.token_file is not None:
        return _read(Path(options.token_file)).decode(errors="replace")
    if os.environ.get(TOKEN_VARIABLE):
        return os.environ[TOKEN_VARIABLE]
    if not sys.stdin.isatty():
        raise ConfigError(f"no token: give --token-file, {TOKEN_VARIABLE} or --token")
    return getpass.getpass("join token: ")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _give(file: Path | None, data: bytes) -> None:
    if file is not None:
        write_private(file, data)
    else:
        sys.stdout.write(data.decode())


def _say(enrolment: Enrolment) -> None:
    credential = enrolment.credential
    sys.stdout.write(f"enrolled {enrolment.name} until {shown(credential.validity.not_after)}\n")


ACTIONS: dict[str, tuple[str, Add, Callable[[argparse.Namespace], None]]] = {
    "token": ("make a one-time token that admits one party", _add_token, _token),
    "serve": ("run the enrolment service", _add_serve, _serve),
    "join": ("be admitted: make keys here and get a certificate for them", _add_join, _join),
    "renew": ("get a new certificate before the present one expires", _add_renew, _renew),
    "list": ("show certificates and open tokens", _add_ca, _list),
    "revoke": ("take a party's certificates back", _add_revoke, _revoke),
    "crl": ("write or fetch the revocation list for a broker", _add_crl, _crl),
    "request": ("make keys here and write a request to be carried to the authority", _add_request, _request),
    "sign": ("answer a request that was carried here", _add_sign, _sign),
    "accept": ("take the authority's answer that was carried back", _add_accept, _accept),
}
