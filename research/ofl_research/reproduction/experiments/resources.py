"""What devices of each type spend, and what the resource plan (Eq. 4) gives them."""

from __future__ import annotations

import msgspec

from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.charts import Bar, bar_chart
from ofl_research.reproduction.document import Block, Figure, Section, Text, Toned, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.trials import trial

WORK = "agents.reproduce.work.resources"
DATA = ("mnist", "cora")
FIGURES = (
    ("busy", "share of time computing", 100.0, "%"),
    ("power_w", "mean power", 1.0, "W"),
    ("bytes_up", "sent", 1e-6, "MB"),
    ("bytes_down", "received", 1e-6, "MB"),
)


def cell(options: Options, dataset: str) -> Cell:
    """One run of OFL whose devices' work and traffic is counted."""
    plain = trial(options, dataset, "ofl", options.seeds[0], judge_devices=False)
    return msgspec.structs.replace(plain, work=WORK)


def cells(options: Options) -> list[Cell]:
    """One for each data set."""
    return [cell(options, dataset) for dataset in _data(options)]


def section(options: Options, found: Found) -> Section:
    """Consumption by type, and the plans."""
    known = {dataset: result for dataset in _data(options) if (result := found.result(cell(options, dataset)))}
    drawings = [
        bar_chart(
            title,
            [
                (
                    kind,
                    [
                        Bar(str(place), scale * result["types"][kind][figure])
                        for place, result in enumerate(known.values(), 1)
                        if kind in result["types"]
                    ],
                )
                for kind in "ABCD"
            ],
            y=unit,
        )
        for figure, title, scale, unit in FIGURES
    ]
    legend = tuple((str(place), paper.title(dataset)) for place, dataset in enumerate(known, 1))
    blocks: list[Block] = []
    if known:
        caption = (
            "Means of a device of each type over a run. Boards are simulated: time and power follow from the type's "
            "clock rates and the work counted; memory and GPU usage are not simulated and not shown."
        )
        blocks = [Figure(tuple(drawings), caption, legend), *_plans(next(iter(known.values()))["plans"])]
    columns = ("dataset", "device_type", *(figure for figure, *_ in FIGURES), "steps")
    content = [
        (dataset, kind, *(spent[figure] for figure in columns[2:]))
        for dataset, result in known.items()
        for kind, spent in result["types"].items()
    ]
    return Section(
        "fig-resources", EXPERIMENT.title, EXPERIMENT.paper, tuple(blocks), {"fig-resources": sheet(columns, content)}
    )


def _plans(rows: list[dict[str, object]]) -> list[Block]:
    """Both objectives side by side."""
    by_case: dict[tuple[object, object], dict[object, dict[str, object]]] = {}
    for row in rows:
        by_case.setdefault((row["scarcity"], row["type"]), {})[row["objective"]] = row
    shown = []
    for (scarcity, kind), both in by_case.items():
        fair, linear = both["fair"], both["linear"]
        starved = float(str(linear["gamma_up"])) < 0.005
        shown.append(
            (
                str(scarcity),
                str(kind),
                _gammas(fair),
                Toned(_gammas(linear), "bad" if starved else "plain"),
                str(fair["binding"]),
            )
        )
    caption = "γ_up, γ_down of the next contact for each type; red: a device that may never upload."
    text = (
        "Eq. 4 as a linear program has its optimum in a corner: a scarce resource goes to one direction alone. The "
        "proportional-fair objective over the same constraints, this project's default, leaves both a share."
    )
    return [Text(text), table(("scarce", "type", "fair", "linear (the paper's)", "what binds"), shown, caption)]


def _gammas(row: dict[str, object]) -> str:
    return f"{float(str(row['gamma_up'])):.3f}, {float(str(row['gamma_down'])):.3f}"


def _data(options: Options) -> list[str]:
    return options.datasets(DATA[:1] if options.quick else DATA)


EXPERIMENT = Experiment(
    name="fig-resources",
    title="What devices spend",
    paper="The paper: figure “Resource consumption of heterogeneous devices in different FL tasks”, measured on Jetson "
    "boards: weaker types compute for longer, power follows the load, images weigh more than graphs. Eq. 4 plans what "
    "a device sends and fetches.",
    cells=cells,
    section=section,
)
