"""What a person sees while cells are computed: bars with the time left on a terminal, a line a cell elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ofl_research.reproduction.cells import Finished
from ofl_research.reproduction.document import Table, plain_text
from ofl_research.reproduction.runner import Board, Failure

if TYPE_CHECKING:
    from rich.console import Console, Group

FILE_WIDTH = 160
"""Columns where the output is no terminal."""
_STYLES = {"good": "green", "bad": "red", "open": "yellow", "quiet": "dim"}


class Show:
    """Shows a run while its `with` block runs."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._began = time.monotonic()
        self._console = console or Console(stderr=True)
        self._board = Board(total=0, kept=0)
        self._live: Any = Live(get_renderable=self._panel, console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Show:  # noqa: PYI034  # typing.Self needs Python 3.11
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def moved(self, board: Board) -> None:
        """Take in where the run stands."""
        self._board = board

    def finished(self, board: Board, finished: Finished) -> None:
        """A cell is done."""
        figure = finished.result.get("accuracy")
        shown = f" accuracy {figure:.4f}" if isinstance(figure, float) else ""
        self._say(board, f"{_label(finished)}{shown}, {duration(finished.wall_s)}")

    def failed(self, board: Board, failure: Failure) -> None:
        """A cell could not be computed."""
        reason = failure.reason.splitlines()[-1] if failure.reason else ""
        self._say(board, f"FAILED {failure.cell.name} seed {failure.cell.seed}: {reason}", style="red")

    def _say(self, board: Board, text: str, style: str | None = None) -> None:
        left = "" if board.seconds_left is None else f"; about {duration(board.seconds_left)} left"
        line = f"[{board.settled}/{board.total}] {text}{left}"
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _panel(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        board = self._board
        left = "" if board.seconds_left is None else f"about {duration(board.seconds_left)} left"
        total = Table.grid(padding=(0, 2))
        total.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=max(1, board.total), completed=board.settled, width=40),
            f"{board.settled}/{board.total} cells",
            f"{duration(time.monotonic() - self._began)} passed",
            left,
        )
        cells = Table.grid(padding=(0, 2))
        for each in list(board.running.values()):
            cells.add_row(
                f"  {each.cell.name} seed {each.cell.seed}",
                ProgressBar(total=1.0, completed=each.share, width=24),
                duration(time.monotonic() - each.began),
                Text(each.note, style="dim"),
            )
        return Group(total, cells)


def print_table(title: str, shown: Table) -> None:
    """A table of the report on standard output, unless it is empty."""
    if not shown.rows:
        return
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    grid = Grid(title=title, caption=shown.caption or None, title_style="bold", caption_style="dim")
    for place, name in enumerate(shown.columns):
        words = place == 0 or any(len(plain_text(row[place])) > FILE_WIDTH / 5 for row in shown.rows)
        grid.add_column(name, justify="left" if words else "right")
    for row in shown.rows:
        grid.add_row(*(Text(plain_text(cell), style=_STYLES.get(getattr(cell, "tone", ""), "")) for cell in row))
    console.print(grid)


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _label(finished: Finished) -> str:
    return f"{finished.cell.name} seed {finished.cell.seed}"
