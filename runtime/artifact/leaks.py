"""What a holder of the key could still read in a payload: names, paths and IR, counted by kind.

The scan looks at bytes, not at formats: it knows what op names, paths, PTX and MLIR look like, raw,
escaped and in base64. It opens what it can (zlib and gzip streams, riegeli files, the two textual
dresses of MLIR bytecode), and where it meets a compression that it cannot open, or more than it is
willing to inflate, it says so instead of calling the part clean. In CPU, CUDA and TPU executables
it also walks the HLO module, whose metadata and names it can count exactly. Machine code itself is
always readable to the holder of the key, and is not counted.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.artifact import _leak_looks as looks
from runtime.artifact import xla_forms as forms
from runtime.artifact._leak_looks import KINDS, SCRUBBED_KINDS
from runtime.artifact.mlir_bytecode import bytecode_kind
from runtime.artifact.program import TargetPayload
from runtime.artifact.protobuf import NotAMessageError, read_varint, split
from runtime.artifact.riegeli import NotRiegeliError, read_records
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "KINDS",
    "SCRUBBED_KINDS",
    "Leak",
    "leaks",
    "leaks_in_executable",
    "scrub_violations",
    "survey",
    "totals",
]

_MIN_INFLATED = 32
_MAX_INFLATED = 16 << 20
_MAX_SCANNED = 1 << 30
_MAX_SIZE_BYTES = 5  # of the varint before a part: up to 32 GiB
_MAX_ATTEMPTS = 8  # at riegeli files that prove not to be whole
_MAX_TOLD_APART = 1000  # pieces of MLIR bytecode; further ones are only counted
_FEED = 1 << 16
_MAX_NESTING = 4
_EXAMPLES, _EXAMPLE_BYTES = 3, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One kind of thing that can be read in an executable.

    Attributes:
        kind: one of `KINDS`.
        count: how many were found.
        examples: the first few that differ, cut to a line.
    """

    kind: str
    count: int
    examples: tuple[str, ...]


