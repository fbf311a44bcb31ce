"""Settings from TOML files, the environment and the command line, as typed frozen values.

The settings are a frozen msgspec Struct. A field that is itself such a Struct is a section; any other field is a
key, named by its dotted path ("round.deadline_s"). Later sources win key by key: defaults, files in the order
given, environment (OFL_ROUND__DEADLINE_S), command line. Unknown keys and wrong values are refused.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from ofl_iot.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ENV_PREFIX = "OFL_"
COMMAND_LINE = "command line"
DEFAULT = "default"

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """Effective settings, and for each dotted key where its value comes from."""

    settings: S
    origin: Mapping[str, str]


@dataclass(frozen=True)
class _Given:
    """A checked value and its source."""

    value: object
    origin: str


def load_settings(
    cls: type[S], files: Sequence[Path], env: Mapping[str, str], overrides: Mapping[str, str]
) -> Loaded[S]:
    """Read and merge all sources into a `cls`; ConfigError says which key in which source to change."""
    keys = dict(_keys(cls))
    given: dict[str, _Given] = {}
    for file in files:
        for key, value in _flattened(_parse_file(file), keys):
            _refuse_unknown(key, keys, f"in {file}")
            given[key] = _Given(_converted(key, value, keys[key], str(file)), f"file {file}")
    names = {env_name(key): key for key in keys}
    for name in sorted(name for name in env if name.startswith(ENV_PREFIX)):
        _refuse_unknown(name, names, "in the environment", "__")
        key, origin = names[name], f"environment {name}"
        given[key] = _Given(_from_text(key, env[name], keys[key], origin), origin)
    for key, text in overrides.items():
        _refuse_unknown(key, keys, "on the command line")
        given[key] = _Given(_from_text(key, text, keys[key], f"the {COMMAND_LINE}"), COMMAND_LINE)
    settings = _built(cls, "", given, None)
    return Loaded(settings, {key: given[key].origin if key in given else DEFAULT for key in keys})


def env_name(key: str) -> str:
    """Return the environment variable that sets a key: "round.deadline_s" is OFL_ROUND__DEADLINE_S."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def show(loaded: Loaded[S]) -> str:
    """Write effective settings as TOML that loads to the same settings, each line with its origin."""
    return "\n".join(_shown(loaded.settings, "", loaded.origin)).lstrip("\n") + "\n"


# The keys of a settings class


def _keys(cls: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the type of every key."""
    for field in msgspec.structs.fields(cls):
        section = section_of(field.type)
        if section is not None:
            yield from _keys(section, f"{prefix}{field.encode_name}.")
        elif _mentions_struct(field.type):
            raise TypeError(f"{cls.__name__}.{field.name}: a Struct inside another type would take unknown keys")
        else:
            yield prefix + field.encode_name, field.type


def section_of(kind: Any) -> type[msgspec.Struct] | None:
    """The Struct that a field holds, also where it may be left out altogether (`Struct | None`)."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    union = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    kinds = [each for each in union if each is not type(None)]
    only = kinds[0] if len(kinds) == 1 else None
    return only if isinstance(only, type) and issubclass(only, msgspec.Struct) else None


def _mentions_struct(kind: Any) -> bool:
    return section_of(kind) is not None or any(map(_mentions_struct, get_args(kind)))


def _refuse_unknown(key: str, known: Mapping[str, object], where: str, separator: str = ".") -> None:
    """Raise unless `key` is known, with the nearest known one as a hint."""
    if key in known:
        return
    inside = [name for name in known if name.startswith(key + separator)]
    if inside:
        raise ConfigError(f"{key!r} {where} is a section, not a key: set a key in it, for example {inside[0]!r}")
    near = difflib.get_close_matches(key, known, n=1)
    if not near:
        # The right key in the wrong section.
        last = {name: name.rpartition(separator)[2] for name in known}
        ends = difflib.get_close_matches(key.rpartition(separator)[2], last.values(), n=1, cutoff=0.8)
        near = [name for name, end in last.items() if end in ends]
    hint = f"did you mean {near[0]!r}?" if near else "remove it"
    raise ConfigError(f"unknown key {key!r} {where}: {hint}")


# Reading


def _parse_file(file: Path) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = tomllib.loads(file.read_bytes().decode())
    except FileNotFoundError:
        raise ConfigError(f"the settings file {file} does not exist") from None
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file} is not valid TOML: no UTF-8 text (at line {line}); save it as UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    return parsed


