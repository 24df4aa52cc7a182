"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from runtime.serve.back_ends.protocol import BackEndError


class ApiError(Exception):
    """An error answer.

    Args:
        status: the HTTP status, where none has been sent yet.
        message: what is wrong and what is allowed; no text of a prompt or answer.
        kind: OpenAI's `type`.
        code: OpenAI's `code`: a string or None, never a number.
        param: the field that is wrong.
        headers: more headers, such as `retry-after`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Give the JSON body, also the data of an error event in a stream."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def unavailable(message: str) -> ApiError:
    """Give a 503 that a client may try again: nothing has reached a back end."""
    return ApiError(
        503,
        message,
        kind="server_error",
        code="service_unavailable",
        headers={"retry-after": "1"},
    )


_TIMEOUTS = ("first_token_timeout", "between_tokens_timeout")


def from_back_end(error: BackEndError) -> ApiError:
    """Give the answer for a back end's failure.

    A time-out is marked not to be retried: three prefills of one long prompt are what keeps a
    saturated engine saturated.
    """
    if error.reason == "rejected":
        return ApiError(400, error.message, code=error.code)
    if error.reason == "unavailable":
        return unavailable(error.message)
    if error.reason in _TIMEOUTS:
        return ApiError(
            504,
            error.message,
            kind="server_error",
            code=error.reason,
            headers={"x-should-retry": "false"},
        )
    return ApiError(502, error.message, kind="server_error", code="back_end_" + error.reason)
