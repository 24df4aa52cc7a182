"""Load a NEFF on a Trainium or Inferentia2 node and run it: libnrt by its documented C API.

**Never run on a device.** It is written by the vendor's reference of the runtime's C API (`nrt.h`,
`nrt_experimental.h`), and tested against a library of our own that keeps to that reference.

The order of calls, and what is undone when one fails:

1. `nrt_init` once a process, `nrt_close` when the last user is done;
2. `nrt_load` a program's bytes, `nrt_unload` in `close`;
3. `nrt_get_model_tensor_info`: names, sizes and uses of its tensors, freed after reading;
4. one device tensor each (`nrt_tensor_allocate`), in one set for inputs and one for outputs;
5. a run writes the inputs, calls `nrt_execute`, and reads the outputs.

A NEFF has no donation: inputs and outputs keep their device memory for the program's life.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import ml_dtypes
import numpy as np

from runtime.agent.arguments import check_arguments, check_form
from runtime.artifact.neff import check_loadable, read_header
from runtime.artifact.program import Program, TargetPayload, TensorSpec
from runtime.spec import ArtifactError

__all__ = [
    "FEATURES",
    "LIBRARY",
    "STATUS",
    "NeuronLoader",
    "NeuronProgram",
    "Runtime",
    "load",
    "open_loader",
]

LIBRARY = "/opt/aws/neuron/lib/libnrt.so"
"""Where the vendor's package aws-neuronx-runtime-lib puts the runtime."""

FEATURES = 0x8000_0000_0000_00FF
"""Feature bits that a runtime is known to have (aws-neuron-sdk issue 820); no call tells them."""

STATUS = {
    0: "NRT_SUCCESS",
    1: "NRT_FAILURE",
    2: "NRT_INVALID",
    3: "NRT_INVALID_HANDLE",
    4: "NRT_RESOURCE",
    5: "NRT_TIMEOUT",
    6: "NRT_HW_ERROR",
    7: "NRT_QUEUE_FULL",
    9: "NRT_LOAD_NOT_ENOUGH_NC",
    10: "NRT_UNSUPPORTED_NEFF_VERSION",
    11: "NRT_FAIL_HOST_MEM_ALLOC",
    13: "NRT_UNINITIALIZED",
    14: "NRT_CLOSED",
    15: "NRT_QUEUE_EMPTY",
    101: "NRT_EXEC_UNIT_UNRECOVERABLE",
    1002: "NRT_EXEC_BAD_INPUT",
    1003: "NRT_EXEC_COMPLETED_WITH_NUM_ERR",
    1004: "NRT_EXEC_COMPLETED_WITH_ERR",
    1005: "NRT_EXEC_NC_BUSY",
    1006: "NRT_EXEC_OOB",
    1100: "NRT_COLL_PENDING",
    1200: "NRT_EXEC_HW_ERR_COLLECTIVES",
    1201: "NRT_EXEC_HW_ERR_HBM_UE",
    1202: "NRT_EXEC_HW_ERR_NC_UE",
    1203: "NRT_EXEC_HW_ERR_DMA_ABORT",
    1204: "NRT_EXEC_SW_NQ_OVERFLOW",
}
"""The runtime's status codes (`nrt_status.h`)."""

_REMEDIES = {
    4: "the device memory is full: use a smaller train.micro_batch",
    5: "the device hangs: restart the node",
    6: "the device is broken: replace the node",
    9: "give the process more cores (NEURON_RT_VISIBLE_CORES), or use a larger instance",
    10: "update the Neuron runtime on the node, or compile with an older neuronx-cc",
    1005: "another process uses the core: set NEURON_RT_VISIBLE_CORES for each",
}

_NO_FRAMEWORK = 1
_ON_DEVICE = 0
_INPUT, _OUTPUT = 0, 1
_NAME_MAX = 256
_ANY_CORE = -1
_MAX_TENSORS = 200_000

