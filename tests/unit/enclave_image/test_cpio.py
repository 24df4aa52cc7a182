"""Ramdisks: hand-made bytes, the same bytes whatever lies around, and what is refused."""

import hashlib
import io
import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enclave_image.cpio import (
    Directory,
    File,
    Symlink,
    Written,
    read_cpio,
    with_parents,
    write_cpio,
)
from runtime.spec.errors import ArtifactError

TREE = (
    File("etc/hello", b"hello\n", 0o600),
    Symlink("bin", "usr/bin"),
    Directory("etc"),
    Directory("tmp", 0o1777),
)

# Typed from the kernel's description of the format: ino, mode, uid, gid, nlink, mtime, filesize, four
# device numbers, namesize, check; then the name and the data, each padded to a multiple of 4.
_HEADS = """
070701 00000001 0000A1FF 00000000 00000000 00000001 00000000 00000007
       00000000 00000000 00000000 00000000 00000004 00000000
070701 00000002 000041ED 00000000 00000000 00000002 00000000 00000000
       00000000 00000000 00000000 00000000 00000004 00000000
070701 00000003 00008180 00000000 00000000 00000001 00000000 00000006
       00000000 00000000 00000000 00000000 0000000A 00000000
070701 00000004 000043FF 00000000 00000000 00000002 00000000 00000000
       00000000 00000000 00000000 00000000 00000004 00000000
070701 00000000 00000000 00000000 00000000 00000001 00000000 00000000
       00000000 00000000 00000000 00000000 0000000B 00000000
"""
_BODIES = (
    b"bin\0\0\0usr/bin\0",
    b"etc\0\0\0",
    b"etc/hello\0hello\n\0\0",
    b"tmp\0\0\0",
    b"TRAILER!!!\0\0\0\0",
)
_TEXT = "".join(_HEADS.split()).encode()
BYTES = b"".join(_TEXT[110 * i : 110 * i + 110] + body for i, body in enumerate(_BODIES))


def written(entries, **options):
    file = io.BytesIO()
    size = write_cpio(file, entries, **options)
    assert size == len(file.getvalue())
    return file.getvalue()


def read(data):
    return list(read_cpio(io.BytesIO(data)))


def test_an_archive_is_the_hand_made_one():
    assert written(TREE) == BYTES


def test_the_order_of_entries_does_not_matter():
    assert written(reversed(TREE)) == BYTES


def test_the_files_own_mode_time_and_owner_do_not_matter(tmp_path):
    path = tmp_path / "content"
    path.write_bytes(b"hello\n")
    path.chmod(0o777)
    os.utime(path, (1, 1))
    entries = (File("etc/hello", path, 0o600), *TREE[1:])
    assert written(entries) == BYTES


def test_an_archive_reads_back_in_order():
    assert [entry.path for entry in read(BYTES)] == ["bin", "etc", "etc/hello", "tmp"]
    assert set(read(BYTES)) == set(TREE)


def test_archives_may_follow_each_other():
    two = written([File("x", b"1")]) + written([File("y", b"2")])
    assert [entry.path for entry in read(two)] == ["x", "y"]


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=8)
parts = names.filter(lambda name: name not in {".", ".."})
paths = st.lists(parts, min_size=1, max_size=4).map("/".join).filter("TRAILER!!!".__ne__)
leaves = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=40), st.integers(0, 0o7777)),
    st.tuples(st.just("link"), st.text(st.characters(codec="utf-8"), max_size=9), st.just(0)),
    st.tuples(st.just("folder"), st.just(b""), st.integers(0, 0o7777)),
)


@given(st.dictionaries(paths, leaves, max_size=8))
def test_every_tree_reads_back(tree):
    entries = []
    for path, (kind, content, mode) in tree.items():
        # What is another one's parent can be nothing but a folder.
        if kind == "folder" or any(other.startswith(path + "/") for other in tree):
            entries.append(Directory(path, mode))
        elif kind == "file":
            entries.append(File(path, content, mode))
        else:
            entries.append(Symlink(path, content))
    whole = with_parents(entries)
    data = written(whole)
    assert len(data) % 4 == 0
    back = read(data)
    assert set(back) == set(whole)
    seen = set()
    for entry in back:
        parent = entry.path.rpartition("/")[0]
        assert not parent or parent in seen
        seen.add(entry.path)


