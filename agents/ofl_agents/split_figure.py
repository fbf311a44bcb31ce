"""A picture of how a data set was dealt: one column a device, one row a class, an area for each count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

Counts = npt.NDArray[np.int64]
_LARGEST_POINTS2 = 420.0
_NAMED_DEVICES = 40


def draw_split(counts: Counts, title: str, file: Path) -> None:
    """Draw `counts` (devices, classes) into a file whose ending names the format."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ConfigError(f"figures need matplotlib ({error}): pip install '.[charts]' in a checkout") from error
    devices, classes = counts.shape
    width = min(14.0, 3.0 + 0.42 * devices)
    figure = Figure(figsize=(width, 2.4 + 0.38 * classes), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    total, each = figure.subplots(2, 1, sharex=True, height_ratios=[1, max(1.0, classes / 3)])
    total.bar(np.arange(devices), counts.sum(axis=1), color="#4c72b0", width=0.7)
    total.set(ylabel="samples", title=title)
    total.spines[["top", "right"]].set_visible(False)
    columns, rows = np.nonzero(counts)
    shown = counts[columns, rows]
    scale = _LARGEST_POINTS2 * min(1.0, 16 / devices) / max(1, shown.max(initial=1))
    each.scatter(columns, rows, s=shown * scale, c=rows, cmap="tab10", vmin=0, vmax=9, alpha=0.85, linewidths=0)
    each.set(xlabel="device", ylabel="class", ylim=(-0.7, classes - 0.3), xlim=(-0.8, devices - 0.2))
    each.set_yticks(range(classes))
    if devices <= _NAMED_DEVICES:
        each.set_xticks(range(devices))
    else:
        each.xaxis.set_major_locator(MaxNLocator(integer=True))
    each.set_axisbelow(True)
    each.grid(alpha=0.25, linewidth=0.5)
    try:
        canvas.print_figure(file, dpi=130)
    except ValueError as error:
        raise ConfigError(f"--figure {file}: {error}") from error
