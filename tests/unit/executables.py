"""What stands in the executables of the real CUDA and TPU compilers: machine code, chip, signature.

The signature is read by XLA's own parser in C++ from the module that the executable carries, the
chip from the machine code (CUDA) or from the topology beside it (TPU, as seen with libtpu 0.0.52).
"""

from __future__ import annotations

from jax._src.lib import xla_client

from runtime.artifact.protobuf import NotAMessageError, read_varint, split
from runtime.artifact.xla_forms import SplitProto, divide, field_value, gpu_executable

Signature = list[tuple[tuple[int, ...], str]]

ELF_MAGIC = b"\x7fELF"
_CUDA_MACHINE = 190  # EM_CUDA

# Where a TPU executable names its chip: generation, and variant where a generation has several.
_TPU_CHIP, _GENERATION, _VARIANT = (5, 6), 1, 2
TPU_CHIPS = {
    "tpu-v4": (3, b""),
    "tpu-v5e": (4, b"lite"),
    "tpu-v5p": (4, b""),
    "tpu-v6e": (5, b""),
}


def cubins(executable: bytes) -> list[bytes]:
    """Give the ELF files in the steps of a CUDA executable, found by their magic."""
    rest = gpu_executable(divide(executable)[1]).parts[-1].data
    found = []
    at = rest.find(ELF_MAGIC)
    while at >= 0:
        # An ELF64 file ends behind its section or its program headers, whichever come last.
        tables = [
            int.from_bytes(rest[at + place : at + place + 8], "little")
            + int.from_bytes(rest[at + size : at + size + 2], "little")
            * int.from_bytes(rest[at + size + 2 : at + size + 4], "little")
            for place, size in ((32, 54), (40, 58))
        ]
        found.append(rest[at : at + max(tables)])
        at = rest.find(ELF_MAGIC, at + 1)
    return found


def compute_capability(cubin: bytes) -> int:
    """Give the architecture that a cubin is for, such as 90, from its ELF header.

    CUDA 13's ELF (ABI version 8) holds it in bits 8 to 15 of e_flags.
    """
    assert int.from_bytes(cubin[18:20], "little") == _CUDA_MACHINE
    assert cubin[8] == 8
    return cubin[49]


def tpu_chip(executable: bytes) -> tuple[int, bytes]:
    """Give (generation, variant) of the chip that a TPU executable is for."""
    fields = {f.number: f for f in split(field_value(_tpu(executable), *_TPU_CHIP))}
    variant = fields.get(_VARIANT)
    generation, _ = read_varint(fields[_GENERATION].raw, 1)
    return generation, b"" if variant is None or variant.value is None else variant.value


def tpu_code(executable: bytes) -> bytes:
    """Give the part of a TPU executable that holds its machine code."""
    return field_value(_tpu(executable), 1)


def signature(executable: bytes) -> tuple[Signature, Signature]:
    """Give shapes and dtypes of (parameters, results) of the module in a CUDA or TPU executable."""
    _, body = divide(executable)
    try:
        module = field_value(gpu_executable(body).merged(), 1, 1)
    except NotAMessageError:
        module = field_value(_tpu(executable), 2, 1)
    shape = xla_client.XlaComputation(module).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return _plain(shape.parameter_shapes()), _plain(results)


def _tpu(executable: bytes) -> bytes:
    """Give the TpuExecutableProto in an executable."""
    found = SplitProto.from_bytes(divide(executable)[1])
    assert found.type_name == "xla.TpuExecutableProto"
    return found.merged()


def _plain(shapes: list[xla_client.Shape]) -> Signature:
    """Give shapes in plain words."""
    return [(tuple(shape.dimensions()), shape.numpy_dtype().name) for shape in shapes]
