"""Trained networks come out whole: every format gives the outputs of the network that was trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ofl_agents.models.export import Trained, write_model
from ofl_agents.models.source import owns
from ofl_iot.errors import ConfigError
from ofl_iot.models.named import AppPlace, NamedTensors, tensors_of
from ofl_iot.protocol.model_card import ModelCard, TensorCard
from ofl_iot.torch_training.flat import FlatModel
from tests.models.nets import CASES, Case, Conv, records, trained

TOLERANCE = 1e-4
APP = """
from tests.models.nets import CASES, app_of
app = app_of(*CASES[{name!r}])
"""


def as_trained(case: Case) -> Trained:
    """What a device's store and its file of personal values hold of a network."""
    flat = FlatModel(case.net, case.app.personal, "cpu")
    mine = flat.card()
    tensors = tuple(TensorCard(name, shape) for name, shape in zip(mine.names, mine.shapes, strict=True))
    card = ModelCard(app="trial", tensors=tensors, loss="", version="1", frozen=mine.frozen)
    vector = np.array(flat.vector)
    named = NamedTensors(tensors_of(vector[: flat.size], card), {"round": "7", "app": "trial"})
    return Trained(named, card, None, vector[flat.size :] if case.app.personal else None)


@pytest.fixture(params=CASES)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Case, Trained, AppPlace]:
    case = trained(*CASES[request.param])
    (tmp_path / "trial.py").write_text(APP.format(name=request.param))
    return case, as_trained(case), AppPlace(app="trial.py:app", folder=str(tmp_path))


def expected(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of another batch size than the export saw, and what the trained network makes of them."""
    x, _ = records(7, seed=3)
    with torch.no_grad():
        return x, case.net.eval()(torch.from_numpy(x)).numpy()


def test_onnx_gives_the_same_outputs_at_another_batch_size(
    exported: tuple[Case, Trained, AppPlace], tmp_path: Path
) -> None:
    case, model, place = exported
    write_model(model, tmp_path / "net.onnx", place)
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    x, wanted = expected(case)
    (got,) = session.run(None, {"input": x})
    assert np.abs(got - wanted).max() < TOLERANCE
    props = {each.key: each.value for each in onnx.load(str(tmp_path / "net.onnx")).metadata_props}
    assert props["round"] == "7"


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_state_dict_loads_strictly_into_a_fresh_network(
    suffix: str, exported: tuple[Case, Trained, AppPlace], tmp_path: Path
) -> None:
    case, model, place = exported
    out = tmp_path / f"net.{suffix}"
    write_model(model, out, place)
    state = load_file(out) if suffix == "safetensors" else torch.load(out, weights_only=True)
    fresh = case.app.model()
    fresh.load_state_dict(state, strict=True)
    x, wanted = expected(case)
    with torch.no_grad():
        assert np.abs(fresh.eval()(torch.from_numpy(x)).numpy() - wanted).max() < TOLERANCE


def test_without_an_app_safetensors_hold_the_tensors_that_travel(tmp_path: Path) -> None:
    case = trained(*CASES["frozen backbone, private head"])
    write_model(as_trained(case), tmp_path / "net.safetensors", None)
    held = load_file(tmp_path / "net.safetensors")
    assert set(held) == {"middle.weight", "middle.bias"}
    assert torch.equal(held["middle.bias"], case.net.state_dict()["middle.bias"])


def test_a_small_tensor_does_not_drag_the_whole_vector_into_the_file(tmp_path: Path) -> None:
    """Parameters are views into one vector, and torch.save writes the storage behind a view."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(60, 2000), nn.ReLU(), nn.Linear(2000, 4))

    case = trained(make)
    (tmp_path / "trial.py").write_text(
        "import torch.nn as nn\nfrom tests.models.nets import app_of\n"
        "app = app_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 2000), nn.ReLU(), nn.Linear(2000, 4)))\n"
    )
    out = tmp_path / "net.pt"
    write_model(as_trained(case), out, AppPlace(app="trial.py:app", folder=str(tmp_path)))
    values = sum(p.numel() for p in case.net.parameters())
    assert out.stat().st_size < 4 * values + 20_000


def test_an_app_with_another_backbone_is_refused(tmp_path: Path) -> None:
    case = trained(*CASES["frozen backbone, private head"])
    model = as_trained(case)
    (tmp_path / "trial.py").write_text(
        "import torch\nfrom tests.models.nets import Frozen, app_of\n"
        "def make():\n    net = Frozen()\n    net.backbone[0].weight.data.add_(1.0)\n    return net\n"
        "app = app_of(make, ('head.*',))\n"
    )
    with pytest.raises(ConfigError, match="frozen weights of trial differ"):
        write_model(model, tmp_path / "net.pt", AppPlace(app="trial.py:app", folder=str(tmp_path)))
    assert not list(tmp_path.glob("*.pt*"))


def test_an_app_of_other_shapes_is_refused_with_the_tensors_name(tmp_path: Path) -> None:
    model = as_trained(trained(Conv))
    (tmp_path / "trial.py").write_text(
        "import torch.nn as nn\nfrom tests.models.nets import Conv, app_of\n"
        "def make():\n    net = Conv()\n    net.head = nn.Linear(8, 5)\n    return net\napp = app_of(make)\n"
    )
    with pytest.raises(ConfigError, match=r"head.weight is 4x8 in the trained model, 5x8 in the app's model"):
        write_model(model, tmp_path / "net.onnx", AppPlace(app="trial.py:app", folder=str(tmp_path)))


def test_onnx_without_an_app_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add --app"):
        write_model(as_trained(trained(Conv)), tmp_path / "net.onnx", None)


def test_what_stays_on_devices_is_told_when_it_is_missing(tmp_path: Path) -> None:
    case = trained(*CASES["frozen backbone, private head"])
    (tmp_path / "trial.py").write_text(APP.format(name="frozen backbone, private head"))
    model, place = as_trained(case), AppPlace(app="trial.py:app", folder=str(tmp_path))
    shared = Trained(model.named, model.card, None, None)
    assert "36 values that stay on devices are untrained" in write_model(shared, tmp_path / "net.pt", place)
    with pytest.raises(ConfigError, match="keeps 5 values to itself, trial has 36"):
        write_model(Trained(model.named, model.card, None, np.zeros(5, np.float32)), tmp_path / "net.pt", place)


def test_code_that_another_users_store_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "truck-1.sqlite"
    store.touch()
    assert owns(store)
    monkeypatch.setattr("os.geteuid", lambda: store.stat().st_uid + 1)
    assert not owns(store)
    assert not owns(tmp_path / "none.sqlite")
