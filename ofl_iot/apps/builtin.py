"""Built-in apps: the generated machines, which are the default, and the public data sets of the evaluation."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import Workload

DEFAULT = "machines"
DATA_SETS = ("digits", "mnist", "fashion-mnist", "svhn", "cora", "citeseer", "pubmed")
PRIVATE = ("mnist-wavelet", "fashion-mnist-wavelet", "svhn-wavelet", "cora-node", "citeseer-node", "pubmed-node")
"""Models of the public data sets that learn under privacy: heads on fixed features."""
BUILT_IN = (DEFAULT, *DATA_SETS, *PRIVATE)
PLANNED = {"privacy.auto": "true", "training.steps": "1"}
"""Training is planned from the records and the model: one large noisy step for each global model."""
OWN = {**PLANNED, "upload.gamma": "1", "download.gamma": "1"}
"""Settings that go with `privacy.auto` for an app of one's own."""
_HEADS = {**PLANNED, "upload.gamma": "1", "download.gamma": "1"}
_IMAGES = {"training.steps": "20", "training.learning_rate": "0.03", "training.momentum": "0.9"}
_GRAPHS = {"training.learning_rate": "0.05", "training.momentum": "0.9"}
_MACHINES = {"training.batch_size": "64", "training.learning_rate": "0.5", "upload.gamma": "0.3"}
SUGGESTED: dict[str, dict[str, str]] = {
    DEFAULT: _MACHINES,
    **dict.fromkeys(("mnist", "fashion-mnist", "svhn"), _IMAGES),
    **dict.fromkeys(("cora", "citeseer", "pubmed"), _GRAPHS),
    **dict.fromkeys(PRIVATE, _HEADS),
}
"""Settings that suit an app where the operator gives none."""
MIN_RECORDS = 4
"""A device that is dealt a data set gets at least so many records of it."""


@dataclass(frozen=True)
class Part:
    """Part `number` of `count`, from 1."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Part:
        """Read "3/16"."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ConfigError(f"--part {text!r}: write it as K/N with K from 1 to N, for example 3/16")
        return Part(int(number), int(count))


@dataclass(frozen=True)
class Dealing:
    """How data are shared out: which seed, and how unevenly (Dirichlet)."""

    seed: int = 0
    alpha: float = 0.5


class BuiltInApp(Protocol):
    """An app of the library: its workloads run in the process that asks for them."""

    name: str

    def device(self, part: Part | None, device: str) -> Workload:
        """Return what one device trains."""
        ...

    def fleet(self, devices: int) -> Sequence[Workload]:
        """Return what each of so many devices trains."""
        ...

    def judge(self) -> Workload:
        """Return the coordinator's workload with held-out data."""
        ...


def built_in(name: str, data: str, dealing: Dealing) -> BuiltInApp:
    """Return the built-in app of this name."""
    return MachinesApp(dealing) if name == DEFAULT else DataSetApp(name, Path(data) if data else None, dealing)


class MachinesApp:
    """The default: each device sits on a machine of its own, whose vibration is generated."""

    name = DEFAULT

    def __init__(self, dealing: Dealing) -> None:
        self._dealing = dealing

    def device(self, part: Part | None, device: str) -> Workload:
        """Return the machine of a part or, without one, a machine that the device's id picks."""
        from ofl_iot.workloads import machines

        number = part.number - 1 if part else zlib.crc32(device.encode())
        return machines.workload(number, self._dealing.seed, alpha=self._dealing.alpha)

    def fleet(self, devices: int) -> Sequence[Workload]:
        """Return a machine for each device."""
        return [self.device(Part(number, devices), "") for number in range(1, devices + 1)]

    def judge(self) -> Workload:
        """Return machines that no device has."""
        from ofl_iot.workloads import machines

        return machines.judge()


class DataSetApp:
    """A public data set, dealt to devices."""

    def __init__(self, name: str, folder: Path | None, dealing: Dealing) -> None:
        self.name = name
        self._folder = folder
        self._dealing = dealing

    def device(self, part: Part | None, device: str) -> Workload:
        """Return one part of the data set."""
        if part is None:
            raise ConfigError(f"{self.name} is shared out: say which part {device} has, for example --part 3/16")
        return self.fleet(part.count)[part.number - 1]

    def fleet(self, devices: int) -> Sequence[Workload]:
        """Return a part of the data set for each device."""
        from ofl_iot.workloads.splits import Split
        from ofl_iot.workloads.tasks import load_task

        split = Split("dirichlet", alpha=self._dealing.alpha, minimum=MIN_RECORDS)
        if self.name == "digits":
            from ofl_iot.workloads.digits import digits_federation

            return digits_federation(devices, self._dealing.seed, model="softmax", alpha=self._dealing.alpha)[0]
        task = load_task(self.name, self._folder, devices=devices, seed=self._dealing.seed, split=split)
        return task.devices

    def judge(self) -> Workload:
        """Return the data set's test records."""
        from ofl_iot.workloads.tasks import load_task

        if self.name == "digits":
            from ofl_iot.workloads.digits import digits_federation

            return digits_federation(1, self._dealing.seed, model="softmax")[1]
        return load_task(self.name, self._folder, devices=1, seed=self._dealing.seed).test