def test_each_file_is_told_with_its_digest():
    told = []
    written(TREE, on_file=told.append)
    digest = hashlib.sha256(b"hello\n").hexdigest()
    assert told == [Written(path="etc/hello", size=6, sha256=digest)]


@pytest.mark.parametrize("path", ["", "/etc", "etc/", "a//b", "./a", "a/..", "a\0b", "TRAILER!!!"])
def test_a_path_that_is_not_plain_is_refused(path):
    with pytest.raises(ArtifactError, match="cpio: the path"):
        written([Directory("a"), File(path, b"")])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([File("a", b"1"), File("a", b"2")], "'a' is there twice"),
        ([File("a/b", b"1")], "'a/b' has no directory 'a'"),
        ([File("a", b"1"), File("a/b", b"1")], "'a/b' has no directory 'a'"),
        ([Symlink("a", "b"), File("a/b", b"1")], "'a/b' has no directory 'a'"),
        ([File("a", b"", 0o10000)], "has the mode"),
    ],
)
def test_a_tree_that_cannot_be_is_refused(entries, message):
    with pytest.raises(ArtifactError, match=message):
        written(entries)


def test_a_file_that_is_gone_or_grows_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="gone cannot be read"):
        written([File("a", tmp_path / "gone")])

    class Growing(type(tmp_path)):
        def stat(self, **options):
            found = super().stat(**options)
            return os.stat_result((*found[:6], found.st_size - 1, *found[7:10]))

    path = Growing(tmp_path / "grows")
    path.write_bytes(b"12345")
    with pytest.raises(ArtifactError, match="'a' changed while it was read"):
        written([File("a", path)])


HEAD = 110


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"070702" + BYTES[6:], "cpio head"),
        (BYTES[:20], "cpio head"),
        (BYTES[:6] + b"zzzzzzzz" + BYTES[14:], "cpio head"),
        (BYTES[:-4], "cut"),
        (BYTES[:118], "cut"),
        (BYTES[:94] + b"00000001" + BYTES[102:], "namesize: 1"),
        (BYTES[:94] + b"FFFFFFFF" + BYTES[102:], "namesize: 4294967295"),
        (BYTES[:54] + b"FFFFFFFF" + BYTES[62:], "cut in an entry of 4294967295"),
        (BYTES[: HEAD + 3] + b"x" + BYTES[HEAD + 4 :], "does not end with its one NUL"),
        (BYTES[: HEAD + 4] + b"x" + BYTES[HEAD + 5 :], "padding is not zero"),
        (BYTES[:14] + b"000021FF" + BYTES[22:], "no directory, file or link"),
        (BYTES[:HEAD] + b"\xff\xff\xff" + BYTES[HEAD + 3 :], "not UTF-8"),
        (BYTES[:HEAD] + b"../" + BYTES[HEAD + 3 :], "not relative and plain"),
    ],
)
def test_a_broken_archive_is_refused(data, message):
    with pytest.raises(ArtifactError, match=message):
        read(data)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    with pytest.raises(ArtifactError):
        read(data)


def test_memory_does_not_grow_with_a_file(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(48 << 20)

    class Nowhere:
        def write(self, data):
            return len(data)

    tracemalloc.start()
    try:
        size = write_cpio(Nowhere(), [File("large", path)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 48 << 20
    assert peak < 8 << 20


CPIO = shutil.which("cpio") or shutil.which("bsdcpio")


@pytest.mark.skipif(CPIO is None, reason="needs the program cpio or bsdcpio")
def test_the_systems_cpio_unpacks_it(tmp_path):
    done = subprocess.run([CPIO, "-i", "-d"], input=BYTES, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert (tmp_path / "etc" / "hello").read_bytes() == b"hello\n"
    assert (tmp_path / "etc" / "hello").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "bin").readlink() == Path("usr/bin")
