"""One cluster with poisoned devices, for the leader-side gate: devices of different speed and one leader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.robust_experiment import CLASSES, Attack, Images, Outcome, Perceptron, dirichlet_split, judge
from ofl_iot.ids import DeviceId
from ofl_iot.robust.gate import Gate, GateRules


@dataclass(frozen=True)
class GateSetting:
    """The size of a cluster and of its training; the last `slow` devices arrive ten times more rarely.

    `own_classes` gives each slow device a class that nobody else holds.
    """

    devices: int = 8
    slow: int = 2
    own_classes: bool = True
    alpha: float = 0.5
    arrivals: int = 800
    chunks: int = 4
    density: float = 0.1
    steps: int = 5
    batch: int = 16
    learning_rate: float = 0.2
    hidden: int = 32


def run_gate(
    data: Images, setting: GateSetting, attack: Attack, malicious: int, *, rules: GateRules, seed: int
) -> Outcome:
    """Let devices arrive one by one, their updates pass the gate, and the leader merge what is admitted.

    The rates of the outcome are the shares of attackers' and of honest devices' chunks that were refused.
    """
    rng = np.random.default_rng(seed)
    images, labels = data.train.copy(), data.train_labels.copy()
    rows = _deal(labels, setting, rng)
    bad = frozenset(int(i) for i in rng.permutation(setting.devices - setting.slow)[:malicious])
    for i in sorted(bad):
        if attack.poison_data is not None:
            images[rows[i]], labels[rows[i]] = attack.poison_data(images[rows[i]], labels[rows[i]])
    flat = images.reshape(len(images), -1)
    model = Perceptron(flat.shape[1], setting.hidden)
    theta = model.initial(rng)
    residual = np.zeros((setting.devices, model.size), dtype=np.float32)
    speed = np.where(np.arange(setting.devices) >= setting.devices - setting.slow, 0.1, 1.0)
    step = np.minimum(1.0, 1.0 / (setting.devices * speed / speed.mean()))
    gate = Gate(salt=seed, rules=rules)
    seen, refused = np.zeros(setting.devices), np.zeros(setting.devices)
    for _ in range(setting.arrivals):
        i = int(rng.choice(setting.devices, p=speed / speed.sum()))
        local = theta[None].copy()
        for _ in range(setting.steps):
            picks = rows[i][rng.integers(0, len(rows[i]), setting.batch)][None]
            model.descend(local, flat[picks], labels[picks], setting.learning_rate)
        residual[i] += local[0] - theta
        chosen = np.argsort(-np.abs(residual[i]), kind="stable")[: int(setting.density * model.size)]
        values = residual[i][chosen].copy()
        residual[i][chosen] = 0.0
        if i in bad and attack.poison_update is not None:
            values = np.asarray(attack.poison_update(values, rng))
        for part in np.array_split(np.arange(chosen.size), setting.chunks):
            admission = gate.observe(DeviceId(f"device-{i}"), chosen[part], values[part])
            seen[i] += 1
            refused[i] += not admission.accept
            if admission.accept:
                theta[chosen[part]] += np.float32(step[i] * admission.scale) * values[part]
    accuracy, success = judge(model, theta, data)
    attackers = np.isin(np.arange(setting.devices), sorted(bad))
    return Outcome(
        accuracy=accuracy,
        attack_success=success,
        true_positive_rate=float(refused[attackers].sum() / seen[attackers].sum()) if bad else None,
        false_positive_rate=float(refused[~attackers].sum() / seen[~attackers].sum()),
    )


def _deal(labels: npt.NDArray[np.int64], setting: GateSetting, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Dirichlet shares; then each slow device gets all of one class in place of its share."""
    rows = list(dirichlet_split(labels, setting.devices, setting.alpha, rng))
    if setting.own_classes:
        own = list(range(CLASSES - setting.slow, CLASSES))
        rows = [part[~np.isin(labels[part], own)] for part in rows]
        for k, label in enumerate(own):
            rows[setting.devices - setting.slow + k] = np.flatnonzero(labels == label)
    return rows
