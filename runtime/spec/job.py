"""`JobSpec`: what a user asks for, read from a job file or built in Python.

A job file is refused as a whole with all of its faults at once, each with file, line and field, so
that nothing half-understood is ever run. What a spec means never depends on the machine: it does
no I/O but reading its own file, and paths in it are relative to that file's folder.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from blake3 import blake3
from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from runtime.spec._problems import RULE_ERROR, JobFileError, all_problems, field_value
from runtime.spec._yaml import Document, read_document
from runtime.spec._yaml_writer import write_yaml
from runtime.spec.errors import SpecError
from runtime.spec.rules import broken_rules
from runtime.spec.sections import (
    AdapterSection,
    CompileSection,
    DataSection,
    ModelSection,
    RecoverySection,
    ResourcesSection,
    Section,
    ServiceSection,
    TrainSection,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = "luma/v1"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)

# What the trained bits depend on. The rest says who runs the job, where, for how much, and how
# often it is saved: a job may be resumed with other islands and is still the same job.
_IDENTITY: Final = ("schema", "model", "adapter", "train", "data")


def _job_name(value: str) -> str:
    if _NAME.fullmatch(value):
        return value
    msg = f"{value!r} is no name; expected 1 to 63 letters, digits, dots, dashes or underscores"
    raise ValueError(msg)


def _variable(value: str) -> str:
    if _VARIABLE.fullmatch(value):
        return value
    msg = f"{value!r} is no name of an environment variable; expected a name such as HF_TOKEN"
    raise ValueError(msg)


Variable = Annotated[str, AfterValidator(_variable)]


class JobSpec(Section):
    """One job: model, data, training, compile, resources, recovery and service."""

    schema_: Literal["luma/v1"] = Field(alias="schema")
    """version of the format; always luma/v1"""
    name: Annotated[str, AfterValidator(_job_name)]
    """name of the job, used for its run folder and the served model"""
    model: ModelSection
    """the model"""
    adapter: AdapterSection | None = None
    """LoRA adapter; null trains all parameters"""
    compile: CompileSection = CompileSection()
    """targets and seal of the artifact"""
    train: TrainSection
    """the training"""
    data: DataSection
    """the training data"""
    resources: ResourcesSection = ResourcesSection()
    """accelerators, islands and price"""
    recovery: RecoverySection = RecoverySection()
    """what happens when an island is lost"""
    service: ServiceSection = ServiceSection()
    """serving"""
    envs: dict[Variable, str] = Field(default_factory=dict)
    """environment variables of the islands"""
    secrets: Annotated[tuple[Variable, ...], Field(strict=False)] = ()
    """names of environment variables whose values are passed on and never stored"""

    _base_dir: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        broken = list(broken_rules(lambda name: _attribute(self, name)))
        if broken:
            raise ValidationError.from_exception_data("JobSpec", [_rule_error(*b) for b in broken])
        return self

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a job file.

        Args:
            path: the file; relative paths inside it start at its folder.

        Raises:
            JobFileError: the file is no job; the message lists every fault with file, line and
                field.
            SpecError: the file cannot be read, or is no YAML.
        """
        path = Path(path)
        document = read_document(path)
        if not isinstance(document.data, dict):
            found = "is empty" if document.data is None else "holds no mapping of fields"
            msg = f"{path}:1: {found}; expected a job such as `luma init` writes"
            raise SpecError(msg, remedy="`luma init` writes a commented job file")
        return cls._parse(document, str(path), base_dir=path.absolute().parent)

    @classmethod
    def _parse(cls, document: Document, file: str, *, base_dir: Path) -> Self:
        try:
            spec = cls.model_validate(document.data)
        except ValidationError as error:
            problems = all_problems(cls, document, error.errors(include_url=False))
            raise JobFileError(file, problems) from None
        if document.faults:
            raise JobFileError(file, all_problems(cls, document, []))
        spec._base_dir = base_dir  # noqa: SLF001 - its own class
        return spec

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Give a copy with some fields replaced, checked like a file.

        Args:
            overrides: dotted fields and their values, such as `{"resources.islands": 3}`.

        Raises:
            JobFileError: a field is unknown, or the new values do not fit.
        """
        # Only what was set: a filled-in default such as global_batch follows the new values.
        data = self.model_dump(by_alias=True, exclude_unset=True)
        for name, value in overrides.items():
            *parents, last = name.split(".")
            owner = data
            for part in parents:
                if not isinstance(owner.get(part), dict):
                    owner[part] = {}
                owner = owner[part]
            owner[last] = value
        return self._parse(Document(data=data), "", base_dir=self._base_dir)

    def to_yaml(self) -> str:
        """Write the job as the text of a job file; paths stay as they are."""
        return write_yaml(self.model_dump(mode="json", by_alias=True))

    @property
    def base_dir(self) -> Path:
        """Folder that relative paths start at: the job file's, or the working folder."""
        return self._base_dir

    def resolve(self, path: str) -> Path:
        """Give the absolute path of a file that the job names."""
        return self._base_dir / Path(path).expanduser()

    def digest(self) -> str:
        """Give the job's identity: BLAKE3, hex, of the canonical JSON of what decides the result.

        Model, adapter, data and training count; name, compile, resources, recovery, service,
        environment and the rhythm of checkpoints do not, so a job may be resumed with others.
        """
        whole = self.model_dump(mode="json", by_alias=True)
        data = {name: whole[name] for name in _IDENTITY}
        del data["train"]["checkpoint"]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return blake3(text.encode()).hexdigest()

    def total_steps(self, n_samples: int) -> int:
        """Give the number of optimizer steps for a data set of `n_samples` samples.

        Raises:
            SpecError: there are no samples, or the warm-up is longer than the training.
        """
        if n_samples < 1:
            msg = f"data.source: holds {n_samples} samples; expected at least 1"
            raise SpecError(msg, remedy="give more data, or a smaller train.seq_len")
        steps, train = self._steps(n_samples), self.train
        if train.schedule.warmup_steps > steps:
            msg = (
                f"train.schedule.warmup_steps: {train.schedule.warmup_steps} is more than the "
                f"{steps} steps that {n_samples} samples give; expected at most {steps}"
            )
            raise SpecError(msg, remedy="lower the warm-up or train longer")
        return steps

    def _steps(self, n_samples: int) -> int:
        train = self.train
        if train.steps is not None:
            return train.steps
        if train.tokens is not None:
            return -(-train.tokens // (train.samples_per_step * train.seq_len))
        assert train.epochs is not None  # noqa: S101 - a rule makes it so
        # Exact: 0.1 epochs of 30 samples are 3, where binary floats say a little more than 3.
        passes = Fraction(repr(train.epochs))
        return max(1, math.ceil(passes * n_samples / train.samples_per_step))


def _attribute(spec: JobSpec, name: str) -> Any:
    value: Any = spec
    for part in name.split("."):
        value = field_value(value, part)
    return value


def _rule_error(name: str, message: str) -> InitErrorDetails:
    kind = PydanticCustomError(RULE_ERROR, "{message}", {"message": message})
    return InitErrorDetails(type=kind, loc=tuple(name.split(".")), input=None)
