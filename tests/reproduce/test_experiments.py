"""Experiments as declarations: what they ask for, and what they make of results, whole or in part."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from ofl_iot.errors import ConfigError
from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell, Finished
from ofl_research.reproduction.document import Table, Text, plain_text
from ofl_research.reproduction.experiments import accuracy, attacks, bytes_sent, costs, crypto, privacy, scale
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.experiments.registry import EXPERIMENTS
from ofl_research.reproduction.plan import Operations, Point, Result
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.verdicts import Spread
from ofl_research.reproduction.work.federation import Trial
from ofl_research.reproduction.work.learning import bench_corpus

ACCURACIES = {"ofl": 0.97, "fedavg": 0.98, "cfl": 0.90, "rfl-ha": 0.91}
OPTIONS = [Options(), Options(quick=True, seeds=(7,)), Options(only=("digits",), seeds=(1, 2))]
NAMES = (
    "table1",
    "table3",
    "fig-scale",
    "fig-gamma",
    "fig-leaders",
    "fig-resources",
    "fig-dp",
    "fig-crypto",
    "attacks",
)


def federation(cell: Cell) -> dict[str, object]:
    """What a federation could have come to; bytes grow with the model, OFL's are a twelfth."""
    trial = msgspec.convert(cell.settings, Trial)
    final, devices, parameters = (
        ACCURACIES.get(cell.system, 0.5),
        trial.dealing.devices,
        64 * (trial.dealing.hidden or 9),
    )
    share = 1 / 12 if cell.system == "ofl" else 1.0
    curve = tuple(Point(float(t), share * t * 4.0 * parameters, final * t / 10) for t in range(1, 11))
    sent = curve[-1].bytes_up_per_device
    result = Result(
        system=cell.system,
        task=cell.dataset,
        seed=cell.seed,
        judge="test",
        accuracy=final,
        best_accuracy=final,
        curve=curve,
        bytes_up_per_device=sent,
        bytes_up_device_role=0.75 * sent,
        bytes_up_leader_role=0.25 * sent,
        bytes_down_per_device=2 * sent,
        device_accuracies={f"device-{n}": final - n / 1000 for n in range(devices)} if trial.plan.judge_devices else {},
        leader_terms_by_type={"A": 1, "B": 2, "C": 2, "D": 4},
        operations=Operations(
            trained_steps=10 * devices, merged_parameters=devices * parameters, server_multiply_adds=9
        ),
        parameters=parameters,
        devices=devices,
        rounds=10,
        failures=0,
        virtual_s=10.0,
        wall_s=1.0,
        server_bytes_up=4 * parameters * devices,
    )
    return msgspec.to_builtins(result)


def finished(cell: Cell) -> Finished | None:
    """Results for all cells of federations, none for the others."""
    if cell.work != "agents.reproduce.work.federation":
        return None
    return Finished(cell=cell, result=federation(cell), wall_s=1.0, commit="abc")


def texts(experiment: Experiment, options: Options, found: Found) -> str:
    section = experiment.section(options, found)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return "\n".join(" | ".join(plain_text(cell) for cell in row) for shown in tables for row in shown.rows)


def test_the_experiments_are_those_of_the_command_line() -> None:
    assert sorted(EXPERIMENTS) == sorted(NAMES)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_cells_are_plain_json_and_of_modules_that_exist(name: str, options: Options) -> None:
    cells = EXPERIMENTS[name].cells(options)
    assert cells
    for cell in cells:
        assert json.loads(json.dumps(cell.settings)) == cell.settings
        assert cell.seed in options.seeds
        assert re.fullmatch(r"agents\.reproduce\.work\.\w+", cell.work)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("get", [lambda _: None, finished], ids=["nothing", "federations"])
def test_a_section_can_be_made_of_whatever_is_finished(name: str, options: Options, get) -> None:  # type: ignore[no-untyped-def]
    experiment = EXPERIMENTS[name]
    section = experiment.section(options, Found(get))
    assert section.name == name
    assert name in section.sheets
    for target in experiment.targets(options, Found(get)):
        assert target.text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("only", ["crypto", "cora", "svhn/ofl"])
def test_a_choice_that_is_of_another_experiment_leaves_nothing_and_breaks_nothing(only: str, quick: bool) -> None:
    options = Options(only=(only,), quick=quick)
    assert attacks.EXPERIMENT.cells(options) == []
    assert {cell.system for cell in options.chosen(privacy.EXPERIMENT.cells(options))} <= {"dp-time"}
    for experiment in EXPERIMENTS.values():
        assert experiment.section(options, Found(finished)).name == experiment.name
        assert all(target.text for target in experiment.targets(options, Found(finished)))


