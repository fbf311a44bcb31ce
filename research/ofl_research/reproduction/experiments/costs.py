"""Table 1 measured: what each role of each system computes and sends, how that grows, and OFL's features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.charts import Series, line_chart
from ofl_research.reproduction.document import Block, Figure, Section, Text, Toned, Value, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.plan import Result
from ofl_research.reproduction.selection import DIGITS, Options
from ofl_research.reproduction.settings import Dealing
from ofl_research.reproduction.trials import results, trial
from ofl_research.reproduction.verdicts import fitted_exponent

FEATURES = "agents.reproduce.work.features"
SYSTEMS = ("fedavg", "cfl", "ifca", "fldp", "fedphe", "rfl-ha", "ahfl", "ofl")
FLEETS, QUICK_FLEETS = (8, 16, 32, 64), (8, 16)
WIDTHS, QUICK_WIDTHS = (256, 1024, 4096), (256, 1024)
FLEET, WIDTH = 16, 256
"""Held while the other varies."""
PLAN = {"rounds": 3, "steps": 5, "round_s": 5.0, "learning_rate": 0.05, "judge_devices": False, "gamma_down": 0.1}
TOLERANCE = 0.25
"""Of an exponent."""

KINDS = ("communication", "computation")
NOT_COUNTED = {(system, "worker", "computation") for system in ("fldp", "fedphe")}
"""Claims that are of encrypting on the device, while training alone is counted there."""

_NO_SPLIT = "no cluster is split in so few rounds, so comparing its devices pair by pair is not counted"
_UNPACKED = "a share of every coefficient goes to every device, where packed sharing would put many into one"
_RING = "Ring-LWE stands for LWE with a random matrix"
_CLEAR = "packs travel in the clear, filled up to the size of ciphertexts, and the model comes back as it is"
_STAND_IN = "asynchronous heads with noise stand for its adaptive aggregation under budgets"
SIMPLIFIED: Mapping[tuple[str, str, str], str] = {
    ("cfl", "server", "computation"): _NO_SPLIT,
    ("fldp", "worker", "communication"): _UNPACKED,
    ("fldp", "server", "communication"): _UNPACKED,
    ("fldp", "server", "computation"): _RING,
    ("fedphe", "server", "communication"): _CLEAR,
    ("fedphe", "server", "computation"): _CLEAR,
    **{("ahfl", role, kind): _STAND_IN for role in ("worker", "leader", "server") for kind in KINDS},
}
"""Counts that tell of this project's simplification rather than of the system, and which: they get no verdict."""


@dataclass(frozen=True)
class Count:
    """One role's cost of one kind, for each round."""

    role: str
    kind: str
    what: str
    of: Callable[[Result], float]

    def claim(self, system: str) -> paper.Claim | None:
        """The paper's, of one worker, one leader, or the server; None where it is of something else than is counted."""
        if (system, self.role, self.kind) in NOT_COUNTED:
            return None
        known = paper.COMMUNICATION if self.kind == "communication" else paper.COMPUTATION
        return known.get((system, self.role))

    def claimed(self, system: str, sizes: paper.Sizes) -> float | None:
        """The paper's formula; of leaders all together."""
        claim = self.claim(system)
        if claim is None:
            return None
        return claim.formula(sizes) * (sizes.clusters if self.role == "leader" else 1.0)


COUNTS = (
    Count("worker", "communication", "bytes a device sends", lambda r: r.bytes_up_device_role),
    Count("leader", "communication", "bytes all leaders send", lambda r: r.bytes_up_leader_role * r.devices),
    Count("server", "communication", "bytes the server sends and receives",
          lambda r: float(r.server_bytes_up + r.server_bytes_down)),
    Count("worker", "computation", "parameters a device trains",
          lambda r: r.operations.trained_steps * r.parameters / r.devices),
    Count("leader", "computation", "parameters all leaders merge", lambda r: float(r.operations.merged_parameters)),
    Count("server", "computation", "multiply-adds of the server", lambda r: float(r.operations.server_multiply_adds)),
)  # fmt: skip


def sized(options: Options, system: str, devices: int, width: int) -> Cell:
    """One system at one size, on the bundled digits."""
    return trial(options, DIGITS, system, options.seeds[0], dealing=Dealing(devices=devices, hidden=width), **PLAN)


