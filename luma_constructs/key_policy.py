"""The key policy of a customer's KMS key, from an enclave image's measurements.

    measurements = Measurements.from_json(Path("measurements.json").read_text())
    policy = key_policy(
        level="L2",
        customer="acme",
        administrators=["arn:aws:iam::111122223333:role/key-admin"],
        sealers=["arn:aws:iam::111122223333:role/compiler"],
        agents=["arn:aws:iam::111122223333:role/agent"],
        images=measurements.accepted("compiler-cpu", pins=("PCR0",)),
    )

What each level asks of a request:

| level | GenerateDataKey (sealing) | Decrypt (opening) |
|---|---|---|
| L1 | the sealers' role; an attested image too, where `images` is given | the agents' role |
| L2 | the sealers' role, in an attested image | the agents' role |
| L3 | the sealers' role, in an attested image | the agents' role, on an attested AMI |

Each attested operation has a conditional Allow, and **one Deny for each measured register**. Two
registers in one Deny would both have to differ for it to apply, so a match of one would lift it. The
Deny is what holds: another statement, a grant or an IAM policy that allows without conditions would
undo a mere conditional Allow. No statement allows `kms:*`: administrators get the actions of
administration, which are enough to replace this policy, and no use of the key.

At every level a request must name the customer and an artifact in its EncryptionContext.

Zeros are refused as a measurement, since every enclave in debug mode measures them; only NitroTPM's
PCR12 is zero where nothing overrode the kernel's command line.

This module imports nothing but the standard library. Its statements were evaluated by an emulator
in tests, never by AWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from aws_cdk import aws_iam

__all__ = [
    "ADMINISTRATION",
    "AcceptedAmis",
    "AcceptedImages",
    "KeyPolicyError",
    "Level",
    "Measurements",
    "Statement",
    "key_policy",
    "key_statements",
    "policy_statements",
]

Level = Literal["L1", "L2", "L3"]
"""The seal levels that a KMS key serves."""

Statement = dict[str, Any]
"""One statement, of plain JSON types."""

SCHEMA = "luma/measurements/1"
"""Schema of measurements.json."""

ADMINISTRATION = (
    "kms:CancelKeyDeletion",
    "kms:DescribeKey",
    "kms:DisableKey",
    "kms:DisableKeyRotation",
    "kms:EnableKey",
    "kms:EnableKeyRotation",
    "kms:GetKeyPolicy",
    "kms:GetKeyRotationStatus",
    "kms:ListGrants",
    "kms:ListKeyPolicies",
    "kms:ListKeyRotations",
    "kms:ListResourceTags",
    "kms:PutKeyPolicy",
    "kms:RevokeGrant",
    "kms:RotateKeyOnDemand",
    "kms:ScheduleKeyDeletion",
    "kms:TagResource",
    "kms:UntagResource",
    "kms:UpdateKeyDescription",
)
"""What administrators may do. No cryptographic action and no CreateGrant, which would give one."""

# Ways to make a ciphertext under the key. Only the first can carry an attestation document, so a
# Deny that asks for one stops the others always.
_SEAL = "kms:GenerateDataKey"
_OTHER_SEALS = (
    "kms:Encrypt",
    "kms:GenerateDataKeyPair",
    "kms:GenerateDataKeyPairWithoutPlaintext",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptTo",
)
_OPEN = "kms:Decrypt"
_OTHER_OPENS = ("kms:ReEncryptFrom",)

_ATTESTED = "kms:RecipientAttestation:"
_CONTEXT = "kms:EncryptionContext:"
_ZEROS = "0" * 96
_PCR = re.compile(r"[0-9a-f]{96}", re.ASCII)
_ENCLAVE_KEYS = {"PCR0": "ImageSha384", "PCR8": "PCR8"}
_ROLE = re.compile(r"arn:aws[a-z-]{0,24}:iam::[0-9]{12}:(?:role|user)/[\w+=,.@/-]{1,512}", re.ASCII)
_ROOT = re.compile(r"arn:aws[a-z-]{0,24}:iam::[0-9]{12}:root", re.ASCII)
_CUSTOMER = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_TOKEN = "${Token["  # noqa: S105 (how CDK writes a value that is known only at deployment)


class KeyPolicyError(ValueError):
    """What a key policy was to be made of is not allowed; the message says what is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedImages:
    """The enclave images that may seal: for each pinned register, the accepted values.

    Attributes:
        pcrs: of "PCR0" (the image) and "PCR8" (who signed it; survives rebuilds) at least one, each
            with one or more values of 96 hex digits.

    Raises:
        KeyPolicyError: no register, another one, no value, or zeros.
    """

    pcrs: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if not self.pcrs or not set(self.pcrs) <= set(_ENCLAVE_KEYS):
            raise KeyPolicyError(
                f"images: registers {sorted(self.pcrs)}; expected PCR0, PCR8 or both"
            )
        object.__setattr__(self, "pcrs", _checked(self.pcrs, "images", zeros_allowed=()))

    @property
    def conditions(self) -> dict[str, list[str]]:
        """The condition keys and their values."""
        return {f"{_ATTESTED}{_ENCLAVE_KEYS[pcr]}": list(v) for pcr, v in self.pcrs.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedAmis:
    """The attestable AMIs that may open at level L3, by NitroTPM's registers.

    Attributes:
        pcrs: "PCR7" (secure boot), or "PCR4" (the unified kernel image) together with "PCR12" (what
            overrode its command line: 96 zeros for nothing). PCR4 alone is not enough: without
            secure boot a boot loader may add to a command line that PCR4 does not measure
            (GHSA-xrv8-2pf5-f3q7).

    Raises:
        KeyPolicyError: other registers, no value, or zeros in place of a measurement.
    """

    pcrs: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if set(self.pcrs) not in ({"PCR7"}, {"PCR4", "PCR12"}, {"PCR4", "PCR7", "PCR12"}):
            raise KeyPolicyError(
                f"amis: registers {sorted(self.pcrs)}; expected PCR7, or PCR4 with PCR12"
            )
        object.__setattr__(self, "pcrs", _checked(self.pcrs, "amis", zeros_allowed=("PCR12",)))

    @property
    def conditions(self) -> dict[str, list[str]]:
        """The condition keys and their values."""
        return {f"{_ATTESTED}NitroTPM{pcr}": list(v) for pcr, v in self.pcrs.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """The measurements of the enclave images that one version of Luma builds.

    Attributes:
        images: by the image's name, its registers "PCR0", "PCR1", "PCR2" and, where it is signed,
            "PCR8", each 96 hex digits.
    """

    images: Mapping[str, Mapping[str, str]]

    @classmethod
    def from_json(cls, text: str) -> Measurements:
        """Read measurements.json: `{"schema": ..., "images": {NAME: {"PCR0": HEX, ...}}}`.

        What else the file holds, such as how the images were built, is for people.

        Raises:
            KeyPolicyError: not JSON, another schema, no image, or a register that is not 96 hex
                digits.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise KeyPolicyError("measurements: not JSON") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise KeyPolicyError(f"measurements.schema: expected {SCHEMA!r}")
        images = document.get("images")
        if not isinstance(images, dict) or not images:
            raise KeyPolicyError(
                "measurements.images: expected a map of one image or more; only an image that was "
                "built with a kernel has PCR0"
            )
        return cls(images={name: _registers(name, pcrs) for name, pcrs in images.items()})

    def accepted(
        self, *names: str, pins: Sequence[Literal["PCR0", "PCR8"]] = ("PCR0",)
    ) -> AcceptedImages:
        """Give the images of these names as what a policy accepts.

        Args:
            names: of images. Default: all.
            pins: the registers to pin.

        Raises:
            KeyPolicyError: there is no such image, or it has no such register (PCR8 of an image
                that nobody signed).
        """
        missing = [name for name in names if name not in self.images]
        if missing:
            raise KeyPolicyError(
                f"measurements.images: no {', '.join(missing)}; there are {', '.join(self.images)}"
            )
        chosen = {name: self.images[name] for name in names or self.images}
        for name, pcrs in chosen.items():
            for pin in pins:
                if pin not in pcrs:
                    raise KeyPolicyError(
                        f"measurements.images.{name}.{pin}: missing; sign the image to pin PCR8"
                    )
        return AcceptedImages(
            pcrs={pin: tuple(pcrs[pin] for pcrs in chosen.values()) for pin in pins}
        )


def key_policy(
    *,
    level: Level,
    customer: str,
    administrators: Sequence[str],
    sealers: Sequence[str],
    agents: Sequence[str],
    images: AcceptedImages | None = None,
    amis: AcceptedAmis | None = None,
) -> dict[str, Any]:
    """Give the whole key policy, of plain JSON types: what `PutKeyPolicy` takes.

    Arguments and errors are those of `key_statements`.
    """
    return {
        "Version": "2012-10-17",
        "Statement": key_statements(
            level=level,
            customer=customer,
            administrators=administrators,
            sealers=sealers,
            agents=agents,
            images=images,
            amis=amis,
        ),
    }


def key_statements(
    *,
    level: Level,
    customer: str,
    administrators: Sequence[str],
    sealers: Sequence[str],
    agents: Sequence[str],
    images: AcceptedImages | None = None,
    amis: AcceptedAmis | None = None,
) -> list[Statement]:
    """Give the statements of a customer's key.

    Args:
        level: the seal level that the key serves.
        customer: the customer's name, as artifacts carry it.
        administrators: ARNs of roles, users or an account's root that administer the key. They
            cannot use it, but they can replace this policy.
        sealers: ARNs of the roles of the compile service.
        agents: ARNs of the roles of the nodes that open artifacts.
        images: the enclave images that may seal; needed at L2 and L3.
        amis: the AMIs that may open; needed at L3, and only there.

    Raises:
        KeyPolicyError: one message of everything that is wrong.
    """
    _check(level, customer, administrators, sealers, agents, images, amis)
    sealing = images.conditions if images else {}
    opening = amis.conditions if amis else {}
    return [
        {
            "Sid": "Administration",
            "Effect": "Allow",
            "Principal": {"AWS": _listed(administrators)},
            "Action": list(ADMINISTRATION),
            "Resource": "*",
        },
        _allow("Seal", sealers, _SEAL, customer, sealing),
        _allow("Open", agents, _OPEN, customer, opening),
        *_denials("Seal", (_SEAL, *_OTHER_SEALS), sealing),
        *_denials("Open", (_OPEN, *_OTHER_OPENS), opening),
        *_context_denials(customer),
    ]


def policy_statements(statements: Iterable[Statement]) -> list[aws_iam.PolicyStatement]:
    """Give statements as CDK's objects; needs aws-cdk-lib.

    Raises:
        ImportError: aws-cdk-lib is not installed.
    """
    from aws_cdk import aws_iam

    return [aws_iam.PolicyStatement.from_json(statement) for statement in statements]


def _allow(
    name: str,
    principals: Sequence[str],
    action: str,
    customer: str,
    attested: Mapping[str, list[str]],
) -> Statement:
    """Give the Allow of one operation: the customer named, the registers as pinned."""
    conditions: dict[str, Any] = {"StringEquals": {f"{_CONTEXT}luma:customer": customer}}
    if attested:
        conditions["StringEqualsIgnoreCase"] = dict(attested)
    return {
        "Sid": name,
        "Effect": "Allow",
        "Principal": {"AWS": _listed(principals)},
        "Action": action,
        "Resource": "*",
        "Condition": conditions,
    }


def _denials(
    name: str, actions: Sequence[str], attested: Mapping[str, list[str]]
) -> list[Statement]:
    """Give one Deny for each register; an absent register counts as different."""
    return [
        {
            "Sid": f"{name}OnlyAttested{key.removeprefix(_ATTESTED)}",
            "Effect": "Deny",
            "Principal": "*",
            "Action": list(actions),
            "Resource": "*",
            "Condition": {"StringNotEqualsIgnoreCase": {key: values}},
        }
        for key, values in attested.items()
    ]


def _context_denials(customer: str) -> list[Statement]:
    """Refuse every use of the key that does not name this customer and some artifact."""
    common = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": [_SEAL, *_OTHER_SEALS, _OPEN, *_OTHER_OPENS],
        "Resource": "*",
    }
    return [
        {
            "Sid": "OnlyThisCustomer",
            **common,
            "Condition": {"StringNotEquals": {f"{_CONTEXT}luma:customer": customer}},
        },
        {
            "Sid": "OnlyForAnArtifact",
            **common,
            "Condition": {"Null": {f"{_CONTEXT}luma:artifact": "true"}},
        },
    ]


def _check(
    level: str,
    customer: str,
    administrators: Sequence[str],
    sealers: Sequence[str],
    agents: Sequence[str],
    images: AcceptedImages | None,
    amis: AcceptedAmis | None,
) -> None:
    """Refuse all that is wrong, in one message."""
    wrong = []
    if level not in ("L1", "L2", "L3"):
        wrong.append(f"level: {level!r}; expected L1, L2 or L3")
    if not isinstance(customer, str) or not _CUSTOMER.fullmatch(customer):
        wrong.append(f"customer: {customer!r}; expected 1 to 63 of a-z, 0-9, '.', '_' and '-'")
    wrong += _wrong_principals("administrators", administrators, (_ROLE, _ROOT))
    # An account's root stands for everyone in the account whom an IAM policy allows.
    wrong += _wrong_principals("sealers", sealers, (_ROLE,))
    wrong += _wrong_principals("agents", agents, (_ROLE,))
    if level in ("L2", "L3") and images is None:
        wrong.append(f"images: missing; at {level} only an attested image seals")
    if level == "L3" and amis is None:
        wrong.append("amis: missing; at L3 only an attested AMI opens")
    if level in ("L1", "L2") and amis is not None:
        wrong.append(f"amis: given; at {level} opening is not attested, ask for L3")
    if wrong:
        raise KeyPolicyError("; ".join(wrong))


def _wrong_principals(
    name: str, arns: Sequence[str], forms: Sequence[re.Pattern[str]]
) -> list[str]:
    """Tell what is wrong with a list of principals."""
    if isinstance(arns, str) or not arns:
        return [f"{name}: {arns!r}; expected a list of ARNs"]
    return [
        f"{name}: {arn!r}; expected the ARN of a role"
        for arn in arns
        if not isinstance(arn, str)
        or not (_TOKEN in arn or any(form.fullmatch(arn) for form in forms))
    ]


def _checked(
    pcrs: Mapping[str, Sequence[str]], where: str, *, zeros_allowed: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Give registers with values in lower case, each once; refuse what is no measurement."""
    checked = {}
    for pcr, values in sorted(pcrs.items()):
        if isinstance(values, str) or not values:
            raise KeyPolicyError(f"{where}.{pcr}: expected a list of one value or more")
        lowered = [_hex(f"{where}.{pcr}", value) for value in values]
        if _ZEROS in lowered and pcr not in zeros_allowed:
            raise KeyPolicyError(
                f"{where}.{pcr}: zeros; every enclave in debug mode measures them, so the policy "
                "would accept any; give the measurement of an image that is not in debug mode"
            )
        checked[pcr] = tuple(dict.fromkeys(lowered))
    return MappingProxyType(checked)


def _registers(name: str, pcrs: object) -> dict[str, str]:
    """Read one image's registers."""
    where = f"measurements.images.{name}"
    if not isinstance(pcrs, dict) or not {"PCR0", "PCR1", "PCR2"} <= set(pcrs):
        raise KeyPolicyError(f"{where}: expected PCR0, PCR1, PCR2 and, if signed, PCR8")
    return {pcr: _hex(f"{where}.{pcr}", value) for pcr, value in pcrs.items()}


def _hex(where: str, value: object) -> str:
    """Give a register's value in lower case."""
    text = value.lower() if isinstance(value, str) else ""
    if not _PCR.fullmatch(text):
        raise KeyPolicyError(f"{where}: {str(value)[:100]!r}; expected 96 hex digits")
    return text


def _listed(arns: Sequence[str]) -> str | list[str]:
    """Give principals as IAM writes them back: one alone, several as a list."""
    return arns[0] if len(arns) == 1 else list(arns)
