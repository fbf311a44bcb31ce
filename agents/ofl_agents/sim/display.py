"""What a person sees of a simulation: a live panel on a terminal, a line a round elsewhere, a table at the end."""

from __future__ import annotations

import logging
import math
import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ofl_agents.sim.summary import Measurement, Progress, Summary

_BARS = " ▁▂▃▄▅▆▇█"


class Display:
    """Shows progress while its `with` block runs."""

    def __init__(self, progress: Progress, devices: int, runtime: str, console: Console | None = None) -> None:
        self._progress = progress
        self._title = f"{devices} devices, {runtime} runtime"
        self._began = time.monotonic()
        self._console = console or Console()
        self._live = Live(
            get_renderable=self._panel,
            console=self._console,
            refresh_per_second=8,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # log lines go above the panel; what goes to a file stays there
        )

    def __enter__(self) -> Display:  # noqa: PYI034  # typing.Self needs Python 3.11
        if self._console.is_terminal:
            before = sys.stderr
            self._live.start()
            _move_log(before, sys.stderr)
        else:
            self._console.print(f"federation of {self._title}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            during = sys.stderr
            self._live.stop()
            _move_log(during, sys.stderr)
        for each in self._progress.history if error is None else ():
            if not self._console.is_terminal:
                self._console.print(f"round {each.round_no:3d}  {headline_text(each)}", highlight=False)

    def _panel(self) -> Group:
        progress = self._progress
        elapsed = time.monotonic() - self._began
        facts = Table.grid(padding=(0, 2))
        facts.add_row(
            Text(self._title, style="bold"),
            f"{elapsed:5.1f} s",
            f"{progress.trainings} trainings",
            f"{progress.chunks} chunks merged",
            f"{progress.clusters} clusters",
        )
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            f"round {progress.completed:2d}/{progress.rounds}",
            ProgressBar(total=progress.rounds, completed=progress.completed, width=40),
            headline_text(progress.history[-1]) if progress.history else "",
            Text(spark(headlines(progress.history)[-40:]), style="green"),
        )
        return Group(facts, bar)


def _move_log(old: TextIO, new: TextIO) -> None:
    """Let the log follow stderr, which the panel replaces while it is shown: handlers hold on to the old one."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


def headline_text(measured: Measurement) -> str:
    """Return the first metric in words; nothing where nothing is measured."""
    return f"{measured.headline[0]} {measured.headline[1]:.3f}" if measured.headline else ""


def headlines(history: list[Measurement]) -> list[float]:
    """Return the first metric of each round, scaled by the largest if that is beyond 1."""
    values = [each.headline[1] for each in history if each.headline]
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return [value / largest if largest > 1 else value for value in values]


def spark(values: list[float]) -> str:
    """Numbers from 0 to 1 as a line of bars."""
    return "".join(_BARS[min(8, max(0, round(8 * value)))] if math.isfinite(value) else "?" for value in values)


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """The table at the end of a run."""
    console = console or Console()
    table = Table(title=f"OFL-IoT: {summary.devices} devices, {summary.runtime} runtime", title_style="bold")
    for heading in ("device", "type", "samples", "sent", "received", "leader"):
        table.add_column(heading, justify="left" if heading in ("device", "leader") else "right")
    for row in summary.rows:
        leads = row.device == row.leader
        table.add_row(
            f"[bold]{row.device}[/bold]" if leads else row.device,
            row.device_type,
            str(row.samples),
            size_text(row.bytes_up),
            size_text(row.bytes_down),
            "[bold]leads[/bold]" if leads else row.leader,
        )
    if len(summary.rows) <= 40:
        console.print(table)
    facts = Table.grid(padding=(0, 2))
    line = spark(headlines(summary.metrics_by_round))
    for place, (name, value) in enumerate(summary.metrics.items()):
        facts.add_row(name, f"[bold]{value:.3f}[/bold]  {line}" if place == 0 else f"{value:.3f}")
    facts.add_row("model", f"{summary.app}, {summary.parameters:,} parameters")
    facts.add_row("rounds", str(summary.rounds))
    facts.add_row("clusters", f"{summary.clusters}, led by {', '.join(summary.leaders)}")
    facts.add_row(
        "per device",
        f"{size_text(summary.bytes_up_per_device)} up, {size_text(summary.bytes_down_per_device)} down",
    )
    facts.add_row(
        "chunks",
        f"{summary.chunks_merged} merged, {summary.lost_chunks} lost, {summary.doubled_chunks} counted twice",
    )
    served = ", ".join(f"{kind} {terms}" for kind, terms in summary.service_by_type.items())
    facts.add_row("leader terms", f"{served} (by device type)")
    facts.add_row(
        "fleet",
        f"{summary.leader_changes} leader changes, {summary.reclusterings} re-clusterings, "
        f"{summary.coordinator_restarts} coordinator restarts",
    )
    virtual = f" for {summary.virtual_s:.0f} virtual seconds" if summary.virtual_s else ""
    facts.add_row("time", f"{summary.wall_s:.1f} s{virtual}")
    console.print(facts)


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
