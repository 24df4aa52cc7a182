"""What stands in the records of a session; see `session` for what carries them.

    client -> service   request {...}
    service -> client   go {}                                     the request is allowed
    client -> service   the package as a blob
    service -> client   alive {}, progress {event}                any number, from here on
    service -> client   release {digest, document}                where KMS keeps the customer's key
    client -> service   released {wrapped, sealed}
    service -> client   target {target, seconds, cached, error}   once a target
    service -> client   artifact {digest, bytes}, then it as a blob; or error {reason, ...}

`error` may come in the place of any of the service's messages and ends the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from enclave_image.service.errors import ServiceError
from enclave_image.service.fields import MessageFields
from runtime.artifact.key_service import KeyReference
from runtime.artifact.levels import LEVELS, Level
from runtime.artifact.sealing import DATA_KEY_BYTES
from runtime.spec.errors import ArtifactError, CompileError, LoweringError, LumaError

__all__ = [
    "MAX_TARGETS",
    "MAX_TEXT",
    "CustomerPolicy",
    "Request",
    "TargetResult",
    "error_fields",
    "read_error",
]

MAX_TARGETS = 64
MAX_TEXT = 16_000
"""Characters of an error's text; what is longer is cut."""

_KEYS: Mapping[Level, tuple[str, ...]] = {
    "L0": ("none",),
    "L1": ("data_key", "kms"),
    "L2": ("data_key", "kms"),
    "L3": ("kms",),
}
"""What may seal at each level."""

