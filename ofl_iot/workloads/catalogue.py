"""The public data sets of the evaluation: their files in a folder, where they are published, how they are verified."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.idx import FILES as IDX_FILES
from ofl_iot.workloads.idx import VARIABLE

IMAGES = ("mnist", "fashion-mnist", "svhn")
GRAPHS = ("cora", "citeseer", "pubmed")
PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


@dataclass(frozen=True)
class DataFile:
    """A file as published: name, and digest as `algorithm:hexadecimal`."""

    name: str
    digest: str

    def matches(self, blob: bytes) -> bool:
        """Whether these are the published bytes."""
        algorithm, wanted = self.digest.split(":")
        return hashlib.new(algorithm, blob, usedforsecurity=algorithm != "md5").hexdigest() == wanted


@dataclass(frozen=True)
class DataSet:
    """A data set: its folder below the data folder, its home on the web, its files.

    Unless `exact`, a folder may hold other files of the same layout, such as a subset.
    """

    name: str
    folder: str
    home: str
    files: tuple[DataFile, ...]
    exact: bool = True

    def path(self, data: Path, file: DataFile) -> Path:
        """Where a file is expected."""
        return data / self.folder / file.name

    def read(self, data: Path | None) -> dict[str, bytes]:
        """All files by name; ConfigError names what is missing or not as published."""
        if data is None:
            raise ConfigError(f"{self.name} is read from a folder: name it with --data DIR or {VARIABLE}")
        missing = [file.name for file in self.files if not self.path(data, file).is_file()]
        if missing:
            raise ConfigError(
                f"{data / self.folder} holds no {', '.join(missing)}: put the published files of {self.name} there "
                f"({', '.join(file.name for file in self.files)}), or let `ofl data fetch {self.name}` do it"
            )
        return {file.name: self._verified(data, file) for file in self.files}

    def _verified(self, data: Path, file: DataFile) -> bytes:
        path = self.path(data, file)
        try:
            blob = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {path} ({error.strerror}): check who may read it") from error
        if self.exact and not file.matches(blob):
            raise ConfigError(
                f"{path} is not the published file (its {file.digest.split(':')[0]} differs): delete it and run "
                f"`ofl data fetch {self.name}`"
            )
        return blob


def _idx(name: str, folder: str, home: str, digests: tuple[str, ...]) -> DataSet:
    files = tuple(DataFile(file, f"md5:{digest}") for file, digest in zip(IDX_FILES, digests, strict=True))
    return DataSet(name, f"{folder}/raw", home, files)


def _planetoid(name: str, folder: str, digests: tuple[str, ...]) -> DataSet:
    files = tuple(
        DataFile(f"ind.{name}.{part}", f"sha256:{digest}")
        for part, digest in zip(PLANETOID_PARTS, digests, strict=True)
    )
    return DataSet(name, f"Planetoid/{folder}/raw", "https://github.com/kimiyoung/planetoid/raw/master/data/", files)


_CORA = (
    "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
)
_CITESEER = (
    "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
)
_PUBMED = (
    "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
)

DATA_SETS: dict[str, DataSet] = {
    each.name: each
    for each in [
        _idx(
            "mnist",
            "MNIST",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        _idx(
            "fashion-mnist",
            "FashionMNIST",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        DataSet(
            "svhn",
            "SVHN",
            "http://ufldl.stanford.edu/housenumbers/",
            (
                DataFile("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
                DataFile("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
            ),
            exact=False,
        ),
        _planetoid("cora", "Cora", _CORA),
        _planetoid("citeseer", "CiteSeer", _CITESEER),
        _planetoid("pubmed", "PubMed", _PUBMED),
    ]
}
"""Every public data set by name.

MNIST's home is the copy that PyTorch's maintainers keep, because the author's page stopped serving it. The Planetoid
files are pickles, which run code when read: their digests are collision-resistant, and they are never read unless
these match.
"""
