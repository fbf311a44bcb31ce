"""Times and sizes of the threshold encryption for one number of leaders, beside TenSEAL where it is asked for."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.crypto.params import MAIN
from ofl_iot.errors import ConfigError
from ofl_research.benches.crypto import Keys
from ofl_research.benches.crypto import run as bench
from ofl_research.benches.timing import best
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.worker import Tell

LITERAL_DEGREE = 32768


class CryptoTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's settings."""

    params: int
    leaders: int
    repeats: int = 3
    literal: bool = False
    """Whether the scores are measured beside the literal FHE-DFT, which takes a minute."""


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:  # noqa: ARG001
    """Seconds of one processor, bytes per parameter."""
    trial = msgspec.convert(cell.settings, CryptoTrial)
    if find_spec("tenseal") is None:
        raise ConfigError("the comparison needs TenSEAL, which is not installed: pip install '.[dev]' in a checkout")
    entropy = SystemEntropy()
    # The first keys compile the kernels.
    Keys(MAIN, 2, 2, entropy)
    tell(0.1, "keys")
    keygen_s, _ = best(lambda: Keys(MAIN, trial.leaders, trial.leaders, entropy), trial.repeats)
    tell(0.2, "encryption")
    degree = LITERAL_DEGREE if trial.literal else None
    figures = bench(trial.params, trial.leaders, trial.repeats, degree)
    return {"keygen_s": keygen_s, **figures}
