"""What several fields of a job must satisfy together, one small rule each.

A rule names the fields that it reads. It is checked as soon as all of them are well-formed, also
when others are not, so that a file with ten mistakes gives ten messages at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Getter: TypeAlias = Callable[[str], Any]


class Unknown(Exception):
    """Raised by a getter where a field's value is not well-formed, so no rule can use it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition over fields.

    Args:
        blame: the dotted field that the message is shown at.
        fields: the dotted fields whose values `check` takes, in order.
        check: gives the message where the values do not fit together, else None.
    """

    blame: str
    fields: tuple[str, ...]
    check: Callable[..., str | None]


def broken_rules(get: Getter) -> Iterator[tuple[str, str]]:
    """Yield (dotted field, message) for each rule that the values break.

    Args:
        get: gives the value of a dotted field, or raises `Unknown`.
    """
    for rule in RULES:
        try:
            values = [get(name) for name in rule.fields]
        except Unknown:
            continue
        message = rule.check(*values)
        if message is not None:
            yield rule.blame, message


def _one_length(steps: object, tokens: object, epochs: object) -> str | None:
    lengths = {"steps": steps, "tokens": tokens, "epochs": epochs}
    given = [name for name, value in lengths.items() if value is not None]
    if len(given) == 1:
        return None
    found = "none of them" if not given else " and ".join(given)
    return f"needs exactly one of steps, tokens and epochs, found {found}"


def _global_batch(total: int | None, shards: int, batch: int) -> str | None:
    if total is None or total == shards * batch:
        return None
    return (
        f"{total} is not micro_shards * micro_batch = {shards} * {batch} = {shards * batch}; "
        "correct one of the three or remove global_batch"
    )


def _warm_up(warmup: int, steps: int | None) -> str | None:
    if steps is None or warmup <= steps:
        return None
    return f"{warmup} is more than train.steps = {steps}; expected at most {steps}"


def _islands_have_work(islands: int, shards: int) -> str | None:
    if islands <= shards:
        return None
    return (
        f"{islands} islands but train.micro_shards = {shards}, so some would have no work; "
        f"expected at most {shards}"
    )


def _not_below(name: str) -> Callable[[int, int], str | None]:
    def check(larger: int, smaller: int) -> str | None:
        if larger >= smaller:
            return None
        return f"{larger} is less than {name} = {smaller}; expected at least {smaller}"

    return check


def _chat_format(kind: str, file_format: str) -> str | None:
    if kind != "chat" or file_format != "text":
        return None
    return "plain text holds no chat messages; expected auto, jsonl or parquet with data.kind chat"


def _revision(revision: str | None, source: str) -> str | None:
    if revision is None:
        return None
    if not source.startswith("hf://"):
        return f"{revision!r} has no meaning for {source!r}; only an hf:// source has revisions"
    if "@" in source:
        return f"{revision!r} repeats the revision in {source!r}; keep one of them"
    return None


def _distinct(values: tuple[str, ...]) -> str | None:
    repeated = sorted({value for value in values if list(values).count(value) > 1})
    return f"{', '.join(repeated)} is listed twice; keep one of them" if repeated else None


def _key_for_l0(key_file: str | None, seal: str) -> str | None:
    if key_file is None or seal != "L0":
        return None
    return f"{key_file!r} is not used at seal L0, which encrypts nothing; set seal L1 or remove it"


def _one_key(kms: object, key_file: str | None) -> str | None:
    if kms is None or key_file is None:
        return None
    return "cannot seal together with compile.key_file; keep one of them"


def _kms_for_l0(kms: object, seal: str) -> str | None:
    if kms is None or seal != "L0":
        return None
    return "is not used at seal L0, which encrypts nothing; set seal L1 or remove it"


def _one_kind_of_place(infra: str | tuple[str, ...]) -> str | None:
    places = [infra] if isinstance(infra, str) else list(infra)
    if "local" in places and len(places) > 1:
        return "local stands beside other places; a job runs on this machine or in AWS, keep one"
    return _distinct(tuple(places))


def _only_in_aws(asked: Callable[[Any], bool], what: str) -> Callable[[Any, object], str | None]:
    """Refuse what a value asks for where the job runs on this machine, which cannot do it."""

    def check(value: Any, infra: object) -> str | None:
        if not (_is_local(infra) and asked(value)):
            return None
        return (
            f"{what}, and resources.infra is local; name a region such as aws/us-east-1 there, or "
            "remove this field"
        )

    return check


def _is_given(value: object) -> bool:
    return value is not None


def _is_local(infra: object) -> bool:
    return infra == "local" or infra in (["local"], ("local",))


def _all_causes(causes: tuple[str, ...], infra: object) -> str | None:
    needed = (
        ("interruption", "error") if _is_local(infra) else ("interruption", "no-capacity", "error")
    )
    lacking = [cause for cause in needed if cause not in causes]
    if not lacking:
        return None
    where = "on this machine" if _is_local(infra) else "in an account"
    return (
        f"{', '.join(lacking)} is not listed; this version goes on after each of "
        f"{', '.join(needed)} {where}, so list all of them"
    )


def _no_patience(patience: object) -> str | None:
    if patience is None:
        return None
    return (
        "is not available in this version; an island waits for capacity as long as the stack's "
        "capacity_timeout (TrainingJobs) says; remove this field"
    )


def _floor_is_spot(floor: int, spot: str) -> str | None:
    if floor and spot == "only":
        return f"{floor} islands on demand contradict resources.spot: only; remove one of them"
    return None


RULES: Final = (
    Rule("train", ("train.steps", "train.tokens", "train.epochs"), _one_length),
    Rule(
        "train.global_batch",
        ("train.global_batch", "train.micro_shards", "train.micro_batch"),
        _global_batch,
    ),
    Rule("train.schedule.warmup_steps", ("train.schedule.warmup_steps", "train.steps"), _warm_up),
    Rule("resources.islands", ("resources.islands", "train.micro_shards"), _islands_have_work),
    Rule(
        "resources.max_workers",
        ("resources.max_workers", "resources.islands"),
        _not_below("resources.islands"),
    ),
    Rule(
        "resources.islands",
        ("resources.islands", "resources.min_workers"),
        _not_below("resources.min_workers"),
    ),
    Rule("resources.infra", ("resources.infra",), _one_kind_of_place),
    Rule(
        "resources.spot",
        ("resources.spot", "resources.infra"),
        _only_in_aws(lambda spot: spot == "only", "'only' asks for spot capacity of AWS"),
    ),
    Rule(
        "resources.min_on_demand",
        ("resources.min_on_demand", "resources.infra"),
        _only_in_aws(lambda floor: floor > 0, "asks for on-demand capacity of AWS"),
    ),
    Rule("resources.min_on_demand", ("resources.min_on_demand", "resources.spot"), _floor_is_spot),
    Rule(
        "resources.max_workers",
        ("resources.max_workers", "resources.min_on_demand"),
        _not_below("resources.min_on_demand"),
    ),
    Rule(
        "resources.deadline",
        ("resources.deadline", "resources.infra"),
        _only_in_aws(_is_given, "asks for as much capacity of AWS as it takes"),
    ),
    Rule("recovery.for", ("recovery.for",), _no_patience),
    Rule("recovery.restart_on", ("recovery.restart_on", "resources.infra"), _all_causes),
    Rule("recovery.restart_on", ("recovery.restart_on",), _distinct),
    Rule("data.format", ("data.kind", "data.format"), _chat_format),
    Rule("model.revision", ("model.revision", "model.source"), _revision),
    Rule("compile.targets", ("compile.targets",), _distinct),
    Rule("compile.key_file", ("compile.key_file", "compile.seal"), _key_for_l0),
    Rule("compile.kms", ("compile.kms", "compile.key_file"), _one_key),
    Rule("compile.kms", ("compile.kms", "compile.seal"), _kms_for_l0),
)
