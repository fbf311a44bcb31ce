"""Next hour's electricity of a building, from the day's last hours, the hour and the weekday. Needs no torch.

`python buildings.py data` takes the 17 buildings of the CityLearn challenge 2022 (MIT) out of PyPI's wheel.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from ofl_iot import Folder, NumpyApp, mae, r2

HOURS = 24
"""How far back a forecast looks."""
USE, HOUR, DAY = "Equipment Electric Power [kWh]", "Hour", "Day Type"


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return one record an hour: the use of the hours before, hour and weekday as angles; the target is its use.

    Values are in units of the building's own mean, so that a house and a shop can share a model.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(float(row[USE]), float(row[HOUR]), float(row[DAY])) for row in csv.DictReader(file)]
    use, hour, day = np.array(rows, dtype=np.float32).T
    use = np.clip(use / max(1e-6, float(use.mean())), 0, 5)
    before = np.lib.stride_tricks.sliding_window_view(use, HOURS)[:-1]
    angles = [np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24), np.sin(2 * np.pi * day / 7)]
    now = np.stack([each[HOURS:] for each in angles], axis=1)
    return np.concatenate([(before - 1) / 4, now / 2], axis=1), use[HOURS:] - 1


app = NumpyApp(
    name="buildings",
    network="linear",
    inputs=HOURS + 3,
    outputs=1,
    samples=Folder(pattern="**/*.csv", read=read),
    judge=Folder(pattern="**/*.csv", read=read),
    metrics={"r2": r2, "mae": mae},
)


def fetch(folder: Path) -> int:
    """Take the buildings out of the wheel; return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*command, "CityLearn==1.8.0"], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        return extract(wheel.read_bytes(), folder)


def extract(wheel: bytes, folder: Path) -> int:
    """Write building-01.csv and so on; return how many."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        found = [name for name in archive.namelist() if "challenge_2022_phase_all/Building_" in name]
        for name in found:
            number = int(Path(name).stem.split("_")[1])
            (folder / f"building-{number:02d}.csv").write_bytes(archive.read(name))
    return len(found)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])), "buildings")
