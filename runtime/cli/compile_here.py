"""The compile service inside the command's own process, with what it may use of this machine."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enclave_image.service.address import Address
    from enclave_image.service.client import CompileOrder
    from runtime.artifact import TargetPayload
    from runtime.run.target_report import TargetReport
    from runtime.spec import JobSpec


class CompileHere:
    """One compile in a service of this process.

    Args:
        spec: the job.
        order: what is asked for.

    Attributes:
        reports: what each compiled target costs and where it fits, once it is sealed.
    """

    def __init__(self, spec: JobSpec, order: CompileOrder) -> None:
        self.reports: dict[str, TargetReport] = {}
        self._spec = spec
        self._order = order

    @contextmanager
    def service(self) -> Generator[Address]:
        """Run the service; give its address.

        Raises:
            LumaError: this machine's keys, cache folder or a socket cannot be used.
        """
        from enclave_image.service.local import OwnMachine, local_service
        from runtime.artifact import default_home, load_or_create_keys, private_folder

        keys = load_or_create_keys()
        machine = OwnMachine(
            signing_key=keys.signing_key,
            cache_dir=private_folder(default_home() / "cache" / "compile"),
            cache_key=keys.data_key,
            statistics=self._statistics,
        )
        with local_service(machine, compiles=self._at_once()) as address:
            yield address

    def _at_once(self) -> int:
        """Give how many targets this machine can compile at a time."""
        from runtime.compiler.several import parallel_compiles
        from runtime.plan.machine import available_memory

        possible = parallel_compiles(
            len(self._order.package),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=available_memory(),
        )
        return min(possible, len(self._order.targets))

    def _statistics(
        self, payloads: Mapping[str, TargetPayload]
    ) -> dict[str, int | float | str | bool]:
        """Report what was compiled; give its figures for the manifest."""
        from runtime.run.target_report import report_payload, statistics

        self.reports = {name: report_payload(item, self._spec) for name, item in payloads.items()}
        return {**statistics(tuple(self.reports.values()))}
