"""The runtime's sources as one zip file, the same bytes on every machine.

The build of the distribution `luma-constructs` loads this module by its path, without the package
and without aws-cdk-lib: it imports the standard library alone.

    runtime/, enclave_image/           the packages
    pyproject.toml, constraints.txt    versions
    requirements/                      the sets of Neuron's two generations
    node/*.sh, node/*.py               what user data starts: bootstrap, enclave_host, serve_host
    node/requirements-FAMILY.txt       what a node needs, by the family of its target
"""

from __future__ import annotations

import io
import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["BUNDLED", "FAMILIES", "RuntimeSourceError", "bundle", "repository_of"]

BUNDLED = "_assets/runtime.zip"
"""Where the distribution carries the bundle, below the package's folder."""

FAMILIES = ("cpu", "cuda", "tpu", "rocm", "neuron", "compiler", "serve")
"""The sets of requirements: those of a target's family, of a compiler's host, of a server."""

_PACKAGES = ("runtime", "enclave_image")
_FILES = ("pyproject.toml", "constraints.txt", "LICENSE")
_EXTRAS = {
    "cpu": ("aws",),
    "cuda": ("aws", "cuda"),
    "tpu": ("aws", "tpu"),
    "rocm": ("aws", "amd"),
    # Neuron's packages come from the vendor's image or index: requirements/neuron-*.txt.
    "neuron": ("aws",),
    "compiler": ("aws", "cuda", "tpu", "amd"),
}
_SUFFIXES = frozenset(
    {".py", ".typed", ".json", ".yaml", ".service", ".timer", ".txt", ".toml", ".sh"}
)
_SCRIPTS = (
    "bootstrap.sh",
    "enclave_host.sh",
    "host_identity.py",
    "python_env.sh",
    "serve_host.sh",
    "serve_watch.py",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_HEADER = "# Made from pyproject.toml and node_packages.txt; versions are in constraints.txt.\n"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class RuntimeSourceError(RuntimeError):
    """The runtime's sources are not where they should be; the message says what to do."""


def repository_of(package: Path) -> Path | None:
    """Give Luma's repository, if the package's folder lies in it; another project's is none.

    Args:
        package: folder of `luma_constructs`.
    """
    root = package.parent
    project = root / "pyproject.toml"
    if not project.is_file() or not all((root / name).is_dir() for name in _PACKAGES):
        return None
    try:
        name = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["name"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return None
    return root if name == "luma" else None


def bundle(root: Path, package: Path) -> bytes:
    """Give the zip file of the runtime.

    Args:
        root: Luma's repository.
        package: folder of `luma_constructs`, with the script and the list of packages.

    Raises:
        RuntimeSourceError: a file is missing.
    """
    entries = dict(_sources(root))
    for script in _SCRIPTS:
        entries[f"node/{script}"] = _read(package / "data" / script)
    for family in FAMILIES:
        text = _requirements(root, package, family)
        entries[f"node/requirements-{family}.txt"] = text.encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(entries):
            archive.writestr(_entry(name), entries[name])
    return stream.getvalue()


def _sources(root: Path) -> Iterator[tuple[str, bytes]]:
    """Give the runtime's files, by path; what a file system or a tool left there is no source."""
    for name in _FILES:
        yield name, _read(root / name)
    for folder in (*_PACKAGES, "requirements"):
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and path.suffix in _SUFFIXES and "__pycache__" not in inside.parts:
                yield inside.as_posix(), _read(path)


def _requirements(root: Path, package: Path, family: str) -> str:
    """Give the requirements of one family of nodes, a line each.

    Of the project's dependencies a node takes those that `node_packages.txt` names: it captures no
    model, so it has no torch. A server takes them all.
    """
    project = tomllib.loads(_read(root / "pyproject.toml").decode())["project"]
    extras = project["optional-dependencies"]
    if family == "serve":
        return _HEADER + "".join(f"{line}\n" for line in (*project["dependencies"], *extras["aws"]))
    wanted = _names(_read(package / "data/node_packages.txt").decode())
    base = {_name(line): line for line in project["dependencies"]}
    missing = sorted(wanted - base.keys())
    if missing:
        raise RuntimeSourceError(
            f"node_packages.txt: {', '.join(missing)} is no dependency in pyproject.toml"
        )
    lines = [base[name] for name in sorted(wanted)]
    lines += [line for extra in _EXTRAS[family] for line in extras[extra]]
    return _HEADER + "".join(f"{line}\n" for line in lines)


def _names(text: str) -> set[str]:
    """Give the names in a list with comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {_name(line) for line in lines if line}


def _name(requirement: str) -> str:
    """Give a requirement's distribution, as PyPI compares names (PEP 503)."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else requirement).lower()


def _entry(name: str) -> zipfile.ZipInfo:
    """Give an entry without a time of its own."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system = 3  # Unix, on any system
    info.external_attr = (0o100755 if name.endswith(".sh") else 0o100644) << 16
    return info


def _read(path: Path) -> bytes:
    """Read a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RuntimeSourceError(
            f"{path.name}: {error.strerror} in {path.parent}; "
            "use a complete checkout of Luma, or install luma-constructs"
        ) from error
