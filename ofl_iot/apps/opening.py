"""`--app` and `--data` become workloads: built-in apps here, a user's app in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ofl_iot.apps.builtin import BUILT_IN, BuiltInApp, Dealing, Part, built_in
from ofl_iot.apps.process import Limits, TrainerProcess
from ofl_iot.apps.runner import Description, Look, Runner
from ofl_iot.apps.workload import AppWorkload
from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import Workload


@dataclass(frozen=True)
class AppChoice:
    """What an operator said about the app."""

    app: str
    data: str = ""
    private: bool = True
    """Whether records are protected while a device trains: then the model is probed for it."""
    dealing: Dealing = field(default_factory=Dealing)
    limits: Limits = field(default_factory=Limits)
    hidden: tuple[Path, ...] = ()
    """Files and folders of the agent that user code must not reach."""


@dataclass(frozen=True)
class Fleet:
    """The workloads of a simulated federation."""

    devices: Sequence[Workload]
    judge: Workload
    dealt: str
    """In words, whose data whose are."""


class OpenedApp:
    """An app that is ready for its parties; close it when they are done."""

    def __init__(self, choice: AppChoice, here: Runner | None = None) -> None:
        """Open the app that was chosen; `here` is one that a program runs in its own process."""
        self._choice = choice
        self._built_in: BuiltInApp | None = None
        self._process: TrainerProcess | None = None
        self._here = here
        if here is not None:
            return
        if choice.app in BUILT_IN:
            self._built_in = built_in(choice.app, choice.data, choice.dealing)
        else:
            keep = (Path(choice.data),) if choice.data else ()
            self._process = TrainerProcess(choice.app, choice.limits, hidden=choice.hidden, keep=keep)

    def device(self, device: str, part: Part | None = None, *, state: Path | None = None) -> Workload:
        """Return what one device trains; `state` is where values that stay on the device are kept."""
        if self._built_in is not None:
            return self._built_in.device(part, device)
        if part is not None:
            raise ConfigError(f"--part deals out a built-in app ({', '.join(BUILT_IN)}); yours reads --data")
        self._runner.open(0, self._choice.data)
        keep_at = state / f"{device}.personal" if state else None
        return AppWorkload(self._runner, private=self._choice.private, live=True, keep_at=keep_at)

    def judge(self) -> Workload:
        """Return what the coordinator judges models with."""
        if self._built_in is not None:
            return self._built_in.judge()
        described = self._runner.describe()
        if described.judged:
            self._runner.open(0, self._choice.data, held_out=True)
        return AppWorkload(self._runner, 0 if described.judged else None, private=False)

    def fleet(self, devices: int, *, repeats: bool) -> Fleet:
        """Return workloads for a simulation; one that `repeats` itself draws its noise from seeds."""
        dealing = self._choice.dealing
        if self._built_in is not None:
            held = f"{self._built_in.name} deals data to {devices} devices"
            return Fleet(self._built_in.fleet(devices), self._built_in.judge(), held)
        dealt = self._runner.deal(self._choice.data, devices, seed=dealing.seed, alpha=dealing.alpha)
        parties = [
            AppWorkload(self._runner, number, private=self._choice.private, repeats=repeats)
            for number in range(devices)
        ]
        return Fleet(parties, AppWorkload(self._runner, devices, private=False), dealt)

    def describe(self) -> Description:
        """Return what the model of a user's app is."""
        return self._runner.describe()

    def look(self, *, held_out: bool) -> Look:
        """Return what data a user's app finds, for a device or for the coordinator."""
        self._runner.open(0, self._choice.data, held_out=held_out)
        return self._runner.look(0, private=self._choice.private and not held_out)

    def close(self) -> None:
        """End the app's process, if it has one."""
        if self._process is not None:
            self._process.close()

    @property
    def _runner(self) -> Runner:
        runner = self._here or self._process
        assert runner is not None  # noqa: S101  # not a built-in app
        return runner