def fleets(options: Options) -> tuple[int, ...]:
    """Numbers of devices."""
    return QUICK_FLEETS if options.quick else FLEETS


def widths(options: Options) -> tuple[int, ...]:
    """Units of the hidden layer."""
    return QUICK_WIDTHS if options.quick else WIDTHS


def by_fleet(options: Options, system: str) -> list[Cell]:
    """The model stays, the fleet grows."""
    return [sized(options, system, devices, WIDTH) for devices in fleets(options)]


def by_width(options: Options, system: str) -> list[Cell]:
    """The fleet stays, the model grows."""
    return [sized(options, system, FLEET, width) for width in widths(options)]


def probes(options: Options) -> Cell:
    """OFL's features."""
    return Cell(work=FEATURES, dataset=DIGITS, system="ofl-features", seed=options.seeds[0], settings={})


def cells(options: Options) -> list[Cell]:
    """Both sweeps of all systems, and the probes."""
    return [
        probes(options),
        *(cell for system in SYSTEMS for cell in by_fleet(options, system)),
        *(cell for system in SYSTEMS for cell in by_width(options, system)),
    ]


@dataclass(frozen=True)
class Growth:
    """One count of one system: values, and exponents measured and claimed."""

    system: str
    count: Count
    value: float
    """At the held sizes, for each round."""
    exponents: tuple[float | None, float | None]
    """Against N and |θ|."""
    claimed: tuple[float | None, float | None]

    @property
    def simplification(self) -> str:
        """Why the count says nothing of the claim; empty if it does."""
        return SIMPLIFIED.get((self.system, self.count.role, self.count.kind), "")


def growths(options: Options, found: Found) -> list[Growth]:
    """All that was counted, where there is something to count."""
    rows = []
    for system in SYSTEMS:
        more_devices = results(found, by_fleet(options, system))
        larger_models = results(found, by_width(options, system))
        held = [each for each in more_devices if each.devices == FLEET]
        for count in COUNTS:
            value = count.of(held[0]) / held[0].rounds if held and held[0].rounds else 0.0
            if value > 0:
                rows.append(
                    Growth(
                        system,
                        count,
                        value,
                        (
                            _exponent(more_devices, count, _devices),
                            _exponent(larger_models, count, _parameters),
                        ),
                        (
                            _claimed(more_devices, count, _devices),
                            _claimed(larger_models, count, _parameters),
                        ),
                    )
                )
    return rows


def section(options: Options, found: Found) -> Section:
    """Features, costs beside claims, and how OFL's grow."""
    rows = growths(options, found)
    blocks: list[Block] = [*_features(options, found)]
    blocks.append(
        Text(
            "Counted on the bundled digits with networks of one hidden layer, per round, all overheads and keys "
            f"included: N from {fleets(options)[0]} to {fleets(options)[-1]} at {WIDTH} units, |θ| by "
            f"{', '.join(map(str, widths(options)))} units at N = {FLEET}. Exponents are slopes of least-squares fits "
            "on logarithms; the paper's are of its own formula, fitted over the same sizes with K = log2 N. "
            f"Reproduced: both within {TOLERANCE} of the paper's; better: grows more slowly. Where a formula's |θ|² "
            "outweighs its other terms, as in FLDP's and FedPHE's, it hardly grows with N at these sizes."
        )
    )
    blocks.append(_table(rows))
    blocks += _simplifications(rows)
    figure = _figure(options, found)
    if figure:
        blocks.append(figure)
    columns = ("system", "role", "kind", "per_round", "exponent_n", "exponent_theta", "paper_exponent_n",
               "paper_exponent_theta", "paper")  # fmt: skip
    content: list[tuple[Value, ...]] = [
        (
            row.system,
            row.count.role,
            row.count.kind,
            row.value,
            *row.exponents,
            *row.claimed,
            claim.text if (claim := row.count.claim(row.system)) else None,
        )
        for row in rows
    ]
    return Section("table1", EXPERIMENT.title, EXPERIMENT.paper, tuple(blocks), {"table1": sheet(columns, content)})


def _exponent(known: Sequence[Result], count: Count, size: Callable[[Result], int]) -> float | None:
    usable = [each for each in known if each.rounds]
    return fitted_exponent([float(size(each)) for each in usable], [count.of(each) / each.rounds for each in usable])


