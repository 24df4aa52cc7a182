"""Build the enclave's image: four ramdisks, and with a kernel the EIF, the same bytes every time.

| ramdisk | holds | the same on |
|---|---|---|
| boot | /init and empty folders; PCR1 | every machine |
| system | the interpreter and the system's libraries | machines of the same image |
| packages | pinned wheels | machines of the same Python version and processor |
| code | our compiler and service | every machine |

PCR2 measures the last three. Each ramdisk is written beside its place first, so a build that fails
leaves what was there before.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from enclave_image.boot import COMMAND_LINES, boot_entries
from enclave_image.cpio import Written, with_parents, write_cpio
from enclave_image.eif import (
    EifParts,
    ImageSigner,
    image_metadata,
    policy_document,
    policy_registers,
    write_eif,
)
from enclave_image.eif.measure import application_pcr
from enclave_image.inputs import DEFAULT_PINS, Input, checked_input, load_pins
from enclave_image.rootfs import Ramdisk, image_ramdisks
from runtime.spec.errors import ArtifactError

__all__ = ["BuiltImage", "BuiltRamdisk", "ImageRequest", "build_image", "write_ramdisks"]

EIF_NAME = "luma-enclave.eif"
FILES_NAME = "files.json"
MEASUREMENTS_NAME = "measurements.json"
_VERSION = "1"
_FILE_MODE = 0o644
_LISTED = 5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """What is built.

    Attributes:
        families: families of targets, see `contents.json`; the base is always among them.
        kernel: a pinned kernel; None builds the ramdisks alone.
        init: a pinned first process instead of ours.
        nsm: a pinned driver of the security module.
        pins: where pins stand.
        signer: signs the image.
    """

    families: tuple[str, ...] = ()
    kernel: Path | None = None
    init: Path | None = None
    nsm: Path | None = None
    pins: Path = DEFAULT_PINS
    signer: ImageSigner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRamdisk:
    """A ramdisk that was written.

    Attributes:
        name: "boot", "system", "packages" or "code".
        path: the archive.
        size: of the archive, in bytes.
        sha384: of the archive, in hex.
        files: its regular files.
    """

    name: str
    path: Path
    size: int
    sha384: str
    files: tuple[Written, ...]

    @property
    def unpacked_bytes(self) -> int:
        """The size of its files together."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Give name, digest and sizes."""
        return {
            "name": self.name,
            "bytes": self.size,
            "files": len(self.files),
            "unpacked_bytes": self.unpacked_bytes,
            "sha384": self.sha384,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """A finished build.

    Attributes:
        families: families of targets that it compiles for.
        eif: the image; None without a kernel.
        size: of the image, in bytes.
        ramdisks: in the image's order.
        pcrs: PCR0, 1, 2 and 8 as 96 hex digits, None for what needs a kernel.
        files_list: JSON with path, size and SHA-256 of each file.
        seconds: how long the build took.
    """

    families: tuple[str, ...]
    eif: Path | None
    size: int | None
    ramdisks: tuple[BuiltRamdisk, ...]
    pcrs: Mapping[str, str | None]
    files_list: Path
    seconds: float

    @property
    def name(self) -> str:
        """The image's name in measurements: its families, after "compiler"."""
        return _image_name(self.families)

    @property
    def unpacked_bytes(self) -> int:
        """The size of all files together, the kernel excepted."""
        return sum(ramdisk.unpacked_bytes for ramdisk in self.ramdisks)

    def to_json(self) -> dict[str, Any]:
        """Give what the command prints."""
        return {
            "eif": None if self.eif is None else str(self.eif),
            "bytes": self.size,
            "pcrs": dict(self.pcrs),
            "seconds": round(self.seconds, 3),
            "targets": list(self.families),
            "unpacked_bytes": self.unpacked_bytes,
            "ramdisks": [ramdisk.to_json() for ramdisk in self.ramdisks],
            "files": str(self.files_list),
        }


def build_image(request: ImageRequest, out: Path, *, say: Say = lambda _text: None) -> BuiltImage:
    """Build an image into a folder.

    Args:
        request: what is built.
        out: the folder; made where it is not there. Files of an earlier build are replaced.
        say: takes progress, a line a time.

    Raises:
        ArtifactError: an input is not pinned or lacks another, a package is missing or changed, the
            image is too large, or the folder cannot be written.
        SpecError: a family is unknown.
    """
    started = time.perf_counter()
    inputs = _pinned_inputs(request)
    kernel = inputs.get("kernel")
    if request.signer is not None and kernel is None:
        raise ArtifactError(
            "--sign: without a kernel there is no image to sign",
            remedy="give the kernel with --kernel",
        )
    families, ramdisks, limit = image_ramdisks(
        request.families,
        boot=boot_entries(init=_content(inputs, "init"), nsm=_content(inputs, "nsm")),
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=out) as name:
            folder = Path(name)
            built = write_ramdisks(ramdisks, folder, say)
            _check_size(built, limit)
            _write_list(folder / FILES_NAME, families, built)
            size, pcrs = _write_image(folder / EIF_NAME, request, kernel, built, families, say)
            _publish(folder, out)
    except OSError as error:
        raise ArtifactError(f"--out {out}: cannot be written: {error.strerror}") from error
    return BuiltImage(
        families=families,
        eif=None if kernel is None else out / EIF_NAME,
        size=size,
        ramdisks=tuple(_moved(ramdisk, out) for ramdisk in built),
        pcrs=pcrs,
        files_list=out / FILES_NAME,
        seconds=time.perf_counter() - started,
    )


def write_ramdisks(
    ramdisks: Iterable[Ramdisk], folder: Path, say: Say = lambda _text: None
) -> tuple[BuiltRamdisk, ...]:
    """Write ramdisks into a folder.

    Raises:
        ArtifactError: a file cannot be read, or is not what its package states.
        OSError: the folder cannot be written.
    """
    built = []
    for number, ramdisk in enumerate(ramdisks):
        path = folder / f"ramdisk-{number}-{ramdisk.name}.cpio"
        one = _write_ramdisk(ramdisk, path)
        say(f"{ramdisk.name}: {len(one.files)} files, {one.size / 2**20:.1f} MiB")
        built.append(one)
    return tuple(built)


def _write_ramdisk(ramdisk: Ramdisk, path: Path) -> BuiltRamdisk:
    files: list[Written] = []

    def note(written: Written) -> None:
        ramdisk.check(written)
        files.append(written)

    with path.open("wb") as file:
        hashing = _HashingFile(file)
        size = write_cpio(hashing, with_parents(ramdisk.entries), on_file=note)
    return BuiltRamdisk(
        name=ramdisk.name,
        path=path,
        size=size,
        sha384=hashing.digest.hexdigest(),
        files=tuple(files),
    )


class _HashingFile:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha384()
        self._file = file

    def write(self, data: bytes, /) -> int:
        """Write and hash."""
        self.digest.update(data)
        return self._file.write(data)


def _pinned_inputs(request: ImageRequest) -> dict[str, Input]:
    """Give the inputs by kind, checked against their pins and each other."""
    given = {"kernel": request.kernel, "init": request.init, "nsm": request.nsm}
    wanted = {kind: path for kind, path in given.items() if path is not None}
    if not wanted:
        return {}
    pins = load_pins(request.pins)
    found = {kind: checked_input(path, kind, pins, request.pins) for kind, path in wanted.items()}
    here = platform.machine()
    for kind, one in found.items():
        pin = one.pin
        if pin.architecture.value != here:
            raise ArtifactError(
                f"--{kind}: {pin.name} is for {pin.architecture.value}, but the interpreter and "
                f"packages of this machine are for {here}",
                remedy=f"build on {pin.architecture.value}",
            )
    _check_driver(found)
    return found


def _check_driver(found: Mapping[str, Input]) -> None:
    """Check that the driver of the security module is there where the kernel needs it, and fits."""
    if "kernel" not in found:
        return
    kernel = found["kernel"].pin
    if "nsm" not in found:
        if kernel.needs_nsm:
            raise ArtifactError(
                f"--nsm: missing; {kernel.name} {kernel.version} has no driver of the security "
                "module built in, so its enclave could not attest",
                remedy="give the nsm.ko of the same kernel with --nsm",
            )
        return
    nsm = found["nsm"].pin
    if kernel.version != nsm.version:
        raise ArtifactError(f"--nsm: for kernel {nsm.version}, but the kernel is {kernel.version}")


def _content(inputs: Mapping[str, Input], kind: str) -> bytes | None:
    return inputs[kind].content if kind in inputs else None


def _check_size(ramdisks: tuple[BuiltRamdisk, ...], limit: int) -> None:
    """Refuse an image that is larger than its set of targets may be."""
    size = sum(ramdisk.unpacked_bytes for ramdisk in ramdisks)
    if size <= limit:
        return
    largest = sorted(
        (file for ramdisk in ramdisks for file in ramdisk.files), key=lambda file: -file.size
    )[:_LISTED]
    listed = ", ".join(f"{file.path} ({file.size / 2**20:.0f} MiB)" for file in largest)
    raise ArtifactError(
        f"image: {size / 2**30:.2f} GiB unpacked; at most {limit / 2**30:.2f} GiB for these "
        f"targets; the largest files are {listed}",
        remedy="leave out what no compile loads, in enclave_image/contents.json",
    )


def _write_list(path: Path, families: tuple[str, ...], ramdisks: tuple[BuiltRamdisk, ...]) -> None:
    """Write the list of all files."""
    files = [
        {"path": file.path, "size": file.size, "sha256": file.sha256, "ramdisk": ramdisk.name}
        for ramdisk in ramdisks
        for file in ramdisk.files
    ]
    total = sum(ramdisk.unpacked_bytes for ramdisk in ramdisks)
    document = {"targets": list(families), "unpacked_bytes": total, "files": files}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _write_image(
    path: Path,
    request: ImageRequest,
    kernel: Input | None,
    ramdisks: tuple[BuiltRamdisk, ...],
    families: tuple[str, ...],
    say: Say,
) -> tuple[int | None, dict[str, str | None]]:
    """Write the EIF where there is a kernel; give its size, and the PCRs."""
    paths = [ramdisk.path for ramdisk in ramdisks]
    if kernel is None:
        say("no kernel was given: the ramdisks and PCR2 are all that is built")
        pcr2 = application_pcr(paths[1:]).hex()
        return None, {"PCR0": None, "PCR1": None, "PCR2": pcr2, "PCR8": None}
    parts = EifParts(
        kernel=kernel.content,
        cmdline=COMMAND_LINES[kernel.pin.architecture],
        ramdisks=paths,
        metadata=image_metadata(
            name=_image_name(families),
            version=_VERSION,
            tool_version=_VERSION,
            kernel_version=kernel.pin.version,
            custom={"targets": list(families), "code": ramdisks[-1].sha384},
        ),
        architecture=kernel.pin.architecture,
    )
    with path.open("w+b") as file:
        pcrs = write_eif(file, parts, signer=request.signer)
    size = path.stat().st_size
    document = policy_document({_image_name(families): policy_registers(pcrs.to_json())})
    text = json.dumps(document, indent=2) + "\n"
    path.with_name(MEASUREMENTS_NAME).write_text(text, encoding="utf-8")
    say(f"image: {size / 2**20:.1f} MiB")
    return size, dict(pcrs.to_json())


def _publish(folder: Path, out: Path) -> None:
    """Move finished files to their places; an image of an earlier build does not outlive it.

    Measurements go first and come last: whenever this is interrupted, what a key policy is made of
    is missing rather than another image's.
    """
    names = {path.name for path in folder.iterdir()}
    for name in sorted({*names, EIF_NAME, MEASUREMENTS_NAME}):
        if (out / name).is_dir():
            raise ArtifactError(
                f"--out {out}: {name} is a folder there; a file of that name is written",
                remedy="move it away, or give another folder with --out",
            )
    (out / MEASUREMENTS_NAME).unlink(missing_ok=True)
    if EIF_NAME not in names:
        (out / EIF_NAME).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: (name == MEASUREMENTS_NAME, name)):
        (folder / name).chmod(_FILE_MODE)  # not what the umask would make it
        (folder / name).replace(out / name)


def _image_name(families: tuple[str, ...]) -> str:
    return "-".join(("compiler", *families))


def _moved(ramdisk: BuiltRamdisk, out: Path) -> BuiltRamdisk:
    return BuiltRamdisk(
        name=ramdisk.name,
        path=out / ramdisk.path.name,
        size=ramdisk.size,
        sha384=ramdisk.sha384,
        files=ramdisk.files,
    )
