"""All experiments by the names of the command line."""

from __future__ import annotations

from agents.reproduce.experiments import accuracy
from agents.reproduce.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (accuracy.EXPERIMENT,)}