@dataclass
class _Findings:
    """What a scan has found so far, and how much more it is willing to do.

    Attributes:
        counts: by kind.
        examples: by kind, a few.
        left: bytes that it will still scan or inflate.
        attempts: riegeli files that it could not read.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    left: int = field(default_factory=lambda: _MAX_SCANNED)
    attempts: int = 0

    def add(self, kind: str, example: bytes, count: int = 1) -> None:
        """Count a finding and keep it as an example while there are few."""
        self.counts[kind] += count
        kept = self.examples.setdefault(kind, [])
        if len(kept) < _EXAMPLES:
            text = example[:_EXAMPLE_BYTES].decode("ascii", "backslashreplace")
            text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
            if text not in kept:
                kept.append(text)

    def leaks(self) -> tuple[Leak, ...]:
        """Give what was found, in the order of `KINDS`."""
        return tuple(
            Leak(kind=kind, count=self.counts[kind], examples=tuple(self.examples.get(kind, ())))
            for kind in KINDS
            if self.counts[kind]
        )


def survey(payload: TargetPayload) -> dict[str, tuple[Leak, ...]]:
    """Give what can be read in each program of a payload."""
    found = {}
    for name, program in payload.programs.items():
        findings = _scan(program.executable)
        for tensor in program.inputs + program.outputs:
            if tensor.name:
                findings.add("tensor_name", tensor.name.encode())
        found[name] = findings.leaks()
    return found


def leaks(payload: bytes) -> dict[str, int]:
    """Count what can be read in a payload, by kind; only kinds that occur are given.

    Args:
        payload: `TargetPayload.to_bytes()`, or any other bytes, such as a bare executable.
    """
    try:
        parsed = TargetPayload.from_bytes(payload)
    except ArtifactError:
        return leaks_in_executable(payload)
    return totals(leak for program in survey(parsed).values() for leak in program)


def leaks_in_executable(executable: bytes) -> dict[str, int]:
    """Count what can be read in one serialized executable, by kind."""
    return totals(_scan(executable).leaks())


def scrub_violations(
    payload: TargetPayload, found: Mapping[str, tuple[Leak, ...]] | None = None
) -> dict[str, int]:
    """Count what a payload that calls itself scrubbed must not hold; empty where it does not.

    Args:
        payload: the payload.
        found: its `survey`, where that was made already.
    """
    if not payload.scrubbed:
        return {}
    counts = totals(leak for program in (found or survey(payload)).values() for leak in program)
    return {kind: counts[kind] for kind in SCRUBBED_KINDS if kind in counts}


def totals(found: Iterable[Leak]) -> dict[str, int]:
    """Add leaks up by kind, in the order of `KINDS`."""
    counts: Counter[str] = Counter()
    for leak in found:
        counts[leak.kind] += leak.count
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def _scan(executable: bytes) -> _Findings:
    """Scan one executable: its bytes, and the messages that can be walked in it."""
    findings = _Findings()
    _scan_part(executable, findings, depth=0)
    try:
        told = forms.telling_fields(executable)
    except (NotAMessageError, NotRiegeliError):
        return findings  # another form: what its bytes look like is all that can be said
    findings.add("hlo_module", b"an optimised HLO module")
    _add_exact(told, findings)
    return findings


def _scan_part(data: bytes, findings: _Findings, depth: int) -> None:
    """Scan bytes and, once each, what is packed into them."""
    findings.left -= len(data)
    if depth > _MAX_NESTING or findings.left < 0:
        limit = f"{_MAX_SCANNED} bytes or {_MAX_NESTING} wrappings"
        findings.add("unread", f"{len(data)} bytes beyond the scan's limit of {limit}".encode())
        return
    data, records = _unpack_riegeli(data, findings)
    for record in records:
        _scan_part(record, findings, depth + 1)
    for part in _inflated(data, findings):
        _scan_part(part, findings, depth + 1)
    for pattern, decode in ((looks.ESCAPED, _unescape), (looks.BASE64, _unbase64)):
        for match in pattern.finditer(data):
            _scan_part(decode(match[0]), findings, depth + 1)
        data = pattern.sub(b"\0", data)
    _scan_plain(data, findings)


def _scan_plain(data: bytes, findings: _Findings) -> None:
    """Scan bytes for what tells something as it stands."""
    # Most of an executable is no text: patterns of text run over the runs of text only.
    text = b"\0".join(looks.TEXT.findall(data))
    in_bytecode = data.startswith(looks.MAGIC)
    for kind, pattern in looks.TEXT_PATTERNS.items():
        if in_bytecode and kind in looks.MLIR_TEXTS:
            continue  # its strings are the names of its operations: it is counted once, as whole
        for match in pattern.finditer(text):
            found = match[0]
            if kind == "source_path":  # the pattern finds a name's end
                before = looks.NAME_BEFORE.search(
                    text[max(0, match.start() - _EXAMPLE_BYTES) : match.start()]
                )
                found = (before[0] if before else b"") + found
            findings.add(kind, found)
    for match in looks.BITCODE.finditer(data):
        findings.add("llvm_ir", b"LLVM bitcode at byte %d" % match.start())
    for match in looks.BYTECODE.finditer(data):
        kind, line = "mlir_bytecode", b"MLIR bytecode"
        if sum(findings.counts[kind] for kind in looks.BYTECODE_KINDS) < _MAX_TOLD_APART:
            kind, line = bytecode_kind(data, match.start())
        findings.add(kind, line)
    for match in looks.ZSTD.finditer(data):
        findings.add("unread", b"a zstd frame at byte %d" % match.start())


def _inflated(data: bytes, findings: _Findings) -> Iterator[bytes]:
    """Give what zlib and gzip streams in the data hold, one after the other."""
    for match in looks.DEFLATED.finditer(data):
        if findings.left < 0:
            findings.add(
                "unread", b"zlib streams beyond the scan's limit of %d bytes" % _MAX_SCANNED
            )
            return
        inflated, whole = _inflate(memoryview(data)[match.start() :])
        if whole is None:  # no stream; the work to see that counts, or a file of starts never ends
            findings.left -= len(inflated)
            continue
        if not whole:
            findings.add("unread", b"a zlib stream of more than %d bytes" % _MAX_INFLATED)
        yield inflated


def _unpack_riegeli(data: bytes, findings: _Findings) -> tuple[bytes, list[bytes]]:
    """Give the bytes less the riegeli files in them, and the records of those."""
    rest, records, at = [], [], 0
    for match in looks.RIEGELI.finditer(data):
        if match.start() < at:
            continue  # within the file before
        if findings.attempts == _MAX_ATTEMPTS:
            findings.add("unread", b"more riegeli files than the %d tried" % _MAX_ATTEMPTS)
            break
        reason = ""
        for end in _ends(data, match.start()):
            try:
                records += read_records(data[match.start() : end], limit=max(0, findings.left))
            except NotRiegeliError as error:
                reason = reason or str(error)
                continue
            rest.append(data[at : match.start()])
            at = end
            break
        else:
            findings.attempts += 1
            findings.add("unread", f"a riegeli file that is not read: {reason}".encode())
    return b"\0".join([*rest, data[at:]]) if rest else data, records


def _ends(data: bytes, start: int) -> list[int]:
    """Give where a file at `start` may end: where the size before it says, or with the data."""
    ends = []
    for width in range(1, 1 + min(_MAX_SIZE_BYTES, start)):
        size, behind = 0, -1
        with contextlib.suppress(NotAMessageError):
            size, behind = read_varint(data, start - width)
        if behind == start and size and start + size <= len(data):
            ends.append(start + size)
    return [*reversed(ends), len(data)]


def _add_exact(told: list[tuple[str, bytes]], findings: _Findings) -> None:
    """Add what walking the messages told.

    What looks like a name was counted by the scan already: the exact count replaces that one
    where it is larger.
    """
    exact = _Findings()
    for tag, value in told:
        kind = looks.KIND_OF_TAG.get(tag)
        if kind is None or not value or looks.NEUTRAL.fullmatch(value):
            continue
        if tag != "op_name" or _holds_text(value):
            runs = looks.READABLE.findall(value)
            exact.add(kind, max(runs, key=len) if runs else b"%d bytes" % len(value))
    for kind, count in exact.counts.items():
        if count > findings.counts[kind]:
            findings.counts[kind] = count
            known = findings.examples.setdefault(kind, [])
            new = [text for text in exact.examples[kind] if text not in known]
            known += new[: _EXAMPLES - len(known)]


def _holds_text(metadata: bytes) -> bool:
    """Tell whether an instruction's metadata holds more than numbers, such as sizes of code."""
    try:
        return any(item.value for item in split(metadata))
    except NotAMessageError:
        return True


