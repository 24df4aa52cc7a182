"""`luma verify` draws the chain, judges the required level, and says what each link lacks."""

from __future__ import annotations

import functools
import json
import re
import sys

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import runtime.artifact
from runtime.artifact import load_or_create_keys
from runtime.cli import main
from tests.unit.artifact.conftest import Bench
from tests.unit.kms.conftest import AMI, IMAGE


@pytest.fixture
def command(tmp_path, tenant, monkeypatch):
    """Give the words of a verification of a sealed compiler's artifact, by what is given.

    The command trusts AWS's root alone, and has no option for another; the test's is put in place
    inside this process.
    """
    made = tenant("L2")
    bench = Bench(folder=tmp_path, keys=load_or_create_keys(tmp_path / "author"))
    artifact = bench.write("model.luma", "L2", data_key=made.keys("sealer", made.cloud.nsm()))
    (tmp_path / "signer.pem").write_bytes(
        bench.keys.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "measurements.json").write_text(
        json.dumps(
            {
                "schema": "luma/measurements/1",
                "images": {"compiler-cpu": {f"PCR{i}": v.hex() for i, v in IMAGE.items()}},
                "amis": {"node": {f"PCR{i}": AMI[i].hex() for i in (4, 12)}},
            }
        )
    )
    (tmp_path / "policy.json").write_text(json.dumps(made.policy()))
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "verifier"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", made.cloud.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["agent"])
    given = {
        "signer": str(tmp_path / "signer.pem"),
        "customer": made.customer,
        "measurements": str(tmp_path / "measurements.json"),
        "key-policy": str(tmp_path / "policy.json"),
    }

    def words(*names: str, production: bool = False) -> list[str]:
        if not production:
            judged = functools.partial(runtime.artifact.verify_artifact, roots=made.cloud.app.roots)
            monkeypatch.setattr(runtime.artifact, "verify_artifact", judged)
        options = [word for name in names for word in (f"--{name}", given[name])]
        return ["verify", str(artifact), *options]

    return words


ALL = ("signer", "customer", "measurements", "key-policy")


def test_whole_chain_as_a_tree(command, capsys):
    assert main([*command(*ALL), "--require", "L2"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["level", "L2", "(KMS)"]
    links = [re.sub(r"^[│├└─ ]+", "", line) for line in lines]
    for name in ("signature", "signer", "seal", "attestation", "image"):
        assert any(link.startswith(f"{name} holds: ") for link in links), name
    assert any(link.startswith("key policy does not hold: ") for link in links)
    for said in (
        "targets cpu, tpu",
        "key source: KMS",
        "module: i-0test-enc0test",
        "chain:",
        "name: compiler-cpu",
        f"PCR0: {IMAGE[0].hex()[:16]}…",
        f"PCR2: {IMAGE[2].hex()[:16]}…",
        f"PCR8: {IMAGE[8].hex()[:16]}…",
        "no attestation is asked for",
        "SealOnlyAttestedImageSha384: PCR0 must be one of",
    ):
        assert said in captured.out, said
    assert "\x1b" not in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("names", "require", "code", "level", "failed"),
    [
        (ALL, None, 0, "L2", []),
        (ALL, "L0", 0, "L2", []),
        (ALL, "L2", 0, "L2", []),
        (ALL, "L3", 1, "L2", ["key-policy"]),
        (("signer", "customer", "measurements"), "L2", 0, "L2", []),
        (("signer", "customer"), "L2", 1, "L1", ["image"]),
        (("signer", "customer"), "L1", 0, "L1", []),
        (("signer", "measurements"), "L2", 1, "L0", ["seal"]),
        (("signer",), "L0", 0, "L0", []),
        (("signer",), None, 1, "L0", ["seal", "image"]),
        (("measurements",), "L0", 1, "none", ["signer"]),
    ],
)
def test_required_level_decides(command, capsys, names, require, code, level, failed):
    words = [*command(*names), "--json", *(["--require", require] if require else [])]
    assert main(words) == code
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["level"], document["failed"]) == (level, failed)
    assert document["level_required"] == require
    assert bool(captured.err) == (code != 0)
    if code:
        assert "needed: " in captured.err


@pytest.mark.parametrize("plain", [True, False])
def test_colours_are_for_terminals_and_can_be_turned_off(command, capsys, monkeypatch, plain):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    if not plain:
        monkeypatch.delenv("NO_COLOR")
    assert main(command(*ALL)) == 0
    assert ("\x1b" in capsys.readouterr().out) == (not plain)


def test_links_that_were_not_given_name_their_option(command, capsys):
    assert main([*command(), "--require", "L2"]) == 1
    captured = capsys.readouterr()
    needed = [line for line in captured.out.splitlines() if "needed: " in line]
    for option in ("(--signer)", "(--customer)", "(--measurements)", "(--key-policy)"):
        assert any(option in line for line in needed), option
    assert "--signer" in captured.err


def test_the_command_trusts_no_software_module(command, capsys):
    words = command(*ALL, production=True)
    assert main([*words, "--require", "L2", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["level"], document["failed"]) == ("L1", ["attestation", "image"])
    assert "trusts AWS's Nitro root alone" in document["evidence"][3]["detail"]


def test_an_artifact_that_is_refused_answers_in_json_too(command, capsys, tmp_path):
    words = command(*ALL)
    path = tmp_path / "model.luma"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main([*words, "--require", "L0", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["level"], document["evidence"]) == ("none", [])
    assert document["failed"] == ["artifact"]
    assert "does not open" in document["error"]
    assert "does not open" in captured.err


@pytest.mark.parametrize("name", ["measurements", "key-policy"])
def test_files_that_cannot_be_used(command, capsys, tmp_path, name):
    words = command(*ALL)
    file = "policy.json" if name == "key-policy" else "measurements.json"
    (tmp_path / file).write_text("{}")
    assert main(words) == 1
    assert name.replace("-", " ") in capsys.readouterr().err


def test_a_level_that_there_is_not(command, capsys):
    assert main([*command(), "--require", "L4"]) == 2
    assert "L4" in capsys.readouterr().err
