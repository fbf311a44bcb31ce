"""Opens a device's privacy ledger: what is left of the budget, with which noise.

The accountant's packages take some 70 MB that a device would carry for the rest of its life, although it needs them
once: `open_ledger_apart` runs them in a process of their own, which is this module, and only the ledger comes back.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import msgspec

from ofl_iot.errors import ConfigError, OflError
from ofl_iot.privacy.accountant import noise_multiplier_for
from ofl_iot.privacy.events import Budget
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.roles.device.privacy_guard import PrivacyRules

APART_LIMIT_S = 300.0
"""More than a small board takes to load the accountant."""


class LedgerRequest(msgspec.Struct, frozen=True):
    """What a ledger depends on."""

    rules: PrivacyRules
    sampling_rate: float
    stored: bytes | None = None
    """The ledger of an earlier process."""


def open_ledger(request: LedgerRequest) -> Ledger:
    """The stored ledger goes on if the budget is the same; what it spent is never forgotten."""
    rules = request.rules
    # What the paper's mode composes to is beyond any budget (privacy.events): it is counted and reported.
    budget = Budget(math.inf if rules.mode == "paper" else rules.epsilon, rules.delta)
    ledger = Ledger(budget)
    if request.stored is not None:
        ledger = replace(Ledger.from_plain(msgspec.msgpack.decode(request.stored)), budget=budget)
    if rules.mode == "paper":
        return ledger
    noise = rules.noise_multiplier or noise_multiplier_for(budget, request.sampling_rate, rules.planned_steps)
    return ledger.allow(noise, request.sampling_rate)


def open_ledger_apart(request: LedgerRequest) -> Ledger:
    """The same, by another process, whose memory is free again when it has answered."""
    done = subprocess.run(  # noqa: S603  # our own interpreter and module
        [sys.executable, "-m", __name__],
        input=msgspec.msgpack.encode(request),
        capture_output=True,
        check=False,
        timeout=APART_LIMIT_S,
    )
    if done.returncode != 0:
        last_words = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"the privacy ledger could not be opened: {last_words or f'exit code {done.returncode}'}")
    return Ledger.from_plain(msgspec.msgpack.decode(done.stdout))


def main() -> int:
    """Answer one request, from standard input to standard output."""
    try:
        request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LedgerRequest)
        ledger = open_ledger(request)
    except OflError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.msgpack.encode(ledger.to_plain()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
