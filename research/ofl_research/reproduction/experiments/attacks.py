"""Poisoned leaders and poisoned devices, and what keeps them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from ofl_iot.robust.sfactors import DEFAULT_FORM, FORMS
from ofl_research.benches.attack_cases import BY_DEVICES, BY_LEADERS
from ofl_research.benches.learning import guarded
from ofl_research.benches.learning_data import MNIST
from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.document import Block, Section, Sheet, Text, Toned, Value, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.selection import DIGITS, Options
from ofl_research.reproduction.verdicts import Spread, Target
from ofl_research.reproduction.work.detection import DetectionTrial
from ofl_research.reproduction.work.learning import BENCH_DATA, LearningTrial

DETECTION, LEARNING = "agents.reproduce.work.detection", "agents.reproduce.work.learning"
LEADERS = 10
MALICIOUS, QUICK_MALICIOUS = (2, 4), (4,)
QUICK_FORMS, QUICK_ATTACKS = ("mean", "literal", DEFAULT_FORM), ("label flip", "sign flip", "backdoor x5")
LOSS_BOUND = 0.04
"""With a fifth of the leaders malicious, against no attack."""

Spreads: TypeAlias = dict[str, Spread]
"""Figures of some seeds by name."""
Rows: TypeAlias = Sequence[tuple[str, int, str, Spreads]]
"""Attack, number of malicious leaders, form."""


def forms(options: Options) -> tuple[str, ...]:
    """Form of the s-factor."""
    return QUICK_FORMS if options.quick else tuple(FORMS)


def cases(options: Options) -> list[tuple[str, int]]:
    """Attack and number of malicious leaders of ten."""
    attacks = QUICK_ATTACKS if options.quick else BY_LEADERS
    counts = QUICK_MALICIOUS if options.quick else MALICIOUS
    return [("none", 0), *((attack, count) for attack in attacks for count in counts)]


def data(options: Options) -> str | None:
    """MNIST in full runs, the bundled digits in quick ones, or which of them is named; None if others are."""
    return options.one_of(BENCH_DATA, DIGITS if options.quick else MNIST)


def _cells(options: Options, work: str, system: str, settings: dict[str, Any]) -> list[Cell]:
    """One for each seed."""
    dataset = data(options)
    if dataset is None:
        return []
    return [Cell(work=work, dataset=dataset, system=system, seed=seed, settings=settings) for seed in options.seeds]


def leaders(options: Options, attack: str, malicious: int, form: str) -> list[Cell]:
    """One attack by leaders, judged by one form."""
    rounds = 6 if options.quick else 15
    settings = msgspec.to_builtins(DetectionTrial(attack=attack, malicious=malicious, leaders=LEADERS, rounds=rounds))
    return _cells(options, DETECTION, form, settings)


def devices(options: Options, attack: str, *, gate: bool) -> list[Cell]:
    """One attack by devices, the leaders' gate on or off."""
    case = guarded(attack, gate=gate)
    size: dict[str, Any] = {"devices": 8, "train": 1_200, "rounds": 4, "malicious": 2} if options.quick else {}
    settings = msgspec.to_builtins(LearningTrial(sections=case.sections, attack=attack, **size))
    return _cells(options, LEARNING, f"gate-{'on' if gate else 'off'}", settings)


def cells(options: Options) -> list[Cell]:
    """Leaders first, then devices."""
    by_leaders = [
        cell
        for attack, bad in cases(options)
        for form in forms(options)
        for cell in leaders(options, attack, bad, form)
    ]
    by_devices = [
        cell
        for attack in ("none", *BY_DEVICES)
        for gate in (False, True)
        for cell in devices(options, attack, gate=gate)
    ]
    return by_leaders + by_devices


def section(options: Options, found: Found) -> Section:
    """Accuracy and detection for each attack and form; the gate on and off."""
    rows = [
        (attack, bad, form, _spreads(found.results(leaders(options, attack, bad, form))))
        for attack, bad in cases(options)
        for form in forms(options)
    ]
    blocks: list[Block] = [
        Text(
            "A form is how the coordinator turns the encrypted updates' scores into weights: mean trusts everyone, "
            "literal is the paper's Eq. 6 as written, ledger is this project's default. In brackets: share of "
            "malicious leaders excluded, share of honest ones excluded, over all rounds. Figures are means over the "
            f"seeds, after ± their deviation. Data: {paper.title(data(options) or 'none chosen')}."
        ),
        _leaders_table(options, rows),
        _gate_table(options, found),
    ]
    return Section("attacks", EXPERIMENT.title, EXPERIMENT.paper, tuple(blocks), {"attacks": _sheet(rows)})


