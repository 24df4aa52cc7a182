"""Checkpoints come back bit for bit, are never overwritten, and torn ones are never used."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from runtime.agent.checkpoint import (
    CheckpointBuffers,
    CheckpointInfo,
    RejectedCheckpoint,
    latest_checkpoint,
    load_checkpoint,
    prune,
    read_constants,
    write_checkpoint,
    write_constants,
)
from runtime.agent.state import TrainState, initial_state
from runtime.spec import CheckpointError

JOB = "job-digest"
SHAPES = {"a.weight": (7, 5), "b.bias": (3,), "c.scale": (), "d.empty": (0, 4)}


def make_state(step: int, *, seed: int = 0) -> TrainState:
    """A state whose every byte depends on the step and the seed."""
    generator = np.random.default_rng((step, seed))

    def arrays() -> dict[str, np.ndarray]:
        return {
            name: np.asarray(generator.standard_normal(shape), np.float32)
            for name, shape in SHAPES.items()
        }

    return TrainState(
        step=step,
        params=arrays(),
        moment1=arrays(),
        moment2=arrays(),
        block_exponents=generator.integers(-100, 100, 4, dtype=np.int32),
    )


def write(root: Path, step: int, *, seed: int = 0, durable: bool = False) -> CheckpointInfo:
    return write_checkpoint(root, make_state(step, seed=seed), job_digest=JOB, durable=durable)


def assert_same(found: TrainState, expected: TrainState) -> None:
    assert found.step == expected.step
    for (name, array), (other, reference) in zip(found.arrays(), expected.arrays(), strict=True):
        assert name == other
        assert array.dtype == reference.dtype
        assert array.shape == reference.shape
        assert array.tobytes() == reference.tobytes()
        assert array.flags.writeable


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_a_state_comes_back_bit_for_bit(tmp_path: Path, durable: bool) -> None:
    state = make_state(12)
    state.params["a.weight"][0, :3] = [np.nan, -0.0, np.float32(1e-42)]
    info = write_checkpoint(tmp_path / "c", state, job_digest=JOB, durable=durable)
    assert info.path == tmp_path / "c" / "step-000012"
    assert info.state_hash == state.hash()
    assert latest_checkpoint(tmp_path / "c", JOB) == info
    assert_same(load_checkpoint(info), state)


def test_several_files_and_an_index_above_the_limit(tmp_path: Path) -> None:
    state = make_state(1)
    info = write_checkpoint(tmp_path, state, job_digest=JOB, max_file_bytes=150, durable=False)
    index = json.loads((info.path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(SHAPES)
    assert len(set(index["weight_map"].values())) > 1
    for name, file in index["weight_map"].items():
        assert np.array_equal(load_file(info.path / file)[name], state.params[name])
    assert_same(load_checkpoint(info), state)


def test_the_initial_checkpoint_stores_no_zeros(tmp_path: Path) -> None:
    params = {"w": np.ones((512, 512), np.float32)}
    state = initial_state(params, n_blocks=64)
    info = write_checkpoint(tmp_path, state, job_digest=JOB)
    assert (info.path / "luma/optimizer.safetensors").stat().st_size < 1000
    assert_same(load_checkpoint(info), state)


def test_a_first_state_with_moments_keeps_them(tmp_path: Path) -> None:
    state = make_state(0)
    assert_same(load_checkpoint(write_checkpoint(tmp_path, state, job_digest=JOB)), state)


def test_equal_states_have_equal_manifests_wherever_they_are_written(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", 3), write(tmp_path / "b", 3)
    assert first.manifest_digest == second.manifest_digest


def test_a_whole_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    info = write(tmp_path, 3)
    before = {path: path.stat().st_mtime_ns for path in info.path.rglob("*")}
    assert write(tmp_path, 3) == info
    with pytest.raises(CheckpointError, match="another state of step 3"):
        write(tmp_path, 3, seed=1)
    with pytest.raises(CheckpointError, match="another job's state"):
        write_checkpoint(tmp_path, make_state(3), job_digest="other")
    assert {path: path.stat().st_mtime_ns for path in info.path.rglob("*")} == before
    assert visible(tmp_path) == ["step-000003"]


def test_nemo_automodel_3254_saving_again_over_a_torn_folder(tmp_path: Path) -> None:
    """NeMo Automodel#3254: a partial folder of that name neither raises nor hangs the save."""
    info = write(tmp_path, 3)
    (info.path / "luma/manifest.json").unlink()
    (tmp_path / "step-000004").mkdir()
    assert write(tmp_path, 3) == info
    assert_same(load_checkpoint(write(tmp_path, 4)), make_state(4))
    assert [name for name in visible(tmp_path) if not name.startswith(".torn-")] == [
        "step-000003",
        "step-000004",
    ]


