"""The sections of a job file, as frozen pydantic models whose attributes are the file's fields.

Each model checks its own fields one by one; what concerns several fields is in `rules.py`. Types
are strict: YAML already tells text from numbers, so `steps: "40"` is a mistake and not 40.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from runtime.spec.key_names import CUSTOMER, KEY_ARN, check_customer, check_key_arn
from runtime.spec.units import (
    PLACE,
    check_place,
    check_source,
    check_target,
    format_duration,
    normal_accelerator,
    parse_count,
    parse_duration_s,
    parse_price_per_hour,
)

# A step's shards add up as int32: 31 bits less the headroom and less log2 of the number of shards
# must leave a gradient enough bits, so both have a ceiling (see DESIGN.md, section 4).
MAX_MICRO_SHARDS = 4096
MAX_HEADROOM = 8


def _one_or_more_texts(value: object) -> object:
    """Give text as it is, a list of text as a tuple; one message for everything else."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    texts = [item for item in items if isinstance(item, str) and item]
    if items and len(texts) == len(items):
        for text in texts:
            check_source(text, schemes=("hf", "python"))
        return value if isinstance(value, str) else tuple(texts)
    msg = f"{value!r} is no source; expected a path, an hf:// name, or a list of them"
    raise ValueError(msg)


def _model_source(value: str) -> str:
    """Accept a folder, an `hf://` name, or `module.py:function`."""
    check_source(value, schemes=("hf",))
    file, mark, function = value.rpartition(".py:")
    if mark and not (file and function.isidentifier()):
        msg = f"{value!r} names no function; expected module.py:function"
        raise ValueError(msg)
    if value.endswith(".py"):
        msg = f"{value!r} is a file without a function; expected module.py:function"
        raise ValueError(msg)
    return value


def _places(value: object) -> object:
    """Give one place as it is, a list of places as a tuple."""
    if isinstance(value, list | tuple) and value:
        return tuple(check_place(item) for item in value)
    return check_place(value)


def _steps_or_auto(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9:
        return value
    msg = f"{value!r} is no interval; expected auto or a number of steps of at least 1"
    raise ValueError(msg)


def _optional(parse: Any) -> BeforeValidator:
    """Wrap a parser of `units.py` so that null stays None."""
    return BeforeValidator(lambda value: None if value is None else parse(value))


def _price_text(value: float | None) -> str | None:
    return None if value is None else f"{value:.6f}".rstrip("0").rstrip(".") + "/h"


def _whole(form: re.Pattern[str]) -> dict[str, Any]:
    """Give the JSON Schema of text of a form."""
    return {"type": "string", "pattern": f"^{form.pattern}$"}


Text = Annotated[str, Field(min_length=1, max_length=4096)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Source = Annotated[str | tuple[str, ...], BeforeValidator(_one_or_more_texts)]
TokenCount = Annotated[
    int | None,
    _optional(parse_count),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}, {"type": "null"}]}
    ),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration_s),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$"}),
]
PricePerHour = Annotated[
    float | None,
    _optional(parse_price_per_hour),
    PlainSerializer(_price_text, return_type=str | None),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": r"^\$?\d+(\.\d+)?\s*/\s*h$"}, {"type": "null"}]}
    ),
]
OptionalDuration = Annotated[
    float | None,
    _optional(parse_duration_s),
    PlainSerializer(
        lambda value: None if value is None else format_duration(value), return_type=str | None
    ),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$"}, {"type": "null"}]}
    ),
]
_PLACE_SCHEMA = {"type": "string", "pattern": f"^(?:{PLACE.pattern})$"}
Places = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_places),
    WithJsonSchema(
        {"anyOf": [_PLACE_SCHEMA, {"type": "array", "items": _PLACE_SCHEMA, "minItems": 1}]}
    ),
]
Accelerator = Annotated[str, BeforeValidator(normal_accelerator)]
Target = Annotated[str, BeforeValidator(check_target)]
Interval = Annotated[int | Literal["auto"], BeforeValidator(_steps_or_auto)]


