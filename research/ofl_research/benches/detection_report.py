"""What malicious leaders came to: rows of the detection bench, what the default form promises, the table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ofl_iot.robust.sfactors import DEFAULT_FORM

FLIPS = ("label flip", "sign flip")


@dataclass(frozen=True)
class Outcome:
    """What one federation came to; rates are over leaders and rounds, None where there is nobody to count."""

    accuracy: float
    attack_success: float
    true_positive_rate: float | None
    false_positive_rate: float


def averages(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Figures of a row: means over the seeds."""

    def average(name: str) -> float | None:
        known = [value for value in (getattr(outcome, name) for outcome in outcomes) if value is not None]
        return round(float(np.mean(known)), 4) if known else None

    return {
        "accuracy": average("accuracy"),
        "attack_success": average("attack_success"),
        "tpr": average("true_positive_rate"),
        "fpr": average("false_positive_rate"),
    }


def check_targets(rows: Sequence[Mapping[str, Any]], leaders: int, form: str = DEFAULT_FORM) -> list[dict[str, Any]]:
    """What the default form promises, per data set: the figure, its bound and whether it holds."""
    cell = {(r["data"], r["attack"], r["malicious"], r["form"]): r for r in rows}
    checks: list[dict[str, Any]] = []

    def check(what: str, value: float, bound: float, *, at_most: bool) -> None:
        holds = value <= bound if at_most else value >= bound
        checks.append({"what": what, "value": round(value, 4), "bound": bound, "holds": bool(holds)})

    for (data, attack, malicious, name), row in cell.items():
        if name != form or (data, "none", 0, "mean") not in cell:
            continue
        free = cell[data, "none", 0, "mean"]["accuracy"]
        where = f"{data}, {attack}, {malicious} malicious"
        if attack == "none":
            check(f"{where}: FPR", row["fpr"], 0.03, at_most=True)
            check(f"{where}: accuracy lost against mean", free - row["accuracy"], 0.005, at_most=True)
        elif malicious <= 0.2 * leaders:
            check(f"{where}: accuracy lost against attack-free", free - row["accuracy"], 0.04, at_most=True)
        elif attack in FLIPS and (data, attack, malicious, "mean") in cell:
            gain = row["accuracy"] - cell[data, attack, malicious, "mean"]["accuracy"]
            check(f"{where}: accuracy gained over mean", gain, 0.15, at_most=False)
    return checks


def markdown(result: Mapping[str, Any]) -> str:
    """One row an attack with a column for each form, then the promises, then what encryption changed."""
    head = f"Accuracy (attack success / TPR / FPR), mean of seeds {result['seeds']}."
    targets = [_target_line(check) for check in result["targets"]]
    same = result["encrypted"]
    encrypted = (
        f"Under encryption ({same['attack']}, {same['malicious']} malicious): the verdict of the plain updates in "
        f"{same['same_verdicts']} of {same['rounds']} rounds, the models "
        f"{same['largest_difference_of_a_parameter']} apart at most."
    )
    return "\n".join([head, "", *_table(result["rows"]), "", *targets, "", encrypted])


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    forms = list(dict.fromkeys(row["form"] for row in rows))
    cells: dict[tuple[str, str, int], list[str]] = {}
    for row in rows:
        tpr = "-" if row["tpr"] is None else f"{row['tpr']:.2f}"
        text = f"{row['accuracy']:.3f} ({row['attack_success']:.2f} / {tpr} / {row['fpr']:.2f})"
        cells.setdefault((row["data"], row["attack"], row["malicious"]), []).append(text)
    return [
        "| data | attack | malicious | " + " | ".join(forms) + " |",
        "| --- | --- | --- |" + " --- |" * len(forms),
        *(f"| {data} | {attack} | {bad} | " + " | ".join(row) + " |" for (data, attack, bad), row in cells.items()),
    ]


def _target_line(check: Mapping[str, Any]) -> str:
    return f"- {'holds' if check['holds'] else 'MISSED'}: {check['what']} {check['value']:.4f} (bound {check['bound']})"
