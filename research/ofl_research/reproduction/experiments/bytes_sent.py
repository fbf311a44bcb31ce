"""Table 3's bytes: until the same accuracy is reached, and in which role a device sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ofl_agents.sim.display import size_text
from ofl_research.reproduction import paper
from ofl_research.reproduction.document import (
    Sheet,
    Table,
    Toned,
    sheet,
    table,
)
from ofl_research.reproduction.experiments.board import Board, Rows
from ofl_research.reproduction.trials import over_bytes, spread
from ofl_research.reproduction.verdicts import (
    Spread,
    common_level,
    cost_to_reach,
    smoothed,
)

BYTES_COLUMNS = (
    "dataset",
    "system",
    "bytes_up_per_device",
    "as_device",
    "as_leader",
    "in_rounds",
    "leader_share",
    "seeds",
)
EIGHTH = 1 / 8
LEVELS = (0.9, 0.95, 0.99, 1.0)


def byte_ratio(board: Board, dataset: str, share: float) -> tuple[Spread, Spread] | None:
    """OFL's bytes over FedAvg's to a share of the common level, and that level in percent; seed by seed."""
    ours = {each.seed: smoothed(over_bytes(each)) for each in board.results(dataset, "ofl") if each.curve}
    theirs = {each.seed: smoothed(over_bytes(each)) for each in board.results(dataset, "fedavg") if each.curve}
    ratios, levels = [], []
    for seed in sorted(ours.keys() & theirs.keys()):
        level = share * common_level(ours[seed], theirs[seed])
        mine, rivals = cost_to_reach(ours[seed], level), cost_to_reach(theirs[seed], level)
        if mine is not None and rivals:
            ratios.append(mine / rivals)
            levels.append(level)
    ratio, level_spread = spread(ratios), spread(levels)
    return (ratio, level_spread) if ratio and level_spread else None


def bytes_table(board: Board) -> Table:
    rows: list[list[str | Toned]] = []
    for dataset in board.datasets:
        found = [(share, byte_ratio(board, dataset, share)) for share in LEVELS]
        if all(known is None for _, known in found):
            continue
        row: list[str | Toned] = [paper.title(dataset), f"{found[-1][1][1].mean:.1f} %" if found[-1][1] else "–"]
        row += [
            Toned(f"{known[0].mean:.3f}", "good" if known[0].mean <= EIGHTH else "bad") if known else "–"
            for _, known in found
        ]
        rows.append(row)
    heads = tuple(f"to {share:.0%} of it" for share in LEVELS)
    caption = "Bytes up per device, OFL's as a share of FedAvg's, until the same accuracy is reached (target: 0.125)."
    return table(("data", "common level", *heads), rows, caption)


@dataclass(frozen=True)
class _Sent:
    """What a device sends in each of its roles, mean over devices and seeds."""

    dataset: str
    system: str
    as_device: float
    as_leader: float
    in_rounds: float
    seeds: int

    @property
    def total(self) -> float:
        """Both."""
        return self.as_device + self.as_leader


def _sent(rows: Rows) -> list[_Sent]:
    """Of the systems whose devices also lead: OFL's leaders, RFL-HA's heads."""
    sent = [
        _Sent(
            dataset,
            system,
            mean(each.bytes_up_device_role for each in found),
            mean(each.bytes_up_leader_role for each in found),
            mean(each.bytes_up_in_rounds for each in found),
            len(found),
        )
        for dataset, system, _, found in rows
    ]
    return [each for each in sent if each.as_leader > 0]


def roles_table(rows: Rows) -> Table:
    shown = [
        (
            paper.title(each.dataset),
            paper.title(each.system),
            size_text(each.total),
            size_text(each.as_device),
            size_text(each.as_leader),
            size_text(each.in_rounds) if each.in_rounds else "",
            f"{each.as_leader / each.total:.0%}",
        )
        for each in _sent(rows)
    ]
    caption = (
        "Where the bytes go: what a device sends for itself, and what it sends while it leads a cluster (OFL's leader, "
        "RFL-HA's head); mean over all devices, whether or not they ever led. FedAvg and CFL have no leaders. In "
        "rounds: of it, OFL's ciphertexts, decryption shares and keys; the rest are blocks of the model for members."
    )
    return table(
        ("data", "system", "up per device", "as device", "as leader", "in rounds", "leader's share"), shown, caption
    )


def roles_sheet(rows: Rows) -> Sheet:
    return sheet(
        BYTES_COLUMNS,
        [
            (
                each.dataset,
                each.system,
                round(each.total),
                round(each.as_device),
                round(each.as_leader),
                round(each.in_rounds),
                round(each.as_leader / each.total, 4),
                each.seeds,
            )
            for each in _sent(rows)
        ],
    )


def mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
