"""`make boot`: boot the enclave's image under QEMU, and let it compile.

    make boot KERNEL=bzImage PINS=pins.json
    make boot KERNEL=bzImage PINS=pins.json QEMU=/path/to/qemu-system-x86_64 DEVICE=/path/to/...

Exit code 0 where the boot went well, and also where something that it needs is not here: then it
says what. 1 where it failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from enclave_image.inputs import DEFAULT_PINS
from runtime.spec.errors import LumaError
from tests.e2e.boot.boot import Report, boot_and_compile, remove_large_files
from tests.e2e.boot.tools import DEVICE, MICROVM, NITRO, QEMU, BootError, MissingError, find_tools


def main(arguments: list[str] | None = None) -> int:
    """Boot, compile, and print both sides' PCRs."""
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="luma-boot-"))
    kept = False
    try:
        tools = find_tools(
            kernel=options.kernel,
            pins=options.pins,
            qemu=options.qemu,
            device=options.device,
            machine=options.machine,
            nsm=options.nsm,
            data=tuple(options.data),
        )
        report = boot_and_compile(
            tools,
            folder,
            memory_mib=options.memory,
            timeout_s=options.timeout,
            say=_tell,
        )
    except MissingError as error:
        return _skip(error, as_json=options.json)
    except (BootError, LumaError) as error:
        text = error.diagnostics() if isinstance(error, LumaError) else str(error)
        _tell(f"boot: {text}")
        if (folder / "console").exists():
            kept = True
            remove_large_files(folder)
            _tell(f"the guest's console and the device's log: {folder}")
        return 1
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    _print(report, as_json=options.json)
    return 1 if report.equal is False else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.boot", description=__doc__)
    parser.add_argument("--kernel", type=Path, help="a bzImage that --pins names")
    parser.add_argument("--nsm", type=Path, help="the security module's driver for that kernel")
    parser.add_argument("--pins", type=Path, default=DEFAULT_PINS)
    parser.add_argument("--qemu", default=QEMU, help="name or path of the emulator")
    parser.add_argument("--device", default=DEVICE, help="name or path of the vsock device")
    parser.add_argument(
        "--data", type=Path, action="append", default=[], help="a folder of QEMU's firmware"
    )
    parser.add_argument(
        "--machine", choices=(MICROVM, NITRO), help=f"default: {NITRO} where QEMU has it"
    )
    parser.add_argument("--memory", type=int, default=4096, help="the guest's, in MiB")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of the boot")
    parser.add_argument("--json", action="store_true")
    return parser


def _skip(error: MissingError, *, as_json: bool) -> int:
    if as_json:
        _write(json.dumps({"skipped": error.things}))
    else:
        _write("boot: skipped; not here:", *(f"  {thing}" for thing in error.things))
    return 0


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        _write(json.dumps(asdict(report) | {"equal": report.equal}, indent=2))
        return
    for name, value in report.builder.items():
        _write(f"{name} builder {value}")
        if report.guest is not None:
            _write(f"{name} guest   {report.guest.get(name)}")
    if report.guest is None:
        _write(f"guest: {report.machine} has no security module, so it measures nothing")
    else:
        _write("both sides are equal" if report.equal else "THE SIDES DIFFER")
    steps = ", ".join(f"{name} {seconds:g} s" for name, seconds in report.seconds.items())
    made = f"an artifact of {report.artifact_bytes} bytes for {report.cpu}"
    _write(f"{report.label}: {made}; {steps}")


def _write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    # SIGTERM ends it as Ctrl-C does, so that nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
