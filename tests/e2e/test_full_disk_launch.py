"""A launch onto a disk that is too small: a clear message, exit code 1, nothing left behind.

The disk is a small tmpfs in a mount namespace of the test's own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[2] / "examples" / "tiny" / "job.yaml"

pytestmark = pytest.mark.timeout(600)

SCRIPT = """
mount -t tmpfs -o size="$SIZE" none "$DISK" || exit 77
"$PYTHON" -m runtime.cli launch "$JOB" --yes --run "$DISK/run"
code=$?
find "$DISK" -mindepth 1 -not -name '.run.lock' > "$LEFT"
exit $code
"""


# Too small for the captured graph and the samples; large enough for them, not for the weights.
@pytest.mark.parametrize("size", ["64k", "9m"])
def test_a_full_disk_is_told_and_nothing_is_left(size, place, first, tmp_path):
    del first  # its launch filled the caches, which lie on another disk
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    disk, left = tmp_path / "disk", tmp_path / "left"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", SCRIPT],
        env={
            **place.environment,
            "SIZE": size,
            "DISK": str(disk),
            "LEFT": str(left),
            "JOB": str(JOB),
            "PYTHON": sys.executable,
        },
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 1, done.stderr
    message = done.stderr[done.stderr.index("luma: ") :]
    assert "space" in message.lower()
    assert str(disk) in message
    assert "Traceback" not in done.stderr
    assert left.read_text() == ""