def _flattened(table: Mapping[str, Any], keys: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a table is a section unless a key of that name wants it as its value."""
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and value and key not in keys:
            yield from _flattened(value, keys, f"{key}.")
        elif value != {} or key in keys or not any(known.startswith(f"{key}.") for known in keys):
            yield key, value


def _from_text(key: str, text: str, kind: Any, where: str) -> object:
    """Read a value given as text: as it stands where a text is wanted, else as TOML."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: {key!r} is not valid UTF-8 text") from error
    value: object = text
    if not _takes_text(msgspec.inspect.type_info(kind)):
        try:
            parsed = tomllib.loads(f"value = {text}")
        except (tomllib.TOMLDecodeError, RecursionError):
            parsed = {}
        if parsed.keys() == {"value"}:
            value = parsed["value"]
    return _converted(key, value, kind, where)


def _takes_text(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.Metadata):
        return _takes_text(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return any(map(_takes_text, info.types))
    if isinstance(info, msgspec.inspect.LiteralType):
        return any(isinstance(value, str) for value in info.values)
    if isinstance(info, msgspec.inspect.EnumType):
        return any(isinstance(member.value, str) for member in info.cls)
    return isinstance(info, msgspec.inspect.StrType | msgspec.inspect.CustomType)


def _converted(key: str, value: object, kind: Any, where: str) -> object:
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{where}: {key!r} is nan, wanted a number")
    try:
        return msgspec.convert(value, kind, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        wanted = _wanted(str(error), msgspec.inspect.type_info(kind))
        raise ConfigError(f"{where}: {key!r} is {to_toml(value)}, wanted {wanted}") from error


def _to_path(kind: type, value: object) -> Path:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError("Expected `str`")


_PLAIN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _wanted(message: str, info: msgspec.inspect.Type) -> str:
    """Say in plain words what msgspec expected: "Expected `int` >= 1" becomes "a whole number >= 1"."""
    if "enum" in message:
        return "one of " + ", ".join(to_toml(choice) for choice in _choices(info))
    match = re.match(r"Expected `([^`]*)`(.*?)(?:, got .*?)?(?: - at `\$(.*)`)?$", message, re.DOTALL)
    if match is None:
        return message
    names = [_PLAIN_WORDS.get(name, name) for name in match[1].split(" | ") if name != "null"]
    return " or ".join(names) + match[2] + (f" at {match[3]}" if match[3] else "")


def _choices(info: msgspec.inspect.Type) -> Iterator[object]:
    """Yield the values of all literals and enumerations in a type."""
    if isinstance(info, msgspec.inspect.Metadata):
        yield from _choices(info.type)
    elif isinstance(info, msgspec.inspect.LiteralType):
        yield from info.values
    elif isinstance(info, msgspec.inspect.EnumType):
        yield from (member.value for member in info.cls)
    elif isinstance(info, msgspec.inspect.UnionType):
        for part in info.types:
            yield from _choices(part)
    elif isinstance(info, msgspec.inspect.CollectionType):
        yield from _choices(info.item_type)


# Building


def _built(cls: type[S], prefix: str, given: Mapping[str, _Given], base: msgspec.Struct | None) -> S:
    """Make a `cls` from the values given; the others are those of `base`, or else the defaults."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(cls):
        key = prefix + field.encode_name
        default = getattr(base, field.name) if base is not None else _default(field)
        section = section_of(field.type)
        if section is not None and (default is not None or any(name.startswith(f"{key}.") for name in given)):
            inner = default if isinstance(default, msgspec.Struct) else None
            values[field.name] = _built(section, f"{key}.", given, inner)
        elif key in given:
            values[field.name] = given[key].value
        elif default is msgspec.NODEFAULT:
            raise ConfigError(f"the setting {key!r} is missing: set it in a settings file or as {env_name(key)}")
        else:
            values[field.name] = default
    try:
        return cls(**values)
    except (ValueError, TypeError, ConfigError) as error:
        name = f"the settings of section [{prefix[:-1]}]" if prefix else "the settings"
        sources = {item.origin for key, item in given.items() if key.startswith(prefix)} or {DEFAULT}
        raise ConfigError(f"{name} do not fit together: {error} ({', '.join(sorted(sources))})") from error


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


# Writing


def _shown(settings: msgspec.Struct, prefix: str, origin: Mapping[str, str]) -> Iterator[str]:
    sections: list[tuple[str, msgspec.Struct]] = []
    for field in msgspec.structs.fields(settings):
        key, value = prefix + field.encode_name, getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            sections.append((key, value))
        elif section_of(field.type) is not None:
            yield f"# the section [{key}] is not set"
        elif value is None:
            yield f"# {field.encode_name} is not set  # {_on_one_line(origin[key])}"
        else:
            yield f"{field.encode_name} = {to_toml(value)}  # {_on_one_line(origin[key])}"
    for key, section in sections:
        yield f"\n[{key}]"
        yield from _shown(section, f"{key}.", origin)


def to_toml(value: object) -> str:
    """Write a value as TOML, on one line."""
    value = msgspec.to_builtins(value, enc_hook=str)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_toml(name)} = {to_toml(item)}" for name, item in value.items()) + "}"
    return repr(value)


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