class Section(BaseModel):
    """Base of every section: unknown fields refused, values strict and frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        use_attribute_docstrings=True,
    )


class ModelSection(Section):
    """Where the model comes from."""

    source: Annotated[Text, AfterValidator(_model_source)]
    """a local HF folder, `hf://name[@revision]`, or `module.py:function`; paths start at the file"""
    revision: Text | None = None
    """branch, tag or commit of an `hf://` source"""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """type that parameters and activations are computed in; bf16 is trained from fp32 masters"""


class AdapterSection(Section):
    """A LoRA adapter: only its matrices are trained."""

    kind: Literal["lora"] = "lora"
    """kind of the adapter"""
    r: Annotated[int, Field(ge=1, le=4096)]
    """rank of the two matrices"""
    alpha: Positive
    """scale; the update is multiplied by alpha / r"""
    dropout: BelowOne = 0.0
    """probability that an input of the adapter is dropped"""
    target_modules: Annotated[Texts, Field(min_length=1)] | None = None
    """names of the adapted modules; null takes peft's choice for the model's family"""


class KmsSection(Section):
    """A customer's key in AWS KMS, which seals the artifact in place of a key file."""

    key_arn: Annotated[Text, AfterValidator(check_key_arn), WithJsonSchema(_whole(KEY_ARN))]
    """ARN of the KMS key; KMS is asked when the artifact is written, and by each island"""
    customer: Annotated[Text, AfterValidator(check_customer), WithJsonSchema(_whole(CUSTOMER))]
    """the customer's name, which stands in the artifact for anyone to read"""
    instance_role: bool = False
    """whether credentials may come from the role of the instance or container"""


class CompileSection(Section):
    """What the artifact is compiled for, and how it is sealed."""

    seal: Literal["L0", "L1"] = "L1"
    """L0 signed; L1 also encrypted with the customer's key"""
    targets: Annotated[tuple[Target, ...], Field(strict=False, min_length=1)] = ("cpu",)
    """targets, such as cpu or cuda-sm90; a payload each"""
    key_file: Text | None = None
    """file with the 32-byte data key for L1; null takes the one in Luma's home"""
    kms: KmsSection | None = None
    """key in AWS KMS for L1, in place of a key file; null asks nothing of AWS"""


class OptimizerSection(Section):
    """AdamW with decoupled weight decay, on tensors of two or more dimensions only."""

    name: Literal["adamw"] = "adamw"
    """name of the optimizer"""
    lr: Annotated[float, Field(gt=0, le=10)]
    """peak learning rate"""
    betas: Annotated[tuple[BelowOne, BelowOne], Field(strict=False)] = (0.9, 0.95)
    """decay of the first and of the second moment"""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """added to the root of the second moment"""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """decay per step, in units of the learning rate"""
    grad_clip: Positive | None = 1.0
    """largest gradient norm; null for no clipping"""


class ScheduleSection(Section):
    """Learning rate over steps: linear warm-up, then cosine or constant."""

    kind: Literal["cosine", "constant"] = "cosine"
    """shape after the warm-up"""
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """steps from zero to the peak"""
    min_lr_ratio: Fraction = 0.1
    """last learning rate of a cosine, as a part of the peak"""


class CheckpointSection(Section):
    """When a checkpoint is written, and how many are kept."""

    every: Interval = "auto"
    """steps between checkpoints, or auto"""
    keep: Annotated[int, Field(ge=2, le=10**6)] = 2
    """newest checkpoints that are kept"""


class TrainSection(Section):
    """How the model is trained; one of steps, tokens and epochs says how long."""

    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """number of optimizer steps"""
    tokens: TokenCount = None
    """positions to train on, such as 2B; rounded up to whole steps"""
    epochs: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """passes over the samples; rounded up to whole steps"""
    micro_shards: Annotated[int, Field(ge=1, le=MAX_MICRO_SHARDS)]
    """M, the pieces of a global batch that islands take"""
    micro_batch: Annotated[int, Field(ge=1, le=65536)]
    """samples of a micro-shard"""
    global_batch: Annotated[int, Field(ge=1)] | None = None
    """samples of a step; always micro_shards * micro_batch, which it may repeat"""
    seq_len: Annotated[int, Field(ge=2, le=2**24)]
    """positions of a sample"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of the order of samples, of dropout and of fresh weights"""
    optimizer: OptimizerSection
    """the optimizer"""
    schedule: ScheduleSection = ScheduleSection()
    """the learning rate's schedule"""
    precision: Literal["fp32"] = "fp32"
    """type of master weights, moments and sums, whatever model.dtype is"""
    checkpointing: Literal["none", "layer"] = "none"
    """activation checkpointing: layer keeps what enters each layer and computes the rest twice"""
    checkpoint: CheckpointSection = CheckpointSection()
    """checkpoints"""
    headroom: Annotated[int, Field(ge=1, le=MAX_HEADROOM)] = 5
    """a gradient may grow by 2^headroom from step to step before a step is redone"""

    @property
    def samples_per_step(self) -> int:
        """Samples of a global batch: micro_shards * micro_batch."""
        return self.micro_shards * self.micro_batch

    def model_post_init(self, _context: Any, /) -> None:
        """Fill `global_batch` where the file leaves it out."""
        if self.global_batch is None:
            # The model is frozen for its users; pydantic itself writes past that the same way.
            object.__setattr__(self, "global_batch", self.samples_per_step)


