"""Downloads of public data sets: verified before they are put in place, taken up again where they broke off."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ofl_iot.errors import ConfigError, StoreError, TransportError
from ofl_iot.workloads.catalogue import DataFile, DataSet

TIMEOUT_S = 30.0
ATTEMPTS = 3
MAX_BYTES = 1 << 30
_BLOCK = 1 << 20
Tell = Callable[[str], None]


def fetch(data_set: DataSet, data: Path, home: str | None, tell: Tell) -> None:
    """Put the missing files of a data set into its folder, from its own home or another address.

    A file that is there already is kept if it is the published one, or if the data set allows others.
    """
    base = home or data_set.home
    if urllib.parse.urlsplit(base).scheme not in {"http", "https"}:
        raise ConfigError(f"--from {base}: the address must begin with http:// or https://")
    for file in data_set.files:
        path = data_set.path(data, file)
        try:
            if path.is_file() and (not data_set.exact or file.matches(path.read_bytes())):
                tell(f"{path}: there already")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            size = _fetch_file(file, path, f"{base.rstrip('/')}/{file.name}")
        except OSError as error:
            raise StoreError(f"cannot keep {path} ({error.strerror}): choose another --data folder") from error
        tell(f"{path}: {size:,} bytes, verified")


def _fetch_file(file: DataFile, path: Path, address: str) -> int:
    """Fetch, verify, and only then give the file its name; what was fetched so far waits beside it."""
    part = path.with_name(f".{file.name}.part")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _go_on(part, address)
            break
        except urllib.error.HTTPError as error:
            error.close()
            raise TransportError(
                f"{address} answers {error.code} {error.reason}: name another place with --from"
            ) from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if attempt == ATTEMPTS:
                raise TransportError(f"cannot fetch {address} ({error}): run the command again to go on") from error
    blob = part.read_bytes()
    if not file.matches(blob):
        part.unlink()
        raise TransportError(
            f"{address} sent something else than the published {file.name} (its {file.digest.split(':')[0]} differs): "
            "nothing was kept; name another place with --from"
        )
    part.replace(path)
    return len(blob)


def _go_on(part: Path, address: str) -> None:
    """Append what is missing to `part`; begin again if the server does not send from where we are."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - checked by fetch
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - same
    except urllib.error.HTTPError as error:
        if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            error.close()
            return
        raise
    with response:
        goes_on = response.status == http.HTTPStatus.PARTIAL_CONTENT and response.headers.get(
            "Content-Range", ""
        ).startswith(f"bytes {have}-")
        promised = response.headers.get("Content-Length")
        with part.open("ab" if goes_on else "wb") as out:
            got = 0
            while block := response.read(_BLOCK):
                got += out.write(block)
                if out.tell() > MAX_BYTES:
                    part.unlink()
                    raise TransportError(
                        f"{address} sends more than {MAX_BYTES:,} bytes: name another place with --from"
                    )
    if promised is not None and got < int(promised):
        raise http.client.IncompleteRead(b"", int(promised) - got)
