"""The one error tree: what a user reads when something is wrong.

Every error that can reach a user derives from `LumaError`. A message is lower-case, has no full
stop, and says what is wrong, the value, and what is allowed; `remedy` says what to do next. The
command line prints `diagnostics()` and exits with `exit_code`; it never prints a traceback for a
user's mistake.
"""


class LumaError(Exception):
    """Base of all errors that Luma raises on purpose.

    Args:
        message: what is wrong, with the field or op, the value and what is allowed.
        remedy: the next step for the user, or None where the message holds it.
        exit_code: the process exit code when the error ends a command: 1 for a failed job or
            verification, 2 for a usage mistake. Default: the class's own.
    """

    default_exit_code = 1

    def __init__(
        self, message: str, *, remedy: str | None = None, exit_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = self.default_exit_code if exit_code is None else exit_code

    def diagnostics(self) -> str:
        """Give the text that the command line prints: the cause, then the next step."""
        return self.message if self.remedy is None else f"{self.message}\n  remedy: {self.remedy}"


class SpecError(LumaError):
    """A job file, option or other input of the user is wrong."""

    default_exit_code = 2


class DataError(LumaError):
    """The training data cannot be read or used."""

    default_exit_code = 2


class CaptureError(LumaError):
    """A model cannot be captured, or its captured graph disagrees with eager."""


class CompileError(LumaError):
    """A graph package is broken, or a target's compiler failed."""


class LoweringError(CompileError):
    """A graph holds ops that have no lowering for the target."""


class ArtifactError(LumaError):
    """A `.luma` file is broken, not trusted, or cannot be opened with the given key."""


class AttestationError(ArtifactError):
    """An attestation document, or what a caller asks of one, is refused.

    Args:
        message: as `LumaError`.
        rule: the stable name of the rule that was broken, such as `chain.root`; the attestation
            package lists them all.
        remedy: as `LumaError`.
    """

    def __init__(self, message: str, *, rule: str, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.rule = rule


class CheckpointError(LumaError):
    """A checkpoint cannot be written, or no whole one can be read."""


class CoordinationError(LumaError):
    """The coordinator refused a request, cannot be reached, or found islands that disagree."""


class CapacityError(LumaError):
    """No offer can run the job; the message carries each one tried and why it failed."""


class ServeError(LumaError):
    """A back end or the gateway cannot serve a request."""


class RunError(LumaError):
    """A run folder cannot be used, or a run ended without its result."""