# nrt_dtype_t of nrt_experimental.h. XLA's pred has no type of its own there; it lies in bytes.
_DTYPES = {
    1: "float32",
    2: "float16",
    3: "bfloat16",
    4: "int8",
    5: "uint8",
    6: "int16",
    7: "uint16",
    8: "int32",
    9: "uint32",
    10: "int64",
    11: "uint64",
}
_BYTES_OF_BOOL = frozenset({"uint8", "int8"})


class _TensorInfo(ctypes.Structure):
    """`nrt_tensor_info_t`."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char * _NAME_MAX),
        ("usage", ctypes.c_int),
        ("size", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_uint32)),
        ("ndim", ctypes.c_uint32),
    ]


class _TensorInfos(ctypes.Structure):
    """The fixed part of `nrt_tensor_info_array_t`; the infos follow it."""

    _fields_: ClassVar = [("tensor_count", ctypes.c_uint64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """One tensor of a loaded model: its own name, and where it lies."""

    name: bytes
    size: int
    dtype: str
    shape: tuple[int, ...]
    handle: ctypes.c_void_p


class Runtime:
    """The runtime library of this process.

    Args:
        library: the shared library. Default: where the vendor's package puts it.

    Raises:
        ArtifactError: it is not there, lacks a call, or does not start.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        if not Path(library).exists():
            remedy = "install aws-neuronx-runtime-lib by the vendor's installation guide"
            raise ArtifactError(f"the Neuron runtime '{library}' is not there", remedy=remedy)
        try:
            self._library = ctypes.CDLL(library)
            _declare(self._library)
        except (OSError, AttributeError) as error:
            message = f"the Neuron runtime '{library}' cannot be used: {error}"
            raise ArtifactError(message) from error
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Start the runtime for its first user."""
        with self._lock:
            if not self._users:
                self.call("nrt_init", _NO_FRAMEWORK, b"", b"")
            self._users += 1

    def release(self) -> None:
        """Close the runtime after its last user."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._library.nrt_close()

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that gives a status.

        Raises:
            ArtifactError: the status is not success; the message names it and the call.
        """
        status = int(getattr(self._library, name)(*arguments))
        if status:
            what = STATUS.get(status, "an unknown status")
            message = f"the Neuron runtime's {name} failed: {what} ({status})"
            raise ArtifactError(message, remedy=_REMEDIES.get(status))

    def free(self, name: str, handle: ctypes.c_void_p) -> None:
        """Call a function that frees what a handle points at, and clears the handle."""
        getattr(self._library, name)(ctypes.byref(handle))


class NeuronProgram:
    """A program that is loaded on this process's NeuronCore.

    Attributes:
        program: its signature; inputs and outputs are bound by its order.
    """

    def __init__(self, program: Program, runtime: Runtime, *, cores: int = 1) -> None:
        self.program = program
        self._runtime = runtime
        self._model = ctypes.c_void_p()
        self._sets = (ctypes.c_void_p(), ctypes.c_void_p())
        self._tensors: tuple[list[_Tensor], list[_Tensor]] = ([], [])
        check_loadable(read_header(program.executable), supported_features=FEATURES, cores=cores)
        runtime.acquire()
        self._open = True
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def run(self, flat: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once and wait.

        Args:
            flat: one array per `program.inputs`, in order, of exactly its shape and dtype.

        Returns:
            One array per `program.outputs`, in order.

        Raises:
            ArtifactError: an argument differs from the signature, the program is closed, or the
                runtime failed.
        """
        if not self._open:
            raise ArtifactError(f"program '{self.program.name}' is closed")
        check_arguments(self.program, flat)
        inputs, outputs = self._tensors
        for tensor, array in zip(inputs, flat, strict=True):
            source = np.ascontiguousarray(array)
            self._runtime.call(
                "nrt_tensor_write", tensor.handle, source.ctypes.data, 0, tensor.size
            )
        self._runtime.call("nrt_execute", self._model, *self._sets)
        return [self._read(*pair) for pair in zip(outputs, self.program.outputs, strict=True)]

    def device_array(self, index: int, array: np.ndarray) -> np.ndarray:
        """Copy a host array; it reaches the device when the program runs."""
        del index
        return np.array(array)

    def lent_array(self, index: int, array: np.ndarray) -> np.ndarray:
        """Give a host array as it is; the program reads it when it runs."""
        del index
        return array

    def close(self) -> None:
        """Free the program's tensors and unload it; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            for handle in self._sets:
                if handle:
                    self._runtime.free("nrt_destroy_tensor_set", handle)
            for tensor in (*self._tensors[0], *self._tensors[1]):
                self._runtime.free("nrt_tensor_free", tensor.handle)
            if self._model:
                self._runtime.call("nrt_unload", self._model)
        finally:
            self._runtime.release()

    def _load(self) -> None:
        """Load the model, and allocate and bind its tensors."""
        data = self.program.executable
        self._runtime.call(
            "nrt_load", data, len(data), _ANY_CORE, _ANY_CORE, ctypes.byref(self._model)
        )
        for handle in self._sets:
            self._runtime.call("nrt_allocate_tensor_set", ctypes.byref(handle))
        infos = self._infos()
        sides = zip(
            (_INPUT, _OUTPUT),
            self._sets,
            self._tensors,
            (self.program.inputs, self.program.outputs),
            strict=True,
        )
        for usage, handle, tensors, specs in sides:
            found = _in_order([info for info in infos if info.usage == usage])
            _check_signature(self.program, usage, found, specs)
            for info in found:
                tensors.append(self._allocate(info))
                name = tensors[-1].name
                self._runtime.call("nrt_add_tensor_to_tensor_set", handle, name, tensors[-1].handle)

    def _infos(self) -> list[_Info]:
        """Copy what the runtime says of the model's tensors, and free it."""
        pointer = ctypes.POINTER(_TensorInfos)()
        self._runtime.call("nrt_get_model_tensor_info", self._model, ctypes.byref(pointer))
        try:
            count = pointer.contents.tensor_count
            if count > _MAX_TENSORS:
                raise ArtifactError(f"the Neuron runtime states {count} tensors of a program")
            start = ctypes.addressof(pointer.contents) + ctypes.sizeof(_TensorInfos)
            array = (_TensorInfo * count).from_address(start)
            return [
                _Info(
                    name=bytes(item.name),
                    usage=int(item.usage),
                    size=int(item.size),
                    dtype=_DTYPES.get(int(item.dtype), f"type {item.dtype}"),
                    shape=tuple(item.shape[i] for i in range(item.ndim)),
                )
                for item in array
            ]
        finally:
            self._runtime.call("nrt_free_model_tensor_info", pointer)

    def _allocate(self, info: _Info) -> _Tensor:
        """Allocate a tensor's device memory."""
        handle = ctypes.c_void_p()
        self._runtime.call(
            "nrt_tensor_allocate", _ON_DEVICE, 0, info.size, info.name, ctypes.byref(handle)
        )
        return _Tensor(
            name=info.name, size=info.size, dtype=info.dtype, shape=info.shape, handle=handle
        )

    def _read(self, tensor: _Tensor, spec: TensorSpec) -> np.ndarray:
        """Copy a result to the host."""
        result = np.empty(spec.shape, _numpy_dtype(spec.dtype))
        self._runtime.call("nrt_tensor_read", tensor.handle, result.ctypes.data, 0, tensor.size)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Info:
    """What the runtime says of one tensor of a model."""

    name: bytes
    usage: int
    size: int
    dtype: str
    shape: tuple[int, ...]


