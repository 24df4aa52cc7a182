"""`luma enclave build`, `luma enclave describe`: make and read the image of the sealed compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json, print_rows, print_table

if TYPE_CHECKING:
    from enclave_image.build import BuiltImage

_MIB = 1 << 20


def register(app: App) -> None:
    """Add the commands."""
    group = App(name="enclave", help="Build and read the enclave image that compiles for you.")
    group.command(build)
    group.command(describe)
    app.command(group)


def build(
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    targets: Annotated[list[str] | None, Parameter(negative="")] = None,
    kernel: Path | None = None,
    init: Path | None = None,
    nsm: Path | None = None,
    pins: Path | None = None,
    sign: Annotated[tuple[Path, Path] | None, Parameter(negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """Build the enclave image from this Python, the pinned wheels and this checkout.

    The same inputs give the same bytes, whoever builds, where and when. Without a kernel, the
    ramdisks and PCR2 are all that is built. Nothing is downloaded.

    For example:

        luma enclave build --out image

        luma enclave build --out image --targets cpu,cuda --kernel bzImage --nsm nsm.ko --json

        luma enclave build --out image --kernel bzImage --nsm nsm.ko --sign key.pem cert.pem

    Args:
        out: the folder for the image, its ramdisks and the list of its files
        targets: families of targets, with commas between: cpu (always), cuda, tpu, amd
        kernel: a kernel whose digest is pinned (enclave_image/inputs.json)
        init: a pinned first process instead of Luma's
        nsm: a pinned driver of the security module, for kernels before 6.8
        pins: another file of pinned digests
        sign: the signing key and its certificate (PEM), which give PCR8
        json: print JSON: {eif, bytes, pcrs, seconds, ...}
    """
    from enclave_image.build import ImageRequest, build_image
    from enclave_image.eif import load_image_signer
    from enclave_image.inputs import DEFAULT_PINS

    families = [name.strip() for text in targets or [] for name in text.split(",") if name.strip()]
    request = ImageRequest(
        families=tuple(families),
        kernel=kernel,
        init=init,
        nsm=nsm,
        pins=pins or DEFAULT_PINS,
        signer=None if sign is None else load_image_signer(*sign),
    )
    image = build_image(request, out, say=note)
    if json:
        print_json(image.to_json())
    else:
        _print_build(image)
    return 0


def describe(file: Path, /, *, json: JsonFlag = False) -> int:
    """Check an enclave image file whole, and show its header, sections and PCRs.

    Exit code 1 where it is not exactly the format, its checksum is wrong, or its signature does not
    fit.

    For example:

        luma enclave describe image/luma-enclave.eif --json

    Args:
        file: the image (EIF)
        json: print JSON: {header, sections, pcrs, ...}
    """
    from enclave_image.eif import read_eif

    document = read_eif(file).to_json()
    if json:
        print_json(document)
    else:
        _print_description(document)
    return 0


def _print_build(image: BuiltImage) -> None:
    header = ("RAMDISK", "FILES", "MIB", "SHA-384")
    rows = [
        (item.name, str(len(item.files)), f"{item.size / _MIB:.1f}", item.sha384)
        for item in image.ramdisks
    ]
    print_table(header, rows)
    size = "-" if image.size is None else f"{image.size / _MIB:.1f} MiB"
    shown = [
        ("image", "none (no kernel was given)" if image.eif is None else str(image.eif)),
        ("size", size),
        ("unpacked", f"{image.unpacked_bytes / _MIB:.1f} MiB"),
        ("targets", ", ".join(image.families)),
        ("files", str(image.files_list)),
        *((name, value or "-") for name, value in image.pcrs.items()),
        ("seconds", f"{image.seconds:.1f}"),
    ]
    print_rows(shown)


def _print_description(document: dict[str, Any]) -> None:
    print_rows([(name, str(value)) for name, value in document["header"].items()])
    header = ("SECTION", "TYPE", "OFFSET", "BYTES")
    rows = [
        (str(number), item["type"], str(item["offset"]), str(item["bytes"]))
        for number, item in enumerate(document["sections"])
    ]
    print_table(header, rows)
    shown = [("cmdline", document["cmdline"]), ("signed_by", document["signed_by"] or "nobody")]
    metadata = document["metadata"]
    for name, value in metadata.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        shown += [(f"metadata.{name}.{key}".rstrip("."), str(item)) for key, item in inner]
    print_rows([*shown, *document["pcrs"].items()])