def _unescape(text: bytes) -> bytes:
    """Give the bytes of a text with C's or MLIR's escapes, also where it was escaped again."""
    while b"\\\\" in text:
        text = text.replace(b"\\\\", b"\\")
    text = text.replace(b"\\357", b"\\ef")
    return looks.ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else m[2], text)


def _unbase64(text: bytes) -> bytes:
    """Give the bytes of a base64 text, of either alphabet, as far as it goes."""
    text = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    text = text[: len(text) - (len(text) % 4 == 1)]
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:  # the rest of the run is no base64: its start is the finding
        return base64.b64decode(text[:8])


def _inflate(data: memoryview) -> tuple[bytes, bool | None]:
    """Give (what a zlib or gzip stream at the start of `data` holds, whether that is all).

    None where there is no stream, or a short one that may be chance.
    """
    stream = zlib.decompressobj(wbits=47)  # either header, told apart by zlib
    inflated = bytearray()
    try:
        for start in range(0, len(data), _FEED):
            inflated += stream.decompress(data[start : start + _FEED], _MAX_INFLATED)
            if stream.eof or len(inflated) >= _MAX_INFLATED:
                break
    except zlib.error:
        return bytes(inflated), None
    # Without the stream's end its checksum is unproven; a large one is still worth a look.
    large = len(inflated) >= _MAX_INFLATED
    if len(inflated) < _MIN_INFLATED or not (stream.eof or large):
        return bytes(inflated), None
    return bytes(inflated[:_MAX_INFLATED]), stream.eof and len(inflated) <= _MAX_INFLATED
