"""How OFL does with few and with many devices (two figures of the paper), and what each device gets and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ofl_agents.sim.display import size_text
from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.charts import Bar, bar_chart
from ofl_research.reproduction.document import Block, Figure, Section, Sheet, Table, Text, Toned, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.plan import Result
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.settings import dealing_for
from ofl_research.reproduction.trials import Variant, accuracy, results, spread, trial, variant_chart
from ofl_research.reproduction.verdicts import Spread

LARGE_DATA = ("mnist", "pubmed")
LARGE_HIDDEN = 32
LARGE_PLAN = {
    "rounds": 30,
    "steps": 10,
    "step_s": 0.3,
    "round_s": 8.0,
    "judge_devices": False,
    "options": {"leader": {"block_size": 1024}, "merge": {"gate": False}},
}
"""Many devices: small models, about two trainings of ten steps in each round, log2 N clusters."""
QUICK_LARGE = {**LARGE_PLAN, "rounds": 6}


def small(options: Options, dataset: str, devices: int) -> list[Cell]:
    """The testbed's sizes; 16 devices are the cells of Table 3."""
    dealing = msgspec.structs.replace(dealing_for(dataset, quick=options.quick), devices=devices)
    return [trial(options, dataset, "ofl", seed, dealing=dealing) for seed in options.seeds]


def large(options: Options, dataset: str, devices: int) -> list[Cell]:
    """The simulation's sizes, one seed."""
    dealing = msgspec.structs.replace(
        dealing_for(dataset, quick=False), devices=devices, hidden=LARGE_HIDDEN, samples=None
    )
    changes = QUICK_LARGE if options.quick else LARGE_PLAN
    return [trial(options, dataset, "ofl", options.seeds[0], dealing=dealing, **changes)]


def large_sizes(options: Options) -> tuple[int, ...]:
    """A quick run has the smallest alone."""
    return paper.LARGE_SCALES[:1] if options.quick else paper.LARGE_SCALES


def large_data(options: Options) -> list[str]:
    """The data sets that can be dealt to a thousand devices."""
    return options.datasets(LARGE_DATA[:1] if options.quick else LARGE_DATA)


def small_cells(options: Options) -> list[Cell]:
    """All of the testbed's sizes."""
    return [cell for data in options.datasets() for size in paper.SMALL_SCALES for cell in small(options, data, size)]


def cells(options: Options) -> list[Cell]:
    """Small fleets, then large ones."""
    many = [
        cell for data in large_data(options) for size in large_sizes(options) for cell in large(options, data, size)
    ]
    return small_cells(options) + many


def section(options: Options, found: Found) -> Section:
    """Curves by the number of devices, and what they come to."""
    few = {
        (data, size): results(found, small(options, data, size))
        for data in options.datasets()
        for size in paper.SMALL_SCALES
    }
    many = {
        (data, size): results(found, large(options, data, size))
        for data in large_data(options)
        for size in large_sizes(options)
    }
    blocks: list[Block] = [
        *_figures(few, "N = 8, 12, 16: a quarter of the devices of each type."),
        *_figures(many, f"Large fleets, a dense layer of {LARGE_HIDDEN} units, one seed."),
    ]
    rows = [_Row.of(data, size, known) for (data, size), known in {**few, **many}.items() if known]
    blocks.append(_table(rows))
    return Section("fig-scale", SCALE.title, SCALE.paper, tuple(blocks), {"fig-scale": _sheet(rows)})


@dataclass(frozen=True)
class _Row:
    """A fleet on a data set, each figure over the seeds."""

    data: str
    devices: int
    parameters: int
    accuracy: Spread
    bytes_up: Spread
    virtual_s: Spread
    wall_s: Spread

    @staticmethod
    def of(data: str, devices: int, known: Sequence[Result]) -> _Row:
        """Of at least one result."""
        return _Row(
            data,
            devices,
            known[0].parameters,
            Spread.of([100 * each.accuracy for each in known]),
            Spread.of([each.bytes_up_per_device for each in known]),
            Spread.of([each.virtual_s for each in known]),
            Spread.of([each.wall_s for each in known]),
        )


def _table(rows: Sequence[_Row]) -> Table:
    return table(
        ("data", "devices", "parameters", "accuracy %", "up per device", "virtual time", "computing", "seeds"),
        [
            (
                paper.title(row.data),
                str(row.devices),
                f"{row.parameters:,}",
                row.accuracy.text(),
                size_text(row.bytes_up.mean),
                f"{row.virtual_s.mean:.0f} s",
                f"{row.wall_s.mean:.0f} s",
                str(row.accuracy.count),
            )
            for row in rows
        ],
        "Means over the seeds; computing: a run's time on one core of this machine.",
    )


def _sheet(rows: Sequence[_Row]) -> Sheet:
    return sheet(
        ("dataset", "devices", "accuracy_mean", "accuracy_std", "bytes_up_per_device", "virtual_s"),
        [
            (
                row.data,
                row.devices,
                row.accuracy.mean,
                row.accuracy.deviation,
                round(row.bytes_up.mean),
                row.virtual_s.mean,
            )
            for row in rows
        ],
    )


