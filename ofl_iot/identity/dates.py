"""Seconds since 1970 as the dates that certificates are written with."""

from __future__ import annotations

from datetime import datetime, timezone


def date_of(seconds: float) -> datetime:
    """The moment, to the second, as a date in UTC."""
    return datetime.fromtimestamp(int(seconds), timezone.utc)


def shown(seconds: float) -> str:
    """The moment for people: 2026-11-16 13:45 UTC."""
    return date_of(seconds).strftime("%Y-%m-%d %H:%M UTC")
