"""Private files: readable by their owner alone, and whole or not there at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ofl_iot.errors import ConfigError


def make_private_folder(folder: Path) -> None:
    """Make the folder if need be, and close it to others."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot make the private folder {folder}: {error.strerror}; choose another") from error


def write_private(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file so that after a crash it is the old one or the new one; nobody else reads it in between.

    It stays with its owner: when root renews the broker's certificate, the broker can still read it.
    """
    try:
        held = file.stat() if file.exists() and os.geteuid() == 0 else None
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                if held is not None and _owners(held) != _owners(os.fstat(stream.fileno())):
                    # The sandbox of ofl-renew.service refuses this call, even where it would change nothing.
                    os.fchown(stream.fileno(), held.st_uid, held.st_gid)
                os.fsync(stream.fileno())
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; its folder must exist and be writable") from error


def _owners(status: os.stat_result) -> tuple[int, int]:
    return status.st_uid, status.st_gid


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    """A fresh ECDSA key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(key: PrivateKeyTypes) -> bytes:
    """A private key as PEM, not encrypted: the file's mode protects it, as a device starts without a passphrase."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
