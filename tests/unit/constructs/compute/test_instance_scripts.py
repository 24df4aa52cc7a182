"""The scripts that instances run, run here: real shell, Python, venv and pip below a root of our own.

What needs root or AWS is a recorder on PATH: `aws`, `systemctl`, `useradd`, `dnf`.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from luma_constructs._bundle import _requirements
from tests.support.cdk import ROOT

pytestmark = pytest.mark.timeout(300)  # environments are made here

DATA = ROOT / "luma_constructs/data"
RECORDER = """#!/bin/bash
echo "$(basename "$0") $*" >>"$RECORD"
"""
AWS = """#!/bin/bash
echo "aws $*" >>"$RECORD"
case "$*" in
  *get-secret-value*) echo s3cret ;;
  "s3 cp"*--recursive*) cp -r "$STORE"/. "${@: -1}" ;;
  "s3 cp"*) echo image >"${@: -1}" ;;
esac
"""


@pytest.fixture
def host(tmp_path):
    return new_host(tmp_path)


@pytest.fixture(scope="module")
def booted(tmp_path_factory):
    """A host after bootstrap.sh, which makes an environment and so takes seconds."""
    root, environment, record = new_host(tmp_path_factory.mktemp("booted"))
    words = [*NODE, "--wheels", "s3://w/cpu/", "--env", "A=1 2", "--env", "B=x=y"]
    done = run("bootstrap.sh", words, environment)
    assert done.returncode == 0, done.stderr
    return root, record.read_text().splitlines()


def new_host(tmp_path):
    """A root below `tmp_path`, with the runtime unpacked and the recorders on PATH."""
    root = tmp_path / "root"
    source = root / "opt/luma/src"
    (source / "node").mkdir(parents=True)
    (source / "runtime/spec").mkdir(parents=True)
    (source / "runtime/__init__.py").touch()
    (source / "runtime/spec/__init__.py").write_text("import tinydep\n")
    for script in ("bootstrap.sh", "enclave_host.sh", "python_env.sh", "serve_host.sh"):
        (source / "node" / script).write_bytes((DATA / script).read_bytes())
    (source / "constraints.txt").write_text("tinydep==1.2\n")
    for family in ("cpu", "serve"):
        (source / f"node/requirements-{family}.txt").write_text("tinydep>=1\n")
    store = tmp_path / "store"
    store.mkdir()
    for version in ("1.2", "1.3"):  # the constraint decides
        tiny_wheel(store, version)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("systemctl", "useradd", "dnf"):
        executable(binaries / name, RECORDER)
    executable(binaries / "aws", AWS)
    executable(binaries / "id", "#!/bin/bash\nexit 1\n")
    executable(binaries / "python3.13", f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "$@"\n')
    record = tmp_path / "record"
    record.touch()
    environment = {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "LUMA_ROOT": str(root),
        "RECORD": str(record),
        "STORE": str(store),
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
    }
    return root, environment, record


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def tiny_wheel(folder: Path, version: str) -> None:
    """Write a wheel of one module, by PEP 427."""
    info = f"tinydep-{version}.dist-info"
    files = {
        "tinydep.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinydep\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.writerow([name, f"sha256={digest.decode()}", len(text)])
    rows.writerow([f"{info}/RECORD", "", ""])
    with zipfile.ZipFile(folder / f"tinydep-{version}-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record.getvalue()}.items():
            archive.writestr(name, text)


def run(script, words, environment):
    return subprocess.run(
        ["bash", str(Path(environment["LUMA_ROOT"], "opt/luma/src/node", script)), *words],
        env=environment, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


def unit(path):
    """A systemd unit, whose format configparser reads as far as it is used here."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


NODE = ["--deployment", "Luma", "--fleet", "l4", "--family", "cpu", "--region", "us-east-1"]


