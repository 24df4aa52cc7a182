"""What a user sees of a wrong job file: every mistake, its line, its field, and what to do."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec import JobFileError, JobSpec, LumaError, SpecError, commented_job_yaml

KMS = "{key_arn: 'arn:aws:kms:eu-west-1:111122223333:key/12ab-34cd', customer: acme}"

TEN_MISTAKES = """\
schema: luma/v1
nam: tiny
model: {source: ./model, dtype: fp16}
compile: {seal: L2, targets: [cpu, gpu]}
train:
  steps: 10
  tokens: 2B
  micro_shards: 4
  micro_batch: 2
  global_batch: 9
  seq_len: 64
  optimizer: {lr: "1e-3"}
  checkpoint: {every: 5, keep: 1}
data: {source: ./data}
resources: {islands: 5, max_price: 12}
recovery: {heartbeat_timeout: 5}
"""


@pytest.fixture
def problems(tmp_path):
    def problems(text: str | bytes):
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(SpecError) as raised:
            JobSpec.from_yaml(path)
        assert raised.value.exit_code == 2
        return raised.value

    return problems


def _located(error: JobFileError):
    return [(problem.line, problem.field) for problem in error.problems]


def _with(line: str) -> str:
    """A valid job with one more top-level line, or with that field's line replaced."""
    text = commented_job_yaml()
    field = line.partition(":")[0]
    if re.search(rf"^{re.escape(field)}:", text, re.MULTILINE):
        text = re.sub(rf"^{re.escape(field)}:.*\n(  .*\n)*", "", text, flags=re.MULTILINE)
    return text + line + "\n"


