"""The sides of the benchmark `verify`: they do what they claim, on small files."""

from pathlib import Path

import pytest

from benchmarks.verify import _files, _Side
from runtime.spec.errors import ArtifactError

SIZE = 2_500_000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return _files(tmp_path_factory.mktemp("verify") / "files", SIZE)


@pytest.mark.parametrize("side", ["stream", "whole", "baseline"])
def test_a_side_takes_time_for_files_that_fit(files, side):
    assert getattr(_Side(), side)(**files) > 0
    assert _Side().growth(side, files) >= 0


def test_both_files_hold_the_same_chunks(files):
    stored = Path(files["plain"]).stat().st_size
    assert SIZE < stored < SIZE + 1000
    assert stored < Path(files["artifact"]).stat().st_size < stored + 4096


@pytest.mark.parametrize("side", ["stream", "whole"])
def test_a_bit_in_the_last_chunk_is_noticed(files, side, tmp_path):
    changed = bytearray(Path(files["artifact"]).read_bytes())
    changed[-20] ^= 1
    (tmp_path / "changed.luma").write_bytes(changed)
    with pytest.raises(ArtifactError, match="chunk 2"):
        getattr(_Side(), side)(**files | {"artifact": str(tmp_path / "changed.luma")})
