"""`--app`: a file (`vibration.py:app`), a module (`vibration:app`) or an entry point of an installed package."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ofl_iot.apps.app import App, NumpyApp, TorchApp
from ofl_iot.errors import ConfigError

GROUP = "ofl_iot.apps"
"""Entry points of installed packages."""


def installed_apps() -> list[str]:
    """Return the names of the apps that installed packages offer."""
    return sorted(entry.name for entry in importlib.metadata.entry_points(group=GROUP))


def load_app(where: str) -> App:
    """Return the app, or ConfigError with what was looked for and what is there.

    This runs user code: call it in a process that may import torch.
    """
    source, attribute = _split(where)
    if not source:
        return _checked(_installed(where), where)
    module = _from_file(Path(source)) if source.endswith(".py") else _from_module(source)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{source} has no {attribute!r}: {_apps_in(module)}")
        value = getattr(value, part)
    return _checked(value, where)


def _split(where: str) -> tuple[str, str]:
    """Return source and attribute; no source for a plain name."""
    source, _, attribute = where.rpartition(":")
    if source:
        return source, attribute or "app"
    return (where, "app") if where.endswith(".py") or "/" in where else ("", where)


def _checked(value: Any, where: str) -> App:
    if not isinstance(value, TorchApp | NumpyApp):
        raise ConfigError(f"{where} is a {type(value).__name__}, not a TorchApp or NumpyApp of ofl_iot")
    return value


def _apps_in(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, TorchApp | NumpyApp)]
    return f"it has {', '.join(apps)}" if apps else "no TorchApp or NumpyApp is defined there"


def _installed(name: str) -> Any:
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name == name:
            return entry.load()
    known = ", ".join(installed_apps()) or "none"
    raise ConfigError(
        f"there is no app {name!r}: give FILE.py:NAME, MODULE:NAME, a built-in name (`ofl app list`) or an installed "
        f"one ({known})"
    )


def _from_module(name: str) -> ModuleType:
    """Import the module; the current folder counts, as it does for `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ConfigError(
            f"there is no module {name!r} here or among the installed packages: a file is named with its .py"
        ) from error
    finally:
        sys.path.remove(here)


def _from_file(path: Path) -> ModuleType:
    """Run the file as a module of its own name, its folder importable as when it is run by itself."""
    full = path.absolute()
    if not full.is_file():
        raise ConfigError(f"there is no file {path}: name the app as FILE.py:NAME")
    name = f"ofl_app_{full.stem}_{hashlib.blake2b(str(full).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(full.parent) not in sys.path:
        sys.path.insert(0, str(full.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
