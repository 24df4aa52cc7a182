"""The parent instance's files: they parse, agree with each other, and let KMS alone through."""

import configparser
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[3] / "enclave_image" / "parent"
UNITS = sorted([*FOLDER.glob("*.service"), *FOLDER.glob("*.timer")])
ANALYZE = shutil.which("systemd-analyze")


def unit(name):
    parser = configparser.RawConfigParser(strict=True, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string((FOLDER / name).read_text())
    return parser


def yaml(name):
    return YAML(typ="safe").load((FOLDER / name).read_text())


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_its_sections_and_whole_paths(path):
    parsed = unit(path.name)
    kind = "Timer" if path.suffix == ".timer" else "Service"
    assert set(parsed.sections()) <= {"Unit", kind, "Install"}
    assert parsed["Unit"]["Description"]
    for key in ("ExecStart", "ExecStop"):
        if key in parsed[parsed.sections()[1]]:
            assert parsed[kind][key].startswith("/"), key


def test_the_enclave_is_never_started_in_debug_mode():
    service = unit("luma-enclave.service")["Service"]
    words = service["ExecStart"].split()
    assert not {"--debug-mode", "--attach-console"} & set(words)
    assert "nitro-enclaves-allocator.service" in unit("luma-enclave.service")["Unit"]["Requires"]


def test_what_is_asked_for_is_what_is_set_aside():
    words = unit("luma-enclave.service")["Service"]["ExecStart"].split()
    asked = dict(itertools.pairwise(words))
    allocator = yaml("allocator.yaml")
    assert set(allocator) == {"memory_mib", "cpu_count"}
    assert int(asked["--memory"]) == allocator["memory_mib"]
    assert int(asked["--cpu-count"]) == allocator["cpu_count"]
    assert allocator["cpu_count"] % 2 == 0
    assert int(asked["--enclave-cid"]) > 3  # 0 to 3 are reserved
    # Four times the largest image for CPU and NVIDIA.
    assert allocator["memory_mib"] >= 4 * 1.1 * 1024


def test_the_proxy_lets_kms_alone_through():
    entries = yaml("vsock-proxy.yaml")
    assert set(entries) == {"allowlist"}
    hosts = [entry["address"] for entry in entries["allowlist"]]
    assert len(set(hosts)) == len(hosts) > 0
    for entry in entries["allowlist"]:
        assert set(entry) == {"address", "port"}
        assert re.fullmatch(r"kms\.[a-z]{2}-[a-z]+-[0-9]\.amazonaws\.com", entry["address"])
        assert entry["port"] == 443
    command = unit("luma-kms-proxy@.service")["Service"]["ExecStart"]
    assert " kms.%i.amazonaws.com 443 --config /etc/luma/vsock-proxy.yaml" in command


def test_the_proxy_has_no_rights():
    service = unit("luma-kms-proxy@.service")["Service"]
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"


@pytest.mark.skipif(ANALYZE is None, reason="needs the program systemd-analyze")
def test_systemd_knows_every_setting(tmp_path):
    system = tmp_path / "etc" / "systemd" / "system"
    system.mkdir(parents=True)
    for path in UNITS:
        shutil.copy(path, system / path.name.replace("@.", "@eu-central-1."))
    names = [path.name for path in system.iterdir()]
    done = subprocess.run(
        [ANALYZE, f"--root={tmp_path}", "verify", *names],
        capture_output=True,
        text=True,
        check=False,
    )
    # That other units and the programs themselves are not here is no fault of these files.
    faults = [line for line in done.stderr.splitlines() if str(system) in line]
    assert faults == []
