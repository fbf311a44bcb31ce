"""What a release consists of: every distribution with its hash, its licence and what it needs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "bill_of_materials.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bill_of_materials", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def item(name: str, version: str, sha256: str, needs: list[str], **more: str) -> dict[str, Any]:
    archive = {"archive_info": {"hashes": {"sha256": sha256}}} if sha256 else {"dir_info": {}}
    return {
        "download_info": {"url": "https://index.example/x", **archive},
        "metadata": {"name": name, "version": version, "requires_dist": needs, **more},
    }


REPORT = {
    "version": "1",
    "install": [
        item("ofl-iot", "0.2.0", "", ["paho-mqtt<3,>=2.1", "NumPy>=1.26", "torch>=2.2; extra == 'torch'"]),
        item("paho_mqtt", "2.1.0", "ab" * 32, [], license_expression="EPL-2.0"),
        item("numpy", "2.0.0", "cd" * 32, [], license="BSD-3-Clause\nand many lines more"),
    ],
}


def test_both_files_are_written_and_name_no_index(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    tool.main(tmp_path / "report.json", tmp_path)
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/ofl-iot@0.2.0"
    assert [each["purl"] for each in bill["components"]] == ["pkg:pypi/numpy@2.0.0", "pkg:pypi/paho-mqtt@2.1.0"]
    numpy, paho = bill["components"]
    assert numpy["hashes"] == [{"alg": "SHA-256", "content": "cd" * 32}]
    assert numpy["licenses"] == [{"license": {"name": "BSD-3-Clause"}}]
    assert paho["licenses"] == [{"license": {"name": "EPL-2.0"}}]
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert needs["pkg:pypi/ofl-iot@0.2.0"] == [numpy["purl"], paho["purl"]], "not what is not installed"
    assert (tmp_path / "requirements-hashed.txt").read_text().splitlines() == [
        f"numpy==2.0.0 --hash=sha256:{'cd' * 32}",
        f"paho-mqtt==2.1.0 --hash=sha256:{'ab' * 32}",
    ]
    assert "index.example" not in (tmp_path / "sbom.cdx.json").read_text()


def test_the_same_components_make_the_same_document(tool: ModuleType) -> None:
    parts = tool.components_of(REPORT)
    assert tool.bill_of(parts) == tool.bill_of(list(parts))
    other = {**REPORT, "install": [*REPORT["install"][:2], item("numpy", "2.0.0", "ef" * 32, [])]}
    assert tool.bill_of(tool.components_of(other))["serialNumber"] != tool.bill_of(parts)["serialNumber"]


def test_what_has_no_hash_is_not_released(tool: ModuleType) -> None:
    parts = tool.components_of({"install": [*REPORT["install"], item("local", "1", "", [])]})
    with pytest.raises(SystemExit, match="local 1 has no hash"):
        tool.hashed(parts)
