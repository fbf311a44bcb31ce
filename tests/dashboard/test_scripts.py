"""The page's scripts and styles: they parse, are short, make markup in one place, load nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ofl_agents.dashboard

PAGE = Path(ofl_agents.dashboard.__file__).parent / "page"
SCRIPTS = sorted(PAGE.glob("*.js"))
FILES = sorted(PAGE.iterdir())
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses(script: Path) -> None:
    checked = subprocess.run(  # noqa: S603  # node, on our own file
        [str(NODE), "--check", "--input-type=module"],
        input=script.read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr.decode()


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_file_is_short_and_loads_nothing_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) < 400
    assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.-]+\.\w+", text)
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_markup_is_made_in_one_place_and_nothing_is_evaluated(script: Path) -> None:
    text = script.read_text()
    assert not re.findall(r"\beval\(|new Function|document\.write|insertAdjacentHTML|outerHTML|setTimeout\(['\"]", text)
    if script.name != "text.js":
        assert "innerHTML" not in text
        assert "new Safe(" not in text
    assert not re.findall(r"<\w[^>`]*\s[\w-]+=\$\{", text), "an attribute whose value is not in quotes"


def test_every_import_is_of_a_file_of_the_page_and_of_a_name_that_it_has() -> None:
    for script in SCRIPTS:
        for names, file in re.findall(r"import \{([^}]*)\} from '\./([\w.]+)'", script.read_text()):
            exported = (PAGE / file).read_text()
            for name in (each.strip() for each in names.split(",")):
                assert re.search(rf"export (?:async )?(?:const|function|class) {re.escape(name)}(?![\w$])", exported), (
                    script.name,
                    name,
                )
                assert len(re.findall(rf"(?<![\w$]){re.escape(name)}(?![\w$])", script.read_text())) > 1, (
                    f"{script.name}: {name} is not used"
                )
