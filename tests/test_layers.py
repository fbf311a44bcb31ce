"""The arrows of CONTRIBUTING.md: who may import whom, what is pure, what is heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ofl_iot

ROOT = Path(__file__).parent.parent
LEAVES = {"errors", "ids"}
PURE = {
    "errors", "ids", "protocol", "opportunity", "privacy", "crypto", "identity", "fleet", "robust", "roles",
    "fleet_view",
}  # fmt: skip
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "ids": {"errors"},
    "protocol": LEAVES,
    "opportunity": LEAVES,
    "privacy": LEAVES,
    "crypto": LEAVES,
    "identity": LEAVES | {"crypto"},
    "fleet": LEAVES,
    "robust": LEAVES,
    "fleet_view": LEAVES | {"protocol"},
    "local": LEAVES,
    "transport": LEAVES | {"identity"},
    "workloads": {"errors", "privacy"},
    "torch_training": LEAVES | {"privacy"},
    "apps": {"errors", "privacy", "protocol", "workloads", "torch_training"},
    "roles": LEAVES | {"protocol", "opportunity", "privacy", "crypto", "fleet", "robust"},
    "jobs": LEAVES | {"protocol", "opportunity", "privacy", "crypto", "identity", "robust", "roles", "workloads"},
    "models": LEAVES | {"apps", "local", "protocol", "roles"},
    "runtime": LEAVES
    | {
        "protocol",
        "opportunity",
        "privacy",
        "crypto",
        "identity",
        "fleet",
        "robust",
        "roles",
        "jobs",
        "local",
        "transport",
        "workloads",
        "fleet_view",
    },
}
"""Each package of the library and those it may import; a new package must be entered here."""

IMPURE = {
    "asyncio", "concurrent", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random",
    "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading",
    "time", "urllib",
}  # fmt: skip
ENTROPY = {"ofl_iot.crypto.entropy": {"os"}, "ofl_iot.privacy.noise": {"secrets"}}
"""Keys and privacy noise come from the operating system: in one module each, and nothing else is taken from there."""

DATES = {"ofl_iot.identity.dates": {"datetime"}}
"""Dates are values, and certificates are written with them; the clock is not read there."""

HEAVY = {"scipy", "sklearn", "numba", "dp_accounting", "rich", "torch", "torch_geometric", "matplotlib", "psutil",
         "starlette", "uvicorn"}  # fmt: skip
HEAVY_AT_HOME = {
    "ofl_iot.crypto.compiled": {"numba"},
    "ofl_iot.crypto.kernels": {"numba"},
    "ofl_iot.crypto.sampling_kernels": {"numba"},
    "ofl_iot.apps.torch_model": {"torch"},
    "ofl_iot.crypto.lean.kernels": {"numba"},
    "ofl_agents.sim.display": {"rich"},
    "ofl_agents.commands.top": {"rich"},
    "ofl_agents.dashboard.app": {"starlette"},
    "ofl_agents.dashboard.server": {"uvicorn"},
    "ofl_research.benches.training_contenders": {"torch"},
    "ofl_research.benches.training_networks": {"torch"},
}
TORCH_HOME = "ofl_iot.torch_training."
TORCH_FREE = {"ofl_iot.torch_training.__init__", "ofl_iot.torch_training.job"}
"""The package that trains any module imports PyTorch at once, but for what a light agent may import."""
ONLY_IN = {"paho": "ofl_iot.transport", "amqtt": "ofl_broker"}
FRONT = {"ofl_agents.embedded.agent.Agent", "ofl_agents.embedded.simulate.simulate"}
"""`ofl_iot.Agent` and `ofl_iot.simulate`: programs above the library, which its front names in a table."""
PROGRAMS = {"ofl_agents", "ofl_broker", "ofl_research"}


@dataclass(frozen=True)
class Import:
    """One import: in which module, of what, and whether importing the module already runs it."""

    module: str
    target: str
    at_once: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"

    @property
    def top(self) -> str:
        return self.target.split(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts if parts[0] == "ofl_iot" else parts[1:])
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), True)]
    while stack:
        node, at_once = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, at_once, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide the layers"
            for alias in node.names:
                yield Import(module, f"{node.module}.{alias.name}", at_once, node.lineno)
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _for_types_only(node)
        stack += [(child, at_once and not deferred) for child in ast.iter_child_nodes(node)]


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


IMPORTS = [
    each
    for package in ("ofl_iot", "agents/ofl_agents", "broker/ofl_broker", "research/ofl_research")
    for path in sorted((ROOT / package).rglob("*.py"))
    for each in imports_of(path)
]


def package_of(module: str) -> str:
    """`protocol` for `ofl_iot.protocol.codec`; empty for `ofl_iot` itself and what is not ours."""
    words = module.split(".")
    return words[1] if words[0] == "ofl_iot" and len(words) > 1 and words[1] != "__init__" else ""


def broken(rule: Iterator[Import]) -> str:
    return "\n".join(map(str, rule))


def test_the_parser_sees_imports_inside_functions_too(tmp_path: Path) -> None:
    assert any(not each.at_once and each.top == "dp_accounting" for each in IMPORTS)
    assert any(each.at_once and each.target == "ofl_iot.protocol.codec.decode" for each in IMPORTS)


def test_every_package_of_the_library_has_its_arrows() -> None:
    packages = {p.stem for p in (ROOT / "ofl_iot").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert packages - {"__init__"} == set(ARROWS)


def test_imports_follow_the_arrows() -> None:
    assert not broken(
        each
        for each in IMPORTS
        if package_of(each.module)
        and each.top == "ofl_iot"
        and package_of(each.target) not in {package_of(each.module), *ARROWS[package_of(each.module)]}
    )


def test_the_library_imports_neither_programs_nor_the_broker() -> None:
    assert not broken(
        each for each in IMPORTS if each.module.startswith("ofl_iot") and each.top in PROGRAMS and not _is_front(each)
    )


def _is_front(each: Import) -> bool:
    """Whether the package's front names one of the two programs it offers, for type checkers alone."""
    return each.module == "ofl_iot.__init__" and not each.at_once and each.target in FRONT


