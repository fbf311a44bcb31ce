"""What the threshold encryption costs leaders and coordinator, by the number of leaders, and beside TenSEAL."""

from __future__ import annotations

import math
from typing import Any

from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.charts import Series, line_chart
from ofl_research.reproduction.document import Block, Figure, Section, Text, Toned, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.verdicts import fitted_exponent

WORK = "agents.reproduce.work.crypto"
PARAMS, QUICK_PARAMS = 815_810, 50_000
"""Of the paper's network for MNIST; of a quick run."""
FLEETS = (8, 16, 100, 500, 1000)
SERVER = (("keygen_s", "KeyGen, all leaders"), ("sum_s", "Add"), ("serverdec_s", "ServerDec"), ("findec_s", "FinDec"))
LEADER = (("enc_s", "Enc"), ("partdec_s", "PartDec"))
CONSTANT, LINEAR = 0.25, 1.0


def leaders_of(devices: int) -> int:
    """k = log2 N."""
    return round(math.log2(devices))


def cell(options: Options, devices: int) -> Cell:
    """One number of leaders; the literal FHE-DFT beside the fleet of 16, in full runs."""
    settings = {
        "params": QUICK_PARAMS if options.quick else PARAMS,
        "leaders": leaders_of(devices),
        "repeats": 2 if options.quick else 3,
        "literal": devices == 16 and not options.quick,
    }
    return Cell(
        work=WORK, dataset="crypto", system=f"leaders-{leaders_of(devices)}", seed=options.seeds[0], settings=settings
    )


def cells(options: Options) -> list[Cell]:
    """One for each size of the fleet."""
    return [cell(options, devices) for devices in FLEETS]


def section(options: Options, found: Found) -> Section:
    """Times against the number of leaders, exponents beside the paper's words, sizes beside TenSEAL's."""
    rows: list[dict[str, Any]] = []
    for devices in FLEETS:
        result = found.result(cell(options, devices))
        if result:
            whole = result["weighted_sum_s_per_leader"] * result["leaders"]
            rows.append({**result, "devices": devices, "sum_s": whole})
    blocks: list[Block] = []
    if rows:
        blocks = [_figure(rows), _growth(rows), _beside(rows), *_literal(rows)]
    columns = ("devices", "leaders", "params", *(name for name, _ in (*SERVER, *LEADER)), "bytes_per_param",
               "partdec_bytes_per_param", "tenseal_enc_s", "tenseal_bytes_per_param")  # fmt: skip
    content = [[row.get(name) for name in columns] for row in rows]
    return Section(
        "fig-crypto", EXPERIMENT.title, EXPERIMENT.paper, tuple(blocks), {"fig-crypto": sheet(columns, content)}
    )


def _figure(rows: list[dict[str, Any]]) -> Figure:
    drawings = [
        line_chart(
            name,
            [
                Series(str(place), label, [(row["leaders"], row[key]) for row in rows], dots=True)
                for place, (key, label) in enumerate(shown, start)
            ],
            x="leaders",
            y="seconds",
            y_log=True,
        )
        for name, shown, start in (("Coordinator", SERVER, 1), ("A leader", LEADER, 5))
    ]
    legend = tuple((str(place), label) for place, (_, label) in enumerate((*SERVER, *LEADER), 1))
    caption = f"Processor seconds of one core for a model of {rows[0]['params']:,} parameters. Leaders are log2 N."
    return Figure(tuple(drawings), caption, legend)


def _growth(rows: list[dict[str, Any]]) -> Block:
    """Fitted exponents against the number of leaders."""
    shown: list[tuple[str | Toned, ...]] = []
    counts = [float(row["leaders"]) for row in rows]
    for key, label in (*SERVER, *LEADER):
        exponent = fitted_exponent(counts, [row[key] for row in rows])
        flat = key in {"serverdec_s", "enc_s", "partdec_s"}
        claim = "constant" if flat else "linear"
        expected = 0.0 if flat else LINEAR
        verdict = Toned("–", "quiet")
        if exponent is not None:
            near, less = abs(exponent - expected) <= CONSTANT, exponent < expected
            verdict = Toned(
                "reproduced" if near else "better" if less else "not reproduced", "good" if near or less else "bad"
            )
        measured = "–" if exponent is None else f"{exponent:+.2f}"
        shown.append((label, f"{rows[0][key] * 1e3:.1f} ms", f"{rows[-1][key] * 1e3:.1f} ms", claim, measured, verdict))
    heads = ("operation", f"{rows[0]['leaders']} leaders", f"{rows[-1]['leaders']} leaders", "paper", "exponent")
    caption = (
        "Growth with the number of leaders: exponent b of the fit seconds = a·leaders^b. Reproduced: within 0.25 of "
        "the paper's (0 for constant, 1 for linear); better: below that."
    )
    return table((*heads, "verdict"), shown, caption)


def _beside(rows: list[dict[str, Any]]) -> Block:
    row = rows[min(1, len(rows) - 1)]
    error = row[f"max_error_{row['leaders']}_leaders"]
    return table(
        ("", "OFL-IoT", "TenSEAL (degree 8192, slots)", "ratio"),
        [
            ("encrypt a model", f"{row['enc_s']:.3f} s", f"{row['tenseal_enc_s']:.3f} s",
             f"{row['enc_speedup_vs_tenseal']:.1f} times faster"),
            ("bytes per parameter", f"{row['bytes_per_param']:.2f}", f"{row['tenseal_bytes_per_param']:.2f}",
             f"{row['bytes_ratio_vs_tenseal']:.1f} times smaller"),
            ("a decryption share, bytes per parameter", f"{row['partdec_bytes_per_param']:.2f}", "–", "–"),
            ("largest error of the aggregate", f"{error:.1e}", "–", "–"),
        ],
        "Beside the packing that NVIDIA FLARE uses, by turns on the same core.",
    )  # fmt: skip


def _literal(rows: list[dict[str, Any]]) -> list[Block]:
    row = next((row for row in rows if "literal_dft_s" in row), None)
    if row is None:
        return []
    return [
        Text(
            f"The scores of one leader's model take {row['score_s']:.2f} s; the paper's literal FHE-DFT (Algorithm 3), "
            f"measured on one ciphertext and scaled to the model, would take {row['literal_dft_s']:.0f} s: "
            f"{row['score_speedup_vs_literal_dft']:.0f} times as long."
        )
    ]


EXPERIMENT = Experiment(
    name="fig-crypto",
    title="What encryption costs",
    paper="The paper: figure “Running time of server and each leader”, by the number of clients. KeyGen, Add and "
    "FinDec grow linearly, ServerDec does not; a leader's Enc and PartDec are nearly constant. No numbers are printed.",
    cells=cells,
    section=section,
)
