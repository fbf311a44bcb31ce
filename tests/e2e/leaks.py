"""Looks for secrets in text: any eight bytes of them in hex, base64, a bytes literal or numbers; arrays as well."""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np

WINDOW = 8
TELLING_DIGITS = 5
"""A number with fewer digits may be an accuracy or a share of something."""
_HEX = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{16,}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}")
_LITERAL = re.compile(r"""b['"]((?:\\x[0-9a-f]{2}|\\[nrt\\'"]|[^\\\n])+)""")
_ESCAPE = re.compile(r"""\\x[0-9a-f]{2}|\\[nrt\\'"]""")
_NUMBERS = re.compile(r"\d{1,3}(?:, ?\d{1,3}){7,}")
_FLOATS = re.compile(r"[-+]?\d+\.\d*(?:e[-+]?\d+)?(?:[\s,]+[-+]?\d+\.\d*(?:e[-+]?\d+)?)+", re.IGNORECASE)


class Secrets:
    """Bytes and vectors that must not be readable anywhere."""

    def __init__(self, blobs: Iterable[bytes], vectors: Iterable[np.ndarray]) -> None:
        self._blob = b"\0\0\0\0\0\0\0\0".join({blob for blob in blobs if len(blob) >= WINDOW})
        values = [np.asarray(vector, np.float64).ravel() for vector in vectors]
        self._values = np.unique(np.concatenate([np.zeros(0), *values]))

    def __len__(self) -> int:
        return len(self._blob) + len(self._values)

    def found_in(self, text: str) -> list[str]:
        """What of the text gives secrets away."""
        found = [token for token, data in sorted(set(_candidates(text))) if self._holds(data)]
        return found + [run for run in _FLOATS.findall(text) if self._holds_values(run)]

    def _holds(self, data: bytes) -> bool:
        windows = (data[start : start + WINDOW] for start in range(len(data) - WINDOW + 1))
        return any(len(set(window)) > 2 and window in self._blob for window in windows)

    def _holds_values(self, run: str) -> bool:
        """Two neighbours that are parameters are no accident; one may be, and 0.5 beside 0.25 too."""
        known = [self._is_value(number) for number in re.split(r"[\s,]+", run) if number]
        return any(one and other for one, other in itertools.pairwise(known))

    def _is_value(self, number: str) -> bool:
        """Whether it is a parameter, as numpy prints one: to eight decimals."""
        value, mantissa = float(number), number.lower().split("e")[0]
        if len(mantissa.lstrip("+-").replace(".", "").strip("0")) < TELLING_DIGITS or not len(self._values):
            return False
        near = np.clip(np.searchsorted(self._values, value) + np.array([-1, 0]), 0, len(self._values) - 1)
        return bool(np.any(np.abs(self._values[near] - value) <= 1e-8 + 1e-7 * abs(value)))


def _candidates(text: str) -> Iterator[tuple[str, bytes]]:
    for token in _HEX.findall(text):
        for cut in (token, token[1:]):
            yield token, bytes.fromhex(cut[: len(cut) // 2 * 2])
    for token in _BASE64.findall(text):
        if not any(char.isupper() for char in token):
            continue  # a word; so many encoded bytes without a capital are no accident
        plain = token.rstrip("=").replace("-", "+").replace("_", "/")
        for cut in (plain[start:] for start in range(4)):
            with contextlib.suppress(binascii.Error):
                yield token, base64.b64decode(cut[: len(cut) // 4 * 4])
    for token in _LITERAL.findall(text):
        yield token, _ESCAPE.sub(_unescaped, token).encode("latin-1", "replace")
    for token in _NUMBERS.findall(text):
        numbers = [int(number) for number in re.split(r", ?", token)]
        yield token, bytes(number for number in numbers if number < 256)


def _unescaped(escape: re.Match[str]) -> str:
    """One escape of a bytes literal, which may have been cut off somewhere behind."""
    return str(ast.literal_eval(f'"{escape[0]}"'))