def test_several_islands_may_write_the_same_step_at_once(tmp_path: Path) -> None:
    """NeMo Automodel#3254: whoever loses the race gets the winner's checkpoint."""
    found: list[CheckpointInfo] = []
    barrier = threading.Barrier(4)

    def island() -> None:
        barrier.wait()
        found.append(write(tmp_path, 5))

    threads = [threading.Thread(target=island) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert visible(tmp_path) == ["step-000005"]


@pytest.mark.parametrize("file", ["model.safetensors", "luma/optimizer.safetensors"])
@pytest.mark.parametrize("harm", ["empty", "truncate", "flip", "remove"])
def test_lightning_688_harmed_shards_fall_back_to_the_last_whole_one(
    tmp_path: Path, file: str, harm: str
) -> None:
    """Lightning#688, metaseq#53, transformers#35782: resume takes the last complete checkpoint."""
    whole, newest = write(tmp_path, 10), write(tmp_path, 20)
    path = newest.path / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    changed = {"empty": b"", "truncate": bytes(data[:-1]), "flip": bytes(data)}
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(changed[harm])
    report: list[RejectedCheckpoint] = []
    assert latest_checkpoint(tmp_path, JOB, report=report) == whole
    assert [rejected.path for rejected in report] == [newest.path]
    assert Path(file).name in report[0].reason
    with pytest.raises(CheckpointError):
        load_checkpoint(newest)


@given(data=st.data())
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_changed_byte_of_any_file_is_ever_loaded(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    newest = write(root, 20)
    files = sorted(path for path in newest.path.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    info = latest_checkpoint(root, JOB)
    # A flip inside the manifest may hit white space or spell the step otherwise; then what it says
    # is the same. Whatever is accepted is the state that was written.
    if info is not None:
        assert path.name == "manifest.json"
        try:
            assert_same(load_checkpoint(info), make_state(20))
        except CheckpointError:
            assert info.state_hash != newest.state_hash


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 9}, "format 9"),
        ({"step": 21}, "holds step 21"),
        ({"step": -1}, "no count"),
        ({"job_digest": "other"}, "belongs to job other"),
        ({"state_hash": "zz"}, "no BLAKE3"),
        ({"files": {"../../etc/passwd": {"size_bytes": 1, "blake3": "0" * 64}}}, "file name"),
        ({"files": {"/etc/passwd": {"size_bytes": 1, "blake3": "0" * 64}}}, "file name"),
        ({"files": []}, "broken"),
    ],
)
def test_a_manifest_that_says_something_else_is_rejected(
    tmp_path: Path, change: dict, reason: str
) -> None:
    info = write(tmp_path, 20)
    manifest = info.path / "luma/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    report: list[RejectedCheckpoint] = []
    assert latest_checkpoint(tmp_path, JOB, report=report) is None
    assert reason in report[0].reason


def test_a_manifest_of_another_state_hash_is_caught_on_load(tmp_path: Path) -> None:
    info = write(tmp_path, 20)
    manifest = info.path / "luma/manifest.json"
    manifest.write_text(manifest.read_text().replace(info.state_hash, "0" * 64))
    lying = latest_checkpoint(tmp_path, JOB)
    assert lying is not None
    with pytest.raises(CheckpointError, match="hashes to"):
        load_checkpoint(lying)
    with pytest.raises(CheckpointError, match="manifest was changed"):
        load_checkpoint(info)


def test_other_folders_are_no_checkpoints(tmp_path: Path) -> None:
    info = write(tmp_path, 20)
    for name in ("step-99", "step-000030x", ".writing-step-000040-ab", "other"):
        shutil.copytree(info.path, tmp_path / name)
    (tmp_path / "step-000050").write_text("a file")
    assert latest_checkpoint(tmp_path, JOB) == info
    assert latest_checkpoint(tmp_path / "none", JOB) is None


