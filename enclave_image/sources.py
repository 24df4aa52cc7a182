"""Our own code in an image: the modules that the service can import, and no others.

The list is the closure of imports, read from the sources without running them, imports inside of
functions included: what only a type checker reads is left out. So neither the image's builder nor
capture, which needs torch, is inside, and a change to them changes no measurement; nor does one to
a data file, such as a price in the catalogue, since the service reads none. Contents alone count, so
the same checkout gives the same ramdisk on every machine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from enclave_image.cpio import File
from runtime.spec.errors import ArtifactError

__all__ = ["PREFIX", "ROOT", "import_closure", "source_files"]

ROOT = Path(__file__).parents[1]
"""The folder that holds our packages."""

PREFIX = "opt/luma/code"
_OURS = ("runtime", "enclave_image")
_SERVICE = "enclave_image.service"
_WORKER = "runtime.compiler.worker"


def source_files(root: Path = ROOT) -> tuple[File, ...]:
    """Give the files of the service and of all that it can import.

    Raises:
        ArtifactError: a module cannot be read.
    """
    return tuple(
        File(f"{PREFIX}/{path.relative_to(root).as_posix()}", path, 0o644)
        for path in sorted(import_closure(_roots(), root))
    )


def import_closure(modules: Iterable[str], root: Path = ROOT) -> frozenset[Path]:
    """Give the files of modules and of all of ours that they import.

    Args:
        modules: full names.
        root: the folder that holds our packages.

    Raises:
        ArtifactError: a file cannot be read, or is not Python.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        for part in _with_packages(name):
            path = _module_file(part, root)
            if path is None or part in found:
                continue
            found[part] = path
            waiting.extend(_imports(part, path))
    return frozenset(found.values())


def _roots() -> tuple[str, ...]:
    """Give the names of the modules that the image starts; the client's side is none of them."""
    return (_WORKER, f"{_SERVICE}.__main__")


def _with_packages(name: str) -> Iterator[str]:
    """Give a module's packages, outermost first, then the module."""
    parts = name.split(".")
    if parts[0] in _OURS:
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _module_file(name: str, root: Path) -> Path | None:
    """Give the file of a module, None where there is no such module."""
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _imports(name: str, path: Path) -> list[str]:
    """Give the names that a module imports; a name of a module's own may be among them."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError) as error:
        raise ArtifactError(f"source {path}: cannot be read as Python") from error
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names: list[str] = []
    for node in _run_time_nodes(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def _run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a module, less what stands under `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
