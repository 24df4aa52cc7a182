"""Our code in an image: everything that the service can import, and nothing else."""

import ast
import importlib.metadata
import sys

import pytest

from enclave_image.packages import load_contents
from enclave_image.sources import ROOT, import_closure, source_files
from runtime.spec.errors import ArtifactError


def names(paths, root):
    return {path.relative_to(root).as_posix() for path in paths}


@pytest.fixture
def tree(tmp_path):
    """Give a folder with a small package of each form of import."""
    files = {
        "runtime/__init__.py": "",
        "runtime/a/__init__.py": "from runtime.a.inner import x\n",
        "runtime/a/inner.py": "import os\nx = 1\n",
        "runtime/a/relative.py": "from . import sibling\nfrom ..b import name\n",
        "runtime/a/sibling.py": "",
        "runtime/b.py": "name = 1\n",
        "runtime/late.py": "def f():\n    import runtime.hidden\n",
        "runtime/hidden.py": "",
        "runtime/typed.py": (
            "import typing\nfrom typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import runtime.only_types\n"
            "if typing.TYPE_CHECKING:\n    import runtime.only_types\n"
            "else:\n    import runtime.otherwise\n"
        ),
        "runtime/only_types.py": "",
        "runtime/otherwise.py": "",
        "runtime/module_from.py": "from runtime import b\n",
        "runtime/foreign.py": "import torch\nimport runtime_other\n",
        "runtime/broken.py": "def\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("runtime.a.inner", {"__init__", "a/__init__", "a/inner"}),
        (
            "runtime.a.relative",
            {"__init__", "a/__init__", "a/inner", "a/relative", "a/sibling", "b"},
        ),
        ("runtime.late", {"__init__", "late", "hidden"}),
        ("runtime.typed", {"__init__", "typed", "otherwise"}),
        ("runtime.module_from", {"__init__", "module_from", "b"}),
        ("runtime.foreign", {"__init__", "foreign"}),
        ("runtime.nowhere", {"__init__"}),
    ],
)
def test_imports_are_followed(tree, module, expected):
    found = names(import_closure([module], tree), tree)
    assert found == {f"runtime/{name}.py" for name in expected}


def test_a_module_that_is_not_python_is_named(tree):
    with pytest.raises(ArtifactError, match=r"source .*broken\.py"):
        import_closure(["runtime.broken"], tree)


def test_the_image_holds_the_worker_and_not_the_builder_nor_capture():
    paths = {file.path for file in source_files()}
    for name in (
        "enclave_image/service/__main__.py",
        "runtime/compiler/worker.py",
        "runtime/compiler/lower/ops/matmul.py",
        "runtime/compiler/targets/iree_compile.py",
        "runtime/kernels/attention/xla.py",
        "runtime/artifact/sealing.py",
    ):
        assert f"opt/luma/code/{name}" in paths
    for path in paths:
        assert path.endswith(".py"), path
        assert "/capture/" not in path, path
        for outside in ("cli", "run", "serve", "agent", "coordinator", "plan"):
            assert f"/runtime/{outside}/" not in path, path
        for outside in ("build", "rootfs", "packages", "measurements", "cpio", "eif"):
            assert f"/enclave_image/{outside}" not in path, path


def test_nothing_in_the_image_imports_torch():
    for file in source_files():
        if file.path.endswith(".py"):
            for line in file.content.read_text().splitlines():
                assert not line.strip().startswith(("import torch", "from torch", "import transf"))


def imported(nodes):
    """Give the packages that statements import, the standard library's and ours excepted."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"runtime", "enclave_image"}


def run_on_import(tree):
    """Walk a module without the bodies of its functions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def test_every_package_that_the_code_imports_is_chosen_for_the_image():
    # An enclave has no network: the client asks KMS, with functions that are in files of both
    # sides. They import botocore when they are called, and say so where it is not there.
    clients_own = {"botocore"}
    chosen = {package.name.lower() for package in load_contents().families["cpu"]}
    installed = importlib.metadata.packages_distributions()
    for file in source_files():
        if not file.path.endswith(".py"):
            continue
        tree = ast.parse(file.content.read_bytes())
        needed = imported(run_on_import(tree)) | (imported(ast.walk(tree)) - clients_own)
        for module in needed:
            names = {name.lower().replace("_", "-") for name in installed[module]}
            message = f"{file.path} imports {module}: name it in enclave_image/contents.json"
            assert names & chosen, message


def test_the_measured_files_are_this_checkouts():
    for file in source_files():
        assert file.content.is_relative_to(ROOT)
        assert file.mode == 0o644
