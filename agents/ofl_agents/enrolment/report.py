"""The authority's books for people."""

from __future__ import annotations

from ofl_agents.enrolment.registry import CertificateRecord, Registry
from ofl_iot.identity.dates import shown


def table(books: Registry, now: float) -> str:
    """Every certificate with its state, then the tokens that are still open."""
    rows = [("id", "state", "until", "serial")]
    rows += [(each.name, _state(each, now), shown(each.not_after), f"{each.serial:x}") for each in books.certificates()]
    rows += [
        (token.name or "(any)", "token", shown(token.expires_at), "")
        for token in books.tokens()
        if token.serial is None and now <= token.expires_at
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def _state(record: CertificateRecord, now: float) -> str:
    if record.revoked_at is not None:
        return f"revoked: {record.reason}" if record.reason else "revoked"
    return "valid" if now <= record.not_after else "expired"