def test_bootstrap_makes_a_node(booted):
    root, said = booted
    assert (root / "etc/luma/agent.env").read_text().splitlines() == [
        "LUMA_STACK=Luma", "LUMA_FLEET=l4", "AWS_REGION=us-east-1", "A=1 2", "B=x=y",
    ]  # fmt: skip
    python = root / "opt/luma/venv/bin/python"
    code = "import runtime.spec, tinydep; print(runtime.spec.__file__, tinydep.version)"
    seen = subprocess.run(
        [str(python), "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert seen.stdout.split() == [str(root / "opt/luma/src/runtime/spec/__init__.py"), "1.2"]
    assert said[0].startswith("aws s3 cp --only-show-errors --recursive s3://w/cpu/ ")
    assert said[1:] == [
        "useradd --system --home-dir /var/lib/luma --no-create-home --shell /sbin/nologin luma",
        "systemctl daemon-reload",
        "systemctl enable --now luma-node.service",
    ]


def test_the_node_s_service_leaves_on_sigterm_before_a_spot_instance_is_gone(booted):
    root, _ = booted
    service = unit(root / "etc/systemd/system/luma-node.service")["Service"]
    assert service["ExecStart"] == "/opt/luma/venv/bin/python -m runtime.agent.node"
    assert service["EnvironmentFile"] == "/etc/luma/agent.env"
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert int(service["TimeoutStopSec"]) < 120
    assert service["Restart"] == "on-failure"  # one that ended well was told to
    assert service["User"] == "luma"
    assert service["NoNewPrivileges"] == "yes"


@pytest.mark.slow
def test_a_host_outside_ec2_gets_a_service_that_says_who_it_is(host):
    root, environment, record = host
    done = run("bootstrap.sh", [*NODE, "--wheels", "s3://w/", "--external", "tpu-v5e"], environment)
    assert done.returncode == 0, done.stderr
    service = unit(root / "etc/systemd/system/luma-host-identity.service")
    assert shlex.split(service["Service"]["ExecStart"])[2:] == [
        "/opt/luma/src/node/host_identity.py", "--region", "us-east-1", "--chip", "tpu-v5e",
    ]  # fmt: skip
    assert service["Unit"]["Before"] == "luma-node.service"
    endpoint = "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:9254"
    assert endpoint in (root / "etc/luma/agent.env").read_text().splitlines()
    started = "systemctl enable --now luma-host-identity.service luma-node.service"
    assert started in record.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_a_trainium_host_gets_the_library_that_its_image_may_lack(there, host):
    root, environment, record = host
    (root / "opt/luma/src/node/requirements-neuron.txt").write_text("tinydep>=1\n")
    if there:
        (root / "opt/aws/neuron/lib").mkdir(parents=True)
        (root / "opt/aws/neuron/lib/libnrt.so").touch()
    words = [*NODE[:5], "neuron", *NODE[6:], "--wheels", "s3://w/"]
    done = run("bootstrap.sh", words, environment)
    assert done.returncode == 0, done.stderr
    asked = "dnf install --quiet --assumeyes aws-neuronx-runtime-lib" in record.read_text()
    assert asked is not there


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "luma: --deployment: missing"),
        (NODE[:-2], "luma: --region: missing"),
        ([*NODE, "--flavour", "x"], "luma: --flavour: unknown option"),
        ([*NODE, "--env"], "luma: --env: a value is missing"),
        ([*NODE[:5], "gpu", *NODE[6:]], "luma: family gpu: no such list of requirements"),
    ],
)
def test_wrong_options_end_the_set_up(words, message, host):
    _, environment, record = host
    done = run("bootstrap.sh", words, environment)
    assert done.returncode != 0
    assert message in done.stderr
    assert "systemctl" not in record.read_text()


@pytest.mark.slow
def test_packages_that_cannot_be_had_end_the_set_up(host):
    root, environment, record = host
    (root / "opt/luma/src/node/requirements-cpu.txt").write_text("tinydep>=9\n")
    done = run("bootstrap.sh", [*NODE, "--wheels", "s3://w/"], environment)
    assert done.returncode != 0
    assert "tinydep" in done.stderr
    assert "systemctl" not in record.read_text()


@pytest.mark.slow
def test_a_runtime_that_does_not_import_ends_the_set_up(host):
    root, environment, record = host
    (root / "opt/luma/src/runtime/spec/__init__.py").write_text("raise ImportError\n")
    done = run("bootstrap.sh", [*NODE, "--wheels", "s3://w/"], environment)
    assert done.returncode != 0
    assert "the runtime does not import" in done.stderr
    assert "systemctl" not in record.read_text()


ENCLAVE = ["--eif", "s3://b/a.eif", "--memory-mib", "12288", "--cpus", "6", "--region", "eu-west-1"]


