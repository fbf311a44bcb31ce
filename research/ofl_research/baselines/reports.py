"""What only the baselines report."""

from __future__ import annotations

from typing import ClassVar

from ofl_iot.roles.reports.base import DEBUG, Report


class ModelsMerged(Report, frozen=True):
    """A head merged its cluster's models: `count` parameters were added up."""

    phrase: ClassVar[str] = "models merged"
    level: ClassVar[int] = DEBUG
    count: int


class ModelsCombined(Report, frozen=True):
    """The server closed a round over these models."""

    phrase: ClassVar[str] = "models combined"
    round_no: int
    models: int
    multiply_adds: int
