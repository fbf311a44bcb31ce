"""The detection bench on a small scale: it runs, it repeats itself, and the default form keeps its promise."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from agents.bench_robust import check_targets, default_cases, main, markdown, run
from agents.gate_experiment import GateSetting, run_gate
from agents.robust_experiment import ATTACKS, Images, Setting, load_digits_images, load_idx_images
from ofl_iot.errors import ConfigError
from ofl_iot.robust.gate import GateRules

SMALL = Setting(rounds=12)


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits_images()


def test_the_ledger_saves_the_model_from_sign_flips(digits: Images) -> None:
    cases = (("none", 0), ("sign flip", 2), ("sign flip", 4))
    result = run([digits], SMALL, forms=("mean", "ledger"), cases=cases, seeds=(0,))
    assert result["targets"]
    assert all(check["holds"] for check in result["targets"]), markdown(result)


def test_the_same_seed_gives_the_same_table(digits: Images) -> None:
    tables = [run([digits], SMALL, forms=("ledger",), cases=(("gaussian", 2),), seeds=(3,)) for _ in range(2)]
    assert tables[0] == tables[1]
    assert "| digits | gaussian | 2 |" in markdown(tables[0])


def test_every_attack_is_tried_at_both_shares() -> None:
    cases = default_cases(10)
    assert len(cases) == 1 + 2 * (len(ATTACKS) - 1)
    assert {bad for _, bad in cases} == {0, 2, 4}


def test_a_missed_target_is_said() -> None:
    row = {"data": "d", "attack": "none", "malicious": 0, "fpr": 0.2, "accuracy": 0.5}
    checks = check_targets([{**row, "form": "mean", "accuracy": 0.9}, {**row, "form": "ledger"}], 10)
    assert [check["holds"] for check in checks] == [False, False]


@pytest.mark.parametrize("own_classes", [False, True])
def test_the_gate_drops_no_honest_device_however_skewed_or_slow(digits: Images, own_classes: bool) -> None:
    setting = GateSetting(arrivals=200, own_classes=own_classes)
    outcome = run_gate(digits, setting, ATTACKS["none"], 0, rules=GateRules(), seed=0)
    assert outcome.false_positive_rate == 0.0


def test_the_gate_keeps_strong_sign_flips_out(digits: Images) -> None:
    setting = GateSetting(arrivals=300)
    attack = ATTACKS["sign flip x3"]
    off, on = (run_gate(digits, setting, attack, 2, rules=GateRules(enabled=e), seed=0) for e in (False, True))
    assert on.true_positive_rate is not None
    assert on.true_positive_rate > 0.8
    assert on.false_positive_rate == 0.0
    assert on.accuracy > off.accuracy + 0.3


def test_idx_files_are_read_and_halved(tmp_path: Path) -> None:
    images = np.arange(4 * 28 * 28, dtype=np.uint8).reshape(4, 28, 28)
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + np.array(images.shape, dtype=">u4").tobytes()
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        header = bytes([0, 0, 8, 1]) + np.array([4], dtype=">u4").tobytes()
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + bytes([1, 2, 3, 4])))
    data = load_idx_images(tmp_path, train=2, test=3)
    assert data.train.shape == (2, 14, 14)
    assert data.test_labels.tolist() == [1, 2, 3]
    assert data.train[0, 0, 0] == pytest.approx(images[2, :2, :2].mean() / 255.0)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="four idx files"):
        load_idx_images(tmp_path)


@pytest.mark.slow
def test_the_quick_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["rows"]
    assert "| ledger |" in capsys.readouterr().out