class NeuronLoader:
    """Loads programs onto this process's NeuronCores; arrays stay in host memory between runs.

    Args:
        library: the runtime's shared library. Default: where the vendor's package puts it.
        cores: NeuronCores that this process may use.

    Raises:
        ArtifactError: the library is not there, or cannot be used.
    """

    def __init__(self, library: str | None = None, *, cores: int = 1) -> None:
        self._runtime = Runtime(library or LIBRARY)
        self._cores = cores

    def load(self, program: Program) -> NeuronProgram:
        """Load a program; see `load`."""
        return load(program, runtime=self._runtime, cores=self._cores)

    def host_view(self, array: np.ndarray) -> np.ndarray:
        """Give an array as it is: it never left the host."""
        return array

    def chip_class(self, payload: TargetPayload) -> str:
        """Name what must be equal on two islands for equal bits: the NEFF holds all of its code."""
        return f"{payload.target}/neff"


def open_loader(target: str) -> NeuronLoader:
    """Give the loader of this form; see `runtime.agent.loaders`."""
    del target  # the runtime checks that a NEFF is for its chip
    return NeuronLoader()


def load(program: Program, *, runtime: Runtime | None = None, cores: int = 1) -> NeuronProgram:
    """Load a program's NEFF into this process's NeuronCores.

    Loading machine code runs it: only bytes out of a verified artifact may come here.

    Args:
        program: of the form "neff", from a payload of a verified artifact.
        runtime: the library. Default: the installed one.
        cores: NeuronCores that this process may use.

    Raises:
        ArtifactError: the program has another form, the NEFF is broken or needs what the node
            lacks, its tensors are not the signature's, or the runtime failed.
    """
    check_form(program, "neff")
    return NeuronProgram(program, runtime or Runtime(), cores=cores)