def _figures(found: dict[tuple[str, int], list[Result]], caption: str) -> list[Figure]:
    sizes = sorted({size for (_, size), known in found.items() if known})
    drawings = [
        variant_chart(
            paper.title(data),
            [Variant(str(place), f"N = {size}", found[data, size]) for place, size in enumerate(sizes, 1)],
        )
        for data in dict.fromkeys(data for data, _ in found)
    ]
    shown = tuple(filter(None, drawings))
    legend = tuple((str(place), f"N = {size}") for place, size in enumerate(sizes, 1))
    return [Figure(shown, caption, legend)] if shown else []


# --- leaders


def leaders_section(options: Options, found: Found) -> Section:
    """Accuracy of each device's own model, and who served as a leader."""
    known = {
        (data, size): results(found, small(options, data, size))
        for data in options.datasets()
        for size in paper.SMALL_SCALES
    }
    rows = [(data, size, each) for (data, size), each in known.items() if each]
    low, high = paper.CLIENT_VARIANCE_POINTS
    blocks: list[Block] = [
        table(
            (
                "data",
                "devices",
                "mean of devices %",
                "worst %",
                "best %",
                "spread, points",
                "global model %",
                "verdict",
            ),
            [_client_row(data, size, each) for data, size, each in rows],
            "Accuracy of the devices' own models at the end, on the common test samples, mean ± deviation of the "
            f"seeds. Spread: best minus worst; the paper's is {low:.0f} to {high:.0f} points by the size of the fleet, "
            "without saying how it is measured. Reproduced: the mean is in that range; better: devices are more alike.",
        ),
        *_service_figure(rows),
        Text(
            "Terms in office: a leader is elected by its resources minus what it has served already, so that the "
            "stronger types serve more and the weaker ones still serve."
        ),
    ]
    columns = ("dataset", "devices", "device_type", "terms_per_device")
    served = [
        (data, size, kind, value) for data, size, each in rows for kind, value in _terms_per_device(each, size).items()
    ]
    return Section("fig-leaders", LEADERS.title, LEADERS.paper, tuple(blocks), {"fig-leaders": sheet(columns, served)})


def _client_row(data: str, size: int, found: list[Result]) -> tuple[str | Toned, ...]:
    figures = _clients(found)
    return (
        paper.title(data),
        str(size),
        *(_text(value) for value in figures),
        _text(accuracy(found)),
        spread_verdict(figures[-1]),
    )


def spread_verdict(points: Spread | None) -> Toned:
    """On the spread of the devices' accuracies: the paper states a range, so no tolerance is added."""
    low, high = paper.CLIENT_VARIANCE_POINTS
    if points is None:
        return Toned("–", "quiet")
    if points.mean > high:
        return Toned("not reproduced", "bad")
    return Toned("reproduced" if points.mean >= low else "better", "good")


def _clients(found: list[Result]) -> list[Spread | None]:
    """Mean, worst, best and spread over the devices, in percent, each over the seeds."""
    fleets = [[100 * value for value in each.device_accuracies.values()] for each in found if each.device_accuracies]
    return [
        spread([sum(fleet) / len(fleet) for fleet in fleets]),
        spread([min(fleet) for fleet in fleets]),
        spread([max(fleet) for fleet in fleets]),
        spread([max(fleet) - min(fleet) for fleet in fleets]),
    ]


def _terms_per_device(found: list[Result], size: int) -> dict[str, float]:
    """Mean terms in office of a device of each type; the types are dealt evenly."""
    kinds = sorted({kind for each in found for kind in each.leader_terms_by_type})
    each_type = size / max(1, len(kinds))
    return {
        kind: sum(each.leader_terms_by_type.get(kind, 0) for each in found) / len(found) / each_type for kind in kinds
    }


def _service_figure(rows: list[tuple[str, int, list[Result]]]) -> list[Figure]:
    drawings = []
    for data in dict.fromkeys(data for data, _, _ in rows):
        sizes = [(size, _terms_per_device(each, size)) for name, size, each in rows if name == data]
        kinds = sorted({kind for _, terms in sizes for kind in terms})
        groups = [
            (kind, [Bar(str(place), terms.get(kind, 0.0)) for place, (_, terms) in enumerate(sizes, 1)])
            for kind in kinds
        ]
        if groups:
            drawings.append(bar_chart(paper.title(data), groups, y="terms as leader per device"))
    legend = tuple((str(place), f"N = {size}") for place, size in enumerate(paper.SMALL_SCALES, 1))
    return [Figure(tuple(drawings), "Leader service by device type.", legend)] if drawings else []


def _text(value: Spread | None) -> str:
    return value.text(1) if value else "–"


SCALE = Experiment(
    name="fig-scale",
    title="Few and many devices",
    paper="The paper: figures “Real-world results of different client scales” (N = 8, 12, 16) and “Simulation results "
    "of large-scale tasks” (N = 100 to 1000). Small fleets converge alike; large ones more slowly on graphs and to a "
    "slightly lower accuracy on images. The figures' numbers are not printed in the paper.",
    cells=cells,
    section=section,
)
LEADERS = Experiment(
    name="fig-leaders",
    title="Each device's accuracy, and who leads",
    paper="The paper: figure “Model accuracy and leader serving time of each client”. Accuracies of the devices vary "
    "by 1 to 11 points; devices with more resources lead more often, weaker ones still get their turn.",
    cells=small_cells,
    section=leaders_section,
)
