"""`ofl sim`: a whole federation on this machine, with a live display, a summary and a results folder."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import msgspec

from ofl_agents.app import open_app
from ofl_agents.cli import add_app_options, add_settings_options, check_writable, overrides_of
from ofl_agents.program import load_for_app
from ofl_agents.sim.display import Display, print_summary
from ofl_agents.sim.simulation import Beside, Simulation, work_folder
from ofl_agents.sim.summary import Progress, Summary, check, write_results
from ofl_iot.apps.opening import Fleet
from ofl_iot.errors import ConfigError
from ofl_iot.runtime.logs import set_format
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import Loaded

DASHBOARD_PORT = 8420
DEMO = {
    "round.interval_s": "1.5",
    "round.deadline_s": "20",
    "fleet.gather_s": "0.5",
    "fleet.heartbeat_s": "5",
    "download.timeout_s": "2",
}
"""A fleet on one machine need not be as patient as one on the road; --config, --set and OFL_… go before these."""
ROUND_S, CHURN_ROUND_S = 2.5, 3.0
"""What a round of the demo takes, generously, and how much longer under churn."""
STEPS_A_RECORD = 25
"""How many private steps each of a device's records can bear."""
CHURN = {
    "round.deadline_s": "8",
    "round.recluster_every": "5",
    "fleet.leader_grace_s": "3",
    "protection.key_deadline_s": "8",
    "protection.decryption_deadline_s": "5",
}
"""With --churn somebody is always missing: waiting long for it would be most of the run."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """How large, how long, in which runtime."""
    parser.add_argument(
        "--runtime", choices=["live", "virtual"], default="live", help="real broker and clock, or virtual"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="simulated devices (default: 16)")
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds to complete (default: 12)")
    parser.add_argument("--seed", type=int, metavar="S", help="of data, models and devices (default: 0)")
    parser.add_argument(
        "--churn",
        action="store_true",
        help="a tenth of the devices away at any time, leaders killed at random, the coordinator every tenth round; "
        "needs --runtime virtual",
    )
    parser.add_argument(
        "--dashboard",
        type=int,
        nargs="?",
        const=DASHBOARD_PORT,
        metavar="PORT",
        help="show the run in a web page, on this machine alone (default port: %(const)s, 0: any); "
        "on a terminal the page stays until Ctrl-C",
    )
    add_app_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results folder (default: ofl-results/TIME)")
    add_settings_options(parser)


def settings_for(options: argparse.Namespace, *, own: bool = False) -> Loaded[Settings]:
    """The settings of a simulation, before it is known how much data the devices have; `own` if the app is a value."""
    given = overrides_of(options)
    for name in ("devices", "rounds", "seed"):
        if getattr(options, name) is not None:
            given[f"simulation.{name}"] = str(getattr(options, name))
    loaded = load_for_app(options.config, given, own=own)
    if options.churn and options.runtime != "virtual":
        raise ConfigError("--churn kills processes at chosen moments of virtual time: add --runtime virtual")
    if options.dashboard is not None and options.runtime != "live":
        raise ConfigError("--dashboard follows a real broker: leave --runtime virtual out")
    impatient = {**DEMO, **CHURN} if options.churn else DEMO
    demo = {key: value for key, value in impatient.items() if loaded.origin[key] == "default"}
    settings = load_for_app(options.config, {**given, **demo}, own=own).settings
    simulation = settings.simulation
    if simulation.devices < 2:
        raise ConfigError(f"--devices {simulation.devices}: a federation needs at least 2")
    rounds = msgspec.structs.replace(settings.round, count=simulation.rounds)
    # Under churn they are hardly ever all there at once.
    present = max(2, round(0.7 * simulation.devices)) if options.churn else simulation.devices
    fleet = msgspec.structs.replace(settings.fleet, min_devices=present)
    return Loaded(msgspec.structs.replace(settings, round=rounds, fleet=fleet), loaded.origin)


def paced(loaded: Loaded[Settings], records: float, *, churn: bool) -> Settings:
    """The settings with a budget that lasts for the rounds of the run, and steps that suit so many records a device."""
    settings = loaded.settings
    unset = loaded.origin["privacy.planned_steps"] == loaded.origin["privacy.lifetime"] == "default"
    if settings.privacy.auto:
        return _lasting(settings) if loaded.origin["privacy.lifetime"] == "default" else settings
    if unset and settings.privacy.mode == "rigorous":
        settings = _lasting(settings)
        if loaded.origin["training.steps"] == "default":
            training = msgspec.structs.replace(settings.training, steps=steps_for(settings, records))
            settings = msgspec.structs.replace(settings, training=training)
    if loaded.origin["training.pause_s"] == "default":
        training = msgspec.structs.replace(settings.training, pause_s=pause_for(settings, churn=churn))
        settings = msgspec.structs.replace(settings, training=training)
    return settings


def _lasting(settings: Settings) -> Settings:
    """The settings with a planned budget that lasts for the rounds of the run, and no longer."""
    privacy = msgspec.structs.replace(settings.privacy, lifetime=f"{settings.simulation.rounds} rounds")
    return msgspec.structs.replace(settings, privacy=privacy)


MOST_STEPS = 300
"""Private steps of a device in one simulation, whatever its data."""


def steps_for(settings: Settings, records: float) -> int:
    """Steps of a training, one for each round, with all that a device's data can bear: 25 a record, at most 300.

    The noise of one step grows with the square root of the steps planned and with the inverse of the records, so many
    steps on a handful of records drown the model. The budget (epsilon, delta) stays what it is.
    """
    return max(1, round(min(MOST_STEPS, STEPS_A_RECORD * records) / settings.simulation.rounds))


def pause_for(settings: Settings, *, churn: bool) -> float:
    """Rest between trainings with which the privacy budget lasts for the run.

    Devices that train without rest would have spent it after `planned_steps` steps, and the rounds would go on without
    anything new: pause = expected seconds / trainings in the budget - seconds a training takes.
    """
    simulation, training, privacy = settings.simulation, settings.training, settings.privacy
    if privacy.mode != "rigorous" or not privacy.planned_steps:
        return training.pause_s  # `privacy.lifetime` paces, or nothing needs to last
    expected_s = simulation.rounds * (ROUND_S + (CHURN_ROUND_S if churn else 0.0))
    trainings = privacy.planned_steps / training.steps
    return max(training.pause_s, expected_s / trainings - training.steps * simulation.step_s)


def run(options: argparse.Namespace) -> int:
    """Run, show, write, judge."""
    loaded = settings_for(options)
    set_format(loaded.settings.log.format)
    check_writable("--json", options.json)
    folder = _results_folder(options.out or Path("ofl-results") / time.strftime("%Y%m%d-%H%M%S"))
    app = open_app(loaded.settings)
    try:
        fleet = app.fleet(loaded.settings.simulation.devices, repeats=options.runtime == "virtual")
        settings = paced(loaded, mean_records(fleet), churn=options.churn)
        summary, chance = _simulate(options, settings, fleet), _chance(fleet)
    finally:
        app.close()
    print_summary(summary)
    write_results(summary, settings, folder)
    if options.json is not None:
        options.json.write_text(json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    check(summary, settings, chance)
    sys.stdout.write(f"results: {folder}\n")
    return 0


def _simulate(options: argparse.Namespace, settings: Settings, fleet: Fleet) -> Summary:
    progress = Progress(settings.simulation.rounds)
    beside = None if options.dashboard is None else _dashboard(options.dashboard)
    simulation = Simulation(settings, progress, options.runtime, fleet, churn=options.churn, beside=beside)
    with work_folder() as work_dir, Display(progress, settings.simulation.devices, options.runtime):
        return simulation.run(Path(work_dir))


def _dashboard(port: int) -> Beside:
    """Return what shows a live run in a web page."""
    from ofl_agents.dashboard.beside import shown  # needs the extra `dashboard`
    from ofl_agents.dashboard.server import Place

    stay = sys.stdin.isatty() and sys.stdout.isatty()
    return lambda settings: shown(settings, Place(port=port, option="--dashboard"), stay=stay)


def mean_records(fleet: Fleet) -> float:
    """Return how many records a device has on average."""
    return sum(device.sample_count for device in fleet.devices) / len(fleet.devices)


def _chance(fleet: Fleet) -> float:
    """How often the most frequent label is right."""
    counts = fleet.judge.label_histogram()
    return float(counts.max() / max(1, counts.sum())) if len(counts) > 1 else 0.0


def _results_folder(folder: Path) -> Path:
    """Make the folder before the run, whose results must not be lost for want of one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the results folder {folder} ({error.strerror}): choose one with --out"
        ) from error
    check_writable("--out", folder / "summary.json")
    return folder
