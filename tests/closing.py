"""The last sentence of a test run: what was skipped for want of a broker, and how to have it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

PACKAGES = {
    "mosquitto": "`apt-get install mosquitto`",
    "nats-server": "`apt-get install nats-server`, or a release of nats-io/nats-server on the PATH",
}
_MISSING = re.compile(r"(mosquitto|nats-server) is not installed")


def closing_sentence(skipped: Iterable[tuple[str, str]]) -> str:
    """Return what to say about skipped tests, each with its file and its reason; empty if no broker was missing."""
    wanting: dict[str, Counter[str]] = {}
    for file, reason in skipped:
        if missing := _MISSING.search(reason):
            wanting.setdefault(missing[1], Counter())[file] += 1
    return " ".join(
        f"Skipped for want of {broker}: {', '.join(f'{count} in {file}' for file, count in sorted(files.items()))}; "
        f"install it with {PACKAGES[broker]}."
        for broker, files in sorted(wanting.items())
    )
