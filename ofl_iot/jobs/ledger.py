"""Opens a device's privacy ledger: what is left of the budget, with which noise.

The accountant's packages take some 70 MB that a device would carry for the rest of its life, although it needs them
once: `open_ledger_apart` runs them in a process of their own, which is this module, and only the ledger comes back.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from ofl_iot.errors import ConfigError, OflError, StoreError
from ofl_iot.privacy.accountant import noise_multiplier_for, rate_rounded_up
from ofl_iot.privacy.events import DpSgdSteps
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.privacy.planning import Fleet, plan_training
from ofl_iot.roles.device.privacy_guard import PrivacyRules

APART_LIMIT_S = 300.0
"""More than a small board takes to load the accountant."""


class LedgerRequest(msgspec.Struct, frozen=True):
    """What a ledger depends on."""

    rules: PrivacyRules
    sampling_rate: float
    stored: bytes | None = None
    """The ledger of an earlier process."""
    steps: int = 1
    """Steps of one training."""
    source: str = ""
    """What the data are called."""
    at: float = 0.0
    """The time, in seconds since 1970."""
    fleet: Fleet | None = None
    """All devices' records, if training is planned from them;"""
    parameters: int = 0
    """and the size of the model."""


def open_ledger(request: LedgerRequest) -> Ledger:
    """The stored ledger goes on, whatever model is learnt; what it spent is never forgotten."""
    rules, rate = request.rules, _rate_of(request)
    ledger = _under_terms(request)
    if rules.mode != "rigorous" or _as_planned(ledger, rules, rate):
        return ledger
    if request.fleet is not None:
        plan = plan_training(ledger.budget, request.fleet, request.parameters, rules.steps_in_all(request.steps))
        return ledger.allow(plan.noise_multiplier, plan.sampling_rate, plan.steps)
    if rules.noise_multiplier:
        return ledger.allow(rules.noise_multiplier, rate)
    planned = rules.steps_in_all(request.steps)
    return ledger.allow(noise_multiplier_for(ledger.budget, rate, planned), rate, planned)


def _rate_of(request: LedgerRequest) -> float:
    return rate_rounded_up(request.fleet.sampling_rate if request.fleet else request.sampling_rate)


def _under_terms(request: LedgerRequest) -> Ledger:
    rules = request.rules
    ledger = Ledger(rules.budget)
    if request.stored is not None:
        ledger = Ledger.from_plain(msgspec.msgpack.decode(request.stored))
    return ledger.under(mode=rules.mode, source=request.source, budget=rules.budget, at=request.at)


def _as_planned(ledger: Ledger, rules: PrivacyRules, rate: float) -> bool:
    """Whether the stored plan is still in force, so that nothing must be worked out."""
    allowed = ledger.allowance
    return (
        allowed is not None
        and allowed.sampling_rate == rate
        and bool(ledger.milestones)
        and (not rules.noise_multiplier or rules.noise_multiplier == allowed.noise_multiplier)
    )


def _needs_packages(request: LedgerRequest) -> bool:
    """Whether the accountant's packages are needed: not without sampling, nor for a plan that is in force."""
    try:
        ledger, rules = _under_terms(request), request.rules
    except (StoreError, msgspec.DecodeError):
        return True  # the other process says why
    rate = _rate_of(request)
    sampled = rate < 1 or any(isinstance(event, DpSgdSteps) and event.sampling_rate < 1 for event in ledger.events)
    return rules.mode == "rigorous" and sampled and not _as_planned(ledger, rules, rate)


def open_ledger_apart(request: LedgerRequest) -> Ledger:
    """The same, by another process if it takes packages, whose memory is free again when it has answered."""
    if not _needs_packages(request):
        return open_ledger(request)
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
