"""Axes, charts and the page they are on."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_research.reproduction.axes import axis_for, number
from ofl_research.reproduction.charts import Bar, Dot, Series, bar_chart, dot_chart, line_chart
from ofl_research.reproduction.document import Figure, Findings, Section, Text, Toned, markdown, sheet, table
from ofl_research.reproduction.palette import SERIES, alone
from ofl_research.reproduction.report import Cover, render

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)
positive = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=8)


@given(numbers, st.booleans())
def test_all_values_have_their_place_in_order_and_ticks_are_within(values: list[float], zero: bool) -> None:
    axis = axis_for(values, 0.0, 100.0, zero=zero)
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    assert all(axis.low - 1e-6 <= tick <= axis.high + 1e-6 for tick in axis.ticks())
    assert 1 <= len(axis.ticks()) <= 12


@given(positive)
def test_a_logarithmic_axis_keeps_ratios(values: list[float]) -> None:
    axis = axis_for([*values, 10 * max(values)], 0.0, 100.0, log=True)
    low = min(values)
    first, second = axis.place(2 * low) - axis.place(low), axis.place(4 * low) - axis.place(2 * low)
    assert first == pytest.approx(second, abs=1e-6)
    assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in axis.ticks())


def test_numbers_on_an_axis_are_short() -> None:
    assert [number(value) for value in (0, 0.5, 1500, 2e6, 3.5e9)] == ["0", "0.5", "1.5k", "2M", "3.5G"]


LINES = line_chart(
    "MNIST <1>", [Series("ofl", "OFL", [(0, 10), (5, 90)], [1, 2])], x="s", y="%", levels=[("paper", 94.0)]
)
BARS = bar_chart("terms", [("A", [Bar("1", 2.0, 0.5)]), ("B", [Bar("1", 3.0)])], y="terms")
DOTS = dot_chart("accuracy", [("MNIST", [Dot("ofl", 97.0, 0.2), Dot("ofl", 94.2, quoted=True)])], x="%")


def test_charts_are_well_formed_and_use_known_colours() -> None:
    for drawing in (LINES, BARS, DOTS):
        ET.fromstring(drawing)  # noqa: S314  # our own
        keys = set(re.findall(r'class="s-([^"]+)"', drawing))
        assert keys <= set(SERIES)
    assert "MNIST &lt;1&gt;" in LINES


def test_a_drawing_alone_carries_its_colours() -> None:
    root = ET.fromstring(alone(LINES))  # noqa: S314  # our own
    assert root.tag.endswith("svg")
    assert "--s-ofl" in alone(LINES)


def page() -> str:
    blocks = (
        table(("data", "accuracy"), [("MNIST", Toned("97 & more", "good"))], "caption"),
        Figure((LINES, BARS, DOTS), "caption", (("ofl", "OFL"), ("quoted", "the paper"))),
        Findings((Toned("met <it>", "good"), Toned("missed", "bad"))),
        Text("a paragraph"),
    )
    cover = Cover(
        title="title",
        lead="lead",
        facts=(("Command", "ofl reproduce all --out 'a b'"),),
        warnings=("quick",),
        targets=(Toned("first", "good"), Toned("second", "bad"), Toned("third", "open")),
        failures=(("mnist/ofl, seed 1", "<no data>"),),
        appendix=(("settings", "{}"),),
    )
    return render(cover, [Section("table3", "Table 3", "the paper", blocks)])


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = page()
    assert "http" not in html
    assert not re.search(r"(src|href)=['\"](?!#)", html)
    assert not re.search(r"@import|url\(", html)
    assert "<script" not in html


def test_the_page_shows_what_it_was_given_and_escapes_it() -> None:
    html = page()
    for text in ("97 &amp; more", "met &lt;it&gt;", "&lt;no data&gt;", "1 met, 1 missed, 1 not measured here"):
        assert text in html
    assert "prefers-color-scheme:dark" in html
    assert html.count("<svg") == 3


def test_tables_as_csv_and_markdown() -> None:
    rows = sheet(("a", "b"), [("x, y", 1234567.0), (None, 0.125)])
    assert rows.text() == 'a,b\n"x, y",1234567\n,0.125\n'
    assert markdown(table(("a",), [(Toned("b", "bad"),)])) == "| a |\n| --- |\n| b |\n"
