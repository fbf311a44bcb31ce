"""`ofl model`: shows, exports and compares trained models, while their party runs or not."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from ofl_agents.cli import add_settings_options
from ofl_agents.models.export import Trained, write_model
from ofl_agents.models.source import copy_in, owns, party_in, personal_in
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR
from ofl_iot.models.differences import compare, describe
from ofl_iot.models.files import MODEL_FILES, read_tensors
from ofl_iot.models.named import AppPlace, NamedTensors

_CHANGED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Three actions, each with its own options."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="what a model is: its round, its tensors and their sizes")
    _add_source(show)
    show.set_defaults(action=_show)
    export = actions.add_parser("export", help="write a model to a file")
    _add_source(export)
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help=f"ends in {', '.join(MODEL_FILES)}")
    export.add_argument("--app", metavar="APP", help="the app, for the whole network (default: as the party knows it)")
    export.add_argument("--data", default="", metavar="WHERE", help="records to run the network on once, for .onnx")
    export.set_defaults(action=_export)
    diff = actions.add_parser("diff", help="how far two models are apart, tensor by tensor; exit code 1 if they are")
    diff.add_argument("first", metavar="A", help="a model file or a state folder")
    diff.add_argument("second", metavar="B")
    _add_choice(diff)
    diff.set_defaults(action=_diff)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", metavar="FILE", help="a model file, instead of a party's model")
    parser.add_argument("--state", type=Path, metavar="DIR", help="a party's state folder, whether it runs or not")
    parser.add_argument("--broker", action="store_true", help="the retained model at the broker, as an enrolled party")
    parser.add_argument("--timeout", type=float, default=20.0, metavar="S", help="patience with it (%(default)s)")
    add_settings_options(parser)
    _add_choice(parser)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--id", metavar="NAME", help="which party, if the folder holds several")
    parser.add_argument(
        "--which",
        choices=("federation", "own"),
        default="federation",
        help="of a device: the federation's model as it knows it, or its own with unreleased training",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    code: int = options.action(options)
    return code


def _show(options: argparse.Namespace) -> int:
    named = _found(options).named
    rows = describe(named)
    if options.json:
        _write_json({"about": dict(named.about), "tensors": rows})
        return 0
    for key, value in named.about.items():
        sys.stdout.write(f"{key:<11} {value}\n")
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "1"
        sys.stdout.write(f"{row.name:<32} {shape:<16} norm {row.norm:<10.4g} {row.smallest:.4g} to {row.largest:.4g}\n")
    return 0


def _export(options: argparse.Namespace) -> int:
    trained = _found(options)
    app = AppPlace(app=options.app, data=options.data, folder=str(Path.cwd())) if options.app else None
    if app is None and options.data and trained.app is not None:
        place = msgspec.structs.replace(trained.app, data=str(Path(options.data).absolute()))
        trained = Trained(trained.named, trained.card, place, trained.personal)
    said = write_model(trained, options.out, app)
    if options.json:
        _write_json({"about": dict(trained.named.about), "out": str(options.out)})
    else:
        sys.stdout.write(f"{options.out}: round {trained.named.about.get('round', '?')}, {said}\n")
    return 0


def _diff(options: argparse.Namespace) -> int:
    first, second = (_from_text(text, options).named for text in (options.first, options.second))
    rows = compare(first, second)
    if options.json:
        _write_json(rows)
    else:
        for row in rows:
            said = row.said or f"{100 * row.change:.3g} %, at most {row.largest:.3g}"
            sys.stdout.write(f"{row.name:<32} {said}\n")
    return _CHANGED if any(row.said or row.change for row in rows) else 0


def _found(options: argparse.Namespace) -> Trained:
    given = [bool(options.source), options.state is not None, options.broker]
    if sum(given) > 1:
        raise ConfigError("name one source: a file, --state DIR or --broker")
    if options.broker:
        from ofl_agents.models.broker import from_broker

        return from_broker(options)
    if options.source:
        return _from_text(options.source, options)
    return _from_state(options.state or Path(os.environ.get("STATE_DIRECTORY", "ofl-state")), options)


def _from_text(text: str, options: argparse.Namespace) -> Trained:
    path = Path(text)
    return _from_state(path, options) if path.is_dir() else Trained(_without_onnx(path))


def _without_onnx(path: Path) -> NamedTensors:
    if path.suffix == ".onnx":
        raise ConfigError(f"{path}: an ONNX file is written and not read; compare the .npz or .safetensors")
    return read_tensors(path)


def _from_state(state: Path, options: argparse.Namespace) -> Trained:
    name = party_in(state, options.id)
    copy = copy_in(state, name, options.which)
    personal = personal_in(state, name) if name != COORDINATOR else None
    app = copy.app if owns(state / f"{name}.sqlite") else None
    return Trained(copy.named(), copy.card, app, personal)


def _write_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
