"""Turns figures into words: templates with values, times relative to now, sizes, shares."""

from __future__ import annotations

import re

from ofl_iot.fleet_view.view import Value, Values, Why

_SLOT = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def fill(template: str, values: Values, now_s: float) -> str:
    """Return the template with its slots filled.

    A slot is `{name}` or `{name:form}`; forms are `ago` and `since` (Unix time relative to now), `span` (seconds),
    `share`, `size` (bytes), `count`, `epsilon`. A value that is not known reads "unknown". Values are never read as
    templates.
    """
    return _SLOT.sub(lambda slot: _formed(values.get(slot[1]), slot[2] or "", now_s), template)


def sentence(why: Why, now_s: float) -> str:
    """Return a reason as a sentence."""
    return fill(why.text, why.values, now_s)


def size(count: float) -> str:
    """Return bytes as people write them: `5.6 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.0f} GiB" if count >= 99.95 else f"{count:.1f} GiB"


def span(seconds: float) -> str:
    """Return a duration as people write it: `37 s`, `4 h 24 min`, `2 days`."""
    seconds = max(0, round(seconds))
    if seconds < 100:
        return f"{seconds} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 90:
        return f"{minutes} min"
    if seconds >= 36 * _HOUR:
        return f"{round(seconds / _DAY)} days"
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if seconds < 10 * _HOUR else "")


def share(value: float) -> str:
    """Return a share in percent, with a decimal where whole percents would say nothing."""
    if 0 < abs(value) < 0.01:
        return f"{value * 100:.1f} %"
    return f"{value * 100:.0f} %"


def plain(text: str, limit: int) -> str:
    """Return a text that another party wrote on one line, without control characters, cut to `limit`."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _formed(value: Value, form: str, now_s: float) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    if form == "ago":
        return f"{span(now_s - value)} ago"
    forms = {
        "": lambda: f"{value:g}",
        "since": lambda: span(now_s - value),
        "span": lambda: span(value),
        "share": lambda: share(value),
        "size": lambda: size(value),
        "count": lambda: f"{value:,.0f}",
        "epsilon": lambda: f"{value:.2f}",
    }
    return forms.get(form, forms[""])()
