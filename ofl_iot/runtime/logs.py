"""The format of log lines: a phrase, then key=value, or one JSON object a line (`log.format`).

This is the one place where values become text. Whatever came from outside is escaped and cut, so that a peer can
neither forge a field or a line nor flood the log; what one peer causes is limited, the rest counted.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

from ofl_iot.roles.allowance import Allowance

if TYPE_CHECKING:
    from ofl_iot.roles.reports.base import Report

MAX_TEXT = 200
"""Characters of a value that are logged."""
LogFormat = Literal["text", "json"]
_CAUSES = ("sender", "peer", "device")
"""Fields that name whose message caused a line."""
_CONVERSION = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa]")
_KEYED = re.compile(r"(?:^|\s)(\w+)=(?=%)")


def escape(text: str) -> str:
    """Return text with unprintable characters escaped, cut to `MAX_TEXT` characters."""
    head = text[:MAX_TEXT]
    clean = head if head.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in head)
    return clean if len(clean) <= MAX_TEXT and len(text) <= MAX_TEXT else clean[: MAX_TEXT - 3] + "..."


def plain(value: object) -> object:
    """Return what JSON can hold: numbers as they are, containers of such, everything else as escaped text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, Mapping):
        return {escape(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | set | frozenset) or type(value) is tuple:  # an address, say, has a text of its own
        return [plain(each) for each in value]
    return escape(str(value))


def _shown(value: object) -> str:
    """Return a value as in key=value; text with blanks, quotes or equals signs is quoted."""
    value = plain(value)
    if isinstance(value, str):
        quoted = not value or any(c in value for c in ' "=\\')
        return json.dumps(value, ensure_ascii=False) if quoted else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


@dataclass(frozen=True)
class Line:
    """A phrase and its fields; its text is safe to log by any handler."""

    phrase: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join([escape(self.phrase), *(f"{key}={_shown(value)}" for key, value in self.fields.items())])


def log_report(log: logging.Logger, party: str, report: Report) -> None:
    """Log what a party reports."""
    if log.isEnabledFor(report.level):
        log.log(report.level, "%s", Line(report.phrase, {"party": party, **report.fields()}))


def line_of(record: logging.LogRecord) -> Line:
    """Return the phrase and fields of a record; a format such as `store failed party=%s` names its own fields."""
    if isinstance(record.args, tuple) and len(record.args) == 1 and isinstance(record.args[0], Line):
        return record.args[0]
    form, args = str(record.msg), record.args
    keys = _KEYED.findall(form)
    if isinstance(args, tuple) and keys and len(keys) == len(args) == len(_CONVERSION.findall(form)):
        phrase = form[: _KEYED.search(form).start()]  # type: ignore[union-attr]
        conversions = _CONVERSION.findall(form)
        values = [
            arg if each in ("%s", "%r", "%d") else each % arg for each, arg in zip(conversions, args, strict=True)
        ]
        return Line(phrase, dict(zip(keys, values, strict=True)))
    return Line(record.getMessage(), {})


class SenderLimit(logging.Filter):
    """Lets a peer cause so many warnings of one kind: a burst, then one every ten seconds; the others are counted.

    The next line that passes says how many were left out.
    """

    BURST, EVERY_S, MAX_KEPT = 20, 10.0, 1024

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[str, str], tuple[Allowance, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log it; adds `left_out` to the first line after others were left out."""
        if record.levelno < logging.WARNING:
            return True
        line = line_of(record)
        cause = next((line.fields[name] for name in _CAUSES if name in line.fields), None)
        if cause is None:
            return True
        # Ports are chosen by the peer: only its address counts.
        key = (str(cause[0] if isinstance(cause, tuple) and cause else cause)[:MAX_TEXT], line.phrase)
        allowance, left_out = self._kept.pop(key, (Allowance(self.BURST, 1.0 / self.EVERY_S), 0))
        passes = allowance.spend(1.0, record.created)
        self._kept[key] = (
            allowance,
            0 if passes else left_out + 1,
        )  # the last one heard of is the last to be forgotten
        if len(self._kept) > self.MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        if passes and left_out:
            record.msg, record.args = "%s", (Line(line.phrase, {**line.fields, "left_out": left_out}),)
        return passes


class TextFormatter(logging.Formatter):
    """Time, level, logger, phrase, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, a traceback below it."""
        head = f"{self.formatTime(record)} {record.levelname} {record.name}: {line_of(record)}"
        return f"{head}\n{self.formatException(record.exc_info)}" if record.exc_info else head


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, RFC 3339), level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON; a traceback is its field `traceback`."""
        line = line_of(record)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escape(line.phrase),
        }
        entry.update((key, plain(value)) for key, value in line.fields.items() if key not in entry)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, allow_nan=False)


def formatter(name: LogFormat) -> logging.Formatter:
    """Return the formatter that `log.format` names."""
    return JsonFormatter() if name == "json" else TextFormatter()


def set_format(name: LogFormat) -> None:
    """Let the process's log handlers write in this format."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, TextFormatter | JsonFormatter):
            handler.setFormatter(formatter(name))


def start_logging(level: str) -> None:
    """Log to stderr as text until the settings are read."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter())
    handler.addFilter(SenderLimit())
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler])
