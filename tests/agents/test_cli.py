"""The command line: what it refuses, how it says so, what it shows."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ofl_agents import cli
from ofl_agents.cli import COMMANDS, main
from ofl_agents.program import state_folder
from ofl_iot import __version__
from ofl_iot.errors import ConfigError, StoreError

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """`refused(*arguments)`: what the program says when it refuses them; the exit code must be 2."""

    def run(*arguments: str) -> str:
        try:
            code = main(arguments)
        except SystemExit as exit_:  # argparse
            code = int(str(exit_.code))
        assert code == 2
        said = capsys.readouterr()
        assert not said.out
        assert "Traceback" not in said.err
        return said.err

    return run


def test_an_unknown_command_is_refused_with_those_there_are(refused: Refused) -> None:
    said = refused("frobnicate")
    assert all(command in said for command in COMMANDS)


def test_no_command_at_all_is_refused(refused: Refused) -> None:
    assert "COMMAND" in refused()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: ofl {command}" in capsys.readouterr().out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"ofl {__version__}\n"


# --- settings


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("round.deadline_s", "write it as key=value"),
        ("round.deadline_s=soon", "'round.deadline_s' is \"soon\", wanted a number"),
        ("round.deadline_s=-1", "round.deadline_s"),
        ("rond.deadline_s=3", "did you mean 'round.deadline_s'?"),
        ("round.deadlines=3", "did you mean 'round.deadline_s'?"),
        ("nonsense=3", "unknown key 'nonsense'"),
        ("mqtt.port=70000", "port"),
    ],
)
def test_a_bad_setting_is_refused_with_a_hint(setting: str, says: str, refused: Refused) -> None:
    assert says in refused("config", "show", "--set", setting)


def test_config_show_names_the_origin_of_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ofl.toml"
    file.write_text("[round]\ninterval_s = 7.5\ndeadline_s = 8.5\n")
    monkeypatch.setenv("OFL_UPLOAD__WINDOW", "3")
    assert main(["config", "show", "--config", str(file), "--set", "round.deadline_s=9.5"]) == 0
    shown = capsys.readouterr().out
    origin = dict(re.findall(r"^(\w+ = \S+) +# (.*)$", shown, re.MULTILINE))
    assert str(file) in origin["interval_s = 7.5"]
    assert "command line" in origin["deadline_s = 9.5"]
    assert "OFL_UPLOAD__WINDOW" in origin["window = 3"]
    assert origin["resend_s = 6.0"] == "default"


def test_what_config_show_prints_is_a_settings_file_with_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "--set", "round.interval_s=3"]) == 0
    shown = capsys.readouterr().out
    file = tmp_path / "ofl.toml"
    file.write_text(shown)
    assert main(["config", "show", "--config", str(file)]) == 0
    assert _values(capsys.readouterr().out) == _values(shown)


def _values(shown: str) -> list[str]:
    return [line.partition("#")[0].strip() for line in shown.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[round\ninterval_s = 3", "ofl.toml"),
        (b"\xff\xfe\x00", "ofl.toml"),
        (b"[round]\nintervall_s = 3\n", "did you mean 'round.interval_s'?"),
        (b"round = 3\n", "round"),
    ],
)
def test_a_corrupt_settings_file_is_named(content: bytes, says: str, tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "ofl.toml"
    file.write_bytes(content)
    assert says in refused("config", "show", "--config", str(file))


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path, refused: Refused) -> None:
    assert "nowhere.toml" in refused("coordinator", "--config", str(tmp_path / "nowhere.toml"))


# --- agent and coordinator


@pytest.mark.parametrize("part", ["5/4", "0/4", "1", "a/b", "1/0", "-1/4", ""])
def test_a_bad_part_is_refused(part: str, refused: Refused, tmp_path: Path) -> None:
    said = refused("agent", "--id", "truck-1", f"--part={part}", "--state", str(tmp_path))
    assert "write it as K/N with K from 1 to N" in said


@pytest.mark.parametrize("name", ["Truck_1", "", "coordinator", "x" * 49])
def test_a_bad_id_is_refused(name: str, refused: Refused, tmp_path: Path) -> None:
    assert "id" in refused("agent", f"--id={name}", "--part", "1/4", "--state", str(tmp_path))


def test_more_parts_than_the_data_has_samples_are_refused(refused: Refused, tmp_path: Path) -> None:
    given = ("--app", "digits", "--part", "1/3000", "--state", str(tmp_path))
    assert "too few" in refused("agent", "--id", "truck-1", *given)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--app", "digits"), "say which part truck-1 has"),
        (("--app", "nowhere.py:app"), "there is no file nowhere.py"),
        (("--app", "nowhere"), "there is no app 'nowhere'"),
        (("--app", "mnist", "--part", "1/4", "--data", "/nowhere"), "put the published files of mnist there"),
    ],
)
def test_an_app_that_cannot_be_opened_is_told(
    arguments: tuple[str, ...], says: str, refused: Refused, tmp_path: Path
) -> None:
    assert says in refused("agent", "--id", "truck-1", *arguments, "--state", str(tmp_path))


def test_a_state_folder_that_cannot_be_made_is_named(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        said = refused("coordinator", "--state", str(folder))
        assert f"cannot make the state folder {folder}" in said
        assert "--state" in said


def test_a_state_folder_that_cannot_be_written_is_named(refused: Refused) -> None:
    assert "its directory must exist and be writable" in refused("coordinator", "--state", "/proc")


def test_the_state_folder_is_the_one_given_or_the_service_managers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Options:
        state: Path | None = None

    options = Options()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "service"))
    assert state_folder(options) == tmp_path / "service"  # type: ignore[arg-type]
    options.state = tmp_path / "given"
    assert state_folder(options) == tmp_path / "given"  # type: ignore[arg-type]
    assert options.state.stat().st_mode & 0o077 == 0


# --- sim, bench, broker


@pytest.mark.parametrize("command", [("sim",), ("bench", "opportunity")])
def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(
    command: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    assert f"there is no folder {tmp_path / 'none'}" in refused(*command, "--json", str(tmp_path / "none" / "x.json"))
    assert "cannot be written" in refused(*command, "--json", str(tmp_path))


def test_an_option_that_a_bench_does_not_take_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert "ofl bench fleet takes no --markdown" in refused("bench", "fleet", "--markdown", str(tmp_path / "t.md"))
    assert "ofl bench fleet takes no --quick" in refused("bench", "fleet", "--quick")


def test_a_results_folder_that_cannot_be_made_is_refused_before_the_run(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "choose one with --out" in refused("sim", "--out", str(tmp_path / "file" / "results"))


def test_a_port_in_use_is_named(refused: Refused) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in refused("broker", "--port", str(port))


# --- errors


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("write less"), 2, "ofl: write less\n"),
        (StoreError("no room"), 1, "ofl: no room\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ofl_agents.commands.config.load_settings", fail)
    assert main(["config", "show"]) == code
    assert capsys.readouterr().err == says


def test_a_reader_who_leaves_early_is_no_failure() -> None:
    """`ofl config show | head -1`."""
    program = f"{sys.executable} -c 'import sys; from ofl_agents.cli import main; sys.exit(main())' config show"
    done = subprocess.run(  # noqa: S602  # a pipe of the shell is what is tested
        f"{program} | head -c 1 && exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_starting_the_command_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'sklearn', 'scipy', 'rich', 'amqtt', 'numba', 'paho'}"
    program = f"import sys; import ofl_agents.cli; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_each_command_has_options_and_a_run() -> None:
    for module, summary in cli.COMMANDS.values():
        imported = __import__(module, fromlist=["run"])
        assert callable(imported.run)
        assert callable(imported.add_options)
        assert summary[0].islower()


@pytest.mark.parametrize(("command", "missing"), [(["broker", "--port", "0"], "amqtt"), (["sim"], "rich")])
def test_a_command_whose_extra_is_missing_names_it(command: list[str], missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from ofl_agents.cli import main; sys.exit(main({command!r}))"
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"ofl: this command needs {missing}: pip install 'ofl-iot[sim]'\n"


def test_profiles_of_production_brokers_need_no_extra() -> None:
    code = "import sys; sys.modules['amqtt'] = None; from ofl_agents.cli import main; main(sys.argv[1:])"
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", code, "broker", "profile", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "mosquitto" in done.stdout
    assert done.returncode == 0
