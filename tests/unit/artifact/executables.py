"""Serialized executables made by hand, field by field, in the forms that XLA writes."""

from __future__ import annotations

from runtime.artifact.protobuf import RawField, write_varint
from runtime.artifact.riegeli import write_records

TRITON_CALL = b"__gpu$xla.gpu.triton"
CUBIN = b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 3


def field(number: int, value: bytes) -> bytes:
    """Give a length-delimited field."""
    return RawField.of(number, value).raw


def number(field_number: int, value: int) -> bytes:
    """Give a varint field."""
    return write_varint(field_number << 3) + write_varint(value)


def string_section(strings: list[bytes]) -> bytes:
    """Give an MLIR string section; sizes below 64, so that each prefix varint is one byte."""
    sizes = bytes(len(text) + 1 << 1 | 1 for text in reversed(strings))
    return bytes([len(strings) << 1 | 1]) + sizes + b"".join(text + b"\0" for text in strings)


def bytecode(*strings: bytes) -> bytes:
    """Give MLIR bytecode with a section of no interest and one that holds these strings."""
    section = string_section(list(strings))
    size = (len(section) << 2 | 2).to_bytes(2, "little")
    other = b"\x84\x07\x09\xcb\xcb\xcbabc"  # aligned section 4: three bytes, padded
    return b"ML\xefR\x0dMLIR22\0" + other + b"\x00" + size + section


def escaped(data: bytes) -> bytes:
    """Give bytes as MLIR prints them in a string attribute."""
    plain = set(range(32, 127)) - {0x22, 0x5C}
    return b"".join(bytes([b]) if b in plain else b"\\%02X" % b for b in data)


def instruction(name: bytes, ident: int, *more: bytes, opcode: bytes = b"add") -> bytes:
    """Give an HloInstructionProto."""
    return field(1, name) + field(2, opcode) + b"".join(more) + number(35, ident)


def hlo_module(*, telling: bool = True, ir: bytes = b"", table: bool = True) -> bytes:
    """Give an HloModuleProto with two computations and a Triton call.

    Args:
        telling: whether instructions have metadata and the module stack frames.
        ir: the Triton call's configuration.
        table: whether that stands in the module's table instead of in the instruction.
    """
    metadata = field(7, field(2, b"wq")) if telling else b""
    config = field(99, number(2, 1)) if table else field(43, ir)
    called = field(1, b"relu.5") + field(2, instruction(b"max.1", 7, metadata, opcode=b"maximum"))
    entry = (
        field(1, b"main.9")
        + field(2, instruction(b"Arg_0.1", 1, opcode=b"parameter"))
        + field(2, instruction(b"call.2", 2, metadata, number(38, 1)))
        + field(2, instruction(b"flash.3", 3, metadata, field(28, TRITON_CALL), config))
        + field(4, field(3, b"model.wq"))
    )
    frames = field(1, b"model.py") + field(2, b"forward") + field(3, b"\x08\x01") * 2
    return (
        field(1, b"jit_step")
        + field(2, b"main.9")
        + field(3, called)
        + field(3, entry)
        + (field(17, frames) if telling else b"")
        + (field(22, b"{}") + field(22, ir) if table else b"")
    )


def header(name: bytes = b"jit_step") -> bytes:
    """Give the size and the bytes of an IFRT header."""
    message = number(1, 3) + field(2, b"pjrt_ifrt") + field(7, name)
    return write_varint(len(message)) + message


def debug_options() -> bytes:
    """Give DebugOptions with two local paths and a flag that is none."""
    return field(61, b"/home/someone/cuda") + field(200, b"./cuda_sdk_lib") + field(333, b"AVX2")


def compile_options() -> bytes:
    """Give CompileOptionsProto."""
    return field(3, number(1, 1) + field(3, debug_options()) + number(4, 1))


def cpu_executable(**module: bool) -> bytes:
    """Give a CPU executable."""
    thunk = field(1, b"kernel") + field(2, field(1, b"call.2") + field(2, b"jit_step"))
    loop = field(2, field(1, b"while.1")) + field(10, field(1, field(1, thunk)))
    config = field(1, field(3, b"model.wq")) + field(14, debug_options())
    result = (
        field(1, field(1, hlo_module(**module)) + field(2, config))
        + field(2, field(4, field(1, field(3, b"main.9") + field(4, b"call.2"))))
        + field(6, field(1, thunk) + field(1, loop))
        + field(8, field(1, CUBIN))
    )
    return header() + field(1, result) + field(2, compile_options())


def manifest(type_name: bytes, *fields: int | None) -> bytes:
    """Give a SplitProtoManifest: a field number for a record that is one, None for the others."""
    records = [
        field(2, b"") if n is None else field(3, field(1, number(1, n)) + number(2, 1))
        for n in fields
    ]
    return field(1, type_name) + b"".join(field(2, record) for record in records)


def cuda_executable(*, ptx: bytes = b"", binary: bytes = CUBIN, **module: object) -> bytes:
    """Give a CUDA executable, whose code is a split proto."""
    kernel = field(1, field(1, b"flash.3") + number(3, 5)) + field(8, field(3, b"flash"))
    call = field(1, field(1, b"call.2")) + field(30, field(1, b"target") + field(7, b"relu.5"))
    nested = field(57, field(3, field(1, call)))
    rest = (
        field(1, field(1, hlo_module(**module)) + field(2, field(14, debug_options())))
        + field(2, field(1, number(1, 4)))
        + field(8, b"jit_step")
        + field(13, kernel)
        + field(13, nested)
    )
    code = write_records(
        [
            manifest(b"xla.gpu.GpuExecutableProto", 3, 4, None, None, None),
            ptx,
            binary,
            b"",
            field(12, field(1, b"constant_4") + field(2, bytes(range(40)))),
            rest,
        ]
    )
    options = field(2, compile_options()) + field(3, b"STREAM_EXECUTOR_CUDA")
    return header() + field(1, code) + options