def test_the_front_offers_two_programs_and_loads_them_when_they_are_used() -> None:
    homes = {f"{home}.{name}" for name, home in ofl_iot._HOMES.items()}
    assert {home for home in homes if not home.startswith("ofl_iot.")} == FRONT
    assert not loaded_by("import ofl_iot") & {"numpy", "msgspec", *PROGRAMS}
    assert "ofl_agents" in loaded_by("import ofl_iot; ofl_iot.Agent")


def test_the_broker_does_not_import_the_programs() -> None:
    assert not broken(
        each for each in IMPORTS if each.module.startswith("ofl_broker") and each.top in {"ofl_agents", "ofl_research"}
    )


def test_pure_packages_have_no_clock_randomness_or_input_of_their_own() -> None:
    assert not broken(
        each
        for each in IMPORTS
        if package_of(each.module) in PURE and each.top in IMPURE - {**ENTROPY, **DATES}.get(each.module, set())
    )


def test_pure_packages_open_no_file_and_print_nothing() -> None:
    for package in sorted(PURE):
        for path in sorted((ROOT / "ofl_iot").glob(f"{package}*/*.py")):
            calls = {n.func.id for n in ast.walk(ast.parse(path.read_text())) if _is_plain_call(n)}
            assert not calls & {"open", "print", "input", "exec", "eval"}, path


def _is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize(("package", "home"), ONLY_IN.items())
def test_only_one_place_knows_the_mqtt_client_and_the_embedded_broker(package: str, home: str) -> None:
    assert not broken(e for e in IMPORTS if e.top == package and not e.module.startswith(home))


def test_nobody_reads_pickles() -> None:
    assert not broken(e for e in IMPORTS if e.top in {"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"})


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    assert not broken(e for e in IMPORTS if e.at_once and e.top in HEAVY - _heavy_allowed(e.module))


def _heavy_allowed(module: str) -> set[str]:
    at_home = module.startswith(TORCH_HOME) and module not in TORCH_FREE
    return HEAVY_AT_HOME.get(module, set()) | ({"torch"} if at_home else set())


def test_a_training_job_can_be_named_without_torch() -> None:
    assert not loaded_by("import ofl_iot.torch_training.job") & {"torch", "numpy"}


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in memory after a statement in a process of its own."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("command", ["agent", "coordinator", "decryptor"])
def test_a_device_agent_stays_light(command: str) -> None:
    loaded = loaded_by(f"import ofl_agents.cli, ofl_agents.program, ofl_agents.build, ofl_agents.commands.{command}")
    assert not loaded & {"scipy", "sklearn", "numba", "torch", "dp_accounting", "rich", "matplotlib", "amqtt"}


@pytest.mark.parametrize("command", ["agent", "coordinator", "decryptor"])
def test_certificates_are_loaded_by_those_alone_who_have_one(command: str) -> None:
    code = f"import ofl_agents.commands.{command}, sys; assert 'cryptography.x509' not in sys.modules"
    assert "ofl_agents" in loaded_by(code)


def test_the_command_itself_starts_without_numpy() -> None:
    assert not loaded_by("import ofl_agents.cli") & {"numpy", "msgspec", "paho"}


def test_the_drawing_in_contributing_is_the_import_graph() -> None:
    from tests.import_graph import END, START, drawing

    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert text.partition(START)[2].partition(END)[0] == drawing(), "run: python -m tests.import_graph"
