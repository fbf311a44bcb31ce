"""How leadership and clusters moved in a run: tables for machines, one chart for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

_WIDTH, _HEIGHT, _MARGIN = 360, 200, 40
_BLUE, _AMBER = "#3b6ea5", "#c98a2b"


class Reclustering(msgspec.Struct, frozen=True, kw_only=True):
    """One clustering after the first."""

    term: int
    clusters: int
    churn: float
    """Share of the devices that changed their cluster."""
    new_leaders: int


class TypeService(msgspec.Struct, frozen=True, kw_only=True):
    """What the devices of one type served as leaders."""

    device_type: str
    devices: int
    terms: int
    """Terms in office, all devices of the type together."""


def write_fleet(services: Sequence[TypeService], reclusterings: Sequence[Reclustering], folder: Path) -> None:
    """`service.csv`, `reclusterings.csv` and `fleet.svg`."""
    total = max(1, sum(each.terms for each in services))
    lines = ["type,devices,terms,share,terms_per_device"]
    lines += [
        f"{each.device_type},{each.devices},{each.terms},{each.terms / total:.4f},{_mean(each):.4f}"
        for each in services
    ]
    (folder / "service.csv").write_text("\n".join(lines) + "\n")
    lines = ["term,clusters,churn,new_leaders"]
    lines += [f"{each.term},{each.clusters},{each.churn:.4f},{each.new_leaders}" for each in reclusterings]
    (folder / "reclusterings.csv").write_text("\n".join(lines) + "\n")
    (folder / "fleet.svg").write_text(draw_fleet(services, reclusterings))


def service_by_type(services: Sequence[TypeService]) -> dict[str, int]:
    """Terms in office by device type."""
    return {each.device_type: each.terms for each in services}


def count_service(kinds: dict[str, str], terms: dict[str, int]) -> list[TypeService]:
    """Add the devices' terms up by type; `kinds` has every device's type."""
    devices = Counter(kinds.values())
    served: Counter[str] = Counter()
    for device, count in terms.items():
        served[kinds[device]] += count
    return [TypeService(device_type=kind, devices=count, terms=served[kind]) for kind, count in sorted(devices.items())]


def draw_fleet(services: Sequence[TypeService], reclusterings: Sequence[Reclustering]) -> str:
    """Two bar charts side by side, as SVG: terms per device by type, churn by re-clustering."""
    left = _bars("leader terms per device, by type", [(each.device_type, _mean(each)) for each in services], _BLUE)
    right = _bars("share of devices moved, by term", [(str(each.term), each.churn) for each in reclusterings], _AMBER)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n<g>{left}</g>\n'
        f'<g transform="translate({_WIDTH} 0)">{right}</g>\n</svg>\n'
    )


def _bars(title: str, values: Sequence[tuple[str, float]], colour: str) -> str:
    floor, room = _HEIGHT - _MARGIN, _HEIGHT - 2 * _MARGIN
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(values))
    top = max((value for _, value in values), default=0.0) or 1.0
    parts = [f'<text x="{_MARGIN}" y="20">{title}</text>']
    for place, (label, value) in enumerate(values):
        x, height = _MARGIN + place * step, room * value / top
        middle = x + step / 2
        parts.append(
            f'<rect x="{x + step * 0.15:.1f}" y="{floor - height:.1f}" width="{step * 0.7:.1f}" '
            f'height="{height:.1f}" fill="{colour}"/>'
        )
        parts.append(f'<text x="{middle:.1f}" y="{floor + 14}" text-anchor="middle">{label}</text>')
        if len(values) <= 12:
            parts.append(f'<text x="{middle:.1f}" y="{floor - height - 4:.1f}" text-anchor="middle">{value:.2g}</text>')
    if not values:
        parts.append(f'<text x="{_MARGIN}" y="{floor}">none in this run</text>')
    parts.append(f'<line x1="{_MARGIN}" y1="{floor}" x2="{_WIDTH - _MARGIN}" y2="{floor}" stroke="black"/>')
    return "".join(parts)


def _mean(service: TypeService) -> float:
    return service.terms / max(1, service.devices)