def test_kempnerforge_102_the_old_one_goes_only_after_the_new_one_is_there(tmp_path: Path) -> None:
    """KempnerForge#102: prune keeps two whole ones and never counts a torn one."""
    infos = [write(tmp_path, step) for step in (0, 10, 20, 30)]
    (infos[3].path / "model.safetensors").write_bytes(b"")
    assert prune(tmp_path, 2) == [infos[0].path]
    assert latest_checkpoint(tmp_path, JOB) == infos[2]
    assert [path.exists() for path in (i.path for i in infos)] == [False, True, True, True]
    assert prune(tmp_path, 2) == []


def test_prune_leaves_the_only_whole_one(tmp_path: Path) -> None:
    infos = [write(tmp_path, step) for step in (10, 20, 30)]
    for info in infos[1:]:
        shutil.rmtree(info.path / "luma")
    assert prune(tmp_path, 2) == []
    assert latest_checkpoint(tmp_path, JOB) == infos[0]


def test_prune_may_keep_the_initial_one(tmp_path: Path) -> None:
    for step in (0, 10, 20, 30):
        write(tmp_path, step)
    assert [path.name for path in prune(tmp_path, 2, keep_initial=True)] == ["step-000010"]
    assert visible(tmp_path) == ["step-000000", "step-000020", "step-000030"]


@pytest.mark.parametrize("keep", [-1, 0, 1])
def test_prune_refuses_to_keep_fewer_than_two(tmp_path: Path, keep: int) -> None:
    with pytest.raises(CheckpointError, match="at least 2"):
        prune(tmp_path, keep)


def test_pytorch_144657_a_snapshot_holds_its_own_steps_values(tmp_path: Path) -> None:
    """pytorch#144657: the state goes on while the snapshot is written, and does not show in it."""
    state, expected = make_state(7), make_state(7)
    buffers = CheckpointBuffers()
    buffers.reserve(state)
    with buffers.capture(state) as snapshot:
        for _, array in state.arrays():
            array[...] = 99
        assert buffers.busy
        with pytest.raises(CheckpointError, match="still being written"):
            buffers.capture(state, timeout_s=0.05)
        info = write_checkpoint(tmp_path, snapshot.state, job_digest=JOB)
    assert not buffers.busy
    assert_same(load_checkpoint(info), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_buffers_are_reused(threads: int) -> None:
    buffers = CheckpointBuffers(threads=threads)
    addresses = set()
    for step in (1, 2, 3):
        snapshot = buffers.capture(make_state(step))
        assert_same(snapshot.state, make_state(step))
        addresses.add(snapshot.state.params["a.weight"].ctypes.data)
        snapshot.release()
        snapshot.release()
    assert len(addresses) == 1


def test_a_capture_waits_for_the_writer() -> None:
    buffers = CheckpointBuffers()
    first = buffers.capture(make_state(1))
    threading.Timer(0.1, first.release).start()
    with buffers.capture(make_state(2), timeout_s=20) as second:
        assert_same(second.state, make_state(2))


def test_buffers_of_other_shapes_are_refused() -> None:
    buffers = CheckpointBuffers()
    buffers.reserve(make_state(1))
    other = initial_state({"a.weight": np.ones((2, 2), np.float32)}, n_blocks=4)
    with pytest.raises(CheckpointError, match="changed since the first capture"):
        buffers.capture(other)
    assert not buffers.busy


def test_constants_are_written_once_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "constants.safetensors"
    arrays = {
        "mask": np.array([True, False]),
        "table": np.arange(6, dtype=np.int64).reshape(2, 3),
        "scale": np.float32(2).reshape(()),
    }
    record = write_constants(path, arrays)
    assert record.size_bytes == path.stat().st_size
    found = read_constants(path)
    assert {n: (a.dtype, a.tolist()) for n, a in found.items()} == {
        n: (a.dtype, a.tolist()) for n, a in arrays.items()
    }
    with pytest.raises(CheckpointError, match="exists already"):
        write_constants(path, arrays)
    assert visible(tmp_path) == ["constants.safetensors"]


def test_a_dtype_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="z: dtype complex64 cannot be stored; allowed:"):
        write_constants(tmp_path / "c.safetensors", {"z": np.zeros(2, np.complex64)})
    assert visible(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05\0\0",
        (2**60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}extra",
        (3).to_bytes(8, "little") + b"{}\xff",
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_constants(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]},
        {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"shape": [2], "data_offsets": [0, 8]},
        7,
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, entry: object) -> None:
    header = json.dumps({"t": entry}).encode()
    path = tmp_path / "c.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match="safetensors header"):
        read_constants(path)
