"""The operator's figures, as Prometheus reads them (text exposition format 0.0.4).

Written here, since the image holds no client library for it; a test reads it back with that
library's parser. No label holds anything of a customer: reasons are words of this package.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

__all__ = ["REASONS", "Metrics"]

REASONS = (
    "attestation",
    "busy",
    "compile",
    "deadline",
    "fault",
    "frame",
    "gone",
    "package",
    "policy",
    "record",
    "seal",
    "session",
    "stopped",
    "version",
)
"""Why a connection ended without an artifact."""

_MAX_RETRY_S = 600
_FIRST_RETRY_S = 30


class Metrics:
    """Counts since the service started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._refusals: Counter[str] = Counter()
        self._compiled = 0
        self._failed = 0
        self._seconds = 0.0

    def done(self) -> None:
        """Count a request that got its artifact."""
        with self._lock:
            self._done += 1

    def refused(self, reason: str) -> None:
        """Count a connection that ended without one."""
        with self._lock:
            self._refusals[reason if reason in REASONS else "fault"] += 1

    def compiled(self, seconds: float, *, failed: bool) -> None:
        """Count a target's compile."""
        with self._lock:
            self._failed += failed
            self._compiled += not failed
            self._seconds += seconds

    def retry_after_s(self, waiting: int) -> int:
        """Guess when a place is free: the mean time of a compile, for each that waits."""
        with self._lock:
            count = self._compiled + self._failed
            mean = self._seconds / count if count else _FIRST_RETRY_S
        return max(1, min(_MAX_RETRY_S, round(mean * (1 + waiting))))

    def text(self, gauges: Mapping[str, int]) -> str:
        """Give all of it.

        Args:
            gauges: what is true now, by name.
        """
        with self._lock:
            lines = [
                "# TYPE luma_service_requests_total counter",
                f"luma_service_requests_total {self._done}",
                "# TYPE luma_service_refusals_total counter",
                *(
                    f'luma_service_refusals_total{{reason="{reason}"}} {self._refusals[reason]}'
                    for reason in REASONS
                ),
                "# TYPE luma_service_compiles_total counter",
                f'luma_service_compiles_total{{result="compiled"}} {self._compiled}',
                f'luma_service_compiles_total{{result="failed"}} {self._failed}',
                "# TYPE luma_service_compile_seconds_total counter",
                f"luma_service_compile_seconds_total {self._seconds:.3f}",
            ]
        for name, value in gauges.items():
            lines += [f"# TYPE luma_service_{name} gauge", f"luma_service_{name} {value}"]
        return "\n".join(lines) + "\n"
