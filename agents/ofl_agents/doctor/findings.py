"""What an examination finds: how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Level = Literal["ok", "skipped", "warning", "error"]
EXIT_CODES: dict[Level, int] = {"ok": 0, "skipped": 0, "warning": 1, "error": 2}


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check's outcome; whatever is not well comes with advice."""

    check: str
    level: Level
    said: str
    advice: str = ""


def ok(check: str, said: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", said)


def skipped(check: str, said: str) -> Finding:
    """Not examined, and why."""
    return Finding(check, "skipped", said)


def warning(check: str, said: str, advice: str) -> Finding:
    """It works, but not well or not for long."""
    return Finding(check, "warning", said, advice)


def error(check: str, said: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(check, "error", said, advice)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: all well; 1: warnings; 2: errors."""
    return max((EXIT_CODES[finding.level] for finding in findings), default=0)
