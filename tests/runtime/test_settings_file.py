"""Settings load from every source, say where they come from, and refuse what they do not understand."""

from __future__ import annotations

import enum
import math
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from ofl_iot.errors import ConfigError
from ofl_iot.runtime.settings_file import Loaded, env_name, load_settings, show


class Level(enum.Enum):
    QUIET = "quiet"
    LOUD = "loud"


class Backoff(msgspec.Struct, frozen=True):
    first_s: Annotated[float, Meta(gt=0)] = 1.0
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        if self.limit_s < self.first_s:
            raise ValueError("limit_s is below first_s")


class Round(msgspec.Struct, frozen=True):
    deadline_s: Annotated[float, Meta(gt=0, le=86_400)] = 30.0
    threshold: Annotated[int, Meta(ge=1)] | None = None
    backoff: Backoff = Backoff(limit_s=90.0)


class Federation(msgspec.Struct, frozen=True):
    name: str = "demo"
    mode: Literal["paper", "rigorous"] = "rigorous"
    level: Level = Level.QUIET
    state: Path = Path("state")
    ports: tuple[int, ...] = (1883,)
    weights: dict[str, float] = msgspec.field(default_factory=dict)
    encrypted: bool = True
    step: Literal[1, 2] = 1
    round: Round = Round()


class Needy(msgspec.Struct, frozen=True):
    broker: str


