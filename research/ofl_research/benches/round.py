"""Bytes of one encrypted round and the memory of a leader in it, lean and `main` beside each other.

Four leaders, all of whom are asked and three of whom suffice, unenrolled (a signature is 72 bytes), scores on: the
product's own jobs, every body encoded as it travels. Memory is the highest resident set of a process that holds a
leader's books of its cluster model and does its jobs, from the contribution to the last answer.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from ofl_iot.crypto.entropy import Entropy, SystemEntropy
from ofl_iot.crypto.lean.quantiser import first_bounds
from ofl_iot.ids import DeviceId
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.messages import Contribution
from ofl_iot.protocol.parts import split_body
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.events import DecryptionRequested, Event, RoundAggregated, Vector
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, AnswerLean
from ofl_iot.roles.job_kinds.rounds import Contributed, FinishRound, ProtectContribution, ScoreRound, WeighRound
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.settings import ProtectionRules
from ofl_research.benches.lean import FEDERATION, ROUND, LeanCircle

LEADERS, THRESHOLD = 4, 3
SMALL = (100, 1_000, 4_096, 10_000)
LARGE = 1_000_000
_BLOCK = 1024
Pipe: TypeAlias = "Connection[Any, Any]"


class MainCircle(LeanCircle):
    """The same leaders in a round of the set `main`."""

    def upload(self, name: DeviceId, update: Vector) -> bytes:
        """One leader's ciphertexts."""
        job = ProtectContribution(ROUND, update, name, self.keys[name])
        payload = self.crypto[name].protect(job).payload
        self.up[name] += len(payload)
        return payload

    def shares(self, asked: DecryptionRequested, active: tuple[str, ...], size: int) -> dict[str, bytes]:
        """What those who decrypt answer."""
        answers = {}
        for name in map(DeviceId, active):
            job = AnswerDecryption(self.keys[name], name, ROUND, f"{asked.stage}.0.1", asked.request, size)
            answers[str(name)] = self.crypto[name].answer(job).share
            self.down[name] += len(asked.request)
            self.up[name] += len(answers[name])
        return answers

    def main_round(self, updates: dict[DeviceId, Vector], size: int) -> RoundAggregated:
        """From uploads to the decrypted sum."""
        made = tuple(Contributed(name, self.upload(name, update), 10, 1, 1) for name, update in updates.items())
        active = tuple(map(str, self.names))
        scored = self.coordinator.score(ScoreRound(ROUND, self.joint, made, active, size))
        scores = self.shares(scored, active, size)
        weighed = self.coordinator.weigh(WeighRound(ROUND, scores, active, {}, held=scored.held))
        return self.coordinator.finish(FinishRound(ROUND, self.shares(weighed, active, size), held=weighed.held))


def circle_of(params: str, entropy: Entropy) -> LeanCircle:
    """Leaders with a key of this set."""
    if params == "lean":
        return LeanCircle(LEADERS, THRESHOLD, entropy)
    return MainCircle(LEADERS, THRESHOLD, entropy, params="main")


def one_round(circle: LeanCircle, size: int) -> None:
    """Heavy-tailed updates under the first bounds."""
    rng = np.random.default_rng(0)
    updates = {name: (0.004 * rng.standard_t(4, size)).astype(np.float32) for name in circle.names}
    if isinstance(circle, MainCircle):
        circle.main_round(updates, size)
    else:
        circle.round(updates, np.zeros(size, np.float32), first_bounds(size))


def bytes_of_a_round(params: str, size: int, entropy: Entropy) -> dict[str, int]:
    """All leaders' bytes of a round, up and down, and of making the key."""
    circle = circle_of(params, entropy)
    one_round(circle, size)
    return {
        "up": sum(circle.up.values()),
        "down": sum(circle.down.values()),
        "key_up_a_leader": circle.key_bytes_up,
    }


class Apart:
    """One leader's jobs in a process of its own, whose memory is measured."""

    def __init__(self, params: str, size: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-m", __name__, str(theirs.fileno()), params, str(size)]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()])  # noqa: S603 - this very file
        self._pipe: Pipe = Connection(ours.detach())

    def run(self, job: Job) -> Event:
        """The result of a job that is done there."""
        self._pipe.send(job)
        return cast("Event", self._pipe.recv())

    protect = answer = run

    @property
    def lean(self) -> Apart:
        """Lean jobs are done by the same process."""
        return self

    def peak_mib(self) -> float:
        """Its highest resident set so far; it ends."""
        self._pipe.send(None)
        peak = float(self._pipe.recv())
        self._process.wait()
        return peak


def _leader(pipe: Pipe, params: str, size: int) -> None:
    crypto = LeaderCrypto(FEDERATION, _rules(params), SystemEntropy())
    cluster = ClusterModel(BlockLayout(size, _BLOCK), 1, ())
    cluster.adopt(np.zeros(size, np.float32), 0, included=False)
    while (job := pipe.recv()) is not None:
        result: Any
        if isinstance(job, ProtectContribution):
            cluster.freeze(ROUND)
            cluster.snapshot()
            result = crypto.protect(job)
            split_body(encode_body(Contribution(result.payload, (), 10, 1)), 1, ROUND, "contribute")
        elif isinstance(job, AnswerLean):
            result = crypto.lean.answer(job)
        else:
            result = crypto.answer(job)
        pipe.send(result)
    pipe.send(_peak_mib())


def _peak_mib() -> float:
    """The highest resident set of this very program; `getrusage` would count what it was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def _rules(params: str) -> ProtectionRules:
    return ProtectionRules(s_factor="mean", threshold=THRESHOLD, params=params)  # type: ignore[arg-type]


def peak_of_a_leader(params: str, size: int, entropy: Entropy) -> float:
    """MiB at most that a leader's process holds in a round."""
    circle = circle_of(params, entropy)
    apart = Apart(params, size)
    circle.crypto[circle.names[0]] = cast("LeaderCrypto", apart)
    try:
        one_round(circle, size)
    finally:
        peak = apart.peak_mib()
    return peak


def run(*, quick: bool = False) -> dict[str, Any]:
    """Figures for small models, and a leader's memory at a million parameters (`quick`: a hundred thousand)."""
    entropy = SystemEntropy()
    small = SMALL[:1] if quick else SMALL
    large = LARGE // 10 if quick else LARGE
    out: dict[str, Any] = {"leaders": LEADERS, "threshold": THRESHOLD, "rounds": []}
    for size in small:
        made = {params: bytes_of_a_round(params, size, entropy) for params in ("lean", "main")}
        total = {params: each["up"] + each["down"] for params, each in made.items()}
        out["rounds"].append({"params": size, **made, "lean_over_main": total["lean"] / total["main"]})
    peaks = {params: peak_of_a_leader(params, large, entropy) for params in ("lean", "main")}
    return out | {"memory_params": large, "lean_peak_mib": peaks["lean"], "main_peak_mib": peaks["main"]}


if __name__ == "__main__":
    _leader(Connection(int(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