def test_a_file_with_many_mistakes_reports_each_with_line_and_field(problems):
    error = problems(TEN_MISTAKES)
    assert _located(error) == [
        (1, "name"),
        (2, "nam"),
        (3, "model.dtype"),
        (4, "compile.seal"),
        (4, "compile.targets[1]"),
        (5, "train"),
        (10, "train.global_batch"),
        (12, "train.optimizer.lr"),
        (13, "train.checkpoint.keep"),
        (15, "resources.max_price"),
        (15, "resources.islands"),
        (16, "recovery.heartbeat_timeout"),
    ]
    text = error.diagnostics()
    for problem in error.problems:
        assert f"{error.file}:{problem.line}: {problem.field}: {problem.message}" in text
    assert "Traceback" not in text
    assert "pydantic" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stepz: 1", "unknown field; expected one of schema, name, model"),
        ("modle: 1", "unknown field; did you mean model"),
        ("name: 12", "12 has the wrong type; expected text; put it in quotes"),
        ("name: a/b", "'a/b' is no name"),
        ("schema: luma/v2", "'luma/v2' is not allowed; expected luma/v1"),
        ("model: {source: ./m, dtype: fp16}", "'fp16' is not available in this version"),
        ("model: {source: ./m, dtype: fp8}", "'fp8' is not allowed; expected fp32, bf16"),
        ("model: {source: ./m, dtype: null}", "null is not allowed; expected fp32, bf16"),
        ("model: {source: build.py}", "is a file without a function"),
        ("model: {source: s3://b/m}", "has a scheme that is not available"),
        ("model: {source: ./m, revision: main}", "only an hf:// source has revisions"),
        ("compile: {seal: L2}", "needs the Nitro Enclave compiler"),
        ("compile: {seal: L3}", "needs an attested runtime image"),
        ("compile: {targets: []}", "is empty"),
        ("compile: {targets: [cpu, cpu]}", "cpu is listed twice"),
        ("compile: {seal: L0, key_file: k}", "is not used at seal L0"),
        (f"compile: {{kms: {KMS}, key_file: k}}", "cannot seal together with compile.key_file"),
        (f"compile: {{seal: L0, kms: {KMS}}}", "is not used at seal L0"),
        ("compile: {kms: acme}", "expected a mapping"),
        ("compile: {kms: {customer: acme}}", "is missing; this field is required"),
        (
            "compile: {kms: {key_arn: 'arn:aws:kms:eu-west-1:111122223333:alias/a', customer: a}}",
            "is an alias, which can be pointed at another key",
        ),
        ("compile: {kms: {key_arn: 1234abcd, customer: acme}}", "'1234abcd' is no KMS key"),
        (f"compile: {{kms: {KMS.replace('acme', 'Acme')}}}", "'Acme' is no customer's name"),
        (f"compile: {{kms: {KMS.replace('}', ', region: x}')}}}", "unknown field"),
        (
            f"compile: {{kms: {KMS.replace('}', ', instance_role: 1}')}}}",
            "1 has the wrong type; expected true or false",
        ),
        ("data: {source: ./d, kind: chat, format: text}", "plain text holds no chat messages"),
        ("data: {source: {a: 1}}", "is no source"),
        ("adapter: {kind: dora, r: 1, alpha: 1}", "'dora' is not allowed; expected lora"),
        ("adapter: {r: 0, alpha: 1}", "0 is out of range; expected at least 1"),
        ("adapter: {r: 8}", "is missing; this field is required"),
        ("resources: {accelerators: {trn2:1}}", "expected a list such as [a, b]"),
        ("resources: {accelerators: [{trn2:1}]}", "write a list, [trn2:1], not {trn2:1}"),
        ("resources: {islands: 2, max_workers: 1}", "1 is less than resources.islands = 2"),
        ("resources: {islands: 1, min_workers: 2}", "1 is less than resources.min_workers = 2"),
        ("resources: {max_price: '12'}", "'12' has no unit; expected a price per hour"),
        ("resources: {max_cost: .nan}", "is not finite"),
        ("resources: {accelerators: [24GB..12GB]}", "holds no size; expected a range of memory"),
        ("resources: {accelerators: [24GB]}", "'24GB' is no accelerator"),
        ("resources: {infra: useast1}", "'useast1' is no place; expected local, a region such as"),
        ("resources: {infra: aws/useast}", "is no place"),
        ("resources: {infra: []}", "[] is no place"),
        ("resources: {infra: [aws/*, 1]}", "1 is no place"),
        ("resources: {infra: [local, aws/*]}", "local stands beside other places"),
        ("resources: {infra: [aws/*, aws/*]}", "aws/* is listed twice"),
        ("resources: {spot: sometimes}", "'sometimes' is not allowed; expected auto, only, never"),
        ("resources: {spot: only}", "asks for spot capacity of AWS, and resources.infra is local"),
        ("resources: {min_on_demand: 1}", "asks for on-demand capacity of AWS"),
        (
            "resources: {infra: aws/*, spot: only, min_on_demand: 1}",
            "1 islands on demand contradict resources.spot: only",
        ),
        (
            "resources: {infra: aws/*, max_workers: 2, min_on_demand: 3}",
            "2 is less than resources.min_on_demand = 3",
        ),
        ("resources: {deadline: 8h}", "asks for as much capacity of AWS as it takes"),
        ("resources: {infra: aws/*, deadline: 8}", "8 has no unit; expected a duration"),
        ("recovery: {for: 4h}", "is not available in this version; an island waits for capacity"),
        (
            "recovery: {restart_on: [error]}",
            "interruption is not listed; this version goes on",
        ),
        ("recovery: {restart_on: []}", "is empty"),
        (
            "recovery: {restart_on: [interruption, reclaim, error]}",
            "'reclaim' is not allowed; expected interruption, no-capacity, error",
        ),
        ("recovery: {restart_on: [error, interruption, error]}", "error is listed twice"),
        ("recovery: {heartbeat_timeout_s: 5}", "unknown field; did you mean heartbeat_timeout"),
        ("recovery: {heartbeat_timeout: 1ms}", "out of range; expected at least 0.1"),
        ("service: {port: 70000}", "70000 is out of range; expected at most 65535"),
        ("envs: {THREADS: 1}", "1 has the wrong type; expected text; put it in quotes"),
        ("envs: {1A: x}", "is no name of an environment variable"),
        ("secrets: [hf token]", "is no name of an environment variable"),
        ("secrets: HF_TOKEN", "has the wrong type; expected a list"),
    ],
)
def test_messages_name_the_value_and_what_is_allowed(problems, line, message):
    error = problems(_with(line))
    assert len(error.problems) == 1
    assert message in error.problems[0].message
    assert error.problems[0].line == len(_with(line).splitlines())


@pytest.mark.parametrize("text", ["tokens: 2B", "epochs: 1", "tokens: 5\n  epochs: 1"])
def test_two_lengths_are_refused_and_named(problems, text):
    error = problems(commented_job_yaml().replace("steps: 100", f"steps: 100\n  {text}"))
    assert "exactly one of steps, tokens and epochs, found steps and" in error.message