def load(text: str = "", env: dict[str, str] | None = None, **overrides: str) -> Loaded[Federation]:
    """Load one file of the given text; an override's name has `__` for the dot."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ofl.toml"
        file.write_bytes(text.encode())
        dotted = {name.replace("__", "."): value for name, value in overrides.items()}
        return load_settings(Federation, [file], env or {}, dotted)


def refusal(file: Path | None = None, overrides: dict[str, str] | None = None) -> str | None:
    """The message of the ConfigError that loading raises, if it does."""
    try:
        load_settings(Federation, [file] if file else [], {}, overrides or {})
    except ConfigError as error:
        return str(error)
    return None


# Laws

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False)
FEDERATIONS = st.builds(
    Federation,
    name=TEXTS,
    mode=st.sampled_from(["paper", "rigorous"]),
    level=st.sampled_from(Level),
    state=TEXTS.map(Path),
    ports=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
    weights=st.dictionaries(TEXTS, NUMBERS, max_size=3),
    encrypted=st.booleans(),
    step=st.sampled_from([1, 2]),
    round=st.builds(
        Round,
        deadline_s=st.floats(0, 86_400, exclude_min=True),
        threshold=st.none() | st.integers(1, 2**40),
        backoff=st.builds(Backoff, first_s=st.floats(1e-9, 1), limit_s=st.floats(1, math.inf)),
    ),
)


@settings(max_examples=60, deadline=None)
@given(FEDERATIONS)
def test_what_is_shown_loads_to_the_same_settings(federation: Federation) -> None:
    loaded = Loaded(federation, load().origin)
    again = load(show(loaded))
    assert again.settings == federation
    assert show(Loaded(again.settings, loaded.origin)) == show(loaded)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text("[]{}=.,\"' \n#abround_deline\\u1e-", max_size=40).map(str.encode))
def test_any_file_loads_or_is_a_config_error_that_names_it(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ofl.toml"
        file.write_bytes(content)
        assert str(file) in (refusal(file=file) or str(file))


@given(key=st.sampled_from(sorted(load().origin)), text=st.text(max_size=20))
@settings(deadline=None)
def test_any_text_for_any_key_loads_or_is_a_config_error_that_names_the_key(key: str, text: str) -> None:
    why = refusal(overrides={key: text})
    assert why is None or repr(key) in why or "do not fit together" in why


# Stories of sources


def test_without_any_source_all_is_default() -> None:
    loaded = load_settings(Federation, [], {}, {})
    assert loaded.settings == Federation()
    assert set(loaded.origin.values()) == {"default"}
    assert set(loaded.origin) >= {"name", "round.deadline_s", "round.backoff.first_s"}


def test_the_later_source_wins_key_by_key_and_the_origin_says_so(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('name = "one"\n[round]\ndeadline_s = 1\nthreshold = 1\n[round.backoff]\nfirst_s = 0.1\n')
    two.write_text("[round]\ndeadline_s = 2\nthreshold = 2\nbackoff = {first_s = 0.2}\n")
    env = {"OFL_ROUND__THRESHOLD": "3", "OFL_ROUND__BACKOFF__FIRST_S": "0.3", "HOME": "/root"}
    loaded = load_settings(Federation, [one, two], env, {"round.backoff.first_s": "0.4"})
    assert loaded.settings == Federation(
        name="one", round=Round(deadline_s=2, threshold=3, backoff=Backoff(first_s=0.4, limit_s=90))
    )
    assert loaded.origin["name"] == f"file {one}"
    assert loaded.origin["round.deadline_s"] == f"file {two}"
    assert loaded.origin["round.threshold"] == "environment OFL_ROUND__THRESHOLD"
    assert loaded.origin["round.backoff.first_s"] == "command line"
    assert loaded.origin["round.backoff.limit_s"] == "default"


def test_text_becomes_what_the_key_wants() -> None:
    loaded = load(
        name="5",
        mode="paper",
        level="loud",
        state="/var/lib/ofl",
        ports="[1, 2]",
        weights="{a = 1}",
        encrypted="false",
        step="2",
        round__deadline_s="1e3",
        round__threshold="4",
    ).settings
    assert (loaded.name, loaded.mode, loaded.level, loaded.state) == ("5", "paper", Level.LOUD, Path("/var/lib/ofl"))
    assert (loaded.ports, loaded.weights, loaded.encrypted, loaded.step) == ((1, 2), {"a": 1.0}, False, 2)
    assert (loaded.round.deadline_s, loaded.round.threshold) == (1000.0, 4)


def test_an_empty_section_is_harmless() -> None:
    assert load("[round]\n[round.backoff]\n").settings == Federation()


def test_a_section_keeps_the_default_its_parent_gives_it() -> None:
    assert load("round.backoff.first_s = 2").settings.round.backoff == Backoff(first_s=2, limit_s=90)


def test_an_environment_variable_has_the_keys_name() -> None:
    assert env_name("round.deadline_s") == "OFL_ROUND__DEADLINE_S"


def test_show_names_the_origin_of_every_line() -> None:
    text = show(load_settings(Federation, [], {"OFL_NAME": "bees"}, {"round.deadline_s": "5"}))
    lines = text.splitlines()
    assert 'name = "bees"  # environment OFL_NAME' in lines
    assert "deadline_s = 5.0  # command line" in lines
    assert "# threshold is not set  # default" in lines
    assert lines.index("[round]") < lines.index("deadline_s = 5.0  # command line") < lines.index("[round.backoff]")


def test_a_file_name_with_a_line_break_cannot_break_what_is_shown() -> None:
    origin = dict(load().origin, name="file a\nencrypted = false")
    assert load(show(Loaded(Federation(), origin))).settings == Federation()


# Stories of refusals


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[round]\ndedline_s = 5",
            r"unknown key 'round\.dedline_s' in .*ofl\.toml: did you mean 'round\.deadline_s'\?",
        ),
        ("[rounds]\ndeadline_s = 5", r"unknown key 'rounds\.deadline_s' .* mean 'round\.deadline_s'\?"),
        ("first_s = 5", r"unknown key 'first_s' .* mean 'round\.backoff\.first_s'\?"),
        ("zzz = 5", "unknown key 'zzz' in .*: remove it"),
        ("[zzz]", "unknown key 'zzz'"),
        ("round = 5", r"'round' in .* is a section, not a key: set a key in it, for example 'round\.deadline_s'"),
        ("name = 5", r"ofl\.toml: 'name' is 5, wanted a text"),
        ("ports = [1, 'x']", r"'ports' is \[1, \"x\"\], wanted a whole number at \[1\]"),
        ("ports = 5", "'ports' is 5, wanted a list"),
        ("encrypted = 1", "'encrypted' is 1, wanted true or false"),
        ("state = 1", "'state' is 1, wanted a text"),
        ("weights = 1", "'weights' is 1, wanted a table"),
        ("mode = 'papre'", '\'mode\' is "papre", wanted one of "paper", "rigorous"'),
        ("level = 'shrill'", 'wanted one of "quiet", "loud"'),
        ("step = 3", "'step' is 3, wanted one of 1, 2"),
        ("round.deadline_s = 0", r"'round\.deadline_s' is 0, wanted a number > 0"),
        ("round.deadline_s = nan", "is nan, wanted a number"),
        ("round.deadline_s = 1979-05-27", "wanted a number"),
        ("round.threshold = 0", "wanted a whole number >= 1"),
        ("round.threshold = 'many'", 'is "many", wanted a whole number'),
        ("name = 'a'\nround = = 5", r"ofl\.toml is not valid TOML: .*line 2"),
        ("name = 'a'\nname = 'b'", "not valid TOML"),
        ("ports = " + "[" * 5000, "not valid TOML"),
        (
            "round.backoff.first_s = 100",
            r"section \[round\.backoff\] do not fit together: limit_s is below first_s \(file .*ofl\.toml\)",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(text)


def test_a_missing_file_a_directory_and_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# fine\nname = '\xe9'\n")
    for file, words in [
        (tmp_path / "gone.toml", r"gone\.toml does not exist"),
        (tmp_path, "cannot read the settings file"),
        (latin, r"latin\.toml is not valid TOML: no UTF-8 text \(at line 2\)"),
    ]:
        with pytest.raises(ConfigError, match=words):
            load_settings(Federation, [file], {}, {})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"OFL_ROUND__DEDLINE_S": "5"},
            "'OFL_ROUND__DEDLINE_S' in the environment: did you mean 'OFL_ROUND__DEADLINE_S'",
        ),
        ({"OFL_ROUND": "5"}, "'OFL_ROUND' in the environment is a section"),
        (
            {"OFL_ROUND__THRESHOLD": "abc"},
            "environment OFL_ROUND__THRESHOLD: 'round.threshold' is \"abc\", wanted a whole",
        ),
        ({"OFL_ROUND__THRESHOLD": "1\nx = 2"}, "wanted a whole number"),
        ({"OFL_NAME": "\udcff"}, "not valid UTF-8"),
    ],
)
def test_an_environment_that_cannot_be_used_says_where_and_why(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(env=env)


def test_an_override_that_cannot_be_used_says_where_and_why() -> None:
    with pytest.raises(ConfigError, match=r"'round\.dedline_s' on the command line: did you mean"):
        load(round__dedline_s="5")
    with pytest.raises(ConfigError, match=r"the command line: 'round\.deadline_s' is \"soon\", wanted a number"):
        load(round__deadline_s="soon")


def test_a_setting_without_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match="'broker' is missing: set it in a settings file or as OFL_BROKER"):
        load_settings(Needy, [], {}, {})
    assert load_settings(Needy, [], {"OFL_BROKER": "mqtt://localhost"}, {}).settings.broker == "mqtt://localhost"


def test_a_struct_hidden_in_a_list_is_a_programming_error() -> None:
    hiding = msgspec.defstruct("Hiding", [("rules", list[Backoff])], frozen=True)
    with pytest.raises(TypeError, match="unknown keys"):
        load_settings(hiding, [], {}, {})


def test_the_choices_inside_optional_and_listed_types_are_named() -> None:
    pick = msgspec.defstruct(
        "Pick",
        [("one", Literal["a", "b"] | None, None), ("many", list[Literal["c", "d"]], [])],
        frozen=True,
    )
    with pytest.raises(ConfigError, match='\'one\' is "x", wanted one of "a", "b"'):
        load_settings(pick, [], {}, {"one": "x"})
    with pytest.raises(ConfigError, match='wanted one of "c", "d"'):
        load_settings(pick, [], {}, {"many": '["x"]'})
