"""The enclave image format (EIF), version 4: write it, read it strictly, compute its PCRs."""

from enclave_image.eif.layout import Architecture, Header, SectionKind
from enclave_image.eif.measure import (
    Measurer,
    Pcrs,
    instance_pcr,
    policy_document,
    policy_registers,
    role_pcr,
)
from enclave_image.eif.metadata import image_metadata
from enclave_image.eif.reader import EifImage, Section, read_eif
from enclave_image.eif.signing import ImageSignature, ImageSigner, load_image_signer
from enclave_image.eif.writer import EifParts, write_eif

__all__ = [
    "Architecture",
    "EifImage",
    "EifParts",
    "Header",
    "ImageSignature",
    "ImageSigner",
    "Measurer",
    "Pcrs",
    "Section",
    "SectionKind",
    "image_metadata",
    "instance_pcr",
    "load_image_signer",
    "policy_document",
    "policy_registers",
    "read_eif",
    "role_pcr",
    "write_eif",
]
