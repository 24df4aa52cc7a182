"""What the service needs is in the image: its modules, and the distributions that they import."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions

from enclave_image.init import SERVICE
from enclave_image.sources import ROOT, source_files

CONTENTS = json.loads((ROOT / "enclave_image" / "contents.json").read_text())


def test_the_first_process_starts_this_package():
    assert SERVICE[-2:] == ("-m", "enclave_image.service")
    inside = {file.path.rpartition("/")[2] for file in source_files() if "/service/" in file.path}
    assert {"__main__.py", "server.py", "jobs.py", "session.py", "protocol.py"} <= inside


def test_it_imports_only_what_the_image_holds():
    code = (
        "import sys; before = set(sys.modules); import enclave_image.service.__main__;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = packages_distributions()
    needed = {
        distribution.lower().replace("_", "-")
        for name in done.stdout.split()
        if name not in sys.stdlib_module_names and name not in {"runtime", "enclave_image"}
        for distribution in known.get(name, [])
    }
    held = {entry["name"].lower().replace("_", "-") for entry in CONTENTS["families"]["cpu"]}
    assert needed
    assert needed <= held
