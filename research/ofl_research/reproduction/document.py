"""What a report is made of, before it is drawn: sections with tables, figures and findings."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["plain", "good", "bad", "open", "quiet"]
Value = str | float | int | None


@dataclass(frozen=True)
class Toned:
    """A table's cell with a judgement in it."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """Rows for people."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | Toned, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """One or more drawings side by side, as SVG."""

    drawings: tuple[str, ...]
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Pairs of series class and label."""


@dataclass(frozen=True)
class Findings:
    """Sentences with a judgement."""

    items: tuple[Toned, ...]
    title: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


Block = Table | Figure | Findings | Text


@dataclass(frozen=True)
class Sheet:
    """Rows for machines: one CSV file."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def text(self) -> str:
        """As CSV; a figure that is missing is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_plain(value) for value in row] for row in self.rows)
        return out.getvalue()


@dataclass(frozen=True)
class Section:
    """One experiment in the report."""

    name: str
    title: str
    paper: str
    """What the paper shows, and where."""
    blocks: tuple[Block, ...] = ()
    sheets: dict[str, Sheet] = field(default_factory=dict)
    """CSV files by their name without the ending."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files, for a README: drawings and tables."""


def sheet(columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> Sheet:
    """A sheet of any rows."""
    return Sheet(tuple(columns), tuple(tuple(row) for row in rows))


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Toned]], caption: str = "") -> Table:
    """A table of any rows."""
    return Table(tuple(columns), tuple(tuple(row) for row in rows), caption)


def markdown(shown: Table) -> str:
    """A table for a README."""
    lines = [f"| {' | '.join(shown.columns)} |", "|" + " --- |" * len(shown.columns)]
    lines += [f"| {' | '.join(plain_text(cell) for cell in row)} |" for row in shown.rows]
    return "\n".join(lines) + "\n"


def plain_text(cell: str | Toned) -> str:
    """Without its tone."""
    return cell.text if isinstance(cell, Toned) else cell


def _plain(value: Value) -> Value:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
    return value
