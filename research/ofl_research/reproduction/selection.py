"""Which cells a run is to have: data sets, systems, seeds, size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ofl_iot.errors import ConfigError
from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell

DIGITS = "digits"
"""Bundled, not of the paper: only when it is asked for."""
OTHER_SYSTEMS = ("fedavgm", "fedavg-codec", "ifca", "ahfl", "fldp", "fedphe")
"""Not in the paper's comparison of accuracy: only when they are asked for."""
FULL_SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seeds: tuple[int, ...] = FULL_SEEDS
    quick: bool = False
    only: tuple[str, ...] = ()
    """Patterns of `dataset/system`; a pattern without a slash is of data sets."""

    @property
    def has_usual_seeds(self) -> bool:
        """Whether these are the seeds of a run that names none."""
        return self.seeds == usual_seeds(quick=self.quick)

    def datasets(self, usual: Sequence[str] = paper.DATASETS) -> list[str]:
        """The usual ones, or of all of them those that are named."""
        if not self.only:
            return list(usual)
        known = dict.fromkeys((*usual, *known_datasets()))
        return [name for name in known if any(_matches(name, _parts(pattern)[0], usual) for pattern in self.only)]

    def one_of(self, known: Sequence[str], usual: str) -> str | None:
        """The usual one of the data sets that an experiment knows, or the first that is named; None if others are."""
        return next((name for name in self.datasets((usual,)) if name in known), None)

    def systems(self, usual: Sequence[str] = paper.COMPARED) -> list[str]:
        """The usual ones, and others that are named."""
        known = dict.fromkeys((*usual, *OTHER_SYSTEMS))
        wanted = [_parts(pattern)[1] for pattern in self.only] or ["*"]
        return [name for name in known if any(_matches(name, pattern, usual) for pattern in wanted)]

    def chosen(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that `only` lets through."""
        if not self.only:
            return list(cells)
        return [cell for cell in cells if any(_lets(pattern, cell) for pattern in self.only)]


def known_datasets() -> tuple[str, ...]:
    """That can be named."""
    return (*paper.DATASETS, DIGITS)


def usual_seeds(*, quick: bool) -> tuple[int, ...]:
    """Unless others are asked for."""
    return QUICK_SEEDS if quick else FULL_SEEDS


def parse_only(patterns: Sequence[str]) -> tuple[str, ...]:
    """Check the patterns of `--only`."""
    for pattern in patterns:
        if not pattern or pattern.count("/") > 1:
            raise ConfigError(
                f"--only {pattern!r}: write it as dataset/system, for example mnist/ofl, '*/ofl' or mnist"
            )
    return tuple(patterns)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as "1,2,3" or "1-3"."""
    try:
        if "-" in text:
            first, last = (int(part) for part in text.split("-"))
            seeds = tuple(range(first, last + 1))
        else:
            seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text!r}: write different numbers from 0 on, as 1,2,3 or 1-3")
    return seeds


def seeds_text(seeds: Sequence[int]) -> str:
    """As `parse_seeds` reads them: "1-3" where they follow each other, else "1,5"."""
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 1 and list(seeds) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join(map(str, seeds))


def _parts(pattern: str) -> tuple[str, str]:
    dataset, _, system = pattern.partition("/")
    return dataset or "*", system or "*"


def _matches(name: str, pattern: str, usual: Sequence[str]) -> bool:
    """Whether a pattern names it; a star means the usual ones."""
    return fnmatchcase(name, pattern) and (name in usual or "*" not in pattern)


def _lets(pattern: str, cell: Cell) -> bool:
    dataset, system = _parts(pattern)
    return fnmatchcase(cell.dataset, dataset) and fnmatchcase(cell.system, system)
