"""Launching and following a job: data preparation, launch, certificate, pictures, the SDK.

    run = Job.from_yaml("job.yaml").launch()
    certificate = run.wait()

The names load on first use, so that a process that needs one module of this package starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.run.job import Job, Run

__all__ = ["Job", "Run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from runtime.run import job

        return getattr(job, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
