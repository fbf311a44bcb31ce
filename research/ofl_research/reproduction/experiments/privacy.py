"""What privacy costs: accuracy by the budget, in the rigorous and in the paper's mode, and a device's time."""

from __future__ import annotations

from typing import Any

import msgspec

from ofl_research.benches.learning import OPEN, PRIVATE
from ofl_research.benches.learning_data import MNIST
from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.charts import Bar, Series, bar_chart, line_chart
from ofl_research.reproduction.document import Block, Figure, Section, Text, Value, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.selection import DIGITS, Options
from ofl_research.reproduction.trials import spread
from ofl_research.reproduction.verdicts import Spread, Target
from ofl_research.reproduction.work.learning import BENCH_DATA, LearningTrial

LEARNING, TIME = "agents.reproduce.work.learning", "agents.reproduce.work.privacy_time"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
PAPER_EPSILONS = (0.1, 1.0, 10.0, 100.0)
LOSS_BOUND_POINTS = 1.5
_FEW = {"download": {"gamma": 1.0}, "simulation": {"step_s": 0.05}}
FEW_OPEN: dict[str, dict[str, Any]] = {
    **_FEW,
    "training": {"steps": 5, "batch_size": 128, "learning_rate": 1.0, "momentum": 0.0},
}
FEW_PRIVATE: dict[str, dict[str, Any]] = {
    **_FEW,
    "training": {"steps": 5, "batch_size": 128, "learning_rate": 2.0, "momentum": 0.0},
    "privacy": {"mode": "rigorous", "delta": 1e-5, "planned_steps": 100},
}
"""The digits are few: noise leaves room for a linear model and a hundred steps. Chosen on validation samples."""


def data(options: Options) -> str | None:
    """MNIST, 14 x 14 pixels, the bundled digits in quick runs, or which of them is named; None if others are."""
    return options.one_of(BENCH_DATA, DIGITS if options.quick else MNIST)


def _learning(options: Options, name: str, sections: dict[str, dict[str, Any]], *, private: bool) -> list[Cell]:
    dataset = data(options)
    if dataset is None:
        return []
    size: dict[str, Any] = {"train": 55_000, "rounds": 8} if private else {"train": 12_000, "rounds": 12}
    if dataset == DIGITS:
        size = {"train": 1_200, "rounds": 6 if private else 4, "devices": 4, "linear": private}
    settings = msgspec.to_builtins(LearningTrial(sections=sections, private=private, **size))
    return [Cell(work=LEARNING, dataset=dataset, system=name, seed=seed, settings=settings) for seed in options.seeds]


def rigorous(options: Options, epsilon: float | None) -> list[Cell]:
    """Record-level DP-SGD with this budget; None without any."""
    small = data(options) == DIGITS
    if epsilon is None:
        return _learning(options, "eps-inf", FEW_OPEN if small else OPEN.sections, private=True)
    sections = FEW_PRIVATE if small else PRIVATE.sections
    budget = {"privacy": {**sections["privacy"], "epsilon": epsilon}}
    return _learning(options, f"eps-{epsilon:g}", {**sections, **budget}, private=True)


def as_written(options: Options, epsilon: float | None) -> list[Cell]:
    """The paper's mechanisms with eps1 = eps2 = epsilon for each pick and value; None without any."""
    mode = {"mode": "off"} if epsilon is None else {"mode": "paper", "eps1": epsilon, "eps2": epsilon}
    name = "paper-off" if epsilon is None else f"paper-{epsilon:g}"
    return _learning(options, name, {"privacy": mode}, private=False)


def timing(options: Options, dataset: str) -> Cell:
    """A device's time on one data set."""
    return Cell(work=TIME, dataset=dataset, system="dp-time", seed=options.seeds[0], settings={})


def cells(options: Options) -> list[Cell]:
    """Both sweeps and the times."""
    swept = [cell for epsilon in (None, *EPSILONS) for cell in rigorous(options, epsilon)]
    swept += [cell for epsilon in (None, *PAPER_EPSILONS) for cell in as_written(options, epsilon)]
    return [*swept, *(timing(options, dataset) for dataset in _timed(options))]


