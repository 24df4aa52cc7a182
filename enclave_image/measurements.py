"""The measurements that the repository lists: of our code everywhere, of whole images by reference.

    python -m enclave_image.measurements [--kernel FILE [--nsm FILE]]        (make measurements)

writes `measurements.json`:

- `ramdisks`: the digests of the ramdisks "boot" and "code", the same on every machine. A change to
  the compiler changes them, and so is a change that a review sees.
- `references`: builds of whole images with all digests and PCR2. An image is a function of our
  code, the pinned wheels, and the interpreter with its libraries; the last are a machine's own, so
  an entry names the digest of each, and whoever has the same gets the same PCRs.
- `images`: registers by name for key policies; only images with a kernel have all of them.

`luma enclave build` with a kernel writes a file of this form for its image alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enclave_image.build import BuiltImage, ImageRequest, build_image, write_ramdisks
from enclave_image.eif import policy_document, policy_registers
from enclave_image.interpreter import find_interpreter
from enclave_image.rootfs import boot_ramdisk, code_ramdisk
from runtime.spec.errors import ArtifactError

__all__ = [
    "MEASUREMENTS",
    "load_measurements",
    "own_digests",
    "reference_entry",
    "write_measurements",
]

MEASUREMENTS = Path(__file__).with_name("measurements.json")
REFERENCE_FAMILIES = (("cpu",), ("cpu", "cuda"), ("cpu", "cuda", "tpu", "amd"))


def load_measurements(path: Path = MEASUREMENTS) -> dict[str, Any]:
    """Read the listed measurements."""
    return json.loads(path.read_text(encoding="utf-8"))


def own_digests() -> dict[str, dict[str, Any]]:
    """Give size and SHA-384 of the ramdisks that are the same on every machine, by name."""
    with tempfile.TemporaryDirectory(prefix="luma-measurements-") as name:
        built = write_ramdisks((boot_ramdisk(), code_ramdisk()), Path(name))
    return {
        ramdisk.name: {
            "bytes": ramdisk.size,
            "files": len(ramdisk.files),
            "sha384": ramdisk.sha384,
        }
        for ramdisk in built
    }


def reference_entry(image: BuiltImage) -> dict[str, Any]:
    """Give what `measurements.json` says of a build."""
    return {
        "name": image.name,
        "targets": list(image.families),
        "architecture": platform.machine(),
        "python": find_interpreter().version,
        "ramdisks": {ramdisk.name: ramdisk.sha384 for ramdisk in image.ramdisks},
        "unpacked_bytes": image.unpacked_bytes,
        "PCR2": image.pcrs["PCR2"],
    }


def write_measurements(
    path: Path = MEASUREMENTS, *, kernel: Path | None = None, nsm: Path | None = None
) -> list[str]:
    """Measure again, and write the file.

    A set of targets whose packages are not installed here is left out: what an earlier file said of
    it was measured with other code.

    Args:
        path: the file.
        kernel: a pinned kernel; None leaves `images` empty.
        nsm: a pinned driver.

    Returns:
        What was left out, and why.

    Raises:
        ArtifactError: the images cannot be built with this kernel, or the code changed meanwhile.
    """
    images: dict[str, Mapping[str, str]] = {}
    references, left_out = [], []
    with tempfile.TemporaryDirectory(prefix="luma-measurements-") as name:
        for families in REFERENCE_FAMILIES:
            request = ImageRequest(families=families, kernel=kernel, nsm=nsm)
            try:
                built = build_image(request, Path(name))
            except ArtifactError as error:
                if families == REFERENCE_FAMILIES[0]:
                    raise
                left_out.append(f"{','.join(families)}: {error.message}")
                continue
            references.append(reference_entry(built))
            if built.eif is not None:
                images[built.name] = policy_registers(built.pcrs)
    own = own_digests()
    for entry in references:
        if any(entry["ramdisks"][name] != digest["sha384"] for name, digest in own.items()):
            raise ArtifactError(
                f"measurements: the code changed while {entry['name']} was measured",
                remedy="run it again when nobody edits the compiler or the service",
            )
    document = policy_document(images) | {"ramdisks": own, "references": references}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return left_out


def main(arguments: list[str] | None = None) -> int:
    """Write the file; say what was left out."""
    parser = argparse.ArgumentParser(prog="enclave_image.measurements")
    parser.add_argument("--kernel", type=Path)
    parser.add_argument("--nsm", type=Path)
    options = parser.parse_args(arguments)
    try:
        left_out = write_measurements(kernel=options.kernel, nsm=options.nsm)
    except ArtifactError as error:
        sys.stderr.write(f"{error.diagnostics()}\n")
        return error.exit_code
    for line in left_out:
        sys.stderr.write(f"left out: {line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
