"""`luma verify` of an artifact under a KMS key asks KMS only where the customer is named."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from runtime.artifact import load_or_create_keys
from runtime.cli import main
from tests.unit.artifact.conftest import Bench


@pytest.fixture
def sealed(tmp_path, tenant, monkeypatch):
    """Give (tenant, artifact, signer's public key file); the environment reaches the KMS."""
    made = tenant("L1")
    bench = Bench(folder=tmp_path, keys=load_or_create_keys(tmp_path / "author"))
    path = bench.write("one.luma", "L1", data_key=made.keys("sealer"))
    signer = tmp_path / "signer.pem"
    signer.write_bytes(
        bench.keys.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "verifier"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", made.cloud.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["agent"])
    return made, path, signer


def test_named_customer_reaches_l1_by_kms(sealed, capsys):
    made, path, signer = sealed
    arguments = ["verify", str(path), "--signer", str(signer), "--customer", made.customer]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["level"], document["label"]) == ("L1", "L1 (KMS)")
    assert main(arguments) == 0
    assert "L1 (KMS)" in capsys.readouterr().out


@pytest.mark.parametrize("own_keys", [True, False])
def test_without_a_customer_nothing_is_asked(sealed, capsys, tmp_path, own_keys):
    made, path, signer = sealed
    if own_keys:
        load_or_create_keys(tmp_path / "verifier")
    asked = len(made.cloud.app.requests)
    assert main(["verify", str(path), "--signer", str(signer), "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["label"].startswith("L0 (claims L1: the seal was not checked")
    assert "--customer" in captured.err
    assert len(made.cloud.app.requests) == asked


@pytest.mark.parametrize(
    ("customer", "with_signer", "code", "said"),
    [
        ("someone-else", True, 1, "this side opens artifacts of 'someone-else'"),
        (None, False, 2, "--customer: needs --signer"),
    ],
)
def test_wrong_customer_or_no_signer(sealed, capsys, customer, with_signer, code, said):
    made, path, signer = sealed
    arguments = ["verify", str(path), "--customer", customer or made.customer]
    arguments += ["--signer", str(signer)] if with_signer else []
    assert main(arguments) == code
    assert said in capsys.readouterr().err


def test_customer_of_an_artifact_under_a_key_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LUMA_HOME", str(tmp_path))
    bench = Bench(folder=tmp_path, keys=load_or_create_keys(tmp_path))
    path = bench.write("file.luma", "L1")
    assert main(["verify", str(path), "--customer", "acme"]) == 2
    assert "not sealed under a KMS key" in capsys.readouterr().err


@pytest.mark.parametrize("leaks", [[], ["--leaks"]])
def test_that_leaks_were_not_looked_for_is_said(tmp_path, monkeypatch, capsys, leaks):
    monkeypatch.setenv("LUMA_HOME", str(tmp_path))
    bench = Bench(folder=tmp_path, keys=load_or_create_keys(tmp_path))
    path = bench.write("file.luma", "L1")
    assert main(["verify", str(path), *leaks]) == 0
    shown = capsys.readouterr().out
    assert ("not looked for, nor whether payloads are as scrubbed" in shown) == (not leaks)
    assert ("READABLE WITH THE KEY" in shown) == bool(leaks)


def test_inspect_names_the_key(sealed, capsys):
    made, path, _ = sealed
    assert main(["inspect", str(path), "--json"]) == 0
    seal = json.loads(capsys.readouterr().out)["seal"]
    assert (seal["key_arn"], seal["customer"]) == (made.arn, made.customer)
