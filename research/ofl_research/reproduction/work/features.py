"""Whether OFL has the features of the paper's Table 1: each one probed on the production code.

A resource is perceived if a change of it alone changes what a device plans (Eq. 4) or how the coordinator sees it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ofl_iot.crypto.encryption import encrypt, weighted_sum
from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.crypto.params import MAIN
from ofl_iot.crypto.threshold import DecryptionShare, HeldDecryption, final_decrypt, partial_decrypt, server_decrypt
from ofl_iot.errors import WrongShareError
from ofl_iot.fleet.devices import DEVICE_TYPES
from ofl_iot.fleet.features import FeatureWeights, features
from ofl_iot.fleet.trust import Evidence, TrustSettings, assess
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.device.resources import ResourceRules, plan_contact
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import RoundClosed, RoundOpened
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_iot.workloads.digits import digits_federation
from ofl_research.benches.crypto import Keys
from ofl_research.benches.learning_federation import Member, make_world
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.federations import ofl_settings
from ofl_research.reproduction.plan import Plan
from ofl_research.reproduction.worker import Tell

SIZE = 100_000


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:  # noqa: ARG001
    """Each feature: whether it is there, and how that was seen."""
    tell(0.1, "resources")
    perceived = _perceived()
    tell(0.4, "encryption")
    withstood = _refused_shares()
    tell(0.7, "a straggler")
    closed, planned, leaders, devices = _rounds_with_a_straggler()
    found = {
        **perceived,
        "H": (1 < leaders < devices, f"{leaders} leaders, not {devices} devices, were asked to contribute to a round"),
        "S": (
            withstood[0],
            "an aggregate of three leaders does not decrypt with the shares of two and a scrambled third",
        ),
        "AS": (closed == planned, f"{closed} of {planned} rounds closed though one of four devices never finished"),
        "CS": (withstood[1], "nor does it for the coordinator with all leaders but one, who answer for the third too"),
    }
    return {"features": {name: {"there": there, "seen": seen} for name, (there, seen) in found.items()}}


def _perceived() -> dict[str, tuple[bool, str]]:
    base = _report()
    scarce = {
        "C": ("step_s", 100.0, "a slow processor"),
        "N": ("network_mbps", 1e-4, "a slow link"),
    }
    found = {}
    for name, (field, value, what) in scarce.items():
        changed = msgspec.structs.replace(base, **{field: value})
        before, after = _planned(base), _planned(changed)
        found[name] = (after != before, f"{what}: gamma_up {before[0]:.3f} becomes {after[0]:.3f}")
    before, after = _planned(base), _planned(base, steps_left=2.0)
    found["P"] = (after != before, f"a budget nearly spent: gamma_up {before[0]:.3f} becomes {after[0]:.3f}")
    rarely = msgspec.structs.replace(base, availability=0.2)
    found["A"] = (_moved(rarely), "a device that is rarely there is clustered elsewhere")
    departed = msgspec.structs.replace(base, model_distance=1.0)
    seen = "by its effect alone, no labels are told: a device whose model departs from its cluster's is seen elsewhere"
    found["D"] = (_moved(departed), seen)
    return {name: found[name] for name in ("C", "N", "D", "A", "P")}


def _report() -> Telemetry:
    source = SimulatedSource(DEVICE_TYPES["D"], np.random.default_rng(1), lambda: 0.0)
    return msgspec.structs.replace(source.read(), samples=2000)


def _planned(report: Telemetry, steps_left: float = np.inf) -> tuple[float, float]:
    made = plan_contact(SIZE, report, TrainingRules(), ResourceRules(), steps_left)
    return made.gamma_up, made.gamma_down


def _moved(changed: Telemetry) -> bool:
    """Whether the coordinator sees this device at another place than its equals."""
    base = _report()
    reports = [base, base, base, changed]
    trust = TrustSettings()
    trusted = assess(reports, [Evidence()] * len(reports), trust)
    points, _ = features(reports, trusted, FeatureWeights(), trust.prior, None)
    return bool(np.abs(points[3] - points[0]).max() > 0.1)


def _refused_shares() -> tuple[bool, bool]:
    """Whether two of three leaders fail to decrypt, with noise or with an answer of their own in the third's place."""
    entropy, values = SystemEntropy(), np.linspace(-0.1, 0.1, 1000)
    keys = Keys(MAIN, 3, 3, entropy)
    sealed = [encrypt(keys.public, values, keys.origin(member), entropy) for member in keys.members]
    total = weighted_sum(sealed, [1 / 3] * 3)
    held, request = server_decrypt(keys.public, total, keys.members, keys.members, entropy)
    shares = [partial_decrypt(keys.shares[member], request, entropy) for member in keys.members]
    missing = shares[2]
    noise = replace(missing, values=np.random.default_rng(1).permuted(missing.values, axis=-1))
    forged = replace(missing, values=partial_decrypt(keys.shares[keys.members[1]], request, entropy).values)
    return _decrypts_not(held, [*shares[:2], noise]), _decrypts_not(held, [*shares[:2], forged])


def _decrypts_not(held: HeldDecryption, shares: list[DecryptionShare]) -> bool:
    try:
        final_decrypt(held, shares)
    except WrongShareError:
        return True
    return False


def _rounds_with_a_straggler() -> tuple[int, int, int, int]:
    """Rounds closed of those planned while one device never ends its first training; leaders asked, and devices."""
    plan = Plan(rounds=3, round_s=5.0, protection="clear", options={"fleet": {"clusters": 2, "gather_s": 1.0}})
    devices, judge = digits_federation(4, 1)
    members = [Member(device, slowness=1e9 if place == 0 else 1.0) for place, device in enumerate(devices)]
    closed, leaders = [0], [0]

    def listen(_name: str, report: Report, _now: float) -> None:
        closed[0] += isinstance(report, RoundClosed)
        if isinstance(report, RoundOpened):
            leaders[0] = max(leaders[0], report.leaders)

    world = make_world(ofl_settings(plan), members, judge, listen)

    def done() -> bool:
        machine = world.parties[COORDINATOR].machine
        return isinstance(machine, CoordinatorMachine) and machine.finished

    world.run(done, limit_s=500.0)
    return closed[0], plan.rounds, leaders[0], len(devices)
