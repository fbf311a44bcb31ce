"""Model files: what is written is read, whole or not at all, and what is no model is refused in words."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ofl_iot.errors import ConfigError
from ofl_iot.models.differences import compare, describe
from ofl_iot.models.files import read_tensors, write_atomically, write_tensors
from ofl_iot.models.named import NamedTensors, tensors_of, vector_of
from ofl_iot.protocol.model_card import ModelCard, TensorCard

CARD = ModelCard(
    app="trial", tensors=(TensorCard("a.weight", (2, 3)), TensorCard("a.bias", (2,))), loss="mse", version="1"
)
VALUES = np.arange(8, dtype=np.float32)
NAMED = NamedTensors(tensors_of(VALUES, CARD), {"round": "3", "app": "trial"})


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
def test_what_is_written_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"net.{suffix}"
    write_tensors(path, NAMED)
    read = read_tensors(path)
    assert set(read.tensors) == {"a.weight", "a.bias"}
    assert np.array_equal(vector_of(read, CARD, 8, "it"), VALUES)
    assert suffix == "pt" or dict(read.about) == dict(NAMED.about)
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.text(
            st.characters(codec="utf-8", exclude_characters="/\\\0:", exclude_categories=["Cs"]),
            min_size=1,
            max_size=20,
        )
        | st.sampled_from(["file", "args", "allow_pickle", "self"]),
        arrays(np.float32, array_shapes(min_dims=0, max_dims=3, max_side=3), elements=st.floats(-9, 9, width=32)),
        max_size=5,
    )
)
def test_any_names_and_shapes_go_through_an_npz(tensors: dict[str, np.ndarray]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder, "m.npz"), NamedTensors(tensors))
        read = read_tensors(Path(folder, "m.npz"))
    assert read.tensors.keys() == tensors.keys()
    assert all(np.array_equal(read.tensors[name], value) for name, value in tensors.items())


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.npz", "two.npz"):
        write_tensors(tmp_path / name, NAMED)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_reader_sees_the_old_file_or_the_new_one_and_nothing_between(tmp_path: Path) -> None:
    path = tmp_path / "net.npz"
    halfway, go_on = threading.Event(), threading.Event()
    write_tensors(path, NAMED)
    before = path.read_bytes()

    def slowly(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        halfway.set()
        assert go_on.wait(20)

    writing = threading.Thread(target=write_atomically, args=(path, slowly))
    writing.start()
    assert halfway.wait(20)
    assert path.read_bytes() == before
    go_on.set()
    writing.join(20)
    assert path.read_bytes() == b"half"


def test_a_failed_write_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "net.npz"
    path.write_bytes(b"before")

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="No space left"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\xff" * 64])
def test_what_is_no_model_is_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"net.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read as"):
        read_tensors(path)


def test_an_npz_with_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "net.npz", a=np.array([{"harm": 1}], dtype=object))
    with pytest.raises(ConfigError, match="cannot be read as npz"):
        read_tensors(tmp_path / "net.npz")


def test_unknown_suffixes_and_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.npz"):
        write_tensors(tmp_path / "net.h5", NAMED)
    with pytest.raises(ConfigError, match="there is no file"):
        read_tensors(tmp_path / "net.npz")
    with pytest.raises(ConfigError, match="cannot write"):
        write_tensors(tmp_path / "nowhere" / "net.npz", NAMED)


def test_tensors_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"it has no tensor a.weight: it holds b"):
        vector_of(NamedTensors({"b": VALUES}), CARD, 8, "it")
    with pytest.raises(ConfigError, match=r"a.weight is 3x2 in it, 2x3 in the app's model"):
        vector_of(NamedTensors({**NAMED.tensors, "a.weight": np.zeros((3, 2))}), CARD, 8, "it")
    with pytest.raises(ConfigError, match="not finite"):
        vector_of(NamedTensors({**NAMED.tensors, "a.bias": np.array([np.nan, 1])}), CARD, 8, "it")
    with pytest.raises(ConfigError, match="not numbers"):
        vector_of(NamedTensors({**NAMED.tensors, "a.bias": np.array(["x", "y"])}), CARD, 8, "it")


def test_frozen_tensors_beside_those_that_travel_are_left_aside() -> None:
    more = NamedTensors({"backbone": np.ones(5), **NAMED.tensors})
    assert np.array_equal(vector_of(more, CARD, 8, "it"), VALUES)


def test_rows_say_how_far_two_models_are_apart() -> None:
    moved = NamedTensors({"a.weight": NAMED.tensors["a.weight"] * 1.5, "c": np.zeros(1)})
    weight, bias, more = compare(NAMED, moved)
    assert weight.change == pytest.approx(0.5)
    assert weight.largest == pytest.approx(2.5)
    assert (bias.said, more.said) == ("only in the first", "only in the second")
    assert compare(NAMED, NamedTensors({**NAMED.tensors, "a.bias": np.zeros(3)}))[1].said == "2 and 3"
    assert [(row.smallest, row.largest) for row in describe(NAMED)] == [(0.0, 5.0), (6.0, 7.0)]
