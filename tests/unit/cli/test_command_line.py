"""The command line: help, exit codes, messages, and what goes to which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli import main
from runtime.run.folder import RUN_FORMAT

COMMANDS = (
    "launch", "compile", "verify", "inspect", "status", "logs", "events", "cancel", "serve",
    "init", "check", "offers", "cost",
)  # fmt: skip

TEN_MISTAKES = """\
schema: luma/v1
name: bad name
model: {source: ./model, dtype: fp7}
compile: {seal: L9, targets: [abacus]}
train:
  steps: 0
  micro_shards: -1
  micro_batch: many
  seq_len: 1
  optimizer: {lr: -1}
  colour: blue
data: {source: ./data, kind: video}
"""


def process(*arguments: str, **kwargs) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "runtime.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        **kwargs,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "For example:" in text
    assert f"luma {command}" in text
    assert "--json" in text


def test_the_root_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_help_loads_no_heavy_library():
    script = (
        "import sys; from runtime.cli import main; main(['launch', '--help'])\n"
        "print([n for n in ('torch', 'jax', 'numpy', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["launch"],
        ["launch", "job.yaml", "--nonsense"],
        ["launch", "job.yaml", "--islands", "many"],
        ["launch", "job.yaml", "--islands", "0", "--yes"],
        ["launch", "job.yaml", "--yes", "--chaos", "kill:1"],
        ["launch", "job.yaml", "--resume", "runs/x"],
        ["launch", "--resume", "runs/x", "--run", "runs/y"],
        ["launch", "absent.yaml", "--yes"],
        ["check", "absent.yaml"],
        ["compile", "absent.yaml"],
        ["verify"],
    ],
)
def test_a_usage_mistake_is_a_message_on_stderr_and_exit_code_2(
    arguments, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" or arguments[0] == "check"
    assert captured.err.startswith("luma: ") or arguments[0] == "check"
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_job_file_with_ten_mistakes_shows_all_of_them_with_their_lines(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(TEN_MISTAKES)
    assert main(["launch", str(job), "--yes", "--run", str(tmp_path / "run")]) == 2
    text = capsys.readouterr().err
    fields = [
        "name", "model.dtype", "compile.seal", "compile.targets", "train.steps",
        "train.micro_shards", "train.micro_batch", "train.seq_len", "train.optimizer.lr",
        "train.colour", "data.kind",
    ]  # fmt: skip
    missing = [field for field in fields if field not in text]
    assert missing == []
    assert f"{job}:2" in text
    assert not (tmp_path / "run").exists()


def test_without_a_terminal_a_launch_must_be_accepted_beforehand(tmp_path):
    done = process("launch", str(tmp_path / "job.yaml"))
    assert done.returncode == 2
    assert "--yes" in done.stderr


def test_init_writes_a_valid_commented_job_and_never_overwrites(capsys, tmp_path):
    from runtime.spec import JobSpec

    path = tmp_path / "job.yaml"
    assert main(["init", str(path), "--name", "mine"]) == 0
    assert JobSpec.from_yaml(path).name == "mine"
    assert "# " in path.read_text()
    path.write_text("precious")
    assert main(["init", str(path)]) == 2
    assert path.read_text() == "precious"
    capsys.readouterr()
    assert main(["init", "--stdout"]) == 0
    assert capsys.readouterr().out.startswith("# A Luma job")
    assert main(["init", str(tmp_path / "absent" / "job.yaml")]) == 2


@pytest.mark.parametrize("command", ["status", "logs", "events", "cancel"])
def test_a_folder_that_is_no_run_and_one_of_another_version_are_told(command, capsys, tmp_path):
    assert main([command, str(tmp_path)]) == 1
    assert "not a run folder" in capsys.readouterr().err
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT + 1}))
    assert main([command, str(tmp_path)]) == 1
    assert f"format {RUN_FORMAT + 1}" in capsys.readouterr().err


def test_resume_refuses_what_is_no_run(capsys, tmp_path):
    assert main(["launch", "--resume", str(tmp_path)]) == 1
    assert "not a run folder" in capsys.readouterr().err


def test_status_without_a_folder_lists_runs_and_skips_broken_ones(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 0
    assert "no run" in capsys.readouterr().err
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "run.json").write_text('{"format": 99}')
    assert main(["status", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == []
    assert "format 99" in captured.err


@pytest.mark.parametrize("command", ["verify", "inspect"])
@pytest.mark.parametrize("content", [b"", b"not an artifact", b"\x00" * 4096])
def test_a_file_that_is_no_artifact_fails_with_exit_code_1(command, content, capsys, tmp_path):
    path = tmp_path / "broken.luma"
    path.write_bytes(content)
    assert main([command, str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("luma: ")


def test_check_tells_which_check_failed_as_json_too(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(TEN_MISTAKES)
    assert main(["check", str(job), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    (spec,) = document["checks"]
    assert (spec["check"], spec["ok"]) == ("spec", False)
    assert "train.colour" in spec["detail"]


def test_a_model_that_is_not_there_is_named_before_anything_is_made(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    text = (
        TEN_MISTAKES.split("train:", maxsplit=1)[0]
        .replace("bad name", "fine")
        .replace("fp7", "fp32")
    )
    text = text.replace("{seal: L9, targets: [abacus]}", "{seal: L0}")
    job.write_text(
        text + "train: {steps: 1, micro_shards: 1, micro_batch: 1, seq_len: 8,"
        " optimizer: {lr: 1.0e-3}}\ndata: {source: 'python://pydoc_data.topics'}\n"
    )
    run = tmp_path / "runs" / "one"
    assert main(["launch", str(job), "--yes", "--run", str(run)]) == 2
    assert "'./model'" in capsys.readouterr().err
    assert [path.name for path in run.parent.iterdir() if path.is_dir()] == []


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    events = tmp_path / "events.jsonl"
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT}))
    events.write_text('{"time": 1.0, "kind": "commit", "filler": "%s"}\n' % ("x" * 200) * 5000)
    read, write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "runtime.cli", "events", str(tmp_path), "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    os.read(read, 100)
    os.close(read)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 0
    assert error == ""


def test_an_artifact_without_its_key_is_not_called_verified(capsys, tmp_path, sealed):
    path, key = sealed
    assert main(["verify", str(path), "--key-file", str(key), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["level"], whole["level_claimed"]) == ("L1", "L1")
    key.unlink()
    assert main(["verify", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["level"], found["leaks"]) == ("L0", None)
    assert [e["state"] for e in found["evidence"]][:3] == ["holds", "holds", "not given"]
    assert found["failed"] == ["seal"]
    assert "signature, signer verified; not verified: the seal was not checked" in captured.err
    assert "--key-file" in captured.err


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A sealed artifact of this machine, and its key file."""
    from runtime.artifact import BlockTable, TargetPayload, load_or_create_keys, write_artifact

    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    keys = load_or_create_keys()
    payload = TargetPayload(
        target="cpu",
        programs={},
        blocks=BlockTable(block_size=4096, rows=()),
        cpu_name="x86-64-v3",
        cpu_features=(),
        scrubbed=False,
    )
    path = tmp_path / "one.luma"
    write_artifact(
        path,
        {"cpu": payload},
        level="L1",
        signing_key=keys.signing_key,
        data_key=keys.data_key,
        graph_digest="ab" * 32,
        statistics={},
        versions={},
    )
    return path, keys.data_key_file


