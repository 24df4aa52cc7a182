"""The packages in an image: files of pinned, installed distributions, as their wheels hold them.

What is taken is chosen in `contents.json`. A distribution must have the version that stands there,
and each file the SHA-256 that its wheel's RECORD states: a package that was edited after it was
installed is an error, not another image. Which files are programs stands in `contents.json` too,
since a file system's execute bits are an installer's and a umask's. So on any machine with these
wheels, for one kind of Python and processor, the packages' ramdisk is the same in every byte.
"""

from __future__ import annotations

import base64
import csv
import fnmatch
import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enclave_image.cpio import File, Written
from runtime.spec.errors import ArtifactError, SpecError

__all__ = [
    "BASE_FAMILY",
    "Contents",
    "Package",
    "PackageFiles",
    "load_contents",
    "package_files",
]

BASE_FAMILY = "cpu"
"""Part of every image: its packages are what every compile needs."""

_CONTENTS = Path(__file__).with_name("contents.json")

# Byte code is made on first use, in memory. Stubs, headers and static libraries are for compilers
# of other languages.
_NEVER = ("*.pyc", "*.pyi", "*.h", "*.hpp", "*.cuh", "*.inc", "*.td", "*.a", "*.lib", "*.md")
_NEVER_FOLDERS = frozenset({"tests", "test", "testdata", "include", "__pycache__"})
# What `importlib.metadata` reads: versions, and the entry points by which jax finds its plug-ins.
_KEPT_METADATA = frozenset({"METADATA", "entry_points.txt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution, and what is taken of it.

    Attributes:
        name: of the distribution.
        version: the one of the reference image.
        only: patterns; where there are any, nothing else is taken but metadata.
        leave_out: patterns of what is not taken.
        programs: paths of what a compiler starts as a process. These alone get the execute bit:
            libraries are mapped, which needs none.
    """

    name: str
    version: str
    only: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def takes(self, path: str) -> bool:
        """Say whether a file of the distribution goes into the image.

        Args:
            path: below site-packages, with forward slashes.
        """
        parts = path.split("/")
        if parts[0] == ".." or path.startswith("/"):
            return False  # scripts beside the interpreter: they name the machine's own paths
        if len(parts) > 1 and parts[0].endswith(".dist-info"):
            return len(parts) == 2 and parts[1] in _KEPT_METADATA
        if self.only:
            return _matches(path, self.only)
        if _NEVER_FOLDERS.intersection(parts[:-1]) or _matches(path, _NEVER):
            return False
        return not _matches(path, self.leave_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The reviewed choice of what images hold.

    Attributes:
        families: packages by family of targets.
        limits_bytes: the largest allowed size of an unpacked image: "base", "with_tpu_or_amd".
    """

    families: Mapping[str, tuple[Package, ...]]
    limits_bytes: Mapping[str, int]

    def chosen(self, families: Iterable[str]) -> tuple[str, ...]:
        """Give families in their order here, each once, with the base.

        Raises:
            SpecError: one is unknown.
        """
        wanted = {BASE_FAMILY, *families}
        unknown = sorted(wanted - set(self.families))
        if unknown:
            raise SpecError(
                f"--targets: '{unknown[0]}' is unknown; allowed: {', '.join(self.families)}",
                remedy="name families of targets, with commas between",
            )
        return tuple(name for name in self.families if name in wanted)

    def packages(self, families: Iterable[str]) -> tuple[Package, ...]:
        """Give the packages of an image."""
        return tuple(package for name in self.chosen(families) for package in self.families[name])

    def limit_bytes(self, families: Iterable[str]) -> int:
        """Give the largest allowed size of an unpacked image."""
        large = {"tpu", "amd"}.intersection(families)
        return self.limits_bytes["with_tpu_or_amd" if large else "base"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFiles:
    """Files of packages, ready to be written.

    Attributes:
        files: their paths are below site-packages.
        expected: SHA-256 in hex by path, as the wheels' RECORDs state.
    """

    files: tuple[File, ...]
    expected: Mapping[str, str]

    def check(self, written: Written) -> None:
        """Hold a written file against its RECORD.

        Raises:
            ArtifactError: it was changed after it was installed.
        """
        expected = self.expected[written.path]
        if written.sha256 != expected:
            raise ArtifactError(
                f"package file {written.path}: SHA-256 {written.sha256}, but its wheel's RECORD "
                f"states {expected}",
                remedy="reinstall the package with `pip install --force-reinstall --no-deps`",
            )


def load_contents(path: Path = _CONTENTS) -> Contents:
    """Read the choice of what images hold."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return Contents(
        families={
            family: tuple(_package(entry) for entry in entries)
            for family, entries in document["families"].items()
        },
        limits_bytes=document["limits_bytes"],
    )


def package_files(packages: Sequence[Package], *, prefix: str) -> PackageFiles:
    """Find the files of installed packages.

    Args:
        packages: what is taken.
        prefix: the folder in the image that site-packages becomes.

    Raises:
        ArtifactError: a package is not installed, of another version, has no RECORD, or lacks a
            program that is stated.
    """
    files: dict[str, File] = {}
    expected: dict[str, str] = {}
    for package in packages:
        installed = _installed(package)
        for path, sha256 in _recorded(installed, package):
            if not package.takes(path):
                continue
            source = Path(str(installed.locate_file(path)))
            name = f"{prefix}/{path}"
            if sha256 is None:
                raise ArtifactError(f"package {package.name}: RECORD states no hash of {path}")
            if expected.get(name, sha256) != sha256:
                raise ArtifactError(f"package {package.name}: {path} is another package's too")
            files[name] = File(name, source, 0o755 if path in package.programs else 0o644)
            expected[name] = sha256
        for path in package.programs:
            if f"{prefix}/{path}" not in files:
                raise ArtifactError(
                    f"package {package.name}: program {path} is not among what is taken of it",
                    remedy="name its programs in enclave_image/contents.json as its RECORD does",
                )
    return PackageFiles(files=tuple(files.values()), expected=expected)


def _package(entry: Mapping[str, Any]) -> Package:
    return Package(
        name=entry["name"],
        version=entry["version"],
        only=tuple(entry.get("only", ())),
        leave_out=tuple(entry.get("leave_out", ())),
        programs=tuple(entry.get("programs", ())),
    )


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _installed(package: Package) -> importlib.metadata.Distribution:
    """Give the installed distribution of the pinned version."""
    try:
        found = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ArtifactError(
            f"package {package.name}: not installed; the image needs {package.version}",
            remedy=_install(package),
        ) from error
    if found.version != package.version:
        raise ArtifactError(
            f"package {package.name}: {found.version} is installed; the image needs "
            f"{package.version}",
            remedy=_install(package),
        )
    return found


def _install(package: Package) -> str:
    return f"pip install --no-deps {package.name}=={package.version}"


def _recorded(
    installed: importlib.metadata.Distribution, package: Package
) -> list[tuple[str, str | None]]:
    """Give (path, SHA-256 in hex) of a distribution's files, from its RECORD."""
    record = installed.read_text("RECORD")
    if record is None:
        raise ArtifactError(
            f"package {package.name}: it has no RECORD, so its files cannot be checked",
            remedy=_install(package),
        )
    return [(row[0], _sha256(row[1])) for row in csv.reader(record.splitlines()) if row]


def _sha256(stated: str) -> str | None:
    """Give the hex digits of a RECORD's hash, None where it states none."""
    name, _, value = stated.partition("=")
    if name != "sha256":
        return None
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
