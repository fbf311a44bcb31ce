"""What the documents name exists: files of the code, and the pages that links lead to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ofl_iot.protocol.topics import Kind

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ofl_iot/**/*.md"), *ROOT.glob("results/*.md")]
)
ROOMS = "(?:agents|broker|research|tests|ofl_iot|roles|jobs|runtime|protocol|opportunity|privacy|crypto|transport)"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    files = set(re.findall(rf"(?<![\w/.-])({ROOMS}/[\w/]+\.(?:py|md))\b", text))
    missing = [name for name in files if not (ROOT / name).exists() and not (ROOT / "ofl_iot" / name).exists()]
    links = set(re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text))
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_glossary_is_short() -> None:
    rows = re.findall(r"^\| (?!term|---)", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert 10 < len(rows) <= 20


def test_there_are_ten_decisions_at_least_and_all_are_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    records = {path.name for path in folder.glob("[0-9]*.md")}
    assert len(records) >= 10
    assert set(re.findall(r"\(([\w-]+\.md)\)", (folder / "README.md").read_text())) == records


def test_the_design_fits_on_three_pages() -> None:
    assert len((ROOT / "DESIGN.md").read_text().splitlines()) <= 180


def test_every_topic_is_in_the_protocols_table() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert {kind.value for kind in Kind} == set(re.findall(r"^\| `([\w/{}]+)` \|", page, re.MULTILINE))


def test_functions_that_the_page_of_algorithms_names_are_in_their_files() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    named = re.findall(r"`([\w/]+\.py): (\w+)`", page)
    assert len(named) > 20
    for file, name in named:
        path = ROOT / file if (ROOT / file).exists() else ROOT / "ofl_iot" / file
        assert re.search(rf"^\s*(?:def|class) {name}\b", path.read_text(), re.MULTILINE), f"{file}: {name}"
