"""`ofl data` checks, fetches from a real HTTP server and shows splits; only verified files get their names."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from ofl_agents import data_fetch
from ofl_agents.cli import main
from ofl_agents.split_figure import draw_split
from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from tests.workloads.datafiles import know, write_idx_set, write_planetoid, write_svhn

IMAGES = "train-images-idx3-ubyte.gz"


@dataclass
class Site:
    """What a web server offers, how it misbehaves, and what it was asked."""

    files: dict[str, bytes]
    cut_after: int | None = None
    knows_ranges: bool = True
    address: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one `Site`."""

    site: Site

    def do_GET(self) -> None:
        site, name, wanted = self.site, self.path.rsplit("/", 1)[1], self.headers.get("Range")
        site.asked.append((name, wanted))
        if name not in site.files:
            self.send_error(404)
            return
        blob = site.files[name]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.knows_ranges else 0
        if start >= len(blob):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(blob) - 1}/{len(blob)}")
        self.send_header("Content-Length", str(len(blob) - start))
        self.end_headers()
        cut, site.cut_after = site.cut_after, None
        self.wfile.write(blob[start:] if cut is None else blob[start : start + cut])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is given
        """Be quiet."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server with a small MNIST that the catalogue takes for the published one."""
    write_idx_set(tmp_path / "source/MNIST/raw", train=24, test=6)
    known = know(monkeypatch, tmp_path / "source", "mnist")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    offered = Site({file.name: known.path(tmp_path / "source", file).read_bytes() for file in known.files})
    handler = type("OwnHandler", (Handler,), {"site": offered})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        offered.address = f"http://127.0.0.1:{server.server_port}/mnist/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield offered
        server.shutdown()
        thread.join()


Fetch = Callable[[], int]


@pytest.fixture
def fetch(site: Site, tmp_path: Path) -> Fetch:
    """`fetch()`: run the command and return its exit code."""
    return lambda: main(["data", "fetch", "mnist", "--from", site.address, "--data", str(tmp_path / "data")])


def test_fetched_files_are_verified_kept_and_not_fetched_again(
    site: Site, fetch: Fetch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch() == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "data/MNIST/raw").iterdir()} == site.files
    assert main(["data", "check", "mnist", "--data", str(tmp_path / "data")]) == 0
    assert "mnist: as published" in capsys.readouterr().out
    site.asked.clear()
    assert fetch() == 0
    assert not site.asked
    assert capsys.readouterr().out.count("there already") == 4


def test_a_file_that_is_not_the_published_one_never_gets_its_name(
    site: Site, fetch: Fetch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.files[IMAGES] = b"rubbish"
    assert fetch() == 1
    assert "sent something else than the published" in capsys.readouterr().err
    assert not list((tmp_path / "data/MNIST/raw").iterdir())


def test_a_broken_transfer_goes_on_where_it_broke_off(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.cut_after = 100
    assert fetch() == 0
    assert site.asked[:2] == [(IMAGES, None), (IMAGES, "bytes=100-")]
    assert (tmp_path / "data/MNIST/raw" / IMAGES).read_bytes() == site.files[IMAGES]


def test_a_server_that_knows_no_ranges_is_asked_for_all_of_it(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.cut_after, site.knows_ranges = 100, False
    assert fetch() == 0
    assert (tmp_path / "data/MNIST/raw" / IMAGES).read_bytes() == site.files[IMAGES]


def test_what_an_interrupted_command_left_behind_is_used(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    raw = tmp_path / "data/MNIST/raw"
    raw.mkdir(parents=True)
    (raw / f".{IMAGES}.part").write_bytes(site.files[IMAGES])
    assert fetch() == 0
    assert (raw / IMAGES).read_bytes() == site.files[IMAGES]
    assert sorted(path.name for path in raw.iterdir()) == sorted(site.files)


def test_a_missing_file_a_dead_server_and_a_flood_are_told_apart(
    site: Site, fetch: Fetch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = site.files.pop(IMAGES)
    assert fetch() == 1
    assert "answers 404 Not Found: name another place" in capsys.readouterr().err
    site.files[IMAGES] = content
    monkeypatch.setattr(data_fetch, "MAX_BYTES", 50)
    assert fetch() == 1
    assert "sends more than 50 bytes" in capsys.readouterr().err
    site.address = "http://127.0.0.1:9/"
    assert fetch() == 1
    assert "run the command again to go on" in capsys.readouterr().err


def test_of_a_file_that_was_too_long_nothing_is_kept_that_a_later_run_would_go_on_with(
    site: Site, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(data_fetch, "MAX_BYTES", 50)
        assert fetch() == 1
    assert not list((tmp_path / "data/MNIST/raw").iterdir())
    assert fetch() == 0
    assert all(wanted is None for _, wanted in site.asked)


def test_a_folder_that_cannot_be_written_is_named(
    site: Site, fetch: Fetch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("a file")
    assert fetch() == 1
    assert "choose another --data folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fetch", "mnsit", "--data", "."], "unknown data set mnsit: use mnist, "),
        (["fetch", "mnist", "--data", ".", "--from", "ftp://example.org"], "must begin with http"),
        (["check"], "--data DIR or OFL_DATA"),
        (["split", "mnist"], "--data DIR or OFL_DATA"),
        (["split", "digits", "--figure", "nowhere/split.png"], "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    assert main(["data", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_every_data_set_is_checked_and_what_is_missing_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_svhn(tmp_path / "SVHN")
    write_planetoid(tmp_path / "Planetoid/Cora/raw", "cora")
    monkeypatch.setenv("OFL_DATA", str(tmp_path))
    assert main(["data", "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(DATA_SETS)
    assert "of the published layout, but not the published files" in lines[2]
    assert "is not the published file" in lines[3]
    assert "ind.pubmed.graph" in lines[5]
    assert main(["data", "check", "svhn"]) == 0


def test_a_split_is_shown_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "split.png"
    assert main(["data", "split", "digits", "--devices", "3", "--kind", "iid", "--figure", str(figure)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["device", *map(str, range(10)), "all"]
    assert [line.split()[-1] for line in lines[1:]] == ["449", "449", "449"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_many_devices_fit_into_a_figure_and_an_unknown_format_is_refused(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 5, (300, 4))
    draw_split(counts, "many", tmp_path / "split.svg")
    assert "<svg" in (tmp_path / "split.svg").read_text()
    with pytest.raises(ConfigError, match=r"split\.xyz"):
        draw_split(counts, "many", tmp_path / "split.xyz")


def test_a_graph_is_dealt_by_regions_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_geometric")
    write_planetoid(tmp_path / "Planetoid/Cora/raw", "cora")
    know(monkeypatch, tmp_path, "cora")
    options = ["--devices", "2", "--labelled", "public", "--regions", "--figure", str(tmp_path / "graph.svg")]
    assert main(["data", "split", "cora", "--data", str(tmp_path), *options]) == 0
    assert sum(int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[1:]) == 12
    assert (tmp_path / "graph.svg").stat().st_size > 1000