def _claimed(known: Sequence[Result], count: Count, size: Callable[[Result], int]) -> float | None:
    sizes = [paper.Sizes(float(each.devices), float(each.parameters)) for each in known]
    values = [count.claimed(each.system, at) for each, at in zip(known, sizes, strict=True)]
    if not values or any(value is None for value in values):
        return None
    return fitted_exponent([float(size(each)) for each in known], [value for value in values if value is not None])


def _devices(result: Result) -> int:
    return result.devices


def _parameters(result: Result) -> int:
    return result.parameters


def _table(rows: Sequence[Growth]) -> Block:
    shown: list[tuple[str | Toned, ...]] = []
    for row in rows:
        claim = row.count.claim(row.system)
        shown.append(
            (
                paper.title(row.system),
                row.count.what,
                f"{row.value:,.0f}",
                f"{_slope(row.exponents[0])}, {_slope(row.exponents[1])}",
                f"{_slope(row.claimed[0])}, {_slope(row.claimed[1])}" if claim else "–",
                claim.text if claim else "–",
                _verdict(row),
            )
        )
    heads = ("system", "counted", "per round", "grows by N, |θ|", "paper's by N, |θ|", "paper", "verdict")
    return table(heads, shown)


def _verdict(row: Growth) -> Toned:
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(row.exponents, row.claimed, strict=True)
        if ours is not None and theirs is not None
    ]
    if not pairs:
        return Toned("no claim", "quiet")
    if row.simplification:
        return Toned("simplified here", "open")
    if all(abs(ours - theirs) <= TOLERANCE for ours, theirs in pairs):
        return Toned("reproduced", "good")
    if all(ours <= theirs + TOLERANCE for ours, theirs in pairs):
        return Toned("better", "good")
    faster = [
        name
        for name, ours, theirs in zip(("N", "|θ|"), row.exponents, row.claimed, strict=True)
        if ours is not None and theirs is not None and ours > theirs + TOLERANCE
    ]
    return Toned(f"not reproduced: faster in {' and '.join(faster)}", "bad")


def _simplifications(rows: Sequence[Growth]) -> list[Block]:
    """Each reason once, with the systems it is of."""
    systems: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.simplification:
            systems.setdefault(row.simplification, {})[paper.title(row.system)] = None
    reasons = "; ".join(f"{' and '.join(names)}: {reason}" for reason, names in systems.items())
    return [Text(f"Simplified here, so without a verdict. {reasons}.")] if reasons else []


def _slope(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"


def _features(options: Options, found: Found) -> list[Block]:
    result = found.result(probes(options))
    if result is None:
        return []
    seen = result["features"]
    rows = [
        (
            paper.FEATURE_TITLES[name],
            "yes",
            Toned("yes", "good") if seen[name]["there"] else Toned("no", "bad"),
            str(seen[name]["seen"]),
            ", ".join(paper.title(system) for system, has in paper.FEATURES.items() if name in has and system != "ofl")
            or "–",
        )
        for name in paper.FEATURES_ORDER
    ]
    columns = ("feature of OFL", "paper", "here", "how that was seen", "others that have it, by the paper")
    return [
        table(columns, rows, "OFL's features were probed on the production code; the others' are the paper's word.")
    ]


def _figure(options: Options, found: Found) -> Figure | None:
    drawings = []
    for count in COUNTS:
        for axis, wanted, size in (("N", by_fleet, _devices), ("|θ|", by_width, _parameters)):
            series = []
            for system in SYSTEMS:
                known = [each for each in results(found, wanted(options, system)) if each.rounds]
                points = [(float(size(each)), count.of(each) / each.rounds) for each in known]
                points = [point for point in points if point[1] > 0]
                if len(points) > 1:
                    series.append(Series(system, paper.title(system), points, dots=True))
            if series:
                drawings.append(line_chart(count.what, series, x=axis, y="", x_log=True, y_log=True))
    legend = tuple((system, paper.title(system)) for system in SYSTEMS)
    return Figure(tuple(drawings), "Each count for each round against N and |θ|.", legend) if drawings else None


EXPERIMENT = Experiment(
    name="table1",
    title="Features and costs (Table 1)",
    paper=f"The paper: {paper.COMPLEXITY_PLACE}. It states features and O(…) of computation and communication for "
    "worker (w), cluster leader (l) and server (s); none of them is measured there.",
    cells=cells,
    section=section,
)
