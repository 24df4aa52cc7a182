"""Promises of the project's files that no other check keeps."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "runtime").rglob("*.py"))


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {_name(name): version for name, version in pins}


def test_the_constraints_are_exact_and_name_no_machine():
    pins = _pins()
    assert pins["torch"] == "2.13.0"
    for name, version in pins.items():
        assert re.fullmatch(r"\d[0-9a-z.]*", version), (name, version)
        assert not name.startswith(("nvidia", "cuda", "triton")), name


def test_every_dependency_is_pinned_and_says_why():
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["dev"]
    pins = _pins()
    for requirement in declared:
        own = re.fullmatch(r"luma\[(.*)\]", requirement)
        extras = own[1].split(",") if own else []
        meant = [r for extra in extras for r in project["optional-dependencies"][extra]]
        for name in map(_name, meant or [requirement]):
            assert name in pins, requirement
        line = next(line for line in text.splitlines() if f'"{requirement}"' in line)
        assert re.search(r"# \S", line), f"{requirement} has no reason"


@pytest.mark.parametrize(
    "file", ["pyproject.toml", "constraints.txt", "Makefile", ".ci/run", "tests/conftest.py"]
)
def test_project_files_name_no_registry_and_no_machine_path(file):
    text = (ROOT / file).read_text()
    assert not re.search(r"https?://|index-url|find-links|/home/|/root/|file:", text)


def test_the_ci_script_runs_the_same_two_targets_as_a_developer():
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert script.splitlines()[-2:] == ["make lint", "make test"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_make_says_what_it_can_do():
    # `--no-print-directory` and an empty MAKEFLAGS: this test itself may run under make.
    output = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for target in ("setup", "quickstart", "test", "test-slow", "lint", "bench", "clean"):
        assert re.search(rf"^{target}\s+\S", output, re.MULTILINE), target


# --- never a pickle -------------------------------------------------------------------------------

# Loading any of these runs code that the file's writer chose.
_BANNED_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
_BANNED_NAMES = {"serialize_executable", "allow_pickle"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_can_load_a_pickle(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
            is_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
            assert not (is_torch and node.attr == "load"), f"torch.load in line {node.lineno}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False, f"line {node.value.lineno}"
        banned = {part for name in names for part in name.split(".")}
        assert not banned & (_BANNED_MODULES | _BANNED_NAMES), ast.unparse(node)
