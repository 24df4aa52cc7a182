"""Which images are accepted: a policy over the measurements (PCRs) of a document.

A policy names PCRs and, for each, the values that are accepted: all named PCRs must be there and
each must have one of its values. It must pin the image, not only who runs it:

- an enclave by PCR0 (the image) or PCR8 (who signed the image; survives rebuilds);
- a NitroTPM instance by PCR7 (secure boot), or by PCR4 (the unified kernel image) together with
  PCR12: without secure boot, a boot loader may append to a command line that PCR4 does not
  measure (GHSA-xrv8-2pf5-f3q7), and PCR12 does.

48 zero bytes are refused as a value: an enclave in debug mode measures zeros, so such a policy
would accept any debug enclave. NitroTPM's PCR12 is the exception: zeros there mean that nothing
overrode the command line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runtime.artifact.attestation._refuse import refusal
from runtime.artifact.attestation.document import PCR_BYTES, Kind
from runtime.artifact.attestation.rules import Rule
from runtime.spec.errors import AttestationError

__all__ = ["PcrPolicy"]

_ZEROS = bytes(PCR_BYTES)
_HEX = re.compile(r"(?:sha384:)?([0-9a-fA-F]{96})")
_PINS: Mapping[Kind, tuple[frozenset[int], ...]] = {
    "nitro-enclave": (frozenset({0}), frozenset({8})),
    "nitrotpm": (frozenset({7}), frozenset({4, 12})),
}
_NITROTPM_COMMAND_LINE = 12


@dataclass(frozen=True, slots=True)
class PcrPolicy:
    """A policy; `of` makes one from hex digits.

    Attributes:
        kind: the kind of document that is accepted; the other one is refused.
        accepted: the accepted values, 48 bytes each, of each PCR that is judged.

    Raises:
        AttestationError: `policy`: no value for a PCR, zeros, an index or size that no PCR has, or
            an image that is not pinned.
    """

    kind: Kind
    accepted: Mapping[int, frozenset[bytes]]

    def __post_init__(self) -> None:
        if self.kind not in _PINS:
            raise refusal(Rule.POLICY, "policy.kind", self.kind, " or ".join(_PINS))
        for index, values in self.accepted.items():
            _check_values(self.kind, index, values)
        if not any(pins <= self.accepted.keys() for pins in _PINS[self.kind]):
            wanted = " or ".join(
                " with ".join(f"PCR{i}" for i in sorted(p)) for p in _PINS[self.kind]
            )
            raise refusal(Rule.POLICY, "policy", sorted(self.accepted), f"{wanted} among the PCRs")
        copy = {index: frozenset(values) for index, values in self.accepted.items()}
        object.__setattr__(self, "accepted", MappingProxyType(copy))

    @classmethod
    def of(cls, kind: Kind, accepted: Mapping[int, Collection[str]]) -> PcrPolicy:
        """Make a policy from hex digits.

        Args:
            kind: the kind of document.
            accepted: by PCR, the accepted values: 96 hex digits, with or without "sha384:".

        Raises:
            AttestationError: `policy`, as the class.
        """
        return cls(
            kind,
            {
                index: frozenset(_from_hex(index, value) for value in _several(index, values))
                for index, values in accepted.items()
            },
        )

    def check(self, kind: Kind, pcrs: Mapping[int, bytes]) -> None:
        """Check the measurements of an authentic document.

        Raises:
            AttestationError: `measured.kind` or `measured.pcr`.
        """
        if kind != self.kind:
            raise refusal(Rule.MEASURED_KIND, "document", kind, f"a document of {self.kind}")
        for index, values in sorted(self.accepted.items()):
            measured = pcrs.get(index)
            if measured not in values:
                shown = "absent" if measured is None else measured.hex()
                listed = " or ".join(value.hex() for value in sorted(values))
                raise AttestationError(
                    f"PCR{index}: {shown} is not allowed; expected {listed}",
                    rule=Rule.MEASURED_PCR,
                    remedy="the image that was measured is not one that the policy accepts",
                )


def _check_values(kind: Kind, index: int, values: frozenset[bytes]) -> None:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= 31:
        raise refusal(Rule.POLICY, "policy", index, "PCRs from 0 to 31")
    where = f"policy.PCR{index}"
    if not values:
        raise refusal(Rule.POLICY, where, [], "at least one value")
    for value in values:
        if not isinstance(value, bytes) or len(value) != PCR_BYTES:
            raise refusal(Rule.POLICY, where, value, f"values of {PCR_BYTES} bytes")
        zeros_mean_nothing = kind == "nitrotpm" and index == _NITROTPM_COMMAND_LINE
        if value == _ZEROS and not zeros_mean_nothing:
            raise refusal(
                Rule.POLICY,
                where,
                "48 zero bytes",
                "a measurement",
                remedy="zeros would accept every debug enclave; list the image's own value",
            )


def _several(index: int, values: Collection[str]) -> Collection[str]:
    """Refuse a lone text, whose characters would else be taken for values."""
    if isinstance(values, str):
        raise refusal(Rule.POLICY, f"policy.PCR{index}", values, "a list of values")
    return values


def _from_hex(index: int, value: str) -> bytes:
    match = _HEX.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refusal(Rule.POLICY, f"policy.PCR{index}", value, "96 hex digits")
    return bytes.fromhex(match[1])
