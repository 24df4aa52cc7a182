"""The `.luma` file: what it holds, and how it is written, sealed, opened and verified."""

from runtime.artifact.accepted import AcceptedMeasurements
from runtime.artifact.key_release import KeyPolicy
from runtime.artifact.key_service import DataKey, KeyReference, KeyService
from runtime.artifact.keys import (
    LocalKeys,
    default_home,
    generate_data_key,
    generate_signing_key,
    load_data_key,
    load_or_create_keys,
    load_public_key,
    load_signing_key,
    private_folder,
    signer_fingerprint,
)
from runtime.artifact.leaks import leaks
from runtime.artifact.levels import LEVELS, Evidence, Level
from runtime.artifact.manifest import Manifest
from runtime.artifact.payloads import PayloadDescription, PayloadEntry
from runtime.artifact.program import BlockTable, Program, TargetPayload, TensorSpec
from runtime.artifact.reader import Artifact, open_artifact
from runtime.artifact.sealing import open_blob, seal_blob
from runtime.artifact.verify import Verification, verify_artifact
from runtime.artifact.writer import PayloadSource, write_artifact

__all__ = [
    "LEVELS",
    "AcceptedMeasurements",
    "Artifact",
    "BlockTable",
    "DataKey",
    "Evidence",
    "KeyPolicy",
    "KeyReference",
    "KeyService",
    "Level",
    "LocalKeys",
    "Manifest",
    "PayloadDescription",
    "PayloadEntry",
    "PayloadSource",
    "Program",
    "TargetPayload",
    "TensorSpec",
    "Verification",
    "default_home",
    "generate_data_key",
    "generate_signing_key",
    "leaks",
    "load_data_key",
    "load_or_create_keys",
    "load_public_key",
    "load_signing_key",
    "open_artifact",
    "open_blob",
    "private_folder",
    "seal_blob",
    "signer_fingerprint",
    "verify_artifact",
    "write_artifact",
]
