"""What a release consists of, from pip's own report: a CycloneDX document and requirements with hashes.

    pip install --dry-run --ignore-installed --report REPORT …
    python tools/bill_of_materials.py REPORT FOLDER

writes FOLDER/sbom.cdx.json (CycloneDX 1.5) and FOLDER/requirements-hashed.txt, for `pip install --require-hashes`.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = "ofl-iot"
_NAMESPACE = uuid.UUID("6f666c2d-696f-5474-8000-000000000001")


@dataclass(frozen=True)
class Component:
    """One distribution that an installation takes."""

    name: str
    version: str
    sha256: str
    """Digest of its archive; empty for what is built from this checkout."""
    licence: str
    needs: frozenset[str]
    """Normalised names of what it requires, extras and other platforms included."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def components_of(report: Mapping[str, Any]) -> list[Component]:
    """The distributions of a report of pip, by name."""
    return sorted((_component(each) for each in report["install"]), key=lambda each: each.name)


def _component(item: Mapping[str, Any]) -> Component:
    metadata, archive = item["metadata"], item["download_info"].get("archive_info") or {}
    names = (re.match(r"[A-Za-z0-9._-]+", text) for text in metadata.get("requires_dist") or ())
    return Component(
        name=normalised(metadata["name"]),
        version=metadata["version"],
        sha256=(archive.get("hashes") or {}).get("sha256", ""),
        licence=(metadata.get("license_expression") or metadata.get("license") or "").strip().partition("\n")[0][:200],
        needs=frozenset(normalised(match[0]) for match in names if match),
    )


def bill_of(components: Iterable[Component]) -> dict[str, Any]:
    """The CycloneDX document; the same components make the same document."""
    parts = list(components)
    known = {each.name: each.purl for each in parts}
    ours = next(each for each in parts if each.name == PROJECT)
    others = [each for each in parts if each is not ours]
    serial = uuid.uuid5(_NAMESPACE, json.dumps([(each.purl, each.sha256) for each in parts]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": _described(ours, "application")},
        "components": [_described(each, "library") for each in others],
        "dependencies": [
            {"ref": each.purl, "dependsOn": sorted(known[name] for name in each.needs & known.keys() - {each.name})}
            for each in parts
        ],
    }


def _described(component: Component, kind: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": kind,
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
    }
    if component.sha256:
        described["hashes"] = [{"alg": "SHA-256", "content": component.sha256}]
    if component.licence:
        described["licenses"] = [{"license": {"name": component.licence}}]
    return described


def hashed(components: Iterable[Component]) -> str:
    """Requirements with the hash of each archive, all but our own."""
    lines = []
    for each in components:
        if each.name == PROJECT:
            continue
        if not each.sha256:
            raise SystemExit(f"{each.name} {each.version} has no hash in the report: install it from an index")
        lines.append(f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n")
    return "".join(lines)


def main(report: Path, folder: Path) -> None:
    """Write both files."""
    components = components_of(json.loads(report.read_text()))
    (folder / "sbom.cdx.json").write_text(json.dumps(bill_of(components), indent=1) + "\n")
    (folder / "requirements-hashed.txt").write_text(hashed(components))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
