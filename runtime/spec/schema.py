"""The JSON Schema of a job file, published as `job.schema.json` for editors and other tools.

`make schema` writes the file again after a change, and the copies of it and of the catalogue that
`luma_constructs` carries, which imports nothing of the runtime; tests keep all of them equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from runtime.spec.catalogue import packaged_text
from runtime.spec.job import JobSpec

SCHEMA_FILE: Final = Path(__file__).with_name("job.schema.json")
COPIES: Final = Path(__file__).parents[2] / "luma_constructs" / "data"
"""Where `luma_constructs` has its copies, in the repository."""


def job_schema() -> dict[str, Any]:
    """Give the JSON Schema (2020-12) of a job file."""
    schema = JobSpec.model_json_schema(by_alias=True, mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Luma job",
    }


def schema_text() -> str:
    """Give the text of the published file."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=False) + "\n"


def copies() -> dict[str, str]:
    """Give the files that `luma_constructs` copies, names and texts."""
    return {SCHEMA_FILE.name: schema_text(), "accelerators.json": packaged_text()}


def write_schema() -> None:
    """Write the published file and the copies again.

    Raises:
        OSError: this is no checkout of the repository, or a file cannot be written.
    """
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    for name, text in copies().items():
        (COPIES / name).write_text(text, encoding="utf-8")
