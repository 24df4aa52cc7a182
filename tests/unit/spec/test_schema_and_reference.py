"""The published JSON Schema and the reference page say what the models say."""

import json
import re
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from runtime.spec import JobSpec, job_schema
from runtime.spec._messages import model_of
from runtime.spec.schema import COPIES, SCHEMA_FILE, copies, schema_text

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "job.md"


def _fields(model: type[BaseModel], prefix: str = ""):
    for key, field in model.model_fields.items():
        name = f"{prefix}{field.alias or key}"
        section = model_of(model, field.alias or key)
        if section is None:
            yield name, field
        else:
            yield from _fields(section, f"{name}.")


def test_the_published_schema_is_the_models():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run `make schema`"


def test_the_constructs_copies_are_equal():
    for name, text in copies().items():
        assert (COPIES / name).read_text(encoding="utf-8") == text, f"{name}: run `make schema`"


def test_the_schema_refuses_unknown_fields_everywhere_and_describes_each():
    schema = job_schema()
    for part in (schema, *schema["$defs"].values()):
        assert part["additionalProperties"] is False
        for name, field in part["properties"].items():
            assert field.get("description") or "$ref" in field, name


def test_the_schema_is_plain_json_with_the_files_names():
    text = json.dumps(job_schema())
    assert '"heartbeat_timeout"' in text
    assert "heartbeat_timeout_s" not in text
    assert "schema_" not in text


def test_the_reference_page_holds_every_field_with_its_default():
    rows = dict(
        re.findall(
            r"^\| `([a-z_.]+)` \|(.*)\|$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    for name, field in _fields(JobSpec):
        assert name in rows, name
        default = rows[name].split("|")[1].strip().strip("`")
        if field.default is not PydanticUndefined:
            assert default == _shown(name, field.default), name
        elif field.default_factory is None:
            assert default == "required", name


def _shown(name: str, value: object) -> str:
    if name == "recovery.heartbeat_timeout":
        return "5s"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if (value is None or isinstance(value, bool))
        else str(value)
    )


def test_the_reference_page_names_no_field_that_does_not_exist():
    known = {name for name, _ in _fields(JobSpec)}
    rows = re.findall(r"^\| `([a-z_.]+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    sections = {name.rpartition(".")[0] for name in known}
    assert set(rows) <= known | sections
