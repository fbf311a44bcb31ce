"""Writes a model to a file by its suffix; what needs the app's own network loads the app, in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ofl_iot.apps.app import App, TorchApp
from ofl_iot.apps.data import Records
from ofl_iot.errors import ConfigError
from ofl_iot.models.files import check_suffix, write_atomically, write_tensors
from ofl_iot.models.named import AppPlace, Array, NamedTensors, Vector
from ofl_iot.protocol.model_card import ModelCard


@dataclass(frozen=True)
class Trained:
    """A model to be written, with what is known of it."""

    named: NamedTensors
    card: ModelCard | None = None
    app: AppPlace | None = None
    personal: Vector | None = None


def write_model(trained: Trained, out: Path, app: AppPlace | None) -> str:
    """Write the model and return in words what was written.

    .npz and .safetensors hold the tensors that travel, unless an app is named: then, as .pt and .onnx do, the whole
    network with its frozen and personal parts.
    """
    suffix = check_suffix(out)
    place = app or (trained.app if suffix in (".pt", ".onnx") else None)
    if place is None and suffix == ".onnx":
        raise ConfigError(
            f"{out}: ONNX describes the network, so it needs the app: add --app FILE.py:NAME (the one that a party "
            "knows is taken only by that party's own user, because it is run)"
        )
    if place is None:
        write_tensors(out, trained.named)
        return f"{len(trained.named.tensors)} tensors, {trained.named.size} values"
    return _write_network(trained, out, place)


def _write_network(trained: Trained, out: Path, place: AppPlace) -> str:
    if place.folder and place.folder not in sys.path:
        sys.path.insert(0, place.folder)
    app = _load(place)
    return write_network(trained, out, app, lambda torch_app: _example(torch_app, place))


def write_network(trained: Trained, out: Path, app: App, example: Callable[[TorchApp], tuple[Array, ...]]) -> str:
    """Write the whole network of a torch app, or the tensors of another one; return in words what was written."""
    if not isinstance(app, TorchApp):
        if out.suffix == ".onnx":
            raise ConfigError(f"{app.name} is no torch network: export it as .npz or .safetensors")
        write_tensors(out, trained.named)
        return f"{len(trained.named.tensors)} tensors, {trained.named.size} values"
    from ofl_iot.models.network import network_of, tensors_of_network, write_onnx

    net, untrained = network_of(app, trained.named, trained.card, trained.personal)
    note = f"; {untrained} values that stay on devices are untrained: export from a device" if untrained else ""
    about = dict(trained.named.about)
    if out.suffix == ".onnx":
        records = example(app)
        write_atomically(out, lambda file: write_onnx(file, net, records, about))
        return f"the network of {app.name} for batches of any size{note}"
    whole = tensors_of_network(net, about)
    write_tensors(out, whole)
    return f"{len(whole.tensors)} tensors, {whole.size} values, the whole network of {app.name}{note}"


def _load(place: AppPlace) -> App:
    from ofl_iot.apps.loading import load_app

    here = Path.cwd()
    try:
        if place.folder:
            os.chdir(place.folder)
        return load_app(place.app)
    finally:
        os.chdir(here)


def _example(app: TorchApp, place: AppPlace) -> tuple[Array, ...]:
    """Return a few records of the app's data: the exporter runs the network once."""
    reader = app.judge if place.held_out and app.judge is not None else app.samples
    where = str(Path(place.folder, place.data)) if place.data and place.folder else place.data
    return example_of(reader(where), where or app.name)


def example_of(given: Any, what: str) -> tuple[Array, ...]:
    """Return the inputs of a few records of whatever `samples` returned."""
    from ofl_iot.apps.data import as_records
    from ofl_iot.apps.sources import Source
    from ofl_iot.models.network import EXAMPLE_RECORDS

    records: Records | None = given.collect() if isinstance(given, Source) else as_records(given)
    if records is None or not len(records):
        raise ConfigError(f"{what} holds no records to run the network on once: name others with --data")
    return records.take(slice(0, EXAMPLE_RECORDS)).inputs
