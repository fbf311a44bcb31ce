"""Writes a project: an app, generated data, a test, settings of production, and a README that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Literal, TypeAlias

from ofl_iot.errors import ConfigError
from ofl_iot.ids import is_id

Task: TypeAlias = Literal["classify", "regress", "anomaly"]
Library: TypeAlias = Literal["torch", "numpy"]


@dataclass(frozen=True)
class Kind:
    """What differs between projects, beside their app and their data."""

    what: str
    metric: str
    floor: float
    """The test's least value of the metric."""
    rounds: int = 6
    held_out: str = ""
    """Arguments with which held-out data are made."""


KINDS: dict[tuple[Task, Library], Kind] = {
    ("classify", "torch"): Kind("Tells the condition of a machine from its vibration.", "accuracy", 0.5),
    ("classify", "numpy"): Kind("Tells the condition of a machine from its vibration.", "accuracy", 0.5),
    ("regress", "torch"): Kind("Predicts what a machine will draw.", "r2", 0.3),
    ("regress", "numpy"): Kind("Predicts what a machine will draw.", "r2", 0.3),
    ("anomaly", "torch"): Kind("Tells unusual windows of vibration.", "detection", 0.7, held_out=", 0.3"),
    ("anomaly", "numpy"): Kind("Forecasts the next reading; what is far from it is unusual.", "r2", 0.3),
}


def write_project(folder: Path, task: Task, library: Library) -> list[Path]:
    """Write a project into a folder that does not exist yet, named as it; return its files."""
    name = folder.name
    if not is_id(name):
        raise ConfigError(
            f"{name!r} cannot be a project's name, which is that of its federation too: use lower-case letters, digits "
            "and single hyphens between them"
        )
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise ConfigError(f"{folder} is there already and not empty: choose another name")
    kind = KINDS[task, library]
    values = {
        "name": name,
        "what": kind.what,
        "metric": kind.metric,
        "floor": f"{kind.floor:g}",
        "rounds": str(kind.rounds),
        "held_out": kind.held_out,
        "install": "ofl-iot[torch,onnx] pytest" if library == "torch" else "ofl-iot pytest",
        "suffix": "onnx" if library == "torch" else "npz",
    }
    files = {
        "app.py": f"{task}_{library}.py.txt",
        "test_app.py": "test.py.txt",
        "README.md": "README.md.txt",
        "ofl.toml": "ofl.toml.txt",
    }
    texts = {file: _filled(template, values) for file, template in files.items()}
    texts["make_data.py"] = _filled(f"{task}_data.py.txt", values) + _filled("make.txt", values)
    return _write(folder, texts)


def _filled(template: str, values: dict[str, str]) -> str:
    text = resources.files("ofl_agents.new").joinpath("templates").joinpath(template).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {folder} ({error.strerror}): choose another place") from error
    return [folder / file for file in texts]
