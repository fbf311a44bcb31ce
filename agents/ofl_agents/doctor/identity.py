"""Who this party is to the broker: files, permissions, dates."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from pathlib import Path

from ofl_agents.doctor.findings import Finding, error, ok, warning
from ofl_iot.errors import ConfigError, OflError
from ofl_iot.transport.identity import IdentityFolder
from ofl_iot.transport.settings import MqttSettings, TlsSettings

DAY_S = 86_400.0
RENEW_DAYS = 14


def identity(settings: MqttSettings, name: str | None) -> Iterator[Finding]:
    """The identity folder, the TLS files, or that there are none."""
    if settings.identity is not None:
        yield from _enrolled(Path(settings.identity), name)
    elif settings.tls is not None:
        yield from _files(settings.tls)
    elif all(_is_local(address.host) for address in settings.addresses()):
        yield ok("identity", "no TLS, and the broker is on this machine")
    else:
        yield warning(
            "identity",
            "no TLS: whoever is on the way reads and forges everything",
            "enrol with `ofl enroll join` and set mqtt.identity",
        )


def enrolled_name(settings: MqttSettings) -> str | None:
    """The name in the certificate; None without a usable one."""
    if settings.identity is None:
        return None
    try:
        return IdentityFolder(Path(settings.identity)).load().name
    except ConfigError:
        return None


def expiry(check: str, what: str, until: float, advice: str, due_days: float = RENEW_DAYS) -> Finding:
    """How long a certificate is still good for; it should be renewed in its last `due_days`."""
    days = (until - time.time()) / DAY_S
    if days < 0:
        return error(check, f"{what} expired {-days:.0f} days ago", advice)
    if days < due_days:
        return warning(check, f"{what} expires in {days:.0f} days", advice)
    return ok(check, f"{what} is good for {days:.0f} days")


def _enrolled(folder: Path, name: str | None) -> Iterator[Finding]:
    try:
        enrolment = IdentityFolder(folder).load()
    except OflError as problem:
        yield error("identity", str(problem), "mend that, then ask again")
        return
    if name is not None and enrolment.name != name:
        yield error(
            "identity",
            f"the certificate names {enrolment.name}, this party is {name}",
            f"enrol {name} in a folder of its own, or start it as {enrolment.name}",
        )
    validity = enrolment.credential.validity
    due = (validity.not_after - validity.renewal) / DAY_S
    yield expiry("identity", f"the certificate of {enrolment.name}", validity.not_after, "ofl enroll renew", due)
    if enrolment.credential.serial in enrolment.revoked:
        yield error("identity", "the certificate was revoked", "ask the operator for a token and enrol anew")


def _files(tls: TlsSettings) -> Iterator[Finding]:
    from cryptography import x509

    try:
        tls.context()
    except ConfigError as problem:
        yield error("identity", str(problem), "mend that, then ask again")
        return
    for what, file in (("the certificate", tls.cert), ("the authority", tls.ca)):
        if file is not None:
            certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
            # The newer property with a time zone needs cryptography 42, which is the least we take.
            until = certificate.not_valid_after_utc.timestamp()
            yield expiry("identity", f"{what} {file}", until, "ask whoever issued it for a new one")
    if tls.key is not None and Path(tls.key).stat().st_mode & 0o077:
        yield warning("identity", f"the key {tls.key} is open to others", f"chmod 600 {tls.key}")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
