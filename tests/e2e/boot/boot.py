"""Build the image, boot it, have it compile, and hold what it measured against the builder's PCRs."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from enclave_image.build import MEASUREMENTS_NAME, BuiltImage, ImageRequest, build_image
from enclave_image.eif import SectionKind, read_eif
from enclave_image.eif.layout import SECTION_HEAD_BYTES
from enclave_image.probe import probe_package
from enclave_image.service.address import DEFAULT_PORT
from enclave_image.service.client import CompiledInService, CompileOrder, compile_over
from enclave_image.service.expected import expected_policy
from enclave_image.service.session import Trust
from runtime.artifact import TargetPayload
from runtime.compiler.child import Children, run_worker
from runtime.compiler.targets import find_target
from tests.attestation_support import Pki
from tests.e2e.boot.emulated_module import judging_signed_again, measured_pcrs
from tests.e2e.boot.guest_vsock import Heartbeat, connect_port
from tests.e2e.boot.machines import Parts, Wiring, device_command, qemu_command
from tests.e2e.boot.processes import Running, started, wait_for
from tests.e2e.boot.tools import NITRO, BootError, Tools
from tests.support.eif import signer

TARGET = "cpu"
_MICRO_SHARDS = 2
_DEVICE_S = 60.0
_CONNECT_S = 60.0
_COPY_BYTES = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a boot showed.

    Attributes:
        machine: QEMU's machine.
        builder: PCRs as the builder computed them, in hex by name.
        guest: PCRs in the guest's attestation document; None where the machine has no module.
        label: the way of the compile, as the client prints it.
        artifact_bytes: size of the sealed artifact that came back.
        cpu: the CPU that the guest compiled for, as the artifact names it.
        seconds: by step.
    """

    machine: str
    builder: Mapping[str, str | None]
    guest: Mapping[str, str] | None
    label: str
    artifact_bytes: int
    cpu: str
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def equal(self) -> bool | None:
        """Whether both sides' PCRs are equal; None where the guest has none."""
        return None if self.guest is None else dict(self.guest) == dict(self.builder)


def boot_and_compile(
    tools: Tools, folder: Path, *, memory_mib: int, timeout_s: float, say: Say
) -> Report:
    """Do all of it.

    Args:
        tools: from `find_tools`.
        folder: empty, of a short path; takes about four times the image's size.
        memory_mib: the guest's.
        timeout_s: from QEMU's start until the service listens.
        say: takes progress.

    Raises:
        BootError: a process failed, or the guest did not come up in time.
        LumaError: the image cannot be built, or the compile failed.
    """
    clock = _Clock()
    request = ImageRequest(
        kernel=tools.kernel,
        nsm=tools.nsm,
        pins=tools.pins,
        signer=signer(),  # of this boot alone: without one PCR8 is zeros on both sides
    )
    built = build_image(request, folder / "image", say=say)
    parts = boot_parts(built, folder)
    clock.lap("build")
    wiring = Wiring(folder)
    with running_guest(
        tools, wiring, parts, memory_mib=memory_mib, timeout_s=timeout_s, say=say
    ) as beat:
        clock.lap("boot")
        say(f"the service listens after {clock.seconds['boot']:.1f} s; it compiles for {TARGET}")
        made = _compile(tools, wiring, built, folder / "made.luma", say)
        clock.lap("compile")
        if not beat.heard.is_set():
            raise BootError("heartbeat: the service compiled, but the first process never beat")
    check_compiled(made)
    guest = None
    if tools.machine == NITRO:
        if made.artifact.attestation is None:
            raise BootError("attestation: a machine with a security module gave no document")
        guest = measured_pcrs(made.artifact.attestation)
    return Report(
        machine=tools.machine,
        builder=built.pcrs,
        guest=guest,
        label=made.label,
        artifact_bytes=made.artifact.path.stat().st_size,
        cpu=made.artifact.target_payload(TARGET).cpu_name,
        seconds=clock.seconds,
    )


@contextlib.contextmanager
def running_guest(
    tools: Tools, wiring: Wiring, parts: Parts, *, memory_mib: int, timeout_s: float, say: Say
) -> Generator[Heartbeat]:
    """Run a guest whose service listens, while the block runs.

    Raises:
        BootError: a process failed, or the service did not listen in time.
    """
    with (
        Heartbeat(wiring) as beat,
        started("vsock device", device_command(tools, wiring), wiring.folder / "device") as device,
    ):
        wait_for(
            "vsock device",
            lambda: wiring.control.exists() or None,
            [device],
            timeout_s=_DEVICE_S,
        )
        command = qemu_command(tools, wiring, parts, memory_mib=memory_mib)
        console = wiring.folder / "console"
        say(f"booting {tools.machine}; its console: {console}")
        with started("QEMU", command, console) as qemu:
            wait_for("boot", lambda: listening(qemu), [device, qemu], timeout_s=timeout_s)
            yield beat


