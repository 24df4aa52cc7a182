"""What can go wrong between a client and the compile service."""

from __future__ import annotations

from runtime.spec.errors import LumaError

__all__ = ["PeerGoneError", "ServiceBusyError", "ServiceError"]


class ServiceError(LumaError):
    """The service refused a request, or what came over the socket is not the protocol.

    Args:
        message: as `LumaError`.
        reason: a short, stable word for metrics and log lines, such as "policy" or "frame".
        remedy: as `LumaError`.
    """

    def __init__(self, message: str, *, reason: str, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class PeerGoneError(ServiceError):
    """The other side closed the connection, or does not answer in time.

    Args:
        message: as `LumaError`.
        reason: "gone" or "deadline".
        remedy: as `LumaError`.
    """


class ServiceBusyError(ServiceError):
    """The service has as many requests as it takes.

    Args:
        retry_after_s: seconds after which to ask again.
    """

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            f"the compile service is busy: its queue is full; ask again in {retry_after_s} s",
            reason="busy",
            remedy="ask again later, or start another service",
        )
        self.retry_after_s = retry_after_s