def test_enclave_host_sets_aside_what_the_enclave_takes(host):
    root, environment, record = host
    parent = root / "opt/luma/src/enclave_image/parent"
    parent.mkdir(parents=True)
    for path in (ROOT / "enclave_image/parent").iterdir():
        (parent / path.name).write_bytes(path.read_bytes())
    done = run("enclave_host.sh", ENCLAVE, environment)
    assert done.returncode == 0, done.stderr
    allocator = (root / "etc/nitro_enclaves/allocator.yaml").read_text().splitlines()
    assert "memory_mib: 12288" in allocator
    assert "cpu_count: 6" in allocator
    enclave = unit(root / "etc/systemd/system/luma-enclave.service")["Service"]["ExecStart"]
    words = shlex.split(enclave)
    assert words[words.index("--cpu-count") + 1] == "6"
    assert words[words.index("--memory") + 1] == "12288"
    assert words[words.index("--eif-path") + 1] == "/var/lib/luma/luma-enclave.eif"
    assert (root / "var/lib/luma/luma-enclave.eif").read_text() == "image\n"
    proxy = (root / "etc/luma/vsock-proxy.yaml").read_text().splitlines()
    assert proxy == ["allowlist:", "  - {address: kms.eu-west-1.amazonaws.com, port: 443}"]
    assert record.read_text().splitlines() == [
        "dnf install --quiet --assumeyes aws-nitro-enclaves-cli",
        f"aws s3 cp --only-show-errors s3://b/a.eif {root}/var/lib/luma/luma-enclave.eif",
        "systemctl daemon-reload",
        "systemctl enable --now nitro-enclaves-allocator.service luma-kms-proxy@eu-west-1.service",
        "systemctl enable --now luma-enclave.service luma-enclave-watch.timer",
    ]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (1, "a.eif", "--eif 'a.eif': expected an S3 URL"),
        (3, "1G", "--memory-mib, --cpus: expected numbers"),
        (5, "0", "--memory-mib, --cpus: expected numbers"),
        (7, "eu west", "--region 'eu west': expected a region"),
    ],
)
def test_wrong_options_of_an_enclave_s_host_are_refused(place, value, message, host):
    _, environment, record = host
    words = [*ENCLAVE]
    words[place] = value
    done = run("enclave_host.sh", words, environment)
    assert done.returncode == 1
    assert message in done.stderr
    assert record.read_text() == ""


SERVE = [
    "--model", "s3://b/runs/tiny/export/", "--name", "tiny", "--port", "8000", "--region",
    "us-east-1", "--target-group", "arn:tg", "--service", "c8", "--secret", "arn:secret",
    "--wheels", "s3://w/",
]  # fmt: skip


@pytest.mark.slow
def test_serve_host_fetches_the_model_and_hides_the_key(host):
    root, environment, record = host
    done = run("serve_host.sh", SERVE, environment)
    assert done.returncode == 0, done.stderr
    secret = root / "etc/luma/serve.env"
    assert secret.read_text() == "LUMA_API_KEY=s3cret\n"
    assert secret.stat().st_mode & 0o777 == 0o600
    gateway = unit(root / "etc/systemd/system/luma-serve.service")["Service"]
    assert shlex.split(gateway["ExecStart"]) == [
        "/opt/luma/venv/bin/python", "-m", "runtime.cli", "serve", "/var/lib/luma/model",
        "--host", "0.0.0.0", "--port", "8000", "--model-name", "tiny",
    ]  # fmt: skip
    watch = unit(root / "etc/systemd/system/luma-serve-watch.service")["Service"]
    assert "--target-group arn:tg --service c8" in watch["ExecStart"]
    said = record.read_text()
    assert f"--recursive s3://b/runs/tiny/export/ {root}/var/lib/luma/model" in said
    assert "s3cret" not in said + done.stdout + done.stderr
    assert "systemctl enable --now luma-serve.service luma-serve-watch.service" in said


def test_the_command_of_the_gateway_s_service_is_one_that_the_cli_has():
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cli", "serve", "--help"], cwd=ROOT, capture_output=True,
        text=True, timeout=100, check=True, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    for option in ("--host", "--port", "--model-name"):
        assert option in done.stdout


def test_what_a_server_installs_is_the_whole_runtime():
    text = _requirements(ROOT, ROOT / "luma_constructs", "serve")
    assert any(line.startswith("transformers") for line in text.splitlines())
