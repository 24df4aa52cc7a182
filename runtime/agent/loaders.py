"""The loaders of programs, one for each form: what the trainer knows of a node's chips.

| form | runs | module |
|---|---|---|
| pjrt | CPU, NVIDIA, TPU | `executable` |
| vmfb | AMD, by IREE's runtime | `iree_executable` |
| neff | Trainium and Inferentia2, by Neuron's runtime | `neuron_executable` |

A loader holds the device; a program that it loaded knows how each of its inputs lies there. Arrays
are the loader's own: what one program gave can be an input of another one of the same loader.
Only the module of the payload's form is imported, so a node needs no other form's packages.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from runtime.artifact.program import Program, ProgramForm, TargetPayload
from runtime.spec import ArtifactError
from runtime.spec.target_name import TargetName

__all__ = ["DeviceArray", "Loaded", "Loader", "loader_for"]

DeviceArray: TypeAlias = Any
"""An array on the loader's device: of jax, of IREE, or of numpy where the device keeps none."""

_MODULES: dict[ProgramForm, str] = {
    "pjrt": "runtime.agent.executable",
    "vmfb": "runtime.agent.iree_executable",
    "neff": "runtime.agent.neuron_executable",
}


class Loaded(Protocol):
    """A program that is ready to run."""

    @property
    def program(self) -> Program:
        """Its signature; inputs and outputs are bound by its order."""

    def run(self, flat: Sequence[DeviceArray | np.ndarray]) -> list[DeviceArray]:
        """Run once and wait.

        Args:
            flat: one array per `program.inputs`, in order, of exactly its shape and dtype: numpy
                arrays, or the loader's own. Inputs in `program.donated` are gone afterwards.

        Returns:
            One array per `program.outputs`, in order.

        Raises:
            ArtifactError: an argument differs from the signature, or the device failed.
        """

    def device_array(self, index: int, array: np.ndarray) -> DeviceArray:
        """Copy a host array to where input `index` lies; the host may overwrite it afterwards."""

    def lent_array(self, index: int, array: np.ndarray) -> DeviceArray:
        """Give a host array as input `index`, without a copy where the device can read it.

        The host may not write to it while a program that reads it runs, and no program may take it
        over.
        """


class Loader(Protocol):
    """Loads programs of one form onto this process's chips."""

    def load(self, program: Program) -> Loaded:
        """Load a program out of a verified artifact: loading machine code runs it.

        Raises:
            ArtifactError: it has another form, or does not load here.
        """

    def host_view(self, array: DeviceArray) -> np.ndarray:
        """Give an array's values, read-only, valid until a program takes the array over."""

    def chip_class(self, payload: TargetPayload) -> str:
        """Name what must be equal on two islands for equal bits."""


def loader_for(payload: TargetPayload) -> Loader:
    """Give the loader of a payload's programs on this node.

    Raises:
        ArtifactError: the programs have several forms or the target is unknown, or this node cannot
            run them; the message names the target, the form and what is needed.
    """
    forms = {program.form for program in payload.programs.values()}
    if len(forms) != 1:
        found = ", ".join(sorted(forms)) or "none"
        raise ArtifactError(f"target '{payload.target}': forms {found}; expected exactly one")
    form = forms.pop()
    try:
        TargetName.parse(payload.target)
        module = importlib.import_module(_MODULES[form])
        return cast("Loader", module.open_loader(payload.target))
    except (ArtifactError, ValueError) as error:
        reason, remedy = str(error), None
        if isinstance(error, ArtifactError):
            reason, remedy = error.message, error.remedy
        message = f"target '{payload.target}' (form '{form}') cannot run on this node: {reason}"
        raise ArtifactError(message, remedy=remedy) from error