class DataSection(Section):
    """What the model is trained on."""

    source: Source
    """file, folder, `hf://` data set, `python://pydoc_data.topics`, or a list of them"""
    kind: Literal["text", "chat"] = "text"
    """plain text, or chat messages with the loss on the assistant's tokens"""
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """format of the files; auto goes by the suffix"""
    text_field: Text = "text"
    """field or column that holds the text (kind chat: the messages)"""
    packing: bool = False
    """several documents in a sample, attention kept inside each"""
    max_samples: Annotated[int, Field(ge=1)] | None = None
    """use at most so many samples"""

    @property
    def sources(self) -> tuple[str, ...]:
        """All sources, also where the file names a single one."""
        return (self.source,) if isinstance(self.source, str) else self.source


class ResourcesSection(Section):
    """What the job may run on, and for how much."""

    accelerators: Annotated[tuple[Accelerator, ...], Field(strict=False, min_length=1)] = ("cpu:1",)
    """acceptable accelerators of an island as NAME:COUNT, best first"""
    infra: Places = "local"
    """where: this machine, or regions of AWS such as `aws/us-east-1` or `aws/us-*`; one or a list"""
    spot: Literal["auto", "only", "never"] = "auto"
    """spot capacity in AWS: auto takes it where it is cheaper"""
    min_on_demand: Annotated[int, Field(ge=0, le=MAX_MICRO_SHARDS)] = 0
    """islands in AWS that start on demand, whatever spot capacity costs"""
    min_workers: Annotated[int, Field(ge=1, le=MAX_MICRO_SHARDS)] = 1
    """with fewer live islands the job waits"""
    islands: Annotated[int, Field(ge=1, le=MAX_MICRO_SHARDS)] = Field(
        default_factory=lambda fields: fields["min_workers"]
    )
    """islands that the job starts with; the default is min_workers"""
    max_workers: Annotated[int, Field(ge=1, le=MAX_MICRO_SHARDS)] = Field(
        default_factory=lambda fields: fields["islands"]
    )
    """most islands at a time; the default is islands"""
    threads_per_island: Annotated[int, Field(ge=1, le=1024)] = 1
    """threads of an island on a CPU"""
    max_price: PricePerHour = None
    """most US dollars per hour, such as 12/h; null for no limit"""
    max_cost: Positive | None = None
    """most US dollars for the whole job; null for no limit"""
    deadline_s: OptionalDuration = Field(default=None, alias="deadline")
    """most time from the launch to the end in AWS, such as 8h; null for no limit"""

    @property
    def places(self) -> tuple[str, ...]:
        """All places, also where the file names a single one."""
        return (self.infra,) if isinstance(self.infra, str) else self.infra

    @property
    def is_local(self) -> bool:
        """Whether the job runs on this machine."""
        return self.places == ("local",)

    @property
    def asked_threads(self) -> int | None:
        """Threads of an island on a CPU; None, for all cores, where the file names no number."""
        return self.threads_per_island if "threads_per_island" in self.model_fields_set else None


class RecoverySection(Section):
    """When an island counts as lost, and how often the job is started again."""

    heartbeat_timeout_s: Duration = Field(
        default=5.0,
        alias="heartbeat_timeout",
        ge=0.1,
        le=3600,
        json_schema_extra={"default": "5s"},
    )
    """silence after which an island is out, such as 5s"""
    max_restarts: Annotated[int, Field(ge=0, le=10**6)] = 3
    """replacements of lost islands on this machine before the run gives up"""
    restart_on: Annotated[
        tuple[Literal["interruption", "no-capacity", "error"], ...],
        Field(strict=False, min_length=1),
    ] = ("interruption", "no-capacity", "error")
    """what an island is replaced after; this version replaces it after each of them"""
    for_s: OptionalDuration = Field(default=None, alias="for")
    """how long to go on looking for capacity; not available in this version, so null"""


class ServiceSection(Section):
    """How the trained model is served."""

    model_name: Text | None = None
    """name in the API; null takes the job's"""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """TCP port; null for a free one"""
