"""All experiments by the names of the command line, in the order of the report."""

from __future__ import annotations

from ofl_research.reproduction.experiments import accuracy, attacks, costs, crypto, gamma, privacy, resources, scale
from ofl_research.reproduction.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        accuracy.EXPERIMENT,
        costs.EXPERIMENT,
        scale.SCALE,
        scale.LEADERS,
        gamma.EXPERIMENT,
        resources.EXPERIMENT,
        privacy.EXPERIMENT,
        crypto.EXPERIMENT,
        attacks.EXPERIMENT,
    )
}
