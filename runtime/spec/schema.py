"""The JSON Schema of a job file, published as `job.schema.json` for editors and other tools.

`make schema` writes the file again after a change; a test keeps it equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from runtime.spec.job import JobSpec

SCHEMA_FILE: Final = Path(__file__).with_name("job.schema.json")


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


def write_schema() -> None:
    """Write the published file again."""
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
