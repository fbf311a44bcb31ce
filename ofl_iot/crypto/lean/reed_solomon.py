"""Reed-Solomon decoding of one word over a prime field (Berlekamp and Welch): which of the values are wrong."""

from __future__ import annotations

from collections.abc import Sequence


def interpolate(points: Sequence[int], at: int, p: int) -> list[int]:
    """Lagrange coefficients: the value at `at` is their sum with the values at `points`, modulo p."""
    factors = []
    for own in points:
        top = bottom = 1
        for other in points:
            if other != own:
                top = top * (at - other) % p
                bottom = bottom * (own - other) % p
        factors.append(top * pow(bottom, -1, p) % p)
    return factors


def error_places(points: Sequence[int], word: Sequence[int], dimension: int, p: int) -> list[int] | None:
    """Where the word is not on a polynomial of degree below `dimension`.

    Up to (len - dimension)/2 errors are found; None if there are more, or one with no room to find it.
    """
    if not any(_off_curve(points, word, dimension, p)):
        return []
    for errors in range(1, (len(points) - dimension) // 2 + 1):
        found = _decode(points, word, dimension, errors, p)
        if found is not None:
            return found
    return None


def _off_curve(points: Sequence[int], word: Sequence[int], dimension: int, p: int) -> list[bool]:
    """Which values differ from the polynomial through the first `dimension` ones."""
    base = points[:dimension]
    out = []
    for point, value in zip(points, word, strict=True):
        factors = interpolate(base, point, p)
        expected = sum(f * v for f, v in zip(factors, word, strict=False)) % p
        out.append(expected != value % p)
    return out


def _decode(points: Sequence[int], word: Sequence[int], dimension: int, errors: int, p: int) -> list[int] | None:
    """Solve Q(x) = y·E(x) with E monic of degree `errors` and Q of degree below dimension + errors."""
    rows = []
    for x, y in zip(points, word, strict=True):
        row = [pow(x, power, p) for power in range(dimension + errors)]
        row += [-y * pow(x, power, p) % p for power in range(errors)]
        rows.append([*row, y * pow(x, errors, p) % p])
    solution = _solve(rows, p)
    if solution is None:
        return None
    locator = [*solution[dimension + errors :], 1]
    places = [place for place, x in enumerate(points) if sum(c * pow(x, k, p) for k, c in enumerate(locator)) % p == 0]
    kept = [place for place in range(len(points)) if place not in places]
    if len(kept) < dimension + len(places):
        return None
    rest = [points[place] for place in kept], [word[place] for place in kept]
    return None if any(_off_curve(*rest, dimension, p)) else places


def _solve(rows: list[list[int]], p: int) -> list[int] | None:
    """A solution of a linear system modulo p (rows end with the right-hand side), free unknowns zero."""
    unknowns = len(rows[0]) - 1
    pivots: list[int] = []
    at = 0
    for column in range(unknowns):
        found = next((r for r in range(at, len(rows)) if rows[r][column] % p), None)
        if found is None:
            continue
        rows[at], rows[found] = rows[found], rows[at]
        inverse = pow(rows[at][column], -1, p)
        rows[at] = [value * inverse % p for value in rows[at]]
        for other in range(len(rows)):
            if other != at and rows[other][column] % p:
                factor = rows[other][column]
                rows[other] = [(a - factor * b) % p for a, b in zip(rows[other], rows[at], strict=True)]
        pivots.append(column)
        at += 1
    if any(row[-1] % p for row in rows[at:]):
        return None
    solution = [0] * unknowns
    for row, column in zip(rows, pivots, strict=False):
        solution[column] = row[-1] % p
    return solution
