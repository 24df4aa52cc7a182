import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runtime.spec import JobFileError, JobSpec, SpecError, commented_job_yaml

EXAMPLES = Path(__file__).parents[3] / "examples"

MINIMAL = """\
schema: luma/v1
name: tiny
model: {source: ./model}
train:
  steps: 10
  micro_shards: 8
  micro_batch: 2
  seq_len: 64
  optimizer: {lr: 1e-3}
data: {source: ./data}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_minimal_job_has_every_default(write):
    spec = JobSpec.from_yaml(write(MINIMAL))
    assert spec.train.global_batch == spec.train.samples_per_step == 16
    assert spec.train.optimizer.betas == (0.9, 0.95)
    assert spec.train.checkpoint.every == "auto"
    assert spec.compile.seal == "L1"
    assert spec.compile.targets == ("cpu",)
    assert spec.resources.max_workers == spec.resources.islands == 1
    assert spec.recovery.heartbeat_timeout_s == 5.0
    assert spec.data.sources == ("./data",)
    assert spec.adapter is None


def test_islands_are_the_least_that_the_job_waits_for_unless_it_names_them(write):
    text = MINIMAL + "resources: {min_workers: 2, infra: aws/*, max_workers: 8}\n"
    resources = JobSpec.from_yaml(write(text)).resources
    assert (resources.islands, resources.max_workers) == (2, 8)
    assert "islands" not in resources.model_fields_set
    alone = JobSpec.from_yaml(write(MINIMAL + "resources: {min_workers: 2}\n")).resources
    assert (alone.islands, alone.max_workers) == (2, 2)


def test_paths_start_at_the_files_folder(write):
    path = write(MINIMAL)
    spec = JobSpec.from_yaml(path)
    assert spec.base_dir == path.parent
    assert spec.resolve("./data") == path.parent / "data"
    assert spec.resolve("/elsewhere") == Path("/elsewhere")


def test_a_spec_cannot_be_changed_in_place(write):
    spec = JobSpec.from_yaml(write(MINIMAL))
    with pytest.raises(ValidationError):
        spec.train.steps = 3


def test_numbers_of_yaml_1_2_are_read_as_numbers(write):
    spec = JobSpec.from_yaml(write(MINIMAL.replace("lr: 1e-3", "lr: 5.0e-4, weight_decay: 0")))
    assert spec.train.optimizer.lr == 5e-4
    assert spec.train.optimizer.weight_decay == 0.0


def test_a_job_runs_on_this_machine_unless_it_names_a_place(write):
    here = JobSpec.from_yaml(write(MINIMAL)).resources
    assert (here.places, here.is_local, here.spot, here.deadline_s) == (
        ("local",),
        True,
        "auto",
        None,
    )
    assert JobSpec.from_yaml(write(MINIMAL + "resources: {infra: [local]}\n")).resources.is_local


def test_a_job_for_an_account_names_places_limits_and_patience(write):
    text = MINIMAL + (
        "resources: {accelerators: ['H100:8', 24GB.., c7i.large], infra: [aws/us-*, aws/eu-west-1],"
        " spot: only, deadline: 8h, min_workers: 1, max_workers: 8, max_price: 12/h}\n"
        "recovery: {for: null, restart_on: [no-capacity, error, interruption]}\n"
    )
    spec = JobSpec.from_yaml(write(text))
    assert spec.resources.places == ("aws/us-*", "aws/eu-west-1")
    assert not spec.resources.is_local
    assert spec.resources.accelerators == ("H100:8", "24GB..:1", "c7i.large:1")
    assert spec.resources.deadline_s == 8 * 3600
    assert spec.recovery.restart_on == ("no-capacity", "error", "interruption")
    lacking = {"recovery.restart_on": ["interruption", "error"]}
    with pytest.raises(JobFileError, match="no-capacity is not listed; this version goes on"):
        spec.with_overrides(lacking)
    assert spec.with_overrides({**lacking, "resources": {}}).recovery.restart_on
    assert spec.digest() == JobSpec.from_yaml(write(MINIMAL)).digest()
    assert JobSpec.from_yaml(write(spec.to_yaml())) == spec


@pytest.mark.parametrize("region", ["us-east-1", "us-gov-west-1", "eusc-de-east-1", "mx-central-1"])
def test_regions_of_all_partitions_are_places(write, region):
    spec = JobSpec.from_yaml(write(MINIMAL + f"resources: {{infra: aws/{region}}}\n"))
    assert spec.resources.places == (f"aws/{region}",)


# --- digest: the job's identity -------------------------------------------------------------------


def test_the_digest_ignores_the_fleet_and_follows_the_training(write):
    spec = JobSpec.from_yaml(write(MINIMAL))
    same = {
        "resources.islands": 3,
        "resources.max_workers": 3,
        "name": "other",
        "compile.seal": "L0",
        "train.checkpoint.every": 5,
        "recovery.heartbeat_timeout": "9s",
        "envs.TZ": "UTC",
    }
    for field, value in same.items():
        lifted = {"resources.max_workers": 3} if field == "resources.islands" else {}
        assert spec.with_overrides({field: value, **lifted}).digest() == spec.digest(), field
    other = {
        "train.seed": 1,
        "train.steps": 11,
        "train.micro_batch": 1,
        "train.headroom": 2,
        "train.checkpointing": "layer",
        "model.dtype": "bf16",
        "train.optimizer.lr": 2e-3,
        "model.source": "./other",
        "data.packing": True,
        "adapter": {"r": 4, "alpha": 8},
    }
    digests = {spec.with_overrides({field: value}).digest() for field, value in other.items()}
    assert len(digests) == len(other)
    assert spec.digest() not in digests


def test_the_digest_does_not_depend_on_what_is_spelt_out(write):
    short = JobSpec.from_yaml(write(MINIMAL))
    long = JobSpec.from_yaml(write(short.to_yaml()))
    assert long.digest() == short.digest()
    assert len(short.digest()) == 64


# --- length of the training -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "samples", "steps"),
    [
        ("steps: 10", 1, 10),
        ("tokens: 1024", 5, 1),
        ("tokens: 1025", 5, 2),
        ("tokens: 2B", 5, 1_953_125),
        ("epochs: 1", 16, 1),
        ("epochs: 1", 17, 2),
        ("epochs: 0.5", 16, 1),
        ("epochs: 3", 160, 30),
        ("epochs: 0.1", 480, 3),  # 0.1 * 480 / 16 is a little above 3 in binary floats
    ],
)
def test_total_steps(write, length, samples, steps):
    spec = JobSpec.from_yaml(write(MINIMAL.replace("steps: 10", length)))
    assert spec.total_steps(samples) == steps


def test_no_samples_and_a_too_long_warm_up_are_refused_when_known(write):
    text = MINIMAL.replace("steps: 10", "epochs: 1\n  schedule: {warmup_steps: 3}")
    spec = JobSpec.from_yaml(write(text))
    with pytest.raises(SpecError, match="holds 0 samples"):
        spec.total_steps(0)
    with pytest.raises(SpecError, match="3 is more than the 2 steps that 20 samples give"):
        spec.total_steps(20)
    assert spec.total_steps(48) == 3


# --- overrides ------------------------------------------------------------------------------------


def test_overrides_are_checked_like_a_file_and_keep_the_folder(write):
    path = write(MINIMAL)
    spec = JobSpec.from_yaml(path)
    changed = spec.with_overrides({"train.micro_shards": 4, "resources.islands": 3})
    assert changed.train.global_batch == 8
    assert changed.resources.max_workers == 3
    assert changed.base_dir == path.parent
    with pytest.raises(JobFileError) as raised:
        spec.with_overrides({"resources.islands": 9, "train.stepz": 3})
    assert [problem.field for problem in raised.value.problems] == [
        "train.stepz",
        "resources.islands",
    ]
    assert "options" in raised.value.message


# --- round trips ----------------------------------------------------------------------------------

_text = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cs", "Cc", "Cn"], exclude_characters="\ufeff"
    ),
    min_size=1,
    max_size=12,
).filter(lambda text: "://" not in text and ".py" not in text)
_positive = st.floats(min_value=1e-12, max_value=10)


@st.composite
def job_data(draw):
    shards = draw(st.integers(min_value=1, max_value=64))
    islands = draw(st.integers(min_value=1, max_value=shards))
    length = draw(
        st.one_of(
            st.fixed_dictionaries({"steps": st.integers(10, 10**6)}),
            st.fixed_dictionaries({"tokens": st.sampled_from([5000, "2B", "1.5M"])}),
            st.fixed_dictionaries({"epochs": st.floats(min_value=0.01, max_value=100)}),
        )
    )
    optimizer = st.fixed_dictionaries(
        {"lr": _positive},
        optional={
            "betas": st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
            "grad_clip": st.none() | _positive,
        },
    )
    return {
        "schema": "luma/v1",
        "name": draw(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,10}\Z")),
        "model": {"source": draw(_text)},
        "adapter": draw(
            st.none() | st.fixed_dictionaries({"r": st.integers(1, 64), "alpha": _positive})
        ),
        "train": {
            **length,
            "micro_shards": shards,
            "micro_batch": draw(st.integers(1, 8)),
            "seq_len": draw(st.integers(2, 4096)),
            "seed": draw(st.integers(0, 2**63 - 1)),
            "optimizer": draw(optimizer),
        },
        "data": {
            "source": draw(_text | st.lists(_text, min_size=1, max_size=3)),
            "packing": draw(st.booleans()),
            "text_field": draw(_text),
        },
        "resources": {
            "islands": islands,
            "max_price": draw(st.none() | st.sampled_from(["12/h", "0.25/h"])),
            **draw(st.sampled_from([{}, {"infra": "aws/us-*", "spot": "only", "deadline": "8h"}])),
        },
        "recovery": {"heartbeat_timeout": draw(st.sampled_from(["5s", "250ms", "2m"]))},
        "envs": draw(st.dictionaries(st.from_regex(r"\A[A-Z_]{1,8}\Z"), _text, max_size=3)),
    }


@given(data=job_data())
def test_any_job_survives_writing_and_reading(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")  # JSON is YAML
    spec = JobSpec.from_yaml(path)
    path.write_text(spec.to_yaml(), encoding="utf-8")
    again = JobSpec.from_yaml(path)
    assert again == spec
    assert again.digest() == spec.digest()


@pytest.mark.parametrize(
    "text",
    ["?0", "- a", "a: b", "#", "null", "on", "12", "1e3", "2026-01-01", "'", '"', "\\", " x ", "é",
     "\x7f", "\x85", "\u2028", "\n", "\t", "\U0001f600", "!tag", "&a", "*a", "%", "@", "`", "{", "<<"],
)  # fmt: skip
def test_any_text_is_written_so_that_it_reads_back(write, text):
    spec = JobSpec.from_yaml(write(MINIMAL))
    spec = spec.with_overrides({"data.text_field": text, "envs": {"null": text, "on": text}})
    again = JobSpec.from_yaml(write(spec.to_yaml()))
    assert again.data.text_field == text
    assert again == spec


def test_the_template_is_a_valid_job_and_names_every_section(write):
    text = commented_job_yaml("from-template")
    spec = JobSpec.from_yaml(write(text))
    assert spec.name == "from-template"
    for name in JobSpec.model_fields:
        assert f"\n{name.rstrip('_')}:" in f"\n{text}"


def test_the_template_shows_the_defaults(write):
    shown = JobSpec.from_yaml(write(commented_job_yaml()))
    plain = JobSpec.from_yaml(write(MINIMAL))
    assert shown.compile == plain.compile
    assert shown.recovery == plain.recovery
    assert shown.train.checkpoint == plain.train.checkpoint
    assert shown.train.headroom == plain.train.headroom
    assert shown.data == plain.data


@pytest.mark.parametrize("name", ["# adapter:", "# key_file", "# tokens", "# epochs"])
def test_commented_lines_of_the_template_are_fields_too(name):
    assert name in commented_job_yaml()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/job.yaml")), ids=lambda p: p.parent.name)
def test_the_examples_are_valid_jobs(path):
    spec = JobSpec.from_yaml(path)
    assert spec.base_dir == path.parent
    assert spec.compile.targets == ("cpu",)
