"""All rules in one table: how each torch function with parameters is run and tapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ofl_iot.torch_training import tap_attention, tap_channels, tap_dense, tap_recurrent, tap_views
from ofl_iot.torch_training.taps import Rule, Taps

RULES: dict[Any, Rule] = {
    **tap_views.RULES,
    **tap_dense.RULES,
    **tap_channels.RULES,
    **tap_recurrent.RULES,
    **tap_attention.RULES,
}


def tapping(params: Mapping[str, Any]) -> Taps:
    """Return a mode that collects the uses of parameters, given by name."""
    return Taps(params, RULES)


def unrolling() -> Taps:
    """Return a mode that only unrolls recurrent layers and attention, which vmap cannot run otherwise."""
    return Taps({}, RULES, tapped=False)
