"""Speed, size and error of lean rounds: a whole round of the product's own jobs, every body encoded as it travels."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.lean.quantiser import first_bounds
from ofl_iot.crypto.sealing import SealingKey
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.jobs.coordinator_crypto import CoordinatorCrypto
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.key_messages import KeyMember, KeyOpen
from ofl_iot.protocol.lean import LeanAnswer
from ofl_iot.roles.events import ContributionProtected, LeanAsked, OpenBody, RoundAggregated, Vector
from ofl_iot.roles.job_kinds.keys import AnswerLean, BeginKeys, CoordinatorKey, FinishKeys, KeyMaterial, MakeKeys
from ofl_iot.roles.job_kinds.lean import FinishLean, LeanRound, OpenLean, PrepareLean, ScoreLean, WeighLean
from ofl_iot.roles.job_kinds.rounds import Contributed, LeanGround, ProtectContribution
from ofl_iot.roles.settings import ProtectionRules
from ofl_research.benches.timing import best

FEDERATION = FederationId("bench")
ROUND = 1
ParamsName: TypeAlias = Literal["lean", "main"]


class LeanCircle:
    """Leaders with their key, one of which stands for all where time is measured."""

    def __init__(self, leaders: int, threshold: int, entropy: Entropy, *, params: ParamsName = "lean") -> None:
        self.names = tuple(DeviceId(f"leader-{number}") for number in range(leaders))
        rules = ProtectionRules(s_factor="mean", threshold=threshold, params=params)
        self.crypto = {name: LeaderCrypto(FEDERATION, rules, entropy) for name in self.names}
        self.coordinator = CoordinatorCrypto(FEDERATION, rules, entropy)
        self.sealing = {name: SealingKey.generate(entropy) for name in self.names}
        members = tuple(KeyMember(name, self.sealing[name].public_bytes) for name in self.names)
        self.opened = KeyOpen(1, 1, members, threshold, rules.params)
        self.key_bytes_up = 0
        self.keys, self.joint = self._make_keys()
        self.up = dict.fromkeys(self.names, 0)
        self.down = dict.fromkeys(self.names, 0)

    def _make_keys(self) -> tuple[dict[DeviceId, KeyMaterial], CoordinatorKey]:
        private = {name: self.sealing[name].private_bytes for name in self.names}
        begun = {name: self.crypto[name].begin_keys(BeginKeys(self.opened, name, private[name])) for name in self.names}
        ones = {str(name): each.one for name, each in begun.items()}
        keys, twos = {}, {}
        for name in self.names:
            deals = {str(other): begun[other].deals[name] for other in self.names}
            job = FinishKeys(self.opened, name, private[name], begun[name].secret, ones, deals)
            finished = self.crypto[name].finish_keys(job)
            keys[name], twos[str(name)] = finished.material, finished.two
        first = begun[self.names[0]]
        others = len(self.names) - 1
        dealt = sum(len(first.deals[name]) for name in self.names[1:])
        self.key_bytes_up = (others + 1) * len(first.one) + dealt + len(twos[str(self.names[0])])
        return keys, self.coordinator.make_keys(MakeKeys(self.opened, ones, twos)).key

    def protect(self, name: DeviceId, update: Vector, base: Vector, bounds: bytes) -> ContributionProtected:
        """One leader's upload."""
        ground = LeanGround(base, bounds, 0, self.sealing[name].private_bytes)
        return self.crypto[name].protect(ProtectContribution(ROUND, update, name, self.keys[name], ground))

    def ask(self, asked: LeanAsked, bodies: dict[DeviceId, OpenBody], own: dict[str, bytes]) -> dict[str, bytes]:
        """Every leader's answer to a stage, as it travels."""
        answers = {}
        for leader, request in asked.requests.items():
            name = DeviceId(leader)
            job = AnswerLean(
                self.keys[name],
                name,
                ROUND,
                f"{asked.stage}.0.1",
                request,
                bodies[name],
                self.sealing[name].private_bytes,
                own.get(leader, b""),
            )
            answers[leader] = self.crypto[name].lean.answer(job).answer
            self.down[name] += len(request)
            self.up[name] += len(answers[leader])
        return answers

    def round(self, updates: dict[DeviceId, Vector], base: Vector, bounds: bytes) -> RoundAggregated:
        """From uploads to the opened sum."""
        made = {name: self.protect(name, update, base, bounds) for name, update in updates.items()}
        for name, each in made.items():
            self.up[name] += len(each.payload)
            self.down[name] += len(bounds)
        contributions = tuple(Contributed(name, each.payload, 10, 1, 1) for name, each in made.items())
        lean = LeanRound(self.joint, ROUND, 0, contributions, base, bounds)
        bodies = {
            name: OpenBody(ROUND, self.joint.key_id, base.size, made[name].header, update, bounds)
            for name, update in updates.items()
        }
        jobs = self.coordinator.lean
        asked = jobs.prepare(PrepareLean(lean))
        sketches = self.ask(asked, bodies, {})
        accepted = asked.accepted
        drawn = _data(sketches)
        scored = jobs.score(ScoreLean(lean, accepted, drawn, tuple(drawn), 1))
        answers = self.ask(scored, bodies, sketches)
        numbers = {leader: decode_body(LeanAnswer, answer).numbers for leader, answer in answers.items()}
        weighed = jobs.weigh(WeighLean(lean, accepted, scored.held, _data(answers), numbers, scored.digest, 1))
        signatures = _data(self.ask(weighed, bodies, sketches))
        assert weighed.weighed is not None  # noqa: S101 - weigh always says so
        opened = jobs.open(OpenLean(lean, accepted, weighed.weighed, signatures))
        shares = _data(self.ask(opened, bodies, sketches))
        return jobs.finish(FinishLean(lean, weighed.weighed, shares))


def _data(answers: dict[str, bytes]) -> dict[str, bytes]:
    return {leader: decode_body(LeanAnswer, answer).data for leader, answer in answers.items()}


def lean_figures(entropy: Entropy, repeats: int, params: int = 815_810, leaders: int = 4) -> dict[str, float]:
    """A round of `leaders`, of whom all but one must open, with heavy-tailed updates under the first bounds."""
    circle = LeanCircle(leaders, leaders - 1, entropy)
    rng = np.random.default_rng(0)
    updates = {name: (0.004 * rng.standard_t(4, params)).astype(np.float32) for name in circle.names}
    base = np.zeros(params, np.float32)
    bounds = first_bounds(params)
    first = circle.names[0]
    protect_s, _ = best(lambda: circle.protect(first, updates[first], base, bounds), repeats)
    result = circle.round(updates, base, bounds)
    expected = np.sum([result.weights[name] * update.astype(np.float64) for name, update in updates.items()], axis=0)
    error = result.update - expected
    return {
        "lean_params": params,
        "lean_leaders": leaders,
        "lean_enc_s": protect_s,
        "lean_bytes_per_param": max(circle.up.values()) / params,
        "lean_bytes_per_param_down": max(circle.down.values()) / params,
        "lean_rms_error": float(np.sqrt(np.mean(error**2))),
        "lean_max_error": float(np.abs(error).max()),
        "lean_key_bytes_up": circle.key_bytes_up,
    }
