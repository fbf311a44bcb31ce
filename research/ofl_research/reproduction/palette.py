"""Colours of the report: one for each system wherever it appears, in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SERIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ofl": ("#0b7a75", "#3fd0c9"),
        "fedavg": ("#3d4f8f", "#8ea2f0"),
        "cfl": ("#b8762b", "#e9b872"),
        "rfl-ha": ("#a63d57", "#f08ca4"),
        "ifca": ("#6b7a2f", "#c3d36f"),
        "ahfl": ("#7c4d9e", "#c9a1e6"),
        "fldp": ("#5a6570", "#aab6c2"),
        "fedphe": ("#8a5a44", "#d8a88f"),
        "1": ("#0b7a75", "#3fd0c9"),
        "2": ("#b8762b", "#e9b872"),
        "3": ("#3d4f8f", "#8ea2f0"),
        "4": ("#a63d57", "#f08ca4"),
        "5": ("#6b7a2f", "#c3d36f"),
        "6": ("#7c4d9e", "#c9a1e6"),
        "7": ("#5a6570", "#aab6c2"),
        "8": ("#8a5a44", "#d8a88f"),
    }
)
"""(light, dark) by the key of a series: a system, or its place where systems are not compared."""

INK = MappingProxyType(
    {
        "paper": ("#fcfbf8", "#15181b"),
        "panel": ("#ffffff", "#1c2024"),
        "ink": ("#1d2329", "#e6e4df"),
        "quiet": ("#66707a", "#98a2ab"),
        "rule": ("#e3dfd6", "#2e343a"),
        "good": ("#1c7a43", "#62cf8f"),
        "bad": ("#b3312c", "#f58b83"),
        "open": ("#8a6a14", "#e3bf5c"),
    }
)

CHART_CSS = """
.chart{width:100%;height:auto;display:block;font:10px system-ui,sans-serif}
.chart text{fill:var(--quiet)}.chart .title,.chart .row{fill:var(--ink);font-weight:600;font-size:11px}
.chart .grid{stroke:var(--rule);stroke-width:1}.chart .axis{stroke:var(--quiet);stroke-width:1}
.chart .level{stroke:var(--quiet);stroke-width:1;stroke-dasharray:2 3}
.chart .line{fill:none;stroke:var(--c);stroke-width:1.7;stroke-linejoin:round}
.chart .band{fill:var(--c);opacity:.14}.chart .dot{fill:var(--c);stroke:var(--panel);stroke-width:.8}
.chart .bar{fill:var(--c)}.chart .whisker{stroke:var(--c);stroke-width:1.4}.chart .bar+.whisker{stroke:var(--ink)}
.chart .quoted{fill:none;stroke:var(--c);stroke-width:1.3}
"""


def colours(*, dark: bool) -> str:
    """The variables of one of the two looks."""
    place = 1 if dark else 0
    pairs = [(name, both[place]) for name, both in INK.items()]
    pairs += [(f"s-{name}", both[place]) for name, both in SERIES.items()]
    return "".join(f"--{name}:{value};" for name, value in pairs)


def series_css() -> str:
    """Each series' class sets the colour that its shapes use."""
    return "".join(f".s-{name}{{--c:var(--s-{name})}}" for name in SERIES)


def alone(svg: str) -> str:
    """A drawing as a file of its own, on white, for a README."""
    style = f"svg{{{colours(dark=False)}background:#fff}}{CHART_CSS}{series_css()}".replace("\n", "")
    head, rest = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rest}\n'
