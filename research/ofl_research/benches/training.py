"""Speed of private training beside plain training and Opacus: CPU seconds of a step, interleaved in one process.

One thread, batches of 64, clipping norm and noise multiplier 1, SGD with momentum; medians. Ours draws its noise from
a cipher, Opacus from torch's generator. `ratio_to_opacus` compares with the fastest of Opacus' three modes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any, Literal

from ofl_iot.errors import ConfigError

BATCH = 64
STEPS, ROUNDS = 3, 9
QUICK, QUICK_ROUNDS = ("cnn", "gru", "transformer"), 3
MODES: tuple[Literal["hooks", "functorch", "ghost"], ...] = ("hooks", "functorch", "ghost")


def run(*, quick: bool = False, progress: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Measure all networks, or the three that have a target."""
    _require_packages()
    import torch

    from ofl_research.benches.training_networks import NETWORKS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        names, rounds = (QUICK, QUICK_ROUNDS) if quick else (tuple(NETWORKS), ROUNDS)
        found = {name: _measured(name, rounds, progress) for name in names}
    finally:
        torch.set_num_threads(threads)
    return {
        "ratio_to_opacus": {name: each["ratio_to_opacus"] for name, each in found.items()},
        "ratio_to_plain": {name: each["ratio_to_plain"] for name, each in found.items()},
        "networks": found,
        "batch": BATCH,
        "threads": 1,
        "torch": torch.__version__,
        "opacus": version("opacus"),
    }


def _require_packages() -> None:
    try:
        import opacus  # noqa: F401 - whether it is there
        import torch  # noqa: F401 - same
    except ImportError as error:
        raise ConfigError(
            f"ofl bench training compares with Opacus, which cannot be imported ({error}): pip install '.[dev]' in a "
            "checkout"
        ) from error


def _measured(name: str, rounds: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Milliseconds of a step by contender, their ratios, and how exact ours is."""
    from ofl_research.benches.training_contenders import Contender, Opacus, Ours, Plain, gap_to_loop
    from ofl_research.benches.training_networks import batch_of, made

    batch = batch_of(name, BATCH)
    ours = Ours(name, batch)
    contenders: dict[str, Contender] = {"plain": Plain(name), "ours": ours}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus replaces layers and says so
        contenders |= {f"opacus {mode}": Opacus(name, mode) for mode in MODES}
    taken: dict[str, list[float]] = {label: [] for label in contenders}
    for turn in range(-1, rounds):
        for label, contender in contenders.items():
            began = time.process_time()
            contender.train(*batch, STEPS)
            if turn >= 0:  # the first turn loads what torch loads late
                taken[label].append((time.process_time() - began) / STEPS)
    ms = {label: 1e3 * median(times) for label, times in taken.items()}
    best = min(ms[f"opacus {mode}"] for mode in MODES)
    progress(f"{name}: {ms['ours']:.1f} ms a step, plain {ms['plain']:.1f}, Opacus' best {best:.1f}")
    return {
        "parameters": sum(p.numel() for p in made(name).parameters()),
        "engine": ours.engine,
        "ratio_to_opacus": ms["ours"] / best,
        "ratio_to_plain": ms["ours"] / ms["plain"],
        "relative_gap_to_loop": gap_to_loop(name, batch),
        "milliseconds": ms,
    }
