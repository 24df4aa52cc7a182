"""Reading ELF files, against the system's own tools where they are there."""

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from enclave_image.elf import ElfNeeds, find_library, read_elf, resolve_libraries
from runtime.spec.errors import ArtifactError

PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
READELF, LDD, CC = shutil.which("readelf"), shutil.which("ldd"), shutil.which("cc")


def elf(needed=(), runpath=None, interpreter=None):
    """Give a small ELF file by hand: headers, a string table, a dynamic table."""
    texts = b"\0"
    dynamic = []
    for tag, value in [(1, name) for name in needed] + ([(29, runpath)] if runpath else []):
        dynamic.append((tag, len(texts)))
        texts += value.encode() + b"\0"
    count = 2 + (interpreter is not None)
    texts_at = 64 + 56 * count
    table_at = texts_at + len(texts)
    dynamic += [(5, 0x1000 + texts_at), (10, len(texts)), (0, 0)]
    table = b"".join(struct.pack("<qQ", *entry) for entry in dynamic)
    name = (interpreter or "").encode() + b"\0"
    name_at = table_at + len(table)
    total = name_at + len(name)

    def header(kind, offset, size, base=0x1000):
        return struct.pack("<IIQQQQQQ", kind, 5, offset, base + offset, 0, size, size, 8)

    headers = header(1, 0, total) + header(2, table_at, len(table))
    if interpreter is not None:
        headers += header(3, name_at, len(name))
    start = b"\x7fELF\x02\x01\x01" + bytes(9)
    start += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    return start + headers + texts + table + name


def test_a_hand_made_file_is_read(tmp_path):
    path = tmp_path / "program"
    path.write_bytes(elf(["liba.so", "libb.so.1"], "$ORIGIN/lib:/opt", "/lib64/ld.so"))
    assert read_elf(path) == ElfNeeds(
        interpreter="/lib64/ld.so",
        needed=("liba.so", "libb.so.1"),
        search=("$ORIGIN/lib", "/opt"),
    )


def test_what_is_no_elf_file_is_passed_over(tmp_path):
    for content in (b"", b"#!/bin/sh\n", b"\x7fEL"):
        path = tmp_path / "script"
        path.write_bytes(content)
        assert read_elf(path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF\x01\x01\x01" + bytes(60), "not of 64 bits"),
        (b"\x7fELF\x02\x02\x01" + bytes(60), "not of 64 bits"),
        (elf()[:40], "not of 64 bits|cut"),
        (elf(["a"])[:100], "cut"),
        (elf()[:56] + b"\xff\xff" + elf()[58:], "65535 program headers"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
    path = tmp_path / "broken.so"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=f"broken.so: .*({message})"):
        read_elf(path)


@pytest.mark.skipif(READELF is None, reason="needs the program readelf")
def test_the_interpreter_is_read_as_readelf_reads_it():
    shown = subprocess.run(
        [READELF, "-d", "-l", "-W", PYTHON], capture_output=True, text=True, check=True
    ).stdout
    needs = read_elf(PYTHON)
    assert list(needs.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    assert [needs.interpreter] == re.findall(r"program interpreter: (.*)\]", shown)
    searched = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", shown)
    assert list(needs.search) == [folder for text in searched for folder in text.split(":")]


@pytest.mark.skipif(LDD is None, reason="needs the program ldd")
def test_the_interpreters_libraries_are_those_that_its_loader_finds():
    shown = subprocess.run([LDD, PYTHON], capture_output=True, text=True, check=True).stdout
    loaded = set(re.findall(r"^\s*(\S+) => \S+", shown, re.MULTILINE))
    assert set(resolve_libraries([PYTHON])) == loaded


def test_libraries_are_followed_and_found_beside_the_file(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "program").write_bytes(elf(["libone.so"], "$ORIGIN/inner"))
    (inner / "libone.so").write_bytes(elf(["libtwo.so"], "${ORIGIN}"))
    (inner / "libtwo.so").write_bytes(elf(["libone.so"], "${ORIGIN}"))
    found = resolve_libraries([tmp_path / "program"])
    assert found == {"libone.so": inner / "libone.so", "libtwo.so": inner / "libtwo.so"}
    # What is among the files already is not given again.
    assert set(resolve_libraries([tmp_path / "program", inner / "libone.so"])) == {"libtwo.so"}


def test_a_missing_library_is_named(tmp_path):
    (tmp_path / "program").write_bytes(elf(["libnowhere-luma.so.9"]))
    with pytest.raises(ArtifactError, match=r"program: needs libnowhere-luma.so.9") as caught:
        resolve_libraries([tmp_path / "program"])
    assert caught.value.remedy
    nothing = ElfNeeds(interpreter=None, needed=(), search=())
    assert find_library("libnowhere-luma.so.9", nothing, tmp_path) is None


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_a_compiled_library_is_read(tmp_path):
    source = tmp_path / "a.c"
    source.write_text("int luma(void) { return 1; }\n")
    subprocess.run(
        [CC, "-shared", "-fPIC", "-o", tmp_path / "liba.so", source, "-Wl,-rpath,$ORIGIN/x"],
        check=True,
    )
    needs = read_elf(tmp_path / "liba.so")
    assert needs.interpreter is None
    assert needs.search == ("$ORIGIN/x",)