def test_init_and_cancel_answer_in_json_too(capsys, tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    assert main(["init", str(path), "--name", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(path), "name": "mine"}
    assert main(["init", "--stdout", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].startswith("# A Luma job")
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT}))
    monkeypatch.setattr("runtime.coordinator.client.request_stop", lambda _: None)
    assert main(["cancel", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"run": str(tmp_path.resolve()), "stopping": True}


def test_a_launch_that_fails_answers_in_json_too(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(TEN_MISTAKES)
    run = tmp_path / "run"
    assert main(["launch", str(job), "--yes", "--json", "--run", str(run)]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["certificate"]) == (None, None)
    assert "train.colour" in document["error"]
    assert main(["launch", "--resume", str(tmp_path), "--json"]) == 1
    assert "not a run folder" in json.loads(capsys.readouterr().out)["error"]


def test_the_port_asked_for_comes_before_the_jobs_and_0_is_a_port(capsys, tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text(
        json.dumps({"format": RUN_FORMAT, "model_name": "mine", "port": 8123})
    )
    (tmp_path / "config.json").write_text("{}")
    asked = []

    def serve(checkpoint, *, model_name, host, port, api_key, on_ready):
        asked.append(port)
        on_ready(f"http://{host}:{port or 4567}")
        return 0

    monkeypatch.setattr("runtime.serve.serve", serve)
    assert main(["serve", str(tmp_path), "--port", "0", "--json"]) == 0
    line, rest = capsys.readouterr().out.split("\n", maxsplit=1)
    assert rest == ""
    expected = {"url": "http://127.0.0.1:4567", "model": "mine", "checkpoint": str(tmp_path)}
    assert json.loads(line) == expected
    assert main(["serve", str(tmp_path)]) == 0
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "port": None}))
    assert main(["serve", str(tmp_path)]) == 0
    assert asked == [0, 8123, 8000]


def test_a_full_disk_behind_a_list_is_an_error(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT}))
    (tmp_path / "events.jsonl").write_text('{"time": 1.0, "kind": "commit"}\n')
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "runtime.cli", "events", str(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "standard output cannot be written" in done.stderr


@pytest.mark.parametrize(("words", "code"), [(["init", "job.yaml"], 0), (["status", "nothing"], 1)])
def test_standard_error_that_has_gone_changes_no_exit_code(words, code, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=write,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    os.close(write)
    assert done.returncode == code


def test_an_unforeseen_error_is_one_message_with_its_traceback_in_a_file(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LUMA_DEBUG", raising=False)

    def broken(*_):
        raise ZeroDivisionError("the\nworld ended")

    monkeypatch.setattr("runtime.coordinator.client.read_status", broken)
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT}))
    assert main(["status", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("luma: unexpected ZeroDivisionError: the world ended\n")
    assert "LUMA_DEBUG=1" in said
    assert "Traceback" not in said
    (report,) = (tmp_path / "home" / "logs").iterdir()
    assert str(report) in said
    assert "Traceback" in report.read_text()
    monkeypatch.setenv("LUMA_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["status", str(tmp_path)])


def test_events_without_a_time_are_left_out(capsys, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT}))
    (tmp_path / "events.jsonl").write_text('{"kind": "x"}\n{"time": 1.0, "kind": "y"}\n')
    assert main(["events", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_luma_debug_shows_the_traceback_of_a_mistake(tmp_path: Path):
    done = process("status", str(tmp_path), env={**os.environ, "LUMA_DEBUG": "1"})
    assert "Traceback" in done.stderr
