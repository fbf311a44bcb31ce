"""How much a joint key may decrypt before another one is made.

Lean rounds: a leader that works with the coordinator can choose its sketch, and each number that depends on it may
show 4 coefficients of the joint secret (measured). 4,096 - 500 unknown coefficients are still 128-bit secure at 95
bits, so such numbers are counted. Rounds of the set `main`: every decrypted coefficient carries noise 2^14 times that
of the ciphertext, and a Renyi argument bounds what many of them prove about the key.
"""

from __future__ import annotations

from typing import Final

from ofl_iot.crypto.context import threshold_of

SCALAR_BUDGET: Final = 124
"""Numbers, a key, that colluding leaders can shape: 4 coefficients each stay below 500."""

ROW_BUDGET: Final = 20_000
"""Ciphertexts of 4,096 parameters, a key, that leaders decrypt of models: 100 times 815,810 parameters."""


MOST_TRIES: Final = 16
"""How often the scores of one round may be asked for: a coordinator has few seeds to choose from."""

BINDINGS: Final = 2
"""Places at which each sketch is compared with its body."""


def exposure(leaders: int, threshold: int, filters: int = 1, projections: int = 2) -> int:
    """Numbers of one score request that threshold - 1 colluding leaders can shape through sketches of their own."""
    bad = min(threshold - 1, leaders)
    return bad * (1 + filters + projections + BINDINGS) + bad * (leaders - bad) + bad * (bad - 1) // 2


def score_requests(leaders: int, threshold: int) -> int:
    """How often a key may be asked for the scores of a lean round."""
    return SCALAR_BUDGET // exposure(leaders, threshold)


def most_leaders(threshold: str | int) -> int:
    """The largest circle whose key may be asked for scores at all, by the setting of the threshold."""
    fewest = threshold if isinstance(threshold, int) else 2
    return max(n for n in range(fewest, 65) if n == fewest or score_requests(n, threshold_of(threshold, n)) > 0)


def model_requests(rows: int) -> int:
    """How often a key may be asked to decrypt a model of so many ciphertexts; at least a few times."""
    return max(8, ROW_BUDGET // max(1, rows))