def section(options: Options, found: Found) -> Section:
    """Accuracy over the budget, what the paper's mode composes to, a device's extra time."""
    rows = [
        *(("rigorous", epsilon, _of(found, rigorous(options, epsilon))) for epsilon in (None, *EPSILONS)),
        *(("paper", epsilon, _of(found, as_written(options, epsilon))) for epsilon in (None, *PAPER_EPSILONS)),
    ]
    known = [(mode, epsilon, *figures) for mode, epsilon, figures in rows if figures]
    blocks: list[Block] = [
        *_figure(known),
        table(
            ("mode", "epsilon", "accuracy %", "spent by the device that spent most"),
            [
                (mode, "no privacy" if epsilon is None else f"{epsilon:g}", mean.text(), _budget(mode, epsilon, spent))
                for mode, epsilon, mean, spent in known
            ],
            "rigorous: (epsilon, 1e-5) for each record over the whole run, by DP-SGD. paper: eps1 = eps2 of a single "
            "pick and value; the last column is what all of a device's releases compose to.",
        ),
        *_times(options, found),
    ]
    columns = ("mode", "epsilon", "accuracy_mean", "accuracy_std", "epsilon_spent")
    content: list[tuple[Value, ...]] = [
        (mode, epsilon, mean.mean, mean.deviation, spent) for mode, epsilon, mean, spent in known
    ]
    return Section("fig-dp", EXPERIMENT.title, EXPERIMENT.paper, tuple(blocks), {"fig-dp": sheet(columns, content)})


def targets(options: Options, found: Found) -> list[Target]:
    """Epsilon 8 is to cost little."""
    free, private = (_of(found, rigorous(options, epsilon)) for epsilon in (None, 8.0))
    loss = free[0].mean - private[0].mean if free and private else None
    return [Target("Points of accuracy lost at epsilon 8", loss, LOSS_BOUND_POINTS, at_most=True)]


def _of(found: Found, wanted: list[Cell]) -> tuple[Spread, float] | None:
    """Accuracy in percent and the largest epsilon spent."""
    results = found.results(wanted)
    mean = spread([100 * float(each["accuracy"]) for each in results])
    return (mean, max(float(each["epsilon"]) for each in results)) if mean else None


def _budget(mode: str, epsilon: float | None, spent: float) -> str:
    if epsilon is None:
        return "–"
    return f"epsilon {spent:.3g}" if mode == "rigorous" else f"epsilon {spent:,.0f}"


def _figure(known: list[tuple[str, float | None, Spread, float]]) -> list[Figure]:
    drawings = []
    for mode, key, title in (("rigorous", "1", "Rigorous: budget of a record"), ("paper", "2", "Paper: of one value")):
        swept = [(epsilon, mean) for name, epsilon, mean, _ in known if name == mode and epsilon is not None]
        free = [mean.mean for name, epsilon, mean, _ in known if name == mode and epsilon is None]
        if swept:
            line = Series(
                key, mode, [(e, mean.mean) for e, mean in swept], [mean.deviation for _, mean in swept], dots=True
            )
            levels = [("no privacy", value) for value in free]
            drawings.append(line_chart(title, [line], x="epsilon", y="accuracy %", x_log=True, levels=levels))
    caption = "The two scales do not compare: left a device's whole life, right a single value of a single upload."
    return [Figure(tuple(drawings), caption)] if drawings else []


def _times(options: Options, found: Found) -> list[Block]:
    rows = [(data_, result) for data_ in _timed(options) if (result := found.result(timing(options, data_)))]
    if not rows:
        return []
    groups = [
        (
            paper.title(name),
            [
                Bar("1", 1e3 * max(0.0, row["private_training_s"] - row["training_s"])),
                Bar("2", 1e3 * max(0.0, row["paper_release_s"] - row["release_s"])),
            ],
        )
        for name, row in rows
    ]
    legend = (("1", "DP-SGD, ten steps"), ("2", "the paper's mechanisms, one release"))
    shown = [
        (
            paper.title(name),
            f"{row['parameters']:,}",
            *(f"{1e3 * row[key]:.1f}" for key in ("training_s", "private_training_s", "release_s", "paper_release_s")),
        )
        for name, row in rows
    ]
    heads = ("data", "parameters", "training", "with DP-SGD", "release", "in paper mode")
    return [
        Text("A device's extra time on one core of this machine (the paper: “Running time of each client”):"),
        Figure((bar_chart("Extra time of a device", groups, y="ms"),), "", legend),
        table(heads, shown, "Milliseconds: ten local steps of 32 samples, one release of a tenth of the model."),
    ]  # fmt: skip


def _timed(options: Options) -> list[str]:
    return options.datasets((DIGITS,) if options.quick else paper.DATASETS)


EXPERIMENT = Experiment(
    name="fig-dp",
    title="What privacy costs",
    paper="The paper: figure “Running time of each client” shows the extra time of its DP mechanisms by data set (no "
    "numbers printed). It does not sweep the budget; the sweeps here do.",
    cells=cells,
    section=section,
    targets=targets,
)
