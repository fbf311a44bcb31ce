"""The reference of all settings, made from their types: for `ofl config reference` and `docs/settings.md`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ofl_iot.runtime.settings_file import env_name, section_of, to_toml

_BOUNDS = {"ge": "≥ ", "gt": "> ", "le": "≤ ", "lt": "< "}
_BEYOND_SENSE = 1e9
"""Bounds from here on only keep arithmetic finite: nobody comes near them."""
_WORDS = {"IntType": "whole number", "FloatType": "number", "StrType": "text", "BoolType": "true or false"}


@dataclass(frozen=True)
class Setting:
    """One setting as an operator sees it."""

    key: str
    kind: str
    default: str
    description: str

    @property
    def env(self) -> str:
        """Return the environment variable that sets it."""
        return env_name(self.key)


def settings_of(cls: type[msgspec.Struct], prefix: str = "") -> Iterator[Setting]:
    """Yield every setting of a settings class, section by section."""
    for field in msgspec.structs.fields(cls):
        key, section = prefix + field.encode_name, section_of(field.type)
        if section is not None:
            yield from settings_of(section, f"{key}.")
            continue
        info = msgspec.inspect.type_info(field.type)
        yield Setting(key, _kind(info), _default(field), _description(info))


def markdown(cls: type[msgspec.Struct], heading: str) -> str:
    """Return the reference page: a table for each section."""
    lines, section = [heading.rstrip()], ""
    summaries = {field.encode_name: section_of(field.type) for field in msgspec.structs.fields(cls)}
    for setting in settings_of(cls):
        name, _, key = setting.key.partition(".")
        if name != section:
            section, about = name, summaries[name]
            lines += ["", f"## {name}", "", f"{(about.__doc__ or '').strip() if about else ''}", ""]
            lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        cells = (f"`{key}`", setting.kind, f"`{setting.default}`" if setting.default else "–", setting.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _description(info: msgspec.inspect.Type) -> str:
    while isinstance(info, msgspec.inspect.Metadata):
        if info.extra_json_schema and "description" in info.extra_json_schema:
            return str(info.extra_json_schema["description"])
        info = info.type
    return ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    return "" if value is None or value is msgspec.NODEFAULT else to_toml(value)


def _kind(info: msgspec.inspect.Type) -> str:
    if isinstance(info, msgspec.inspect.Metadata):
        return _kind(info.type)
    if isinstance(info, msgspec.inspect.LiteralType):
        return ", ".join(f"`{to_toml(value)}`" for value in info.values)
    if isinstance(info, msgspec.inspect.UnionType):
        return " or ".join(_kind(each) for each in info.types if not isinstance(each, msgspec.inspect.NoneType))
    if isinstance(info, msgspec.inspect.CollectionType):
        return f"list of {_kind(info.item_type)}"
    bounds = [(sign, getattr(info, name, None)) for name, sign in _BOUNDS.items()]
    shown = [f"{sign}{bound:,}" for sign, bound in bounds if bound is not None and bound < _BEYOND_SENSE]
    return ", ".join([_WORDS.get(type(info).__name__, type(info).__name__), *shown])
