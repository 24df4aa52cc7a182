"""What `SealedCompiler` refuses: level, customer, image and host that do not go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aws_cdk import Size
from aws_cdk import aws_kms as kms

from luma_constructs._catalogue import architecture_of, row_of
from luma_constructs._validation import Problems
from luma_constructs.enclave_image_file import EnclaveImage
from luma_constructs.key_policy import AcceptedAmis, KeyPolicyError, key_statements

__all__ = ["check_enclave", "check_seal"]

_IMAGE_PER_MEMORY: Final = 4
"""An enclave needs four times its image as memory, or it does not start (nitro-cli, error E26)."""


def check_seal(
    problems: Problems,
    level: str,
    customer: str | None,
    image: EnclaveImage | None,
    amis: AcceptedAmis | None,
    key: kms.IKey | None,
) -> None:
    """Note what is wrong with level, customer and image together."""
    if not problems.check(level in ("L1", "L2", "L3"), "level", level, "'L1', 'L2' or 'L3'"):
        return
    enclave = level != "L1"
    problems.check(
        enclave == (image is not None),
        "enclave_image",
        image,
        f"an image at {level}" if enclave else "nothing at L1",
        "EnclaveImage.from_file measures one that `luma enclave build` made"
        if enclave
        else "ask for L2 to compile in an enclave",
    )
    problems.check(
        (level == "L3") == (amis is not None),
        "amis",
        amis,
        "AcceptedAmis at L3" if level == "L3" else f"nothing at {level}",
    )
    problems.check(
        customer is not None or (level == "L1" and key is None),
        "customer",
        customer,
        "the customer's name where there is a key",
    )
    if image is not None:
        try:
            image.accepted  # noqa: B018 (raises)
        except KeyPolicyError as error:
            problems.add("enclave_image", image.name, f"measurements; {error}")
    if customer is not None and not _is_customer(customer):
        problems.add("customer", customer, "1 to 63 of a-z, 0-9, '.', '_' and '-'")


def _is_customer(name: str) -> bool:
    """Tell whether a key policy takes the name."""
    try:
        key_statements(
            level="L1",
            customer=name,
            administrators=["arn:aws:iam::111122223333:root"],
            sealers=["arn:aws:iam::111122223333:role/any"],
            agents=["arn:aws:iam::111122223333:role/any"],
        )
    except KeyPolicyError:
        return False
    return True


def check_enclave(
    problems: Problems, names: Sequence[str], image: EnclaveImage, memory: Size, cpus: int
) -> None:
    """Note an enclave that its hosts cannot start."""
    memory_gib = memory.to_mebibytes() / 1024
    if problems.whole("enclave_cpus", cpus, 2, 96):
        problems.check(cpus % 2 == 0, "enclave_cpus", cpus, "an even number", "cores are whole")
    if image.path is not None:
        least = _IMAGE_PER_MEMORY * image.path.stat().st_size / (1 << 30)
        problems.check(
            memory_gib >= least,
            "enclave_memory",
            f"{memory_gib:g} GiB",
            f"at least {least:.2f} GiB, four times the image",
        )
    for name in names:
        problems.check(
            architecture_of(name) == "x86_64",
            "instance_types",
            name,
            "types of x86_64, as the image is",
        )
        row = row_of(name)
        if row is None:
            continue
        problems.check(
            row.nitro_enclaves is not False,
            "instance_types",
            name,
            "types that can be an enclave's parent",
        )
        fits = row.vcpus is None or row.vcpus >= cpus + 2
        problems.check(fits, "enclave_cpus", cpus, f"2 less than {name} has ({row.vcpus})")
        room = row.host_memory_gib is None or row.host_memory_gib >= memory_gib + 2
        problems.check(room, "enclave_memory", f"{memory_gib:g} GiB", f"2 GiB less than {name} has")
