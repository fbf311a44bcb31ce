"""Who agrees with the majority: average-linkage grouping of a few update directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import RoundError
from ofl_iot.robust.scores import FloatArray


@dataclass(frozen=True, eq=False)
class Agreement:
    """The majority that agrees best, and how well everyone agrees with it.

    core     members of the majority
    within   mean cosine between two different members of the majority
    support  each one's mean cosine with the members of the majority other than itself
    """

    core: npt.NDArray[np.bool_]
    within: float
    support: FloatArray


def majority_core(cosines: FloatArray, least: int) -> npt.NDArray[np.bool_]:
    """The first group of at least `least` members that average linkage forms, merging the closest groups first.

    The likeness of two groups is the mean cosine between their members; ties go to the earlier pair. O(n³) for n
    leaders: a thousand is too many, twenty is nothing.
    """
    n = len(cosines)
    if not 2 <= least <= n:
        raise RoundError(f"a majority of {least} among {n} leaders: judge rounds of three or more")
    sums = cosines.astype(np.float64).copy()
    np.fill_diagonal(sums, -np.inf)
    sizes = np.ones(n)
    group = np.arange(n)
    while np.bincount(group).max() < least:
        likeness = sums / np.outer(sizes, sizes)
        a, b = sorted(divmod(int(np.argmax(likeness)), n))
        sums[a] += sums[b]
        sums[:, a] = sums[a]
        sums[a, a] = -np.inf
        sums[b, :] = sums[:, b] = -np.inf
        sizes[a] += sizes[b]
        group[group == b] = a
    return np.asarray(group == np.argmax(np.bincount(group)))


def agreement(cosines: FloatArray, trusted: npt.NDArray[np.bool_], least: int) -> Agreement:
    """How well everyone agrees with the majority of at least `least` (two or more) found among the trusted."""
    members = np.flatnonzero(trusted)
    core = np.zeros(len(cosines), dtype=bool)
    core[members[majority_core(cosines[np.ix_(members, members)], least)]] = True
    others = core[None, :] & ~np.eye(len(cosines), dtype=bool)
    support = np.where(others, cosines, 0.0).sum(axis=1) / others.sum(axis=1)
    return Agreement(core=core, within=float(support[core].mean()), support=support)