def listening(qemu: Running) -> bool | None:
    """Say whether the guest's service listens; None is "not yet"."""
    return any(event["event"] == "listening" for event in qemu.events()) or None


def boot_parts(built: BuiltImage, folder: Path) -> Parts:
    """Take the sections out of the image's file again: what boots is what was measured.

    Raises:
        BootError: no image was built.
        ArtifactError: the file is not exactly an image.
    """
    if built.eif is None:
        raise BootError("image: built without a kernel")
    image = read_eif(built.eif)
    kernel, initrd = folder / "kernel", folder / "initrd"
    with built.eif.open("rb") as file, kernel.open("wb") as one, initrd.open("wb") as many:
        for section in image.sections:
            file.seek(section.offset + SECTION_HEAD_BYTES)
            if section.kind is SectionKind.KERNEL:
                _copy(file, one, section.size)
            elif section.kind is SectionKind.RAMDISK:
                _copy(file, many, section.size)
    return Parts(eif=built.eif, kernel=kernel, initrd=initrd, cmdline=image.cmdline)


def check_compiled(made: CompiledInService) -> None:
    """Hold the guest's program against one that is compiled here.

    XLA's bytes for a CPU differ in places from compile to compile, and the emulated CPU is another
    one, so what is compared is what a node binds arrays by: programs, arguments, results, blocks.

    Raises:
        BootError: they differ.
    """
    outside = TargetPayload.from_bytes(
        run_worker(
            probe_package().to_bytes(),
            target=find_target(TARGET),
            micro_shards=_MICRO_SHARDS,
            emit=lambda _event: None,
            children=Children(),
        )
    )
    inside = made.artifact.target_payload(TARGET)
    for name, (found, expected) in compared(inside, outside).items():
        if found != expected:
            raise BootError(f"compile: {name}: {found} in the guest, {expected} on this machine")
    if not all(program.executable for program in inside.programs.values()):
        raise BootError("compile: a program of the guest's is empty")


def compared(inside: TargetPayload, outside: TargetPayload) -> dict[str, tuple[object, object]]:
    """Give what must be equal in two payloads, by name."""

    def of(payload: TargetPayload) -> dict[str, object]:
        signatures = {
            f"program {name}": (program.inputs, program.outputs)
            for name, program in payload.programs.items()
        }
        return {
            "programs": sorted(payload.programs),
            "blocks": payload.blocks,
            **signatures,
        }

    found, expected = of(inside), of(outside)
    return {name: (value, expected.get(name)) for name, value in found.items()}


def _compile(
    tools: Tools, wiring: Wiring, built: BuiltImage, output: Path, say: Say
) -> CompiledInService:
    """Send one compile through the product's client."""
    attests = tools.machine == NITRO
    order = CompileOrder(
        package=probe_package().to_bytes(),
        targets=(TARGET,),
        micro_shards=_MICRO_SHARDS,
        level="L2" if attests else "L1",
        data_key=secrets.token_bytes(32),
    )
    peer = connect_port(wiring.host, DEFAULT_PORT, timeout_s=_CONNECT_S)
    with contextlib.ExitStack() as inside:
        trust = Trust()
        if attests and built.eif is not None:
            roots = inside.enter_context(judging_signed_again(Pki.create(datetime.now(UTC))))
            policy = expected_policy(built.eif.with_name(MEASUREMENTS_NAME))
            trust = Trust(policy=policy, roots=roots)
        return compile_over(
            peer, order, output=output, trust=trust, progress=lambda event: say(f"  {event}")
        )


def _copy(source: BinaryIO, sink: BinaryIO, size: int) -> None:
    """Copy `size` bytes, which the image's reader has seen to be there."""
    left = size
    while left:
        chunk = source.read(min(_COPY_BYTES, left))
        if not chunk:
            raise BootError("image: became shorter while it was read")
        sink.write(chunk)
        left -= len(chunk)


class _Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._from = time.monotonic()

    def lap(self, name: str) -> None:
        """End a step."""
        now = time.monotonic()
        self.seconds[name] = round(now - self._from, 2)
        self._from = now


def remove_large_files(folder: Path) -> None:
    """Leave the console and the logs of a failed boot, and nothing of the image."""
    shutil.rmtree(folder / "image", ignore_errors=True)
    for name in ("kernel", "initrd", "made.luma"):
        (folder / name).unlink(missing_ok=True)