_MAX_NAME = 64
_MAX_STATISTICS = 64
_MAX_PACKAGE_BYTES = 1 << 30
_MAX_MICRO_SHARDS = 1 << 20
_ERRORS: Mapping[str, type[LumaError]] = {
    error.__name__: error for error in (CompileError, LoweringError, ArtifactError)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerPolicy:
    """What the customer lets the service do; the service holds the request against it.

    Attributes:
        targets: what may be compiled for.
        level: the lowest level that the artifact may have.
        max_package_bytes: the largest package that may be taken.
    """

    targets: tuple[str, ...]
    level: Level
    max_package_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, but for the package itself.

    Attributes:
        targets: what to compile for, each once.
        micro_shards: M of the job.
        level: of the artifact: "L0", "L1"; "L2" and "L3" from an attested enclave alone.
        data_key: the customer's key, or
        kms: whose KMS key seals; both None at L0.
        statistics: public figures for the manifest.
        policy: the customer's.
        package_bytes: size of the package that follows.
    """

    targets: tuple[str, ...]
    micro_shards: int
    level: Level
    data_key: bytes | None = field(default=None, repr=False)
    kms: KeyReference | None = None
    statistics: Mapping[str, int | float | str | bool]
    policy: CustomerPolicy
    package_bytes: int

    def fields(self) -> dict[str, object]:
        """Give the message's fields."""
        key: dict[str, object] | None = None
        if self.data_key is not None:
            key = {"data_key": self.data_key}
        elif self.kms is not None:
            key = {"kms_arn": self.kms.arn, "customer": self.kms.customer}
        return {
            "targets": list(self.targets),
            "micro_shards": self.micro_shards,
            "level": self.level,
            "key": key,
            "statistics": dict(self.statistics),
            "policy": {
                "targets": list(self.policy.targets),
                "level": self.policy.level,
                "max_package_bytes": self.policy.max_package_bytes,
            },
            "package_bytes": self.package_bytes,
        }

    @classmethod
    def read(cls, message: object) -> Request:
        """Read the message strictly.

        Raises:
            ServiceError: a field is missing, unknown or out of bounds.
        """
        fields = MessageFields(message, "request")
        policy = fields.within("policy")
        data_key, kms = _read_key(fields)
        request = cls(
            targets=fields.texts("targets", MAX_TARGETS, _MAX_NAME),
            micro_shards=fields.integer("micro_shards", 1, _MAX_MICRO_SHARDS),
            level=_read_level(fields, "request.level"),
            data_key=data_key,
            kms=kms,
            statistics=_read_statistics(fields.plain("statistics")),
            policy=CustomerPolicy(
                targets=policy.texts("targets", MAX_TARGETS, _MAX_NAME),
                level=_read_level(policy, "request.policy.level"),
                max_package_bytes=policy.integer("max_package_bytes", 1, _MAX_PACKAGE_BYTES),
            ),
            package_bytes=fields.integer("package_bytes", 1, _MAX_PACKAGE_BYTES),
        )
        policy.end()
        fields.end()
        return request

    def check(self, *, attested: bool, max_package_bytes: int) -> None:
        """Hold the request against the customer's policy, and against what this service can do.

        Args:
            attested: whether the service is in an enclave.
            max_package_bytes: the largest package that the service takes.

        Raises:
            ServiceError: a field is not allowed; the error names it.
        """
        policy = self.policy
        for target in self.targets:
            if target not in policy.targets:
                raise refused("request.targets", target, f"of {', '.join(policy.targets)}")
        if LEVELS.index(self.level) < LEVELS.index(policy.level):
            raise refused("request.level", self.level, f"{policy.level} or higher")
        if self.package_bytes > policy.max_package_bytes:
            raise refused(
                "request.package_bytes", self.package_bytes, f"at most {policy.max_package_bytes}"
            )
        if self.package_bytes > max_package_bytes:
            raise refused(
                "request.package_bytes",
                self.package_bytes,
                f"at most {max_package_bytes}, which is what this service takes",
            )
        self._check_key(attested=attested)

    def _check_key(self, *, attested: bool) -> None:
        """Refuse a level that is out of reach, and a key that does not belong to it."""
        if self.level in {"L2", "L3"} and not attested:
            raise refused("request.level", self.level, "L0 or L1 here: this service is no enclave")
        given = "data_key" if self.data_key is not None else "kms" if self.kms else "none"
        if given not in _KEYS[self.level]:
            raise refused("request.key", given, f"{' or '.join(_KEYS[self.level])} at {self.level}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """How the compile of one target ended.

    Attributes:
        target: the target.
        seconds: how long it took.
        cached: whether a local service's cache held it.
        error: why it failed; None where it did not.
    """

    target: str
    seconds: float
    cached: bool = False
    error: LumaError | None

    def fields(self) -> dict[str, object]:
        """Give the message's fields."""
        error = None if self.error is None else error_fields(self.error)
        return {
            "target": self.target,
            "seconds": self.seconds,
            "cached": self.cached,
            "error": error,
        }

    @classmethod
    def read(cls, message: object) -> TargetResult:
        """Read the message strictly; `ServiceError` as all of them."""
        fields = MessageFields(message, "target")
        target, seconds = fields.text("target", _MAX_NAME), fields.number("seconds")
        cached, error = fields.flag("cached"), fields.plain("error")
        fields.end()
        return cls(
            target=target,
            seconds=seconds,
            cached=cached,
            error=None if error is None else read_error(error),
        )


def refused(name: str, value: object, allowed: str) -> ServiceError:
    """Give the error of a field that policy or service does not allow."""
    return ServiceError(
        f"{name}: {value!r} is not allowed; expected {allowed}",
        reason="policy",
        remedy="change the request, or the policy that was sent with it",
    )


def error_fields(error: LumaError) -> dict[str, object]:
    """Give an error as a message's fields."""
    return {
        "error": type(error).__name__,
        "reason": getattr(error, "reason", "compile"),
        "message": error.message[:MAX_TEXT],
        "remedy": None if error.remedy is None else error.remedy[:MAX_TEXT],
    }


def read_error(message: object) -> LumaError:
    """Rebuild an error that the service sent.

    Raises:
        ServiceError: it is malformed.
    """
    fields = MessageFields(message, "error")
    kind = fields.text("error", _MAX_NAME)
    reason = fields.text("reason", _MAX_NAME)
    text = fields.text("message", MAX_TEXT)
    remedy = fields.optional_text("remedy", MAX_TEXT)
    fields.end()
    known = _ERRORS.get(kind)
    if known is not None:
        return known(text, remedy=remedy)
    return ServiceError(text, reason=reason, remedy=remedy)


def _read_level(fields: MessageFields, where: str) -> Level:
    value = fields.text("level", 8)
    for level in LEVELS:
        if value == level:
            return level
    raise refused(where, value, " or ".join(LEVELS))


def _read_key(fields: MessageFields) -> tuple[bytes | None, KeyReference | None]:
    """Read what seals: nothing, the customer's key, or the name of his KMS key."""
    value = fields.plain("key")
    if value is None:
        return None, None
    key = MessageFields(value, "request.key")
    if isinstance(value, dict) and "data_key" in value:
        data_key = key.octets("data_key", DATA_KEY_BYTES, DATA_KEY_BYTES)
        key.end()
        return data_key, None
    arn, customer = key.text("kms_arn", 256), key.text("customer", _MAX_NAME)
    key.end()
    try:
        return None, KeyReference(arn=arn, customer=customer)
    except ArtifactError as error:
        raise ServiceError(f"request.key.{error.message}", reason="policy") from None


def _read_statistics(value: object) -> dict[str, int | float | str | bool]:
    """Read figures: short names, plain values."""
    right = (
        isinstance(value, dict)
        and len(value) <= _MAX_STATISTICS
        and all(len(name) <= _MAX_NAME for name in value)
        and all(isinstance(item, bool | int | float | str) for item in value.values())
        and all(len(item) <= _MAX_NAME for item in value.values() if isinstance(item, str))
    )
    if not right:
        raise ServiceError(
            f"request.statistics: expected at most {_MAX_STATISTICS} figures and short texts",
            reason="frame",
        )
    return cast("dict[str, int | float | str | bool]", value)
