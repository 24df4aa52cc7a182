"""What an image's root file system holds, as ramdisks: which files, from where, at which paths.

The parts come from `boot`, `interpreter`, `packages` and `sources`; this puts them in the order
of the image. The order never changes, since PCR2 measures the ramdisks one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from enclave_image.boot import boot_entries
from enclave_image.cpio import Directory, Entry, File, Written, with_parents
from enclave_image.interpreter import find_interpreter, interpreter_entries, library_entries
from enclave_image.packages import load_contents, package_files
from enclave_image.sources import source_files
from runtime.spec.errors import ArtifactError

__all__ = ["Ramdisk", "boot_ramdisk", "check_paths", "code_ramdisk", "image_ramdisks"]


def _anything(written: Written) -> None:
    """Check nothing: there is no statement to hold the file against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramdisk:
    """A ramdisk that is to be written.

    Attributes:
        name: "boot", "system", "packages" or "code".
        entries: its directories may be left out.
        check: takes each written file, and raises where it is not what it should be.
    """

    name: str
    entries: tuple[Entry, ...]
    check: Callable[[Written], None] = _anything


def code_ramdisk() -> Ramdisk:
    """Give the ramdisk of our own code."""
    return Ramdisk(name="code", entries=source_files())


def boot_ramdisk(entries: tuple[Entry, ...] | None = None) -> Ramdisk:
    """Give the first ramdisk, by default with our own first process and no driver."""
    return Ramdisk(name="boot", entries=boot_entries() if entries is None else entries)


def image_ramdisks(
    families: Iterable[str], *, boot: tuple[Entry, ...] | None = None
) -> tuple[tuple[str, ...], tuple[Ramdisk, ...], int]:
    """Give what an image for families of targets holds.

    Args:
        families: such as "cuda"; the base is added.
        boot: entries of the first ramdisk; None for ours.

    Returns:
        The families in order, the ramdisks in order, and the largest allowed size of all files.

    Raises:
        ArtifactError: a package or a library is missing, or two ramdisks hold one path.
        SpecError: a family is unknown.
    """
    contents = load_contents()
    chosen = contents.chosen(families)
    interpreter = find_interpreter()
    packages = package_files(contents.packages(chosen), prefix=interpreter.site_packages)
    program = interpreter_entries(interpreter)
    sources = [entry.content for entry in (*program, *packages.files) if isinstance(entry, File)]
    libraries = library_entries(path for path in sources if not isinstance(path, bytes))
    ramdisks = (
        boot_ramdisk(boot),
        Ramdisk(name="system", entries=(*program, *libraries)),
        Ramdisk(name="packages", entries=packages.files, check=packages.check),
        code_ramdisk(),
    )
    check_paths(ramdisks)
    return chosen, ramdisks, contents.limit_bytes(chosen)


def check_paths(ramdisks: Iterable[Ramdisk]) -> None:
    """Check that no ramdisk replaces what another one holds; folders may be shared.

    The kernel unpacks them one over the other without a word, so the list of files would name a
    file that is not there in the end.

    Raises:
        ArtifactError: a path is in two of them, and not as the same folder.
    """
    seen: dict[str, tuple[str, Entry]] = {}
    for ramdisk in ramdisks:
        for entry in with_parents(ramdisk.entries):
            other, first = seen.setdefault(entry.path, (ramdisk.name, entry))
            shared = isinstance(entry, Directory) and entry == first
            if other != ramdisk.name and not shared:
                raise ArtifactError(
                    f"image: '{entry.path}' is in the ramdisk {other} and in {ramdisk.name}",
                    remedy="leave it out of one of them; only a folder of one mode may be in both",
                )