def _declare(library: ctypes.CDLL) -> None:
    """Declare the calls' types, as `nrt.h` has them."""
    handle, pointer = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    infos = ctypes.POINTER(_TensorInfos)
    signatures: dict[str, tuple[object, list[object]]] = {
        "nrt_init": (ctypes.c_int, [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p]),
        "nrt_close": (None, []),
        "nrt_load": (
            ctypes.c_int,
            [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int32, pointer],
        ),
        "nrt_unload": (ctypes.c_int, [handle]),
        "nrt_get_model_tensor_info": (ctypes.c_int, [handle, ctypes.POINTER(infos)]),
        "nrt_free_model_tensor_info": (ctypes.c_int, [infos]),
        "nrt_allocate_tensor_set": (ctypes.c_int, [pointer]),
        "nrt_destroy_tensor_set": (None, [pointer]),
        "nrt_add_tensor_to_tensor_set": (ctypes.c_int, [handle, ctypes.c_char_p, handle]),
        "nrt_tensor_allocate": (
            ctypes.c_int,
            [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p, pointer],
        ),
        "nrt_tensor_free": (None, [pointer]),
        "nrt_tensor_write": (
            ctypes.c_int,
            [handle, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
        ),
        "nrt_tensor_read": (
            ctypes.c_int,
            [handle, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
        ),
        "nrt_execute": (ctypes.c_int, [handle, handle, handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _in_order(infos: list[_Info]) -> list[_Info]:
    """Put tensors in the order of the program's arguments: by the number that ends their name.

    The compiler names them input0, input1, ..., output0, ... [memory, check].
    """
    numbers = [re.search(rb"(\d+)$", info.name) for info in infos]
    if not all(numbers):
        return infos
    keys = [int(found[1]) for found in numbers if found is not None]
    return [info for _, info in sorted(zip(keys, infos, strict=True), key=lambda pair: pair[0])]


def _check_signature(
    program: Program, usage: int, infos: Sequence[_Info], specs: Sequence[TensorSpec]
) -> None:
    """Compare what the runtime says of a model with the program's signature."""
    side = "inputs" if usage == _INPUT else "outputs"
    if len(infos) != len(specs):
        message = f"program '{program.name}': its NEFF has {len(infos)} {side}, and its signature "
        raise ArtifactError(f"{message}{len(specs)}")
    for index, (info, spec) in enumerate(zip(infos, specs, strict=True)):
        same_type = info.dtype == spec.dtype or (
            spec.dtype == "bool" and info.dtype in _BYTES_OF_BOOL
        )
        size = int(np.prod(spec.shape, dtype=np.int64)) * _numpy_dtype(spec.dtype).itemsize
        if not same_type or info.size != size:
            message = (
                f"program '{program.name}': {side}[{index}] of its NEFF is {info.dtype}"
                f"{list(info.shape)} of {info.size} bytes; its signature says {spec.dtype}"
                f"{list(spec.shape)} of {size}"
            )
            raise ArtifactError(message)


def _numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