def targets(options: Options, found: Found) -> list[Target]:
    """What the default form promises."""

    def mean(attack: str, bad: int, form: str) -> float | None:
        known = _spreads(found.results(leaders(options, attack, bad, form)))
        return known["accuracy"].mean if known else None

    free = mean("none", 0, "mean")
    fifth = round(0.2 * LEADERS)
    return [
        Target(
            f"{attack}, {fifth} of {LEADERS} leaders malicious: accuracy lost under {DEFAULT_FORM} against no attack",
            None if free is None or (value := mean(attack, bad, DEFAULT_FORM)) is None else free - value,
            LOSS_BOUND,
            at_most=True,
        )
        for attack, bad in cases(options)
        if bad == fifth
    ]


def _spreads(results: Sequence[dict[str, Any]]) -> Spreads:
    """Over the seeds, of every figure that is one."""
    spreads = {}
    for name in results[0] if results else ():
        values = [float(each[name]) for each in results if isinstance(each[name], int | float)]
        if values:
            spreads[name] = Spread.of(values)
    return spreads


def _sheet(rows: Rows) -> Sheet:
    figures = ("accuracy", "attack_success", "true_positive_rate", "false_positive_rate")
    columns = ("attack", "malicious", "form", *figures, "accuracy_std", "seeds")
    content: list[tuple[Value, ...]] = []
    for attack, bad, form, known in rows:
        accuracy = known.get("accuracy")
        means = (each.mean if (each := known.get(name)) else None for name in figures)
        spread = (accuracy.deviation, accuracy.count) if accuracy else (None, 0)
        content.append((attack, bad, form, *means, *spread))
    return sheet(columns, content)


def _leaders_table(options: Options, rows: Rows) -> Block:
    known = {(attack, bad, form): spreads for attack, bad, form, spreads in rows}
    shown = []
    for attack, bad in cases(options):
        if not any(known[attack, bad, form] for form in forms(options)):
            continue
        reached = (known[attack, bad, form].get("accuracy") for form in forms(options))
        best = max(each.mean for each in reached if each)
        cells_ = [_accuracy(known[attack, bad, form], best) for form in forms(options)]
        shown.append((attack, f"{bad} of {LEADERS}", *cells_))
    caption = "Accuracy of the global model; green: within two points of the best form for this attack."
    return table(("attack", "malicious", *forms(options)), shown, caption)


def _accuracy(known: Spreads, best: float) -> str | Toned:
    accuracy = known.get("accuracy")
    if accuracy is None:
        return "–"
    caught, wronged = (known.get(f"{name}_positive_rate") for name in ("true", "false"))
    excluded = (f"{each.mean:.2f}" if each else "–" for each in (caught, wronged))
    text = f"{accuracy.text(3)} ({', '.join(excluded)})"
    return Toned(text, "good") if accuracy.mean >= best - 0.02 else text


def _gate_table(options: Options, found: Found) -> Block:
    shown = []
    for attack in ("none", *BY_DEVICES):
        off, on = (_spreads(found.results(devices(options, attack, gate=gate))) for gate in (False, True))
        if not off and not on:
            continue
        shown.append(
            (
                attack,
                _figure(off, "accuracy"),
                _figure(on, "accuracy"),
                _figure(off, "trigger_success"),
                _figure(on, "trigger_success"),
                _figure(on, "attackers_refused"),
                _figure(on, "honest_refused"),
            )
        )
    columns = ("attack by devices", "gate off", "gate on", "trigger, off", "trigger, on", "attackers out", "honest out")
    return table(columns, shown, "The leader's gate: accuracy, success of a planted trigger, share of chunks refused.")


def _figure(known: Spreads, name: str) -> str:
    return known[name].text(3) if name in known else "–"


EXPERIMENT = Experiment(
    name="attacks",
    title="Poisoning",
    paper="The paper: Section “Inter-Cluster Aggregation” proposes the s-factor (Eq. 6) and proves nothing about "
    "its detection; its evaluation has no attack. What is here is measured on top.",
    cells=cells,
    section=section,
    targets=targets,
)
