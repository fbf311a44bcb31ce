"""Model files: .npz with nothing but numpy, .safetensors and .pt with their packages; written atomically."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.models.named import Array, NamedTensors

ABOUT = "__about__"
"""Entry of an npz that says from where the model comes."""
TENSOR_FILES = (".npz", ".safetensors", ".pt")
MODEL_FILES = (*TENSOR_FILES, ".onnx")


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what `write` writes, durable and whole: who reads it sees the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)  # noqa: PTH105  # atomic, and says so
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}): name another file") from error
    finally:
        fresh.unlink(missing_ok=True)


def check_suffix(path: Path, known: tuple[str, ...] = MODEL_FILES) -> str:
    """Return the file's suffix, or ConfigError with those that are known."""
    if path.suffix not in known:
        raise ConfigError(f"{path}: a model file ends in {', '.join(known)}")
    return path.suffix


def write_tensors(path: Path, named: NamedTensors) -> None:
    """Write .npz, .safetensors or .pt."""
    suffix = check_suffix(path, TENSOR_FILES)
    writers = {".npz": _write_npz, ".safetensors": _write_safetensors, ".pt": _write_pt}
    write_atomically(path, lambda file: writers[suffix](file, named))


def read_tensors(path: Path) -> NamedTensors:
    """Read .npz, .safetensors or .pt; ConfigError says what is wrong with it."""
    suffix = check_suffix(path, TENSOR_FILES)
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".pt": _read_pt}
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        return readers[suffix](path)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be read as {suffix[1:]}: {type(error).__name__}: {error}") from error


def _write_npz(file: IO[bytes], named: NamedTensors) -> None:
    about = np.array(json.dumps(dict(named.about), sort_keys=True))
    with zipfile.ZipFile(file, "w") as archive:
        for name, tensor in {ABOUT: about, **named.tensors}.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(tensor, order="C"), allow_pickle=False)


def _read_npz(path: Path) -> NamedTensors:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
        tensors = {name: held[name] for name in held.files}
    about = json.loads(str(tensors.pop(ABOUT))) if ABOUT in tensors else {}
    return NamedTensors(tensors, {str(key): str(value) for key, value in about.items()})


def _write_safetensors(file: IO[bytes], named: NamedTensors) -> None:
    library = _need("safetensors.numpy", "safetensors")
    tensors = {name: np.asarray(tensor, order="C") for name, tensor in named.tensors.items()}
    file.write(library.save(tensors, metadata=dict(named.about)))


def _read_safetensors(path: Path) -> NamedTensors:
    library = _need("safetensors", "safetensors")
    with library.safe_open(str(path), framework="numpy") as held:
        tensors: dict[str, Array] = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118  # no dict
        return NamedTensors(tensors, held.metadata() or {})


def _write_pt(file: IO[bytes], named: NamedTensors) -> None:
    torch = _need("torch", "torch")
    torch.save({name: torch.from_numpy(np.array(tensor)) for name, tensor in named.tensors.items()}, file)


def _read_pt(path: Path) -> NamedTensors:
    torch = _need("torch", "torch")
    held = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(held, dict) or not all(hasattr(value, "detach") for value in held.values()):
        raise ConfigError(f"{path} is no state dict: write it with torch.save(net.state_dict(), …)")
    return NamedTensors({str(name): value.detach().float().numpy() for name, value in held.items()})


def _need(module: str, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this needs the package {extra}: run `pip install 'ofl-iot[{extra}]'`, or write an .npz"
        ) from error