def test_attacks_and_budgets_are_run_on_mnist_or_the_digits_alone() -> None:
    for only, dataset in (("mnist", "mnist"), ("digits", "digits"), ("*mnist", "mnist"), ("*", "mnist")):
        cells = EXPERIMENTS["attacks"].cells(Options(only=(only,)))
        assert {cell.dataset for cell in cells} == {dataset}
    with pytest.raises(ConfigError, match="mnist or digits, not cora"):
        bench_corpus("cora", None, 10)


def test_table_3_has_a_row_for_each_cell_of_the_papers_table_and_a_verdict() -> None:
    section = accuracy.EXPERIMENT.section(Options(), Found(finished))
    sheet = section.sheets["table3"]
    assert sheet.columns == ("dataset", "system", "accuracy_mean", "accuracy_std", "bytes_up_per_device", "paper")
    assert {(row[0], row[1]) for row in sheet.rows} == set(paper.ACCURACY)
    assert all(row[5] == paper.ACCURACY[str(row[0]), str(row[1])].mean for row in sheet.rows)
    shown = texts(accuracy.EXPERIMENT, Options(), Found(finished))
    assert "MNIST | OFL | 97.00 ± 0.00 | 94.17 ± 0.19 | +2.83 | better" in shown
    assert "MNIST | FedAvg | 98.00 ± 0.00 | 97.70 ± 0.00 | +0.30 | reproduced" in shown
    assert section.files["table3.md"].startswith("| accuracy %")
    assert section.files["table3.svg"].startswith("<svg")


def test_what_the_comparison_cannot_bear_stands_beside_it() -> None:
    blocks = accuracy.EXPERIMENT.section(Options(), Found(finished)).blocks
    told = " ".join(block.text for block in blocks if isinstance(block, Text))
    for admission in ("not with the same number of tries", "had been seen", "three clusters", "one byte", "no rate"):
        assert admission in told
    (shown,) = [block for block in blocks if isinstance(block, Table) and "steps" in block.columns]
    place = shown.columns.index("steps")
    assert {plain_text(row[place]) for row in shown.rows} == {"10"}


def test_targets_say_what_is_met_and_what_is_missed() -> None:
    targets = {target.what: target for target in accuracy.EXPERIMENT.targets(Options(), Found(finished))}
    assert targets["MNIST: OFL's accuracy against the paper's OFL"].met
    assert not targets["MNIST: OFL's accuracy against the paper's FedAvg"].met
    rival = targets["Cora: OFL's accuracy minus CFL's, mean of the differences seed by seed"]
    assert rival.met
    assert rival.value == pytest.approx(7)
    bytes_ = targets["MNIST: OFL's bytes up per device as a share of FedAvg's, to the same accuracy"]
    assert bytes_.met
    assert bytes_.value == pytest.approx(1 / 12)


def test_table_1_finds_the_exponents_of_what_was_counted() -> None:
    rows = {(row.system, row.count.role, row.count.kind): row for row in costs.growths(Options(), Found(finished))}
    sent = rows["cfl", "worker", "communication"]
    assert sent.exponents == (pytest.approx(0, abs=1e-9), pytest.approx(1))
    assert sent.claimed == (pytest.approx(0, abs=1e-9), pytest.approx(1))
    merged = rows["ofl", "leader", "computation"]
    assert merged.exponents == (pytest.approx(1), pytest.approx(1))
    assert merged.claimed == (pytest.approx(1), pytest.approx(1))


def test_counts_of_what_is_simplified_here_get_no_verdict() -> None:
    shown = texts(costs.EXPERIMENT, Options(), Found(finished)).splitlines()
    verdicts = {tuple(line.split(" | ")[:2]): line.split(" | ")[-1] for line in shown}
    assert verdicts["CFL", "multiply-adds of the server"] == "simplified here"
    assert verdicts["FLDP", "bytes a device sends"] == "simplified here"
    assert verdicts["FedPHE", "multiply-adds of the server"] == "simplified here"
    assert verdicts["CFL", "bytes a device sends"] == "reproduced"
    blocks = costs.EXPERIMENT.section(Options(), Found(finished)).blocks
    (why,) = [block.text for block in blocks if isinstance(block, Text) and block.text.startswith("Simplified here")]
    assert "CFL: no cluster is split" in why


