"""A torch app's whole network with trained values: as a state dict or as ONNX. Runs user code and imports torch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ofl_iot.apps.app import TorchApp
from ofl_iot.errors import ConfigError
from ofl_iot.models.named import FLAT, Array, NamedTensors, Vector, vector_of
from ofl_iot.protocol.model_card import ModelCard

if TYPE_CHECKING:
    from torch import nn

EXAMPLE_RECORDS = 2
"""A batch of one is folded away by some layers."""


def network_of(
    app: TorchApp, named: NamedTensors, card: ModelCard | None, personal: Vector | None
) -> tuple[nn.Module, int]:
    """Return the app's network in eval mode with the values given, and how many of its values are untrained.

    `personal` are the values that stay on a device, if it has any: personal parameters and running statistics.
    ConfigError if the app's model is another one.
    """
    from ofl_iot.apps.torch_model import TorchModel

    model = TorchModel(app, device="cpu")
    if card is not None and card.frozen != model.card.frozen:
        raise ConfigError(
            f"the frozen weights of {app.name} differ from those that the model was trained with: another pre-trained "
            "backbone, or one that is drawn at random each time"
        )
    flat_only = set(named.tensors) == {FLAT}
    travelling = vector_of(named, None if flat_only else model.card, model.card.size, "the trained model")
    vector = np.zeros(model.size, np.float32)
    model.bind(vector)
    vector[: len(travelling)] = travelling
    own = model.size - len(travelling)
    if personal is None:
        return model.network(), own
    if len(personal) != own:
        raise ConfigError(f"the device keeps {len(personal)} values to itself, {app.name} has {own}")
    vector[len(travelling) :] = personal
    return model.network(), 0


def tensors_of_network(net: nn.Module, about: dict[str, str]) -> NamedTensors:
    """Return the whole state dict, frozen weights and buffers included; tied weights under each of their names."""
    return NamedTensors({name: value.detach().cpu().numpy() for name, value in net.state_dict().items()}, about)


def write_onnx(file: IO[bytes], net: nn.Module, example: Sequence[Array], about: dict[str, str]) -> None:
    """Write the network as ONNX with a batch of any size; `example` are a few records of each input."""
    import torch

    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ConfigError("this needs the package onnx: run `pip install 'ofl-iot[onnx]'`") from error
    inputs = tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in example)
    with torch.no_grad():
        outputs = _flat(net(*inputs))
    names = ["input"] if len(inputs) == 1 else [f"input_{number}" for number in range(1, len(inputs) + 1)]
    results = ["output"] if len(outputs) == 1 else [f"output_{number}" for number in range(1, len(outputs) + 1)]
    written = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter needs onnx alone; the newer one warns that it is the older one
        torch.onnx.export(
            net,
            inputs,
            written,
            dynamo=False,
            input_names=names,
            output_names=results,
            dynamic_axes={name: {0: "batch"} for name in [*names, *results]},
        )
    model = onnx.load_model_from_string(written.getvalue())
    onnx.helper.set_model_props(model, about)
    file.write(model.SerializeToString())


def _flat(outputs: Any) -> list[Any]:
    return [each for part in outputs for each in _flat(part)] if isinstance(outputs, tuple | list) else [outputs]
