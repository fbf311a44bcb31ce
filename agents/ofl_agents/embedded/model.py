"""A trained model in the hands of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ofl_agents.models.export import Trained, example_of, write_network
from ofl_iot.apps.app import App, TorchApp
from ofl_iot.errors import ConfigError
from ofl_iot.models.files import check_suffix, write_tensors
from ofl_iot.models.named import Array, ModelCopy, Vector

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model:
    """A copy of a federation's model: tensors by name, the round it comes from, and ways to write it."""

    copy: ModelCopy
    app: App | None = None
    """None for a built-in app."""
    personal: Vector | None = None
    """Values that stay on the device, if there are any."""

    @property
    def round_no(self) -> int:
        """The round that made it; 0 for the initial model."""
        return self.copy.round_no

    @property
    def vector(self) -> Vector:
        """All parameters that travel, one after the other."""
        return self.copy.values

    @property
    def tensors(self) -> Mapping[str, Array]:
        """The parameters that travel, by name."""
        return self.copy.named().tensors

    @property
    def about(self) -> Mapping[str, str]:
        """Where it comes from."""
        return self.copy.about()

    def network(self) -> nn.Module:
        """Return the app's torch network with these values, in eval mode."""
        if not isinstance(self.app, TorchApp):
            raise ConfigError("this model has no torch network: use .tensors")
        from ofl_iot.models.network import network_of

        return network_of(self.app, self.copy.named(), self.copy.card, self.personal)[0]

    def save(self, path: str | Path, example: Any = None) -> None:
        """Write it by the file's suffix: .npz, .safetensors, .pt or .onnx.

        ONNX needs records to run the network on once: `example`, in the form that `samples` returns, or what
        `samples("")` gives.
        """
        out = Path(path)
        trained = Trained(self.copy.named(), self.copy.card, None, self.personal)
        if check_suffix(out) == ".npz" or self.app is None:
            write_tensors(out, trained.named)
            return
        write_network(
            trained, out, self.app, lambda app: example_of(app.samples("") if example is None else example, "example")
        )