def test_what_devices_send_is_split_by_role_in_a_file_of_its_own() -> None:
    sheet = accuracy.EXPERIMENT.section(Options(), Found(finished)).sheets["table3-bytes"]
    assert sheet.columns == bytes_sent.BYTES_COLUMNS
    assert ("mnist", "ofl") in {row[:2] for row in sheet.rows}
    for _, _, total, as_device, as_leader, _, share, seeds in sheet.rows:
        assert as_device == pytest.approx(0.75 * float(str(total)), abs=1)
        assert as_leader == pytest.approx(0.25 * float(str(total)), abs=1)
        assert (share, seeds) == (0.25, 3)


def test_attacks_are_shown_with_the_deviation_of_the_seeds() -> None:
    def get(cell: Cell) -> Finished:
        result = {"accuracy": 0.9 + 0.01 * cell.seed, "true_positive_rate": None, "false_positive_rate": 0.1}
        return Finished(cell=cell, result=result, wall_s=1.0, commit="abc")

    assert "none | 0 of 10 | 0.920 ± 0.010 (–, 0.10)" in texts(attacks.EXPERIMENT, Options(), Found(get))
    assert "label flip | 0.920 ± 0.010 | 0.920 ± 0.010" in texts(attacks.EXPERIMENT, Options(), Found(get))
    sheet = attacks.EXPERIMENT.section(Options(), Found(get)).sheets["attacks"]
    row = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert (row["accuracy_std"], row["seeds"]) == (pytest.approx(0.01), 3)


def test_fleets_are_shown_with_the_mean_of_all_seeds() -> None:
    def get(cell: Cell) -> Finished | None:
        done = finished(cell)
        changes = {"bytes_up_per_device": 1000.0 * cell.seed, "virtual_s": 10.0 * cell.seed, "wall_s": float(cell.seed)}
        return msgspec.structs.replace(done, result=done.result | changes) if done else None

    rows = scale.SCALE.section(Options(), Found(get)).sheets["fig-scale"].rows
    assert {row[-2:] for row in rows if row[1] == 12} == {(2000, 20.0)}
    assert "MNIST | 12 | 576 | 97.00 ± 0.00 | 2.0 KiB | 20 s | 2 s | 3" in texts(scale.SCALE, Options(), Found(get))


@pytest.mark.parametrize(
    ("points", "verdict"),
    [(0.5, "better"), (1.0, "reproduced"), (11.0, "reproduced"), (11.1, "not reproduced"), (None, "–")],
)
def test_the_spread_of_the_devices_is_judged_by_the_papers_range(points: float | None, verdict: str) -> None:
    assert scale.spread_verdict(None if points is None else Spread.of([points])).text == verdict


def test_cells_are_shared_between_experiments() -> None:
    options = Options()
    of_table = {cell.digest for cell in EXPERIMENTS["table3"].cells(options)}
    of_scale = {cell.digest for cell in EXPERIMENTS["fig-scale"].cells(options)}
    of_leaders = {cell.digest for cell in EXPERIMENTS["fig-leaders"].cells(options)}
    assert len(of_table & of_scale) == len(options.seeds) * len(paper.DATASETS)
    assert of_leaders <= of_scale


def test_growth_with_leaders_is_judged_by_the_papers_words() -> None:
    def get(cell: Cell) -> Finished:
        leaders = cell.settings["leaders"]
        figures = dict.fromkeys(
            ("serverdec_s", "findec_s", "enc_s", "partdec_s", "weighted_sum_s_per_leader", "tenseal_enc_s",
             "enc_speedup_vs_tenseal", "bytes_per_param", "tenseal_bytes_per_param", "bytes_ratio_vs_tenseal",
             "seeded_bytes_per_param", "partdec_bytes_per_param", f"max_error_{leaders}_leaders"), 0.5
        )  # fmt: skip
        result = {**figures, "keygen_s": leaders**2.0, "leaders": leaders, "params": 1000}
        return Finished(cell=cell, result=result, wall_s=1.0, commit="abc")

    shown = texts(crypto.EXPERIMENT, Options(), Found(get)).splitlines()
    verdicts = {line.split(" | ")[0]: line.split(" | ")[-1] for line in shown}
    assert verdicts["KeyGen, all leaders"] == "not reproduced"
    assert verdicts["Add"] == verdicts["Enc"] == verdicts["ServerDec"] == "reproduced"
    assert verdicts["FinDec"] == "better"
