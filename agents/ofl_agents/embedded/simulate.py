"""`ofl_iot.simulate`: a whole federation in one call, for notebooks and tests."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ofl_agents.app import open_app
from ofl_agents.build import card_of
from ofl_agents.commands import sim
from ofl_agents.embedded.model import Model
from ofl_agents.sim.simulation import Simulation
from ofl_agents.sim.summary import Measurement, Progress, Summary
from ofl_iot.apps.app import App
from ofl_iot.apps.served import Computing, ServedApp
from ofl_iot.errors import ConfigError
from ofl_iot.models.named import ModelCopy
from ofl_iot.runtime.settings import Settings


@dataclass(frozen=True)
class Run:
    """What a simulation came to."""

    summary: Summary
    history: Sequence[Measurement]
    """What was measured of each global model: `round_no` and `metrics` by name."""
    model: Model

    @property
    def metrics(self) -> Mapping[str, float]:
        """What was measured of the last model."""
        return self.summary.metrics

    def plot(self, metric: str | None = None) -> Any:
        """Return a matplotlib figure of a metric by round (default: the first one, else the loss)."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ConfigError("plots need matplotlib: run `pip install 'ofl-iot[charts]'`") from error
        names = list(self.history[-1].metrics) if self.history else []
        name = metric or (names[0] if names else "")
        if name not in names:
            raise ConfigError(f"there is no metric {name!r}: {', '.join(names) or 'nothing was measured'}")
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([each.round_no for each in self.history], [each.metrics[name] for each in self.history], marker=".")
        axes.set(xlabel="round", ylabel=name, title=f"{self.summary.app}, {self.summary.devices} devices")
        return figure


def simulate(
    app: App | str,
    devices: int = 16,
    rounds: int = 10,
    *,
    data: str = "",
    seed: int = 0,
    runtime: Literal["virtual", "live"] = "virtual",
    churn: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Run:
    """Let devices learn an app together on this machine and return what came of it.

    `app` is a TorchApp or NumpyApp, whose code runs in this process, or a name as `--app` takes it. `data` is dealt to
    the devices. `settings` are those of `ofl config show`, such as {"privacy.mode": "off"}.
    """
    arguments = [f"--devices={devices}", f"--rounds={rounds}", f"--seed={seed}", f"--runtime={runtime}"]
    arguments += [f"--data={data}"] if data else []
    arguments += [f"--app={app}"] if isinstance(app, str) else []
    arguments += ["--churn"] if churn else []
    loaded = sim.settings_for(_options([*arguments, *set_options(settings or {})]), own=not isinstance(app, str))
    here = None if isinstance(app, str) else ServedApp(app, computing=_computing(loaded.settings))
    opened = open_app(loaded.settings, here=here)
    try:
        fleet = opened.fleet(devices, repeats=runtime == "virtual")
        effective = sim.paced(loaded, sim.mean_records(fleet), churn=churn)
        progress = Progress(rounds)
        simulation = Simulation(effective, progress, runtime, fleet, churn=churn)
        with tempfile.TemporaryDirectory(prefix="ofl-sim-") as folder:
            summary = simulation.run(Path(folder))
    finally:
        opened.close()
    assert simulation.model is not None  # noqa: S101  # the run is over
    copy = ModelCopy(
        party="coordinator",
        role="coordinator",
        which="federation",
        round_no=summary.metrics_by_round[-1].round_no if summary.metrics_by_round else rounds,
        model=fleet.judge.digest,
        values=simulation.model,
        card=card_of(fleet.judge),
        final=True,
    )
    return Run(summary, summary.metrics_by_round, Model(copy, None if isinstance(app, str) else app))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `ofl sim`."""
    parser = argparse.ArgumentParser()
    sim.add_options(parser)
    return parser.parse_args(arguments)


def set_options(settings: Mapping[str, object]) -> list[str]:
    """Return settings as the command line takes them."""
    return [
        f"--set={key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]


def _computing(settings: Settings) -> Computing:
    return Computing(settings.training.engine, settings.training.device)
