"""All rules in one table: how each torch function with parameters is run and tapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ofl_iot.torch_training import tap_attention, tap_channels, tap_dense, tap_recurrent
from ofl_iot.torch_training.taps import Rule, Taps

RULES: dict[Any, Rule] = {
    **tap_dense.RULES,
    **tap_channels.RULES,
    **tap_recurrent.RULES,
    **tap_attention.RULES,
}


def tapping(names: Mapping[int, str]) -> Taps:
    """Return a mode that collects the uses of parameters, given their names by identity."""
    return Taps(names, RULES)


def unrolling() -> Taps:
    """Return a mode that only unrolls recurrent layers and attention, which vmap cannot run otherwise."""
    return Taps({}, RULES, tapped=False)
