"""The federations of the learning bench: what is compared with what, and with which settings.

Batch size, steps, learning rate and planned steps were chosen on the validation images with seed 0; what is
reported is measured on the test images.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ofl_iot.runtime.settings import Settings
from ofl_iot.workloads.dense import DenseNet
from ofl_research.benches.attack_cases import ATTACKS
from ofl_research.benches.learning_data import (
    CLASSES,
    Corpus,
    HeldOut,
    ImageWorkload,
    Part,
    Rows,
    deal,
    deal_own_classes,
)
from ofl_research.benches.learning_federation import Judge, Member, Outcome, run_federation

OWN_CLASSES = (8, 9)
"""Held by the slow devices alone."""

BASE: dict[str, dict[str, Any]] = {
    "training": {"steps": 5, "longest_s": 1.0, "batch_size": 32, "learning_rate": 0.3, "momentum": 0.5},
    "privacy": {"mode": "off"},
    "upload": {"gamma": 0.1},
    "round": {"interval_s": 5.0, "deadline_s": 20.0},
    "fleet": {"gather_s": 2.0},
    "protection": {"mode": "clear"},
}
"""Away from the defaults: no noise, and short rounds in the clear, for encryption adds the same numbers."""


@dataclass(frozen=True)
class Scale:
    """How large a bench is."""

    devices: int = 16
    hidden: int = 32
    train: int = 12_000
    train_private: int = 55_000
    rounds: int = 12
    rounds_slow: int = 20
    rounds_private: int = 8
    seeds: tuple[int, ...] = (1, 2)
    """Seeds of the comparisons that were promised; the others have the first of them."""
    slow: int = 4
    slowness: float = 10.0
    malicious: int = 3
    held_out: HeldOut = "test"


QUICK = Scale(
    devices=8,
    train=4_000,
    train_private=12_000,
    rounds=4,
    rounds_slow=5,
    rounds_private=3,
    seeds=(1,),
    slow=2,
    malicious=2,
)


@dataclass(frozen=True)
class Case:
    """One federation: sections of its settings that differ from `BASE`, its attack, whether some devices are slow."""

    name: str
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    attack: str = "none"
    slow: bool = False
    private: bool = False
    """Whether it belongs to the comparison with and without privacy, which has more data."""
    widths: tuple[int, ...] | None = None
    """Hidden layers; None as the scale says."""


@dataclass(frozen=True)
class Laboratory:
    """Runs cases on one corpus at one scale."""

    corpus: Corpus
    scale: Scale

    def run(self, case: Case, seed: int) -> Outcome:
        """One federation from its beginning to its last round."""
        net = self._net(case)
        judge = Judge(net, self.corpus.held_out(self.scale.held_out))
        gc.collect()  # the federation before is a knot of parties and timers, 100 MB of it
        return run_federation(self.settings(case, seed), self._members(case, net, seed), judge)

    def settings(self, case: Case, seed: int) -> Settings:
        """Defaults, then `BASE`, then the case."""
        scale = self.scale
        rounds = scale.rounds_slow if case.slow else scale.rounds_private if case.private else scale.rounds
        settings = Settings()
        simulation = {"simulation": {"seed": seed, "devices": scale.devices, "rounds": rounds}}
        for sections in (BASE, simulation, case.sections):
            changed = {
                section: msgspec.structs.replace(getattr(settings, section), **values)
                for section, values in sections.items()
            }
            settings = msgspec.structs.replace(settings, **changed)
        return settings

    @cached_property
    def _small(self) -> Part:
        return self._first(self.scale.train)

    @cached_property
    def _large(self) -> Part:
        return self._first(self.scale.train_private)

    def _first(self, count: int) -> Part:
        train = self.corpus.train
        return Part(train.images[:count], train.labels[:count])

    def _net(self, case: Case) -> DenseNet:
        hidden = (self.scale.hidden,) if case.widths is None else case.widths
        return DenseNet((self.corpus.pixels, *hidden, CLASSES))

    def _members(self, case: Case, net: DenseNet, seed: int) -> list[Member]:
        scale, part = self.scale, self._large if case.private else self._small
        if case.slow:
            parts = deal_own_classes(part.labels, scale.devices, scale.slow, OWN_CLASSES, seed)
            members = [Member(ImageWorkload(net, part, rows)) for rows in parts]
            fast = scale.devices - scale.slow
            return [*members[:fast], *(replace(member, slowness=scale.slowness) for member in members[fast:])]
        parts = deal(part.labels, scale.devices, seed)
        malicious = 0 if case.attack == "none" else scale.malicious
        bad = np.random.default_rng(seed).permutation(len(parts))[:malicious]
        return [
            self._attacker(case, net, part, rows) if place in bad else Member(ImageWorkload(net, part, rows))
            for place, rows in enumerate(parts)
        ]

    def _attacker(self, case: Case, net: DenseNet, part: Part, rows: Rows) -> Member:
        attack, own = ATTACKS[case.attack], Part(part.images[rows], part.labels[rows])
        if attack.poison_data is not None:
            own = Part(*attack.poison_data(own.images, own.labels))
        return Member(ImageWorkload(net, own), attack=attack)
