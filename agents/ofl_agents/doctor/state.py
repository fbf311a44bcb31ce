"""What a party has stored: whether it is whole, which keys it has, what is left of its privacy budget.

The store is copied before it is read: the party may start at any moment, perhaps as another user.
"""

from __future__ import annotations

import fcntl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ofl_agents.doctor.findings import Finding, error, ok, skipped, warning
from ofl_iot.errors import OflError
from ofl_iot.ids import RESERVED
from ofl_iot.local.client import LocalParty
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.roles.device.privacy_guard import TABLE as PRIVACY
from ofl_iot.roles.device.privacy_guard import PrivacyGuard, PrivacyRules
from ofl_iot.roles.keys.participant import TABLE as KEYS
from ofl_iot.roles.storage import Stored
from ofl_iot.runtime.store import read_store

LOW_BUDGET = 0.1


def is_running(store: Path) -> bool:
    """Whether a process holds the store's lock."""
    if not store.exists():
        return False
    asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
    try:
        with store.open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except OSError:
        return False
    return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)


def state(store: Path, rules: PrivacyRules, training_steps: int = 1) -> Iterator[Finding]:
    """Everything about one store."""
    if not store.exists():
        yield ok("state", f"{store} is made at the first start")
        return
    if store.stat().st_mode & 0o077:
        yield warning("state", f"{store} is open to others: it holds keys", f"chmod 600 {store}")
    if is_running(store):
        yield from running(store)
        return
    try:
        stored = read_store(store)
    except (OflError, OSError) as problem:
        yield error("state", f"{store.name} cannot be read: {problem}", "keep the file; restore it from a backup")
        return
    rows = sum(map(len, stored.values()))
    yield ok("state", f"{store} is whole: {rows} entries")
    if store.stem not in RESERVED:
        yield _keys(stored)
        yield from _budget(stored, rules, training_steps)


def running(store: Path) -> Iterator[Finding]:
    """What a party that runs says of itself over its local socket."""
    name = store.stem
    try:
        status = LocalParty(store.parent, name, timeout_s=5.0).status()
    except OflError as problem:
        yield skipped("state", f"{store} is in use, and its party cannot be asked: {problem}")
        return
    if status.overdue:
        yield error("state", f"{name} runs but makes no progress: {status.overdue}", "look into its log; restart it")
    else:
        yield ok("state", f"{name} runs since {status.up_s:.0f} s (process {status.pid}): {status.said}")
    if status.ready and not status.linked:
        yield warning("broker", f"{name} has no link to the broker", "the findings on ports and TLS say why")
    elif status.linked:
        yield ok("broker", f"{name} is linked")


def _keys(stored: Stored) -> Finding:
    rows = stored.get(KEYS, {})
    if not {"private", "public"} <= rows.keys():
        return ok("keys", "none yet: they are made at the first start")
    return ok("keys", "a sealing key" + (" and the share of a joint key" if "material" in rows else ""))


def _budget(stored: Stored, rules: PrivacyRules, training_steps: int) -> Iterator[Finding]:
    if rules.mode == "off":
        yield warning("budget", "privacy is off", "set privacy.mode=rigorous unless the data may be known to all")
        return
    kept = stored.get(PRIVACY, {}).get("ledger")
    if kept is None:
        yield ok("budget", f"untouched: epsilon {rules.epsilon:g} at delta {rules.delta:g}")
        return
    try:
        ledger = Ledger.from_plain(msgspec.msgpack.decode(kept))
    except (OflError, msgspec.DecodeError) as problem:
        yield error(
            "budget", f"the ledger cannot be read: {problem}", "restore the store from a backup; do not delete it"
        )
        return
    if rules.mode == "paper":
        yield warning("budget", "the paper's mode spends beyond any budget", "set privacy.mode=rigorous")
        return
    total = ledger.steps_spent + ledger.steps_left
    guard = PrivacyGuard(rules, steps=training_steps)
    guard.ledger = ledger
    said = f"{guard.words(time.time())} ({ledger.steps_left} of {total} training steps left)"
    if ledger.steps_left == 0 and total:
        yield warning(
            "budget",
            said,
            "the device trains no more; --accept-new-budget needs the owner's consent",
        )
    elif total and ledger.steps_left < LOW_BUDGET * total:
        yield warning("budget", said, "it will soon stop training; plan a longer lifetime or ask the data's owner")
    else:
        yield ok("budget", said)
    if ledger.budget.epsilon != rules.epsilon or ledger.budget.delta != rules.delta:
        yield warning(
            "budget",
            f"the settings now say epsilon {rules.epsilon:g}, delta {rules.delta:g}",
            "what was spent counts against the new budget from the next start; be sure that this is meant",
        )