@pytest.mark.parametrize(("word", "shown"), [("true", "true"), ("full", "'full'"), ("1", "1")])
def test_checkpointing_is_by_layer_or_not_at_all(problems, word, shown):
    text = commented_job_yaml().replace("checkpointing: none", f"checkpointing: {word}")
    error = problems(text)
    assert [problem.field for problem in error.problems] == ["train.checkpointing"]
    assert f"{shown} is not allowed; expected none, layer" in error.message


def test_no_length_is_refused(problems):
    error = problems(commented_job_yaml().replace("  steps: 100", "  steps: null"))
    assert "found none of them" in error.message


def test_a_warm_up_longer_than_the_training_is_refused(problems):
    error = problems(commented_job_yaml().replace("steps: 100", "steps: 5"))
    assert _located(error)[0][1] == "train.schedule.warmup_steps"


# --- traps of YAML --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("on: true", "unknown field"),  # YAML 1.2: the text "on", not true
        ("true: 1", "the key 'true' is no text"),
        ("1: 1", "the key '1' is no text"),
        ("? [a, b]\n: 1", "the key a list or mapping is no text"),
        ("name: 2026-01-01", "is a YAML timestamp; put it in quotes if text is meant"),
        ("name: !!python/object:os.system x", "is a YAML"),
        ("name: !secret x", "is a YAML !secret"),
        ("envs: {A: !!binary aGVsbG8=}", "is a YAML binary"),
    ],
)
def test_yaml_says_what_it_took_a_value_for(problems, line, message):
    error = problems(_with(line))
    assert [message in problem.message for problem in error.problems] == [True]


def test_a_yaml_1_1_directive_does_not_turn_keys_into_booleans_silently(problems):
    error = problems("%YAML 1.1\n---\n" + _with("on: true"))
    assert "the key 'on' is no text" in error.problems[-1].message


def test_a_repeated_key_is_refused_with_both_lines(problems):
    text = commented_job_yaml()
    first = next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith("name:"))
    error = problems(text + "name: again\n")
    assert f"written twice, first in line {first}" in error.problems[0].message
    assert error.problems[0].line == len(text.splitlines()) + 1


@pytest.mark.parametrize("digits", [20, 31, 5000, 100_000])
def test_huge_numbers_are_refused_quickly_and_shortly(problems, digits):
    error = problems(commented_job_yaml().replace("seed: 0", f"seed: {'9' * digits}"))
    assert [problem.field for problem in error.problems] == ["train.seed"]
    assert len(error.message) < 400


def test_an_alias_bomb_is_refused_without_expanding_it(problems):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "too many or too deeply nested values" in problems("\n".join(rows)).message


def test_a_list_that_holds_itself_is_refused(problems):
    problems("name: &a [*a]\n")


def test_deep_nesting_is_refused(problems):
    problems("name: " + "[" * 50_000)
    assert "deeply" in problems("name: " + "[" * 60 + "]" * 60).message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n- b\n", "holds no mapping"),
        (b"just text", "holds no mapping"),
        (b"\xff\xfe\x00\x01", "is not UTF-8"),
        (b"\x00\x01\x02", "not valid YAML"),
        (b"name: [1, 2", "not valid YAML"),
        (b"a: 1\n b: 2\n", "not valid YAML"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"\tname: x", "not valid YAML"),
        (b"x" * (1 << 21), "larger than"),
    ],
)
def test_what_is_no_job_file_at_all(problems, content, message):
    error = problems(content)
    assert message in error.message
    assert error.remedy


def test_a_missing_file_and_a_folder_say_so(tmp_path):
    for path, message in ((tmp_path / "no.yaml", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(SpecError, match=message):
            JobSpec.from_yaml(path)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + commented_job_yaml().replace("\n", "\r\n").encode())
    assert JobSpec.from_yaml(path).name == "my-job"


@given(st.binary(max_size=200))
def test_no_bytes_give_anything_but_a_job_or_a_luma_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(LumaError):
        JobSpec.from_yaml(path)


@given(data=st.data())
def test_a_damaged_job_gives_a_job_or_a_luma_error(tmp_path_factory, data):
    lines = commented_job_yaml().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    damage = st.sampled_from(["", "x", "  a: b\n", "train: 3\n", "- 1\n", "{", "a: *b\n", "? \n"])
    lines[at] = data.draw(damage)
    path = tmp_path_factory.mktemp("damaged") / "job.yaml"
    path.write_text("".join(lines))
    # Anything else that it raises fails the test.
    with contextlib.suppress(LumaError):
        JobSpec.from_yaml(path)
