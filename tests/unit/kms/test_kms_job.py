"""A job that names a KMS key: `luma compile` seals under it, and an island's key opens it."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from runtime.agent.start import artifact_key
from runtime.artifact import (
    generate_data_key,
    load_or_create_keys,
    load_public_key,
    open_artifact,
)
from runtime.artifact.kms import KeyServiceError
from runtime.cli import main
from runtime.compiler.graph import GraphPackage
from runtime.coordinator.plan import KmsPlan, RunPlan
from runtime.spec import JobSpec, RunError
from tests.support.compile_service import running
from tests.unit.packages import square_graph
from tests.unit.plans import make_plan

JOB = """
schema: luma/v1
name: sealed
model: {{source: ./model.py:build}}
compile: {{targets: [cpu], {seal}}}
train: {{steps: 2, seq_len: 4, micro_batch: 1, micro_shards: 4, optimizer: {{lr: 1e-3}}}}
data: {{source: ./data.txt}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Keys and compile cache of all jobs here: their programs are the same."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def compiled(tmp_path, home, monkeypatch, capsys, tenant):
    """Give (tenant, the function that compiles a job of some seal as a role).

    The model is captured already, so that no torch is needed.
    """
    made = tenant("L1")
    monkeypatch.setenv("LUMA_HOME", str(home))
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", made.cloud.url)
    monkeypatch.chdir(tmp_path)
    package = GraphPackage({"grad": square_graph()}, "0" * 64, seq_len=4)

    def prepare(_job, _overrides, folder, **_options):
        folder.graph_file.write_bytes(package.to_bytes())
        report = {"package_digest": package.digest(), "parameters": 6303, "text": "captured"}
        return {"capture": report}

    monkeypatch.setattr("runtime.run.prepare.prepare", prepare)

    def run(seal: str, role: str = "sealer"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles[role])
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(seal=seal))
        code = main(["compile", str(path), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return made, run


def kms(made) -> str:
    return f"kms: {{key_arn: '{made.arn}', customer: {made.customer}}}"


def test_sealed_under_the_jobs_key_and_opened_as_an_island_does(
    compiled, tmp_path, home, monkeypatch
):
    made, run = compiled
    code, document, err = run(kms(made))
    assert code == 0, err
    assert (document["seal"], document["key_file"]) == ("L1 (KMS)", None)
    reference = {"key_arn": made.arn, "customer": made.customer, "instance_role": False}
    assert document["kms"] == reference
    operation, request = made.cloud.app.requests[-1]
    assert operation == "GenerateDataKey"
    artifact = request["EncryptionContext"]["luma:artifact"]
    assert document["digest"] == f"sha384:{artifact}"

    make_plan(kms=KmsPlan(**reference)).write(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["agent"])
    key = artifact_key(RunPlan.read(tmp_path))
    opened = open_artifact(tmp_path / "sealed.luma", trusted_signer=_own_signer(home), key=key)
    assert opened.target_payload("cpu").target == "cpu"
    assert made.cloud.app.requests[-1][0] == "Decrypt"

    # The launcher's role may seal, and not open.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["sealer"])
    with pytest.raises(KeyServiceError) as caught:
        open_artifact(
            tmp_path / "sealed.luma",
            trusted_signer=_own_signer(home),
            key=artifact_key(RunPlan.read(tmp_path)),
        )
    assert caught.value.reason == "denied"


def _own_signer(home):
    return load_or_create_keys(home).public_key


def test_refused_by_the_policy_there_is_no_artifact(compiled, tmp_path):
    made, run = compiled
    code, document, err = run(kms(made), role="other")
    assert (code, document) == (1, None)
    assert "kms GenerateDataKey: the key's policy does not allow it" in err
    assert "remedy: " in err
    assert not (tmp_path / "sealed.luma").exists()


@pytest.mark.parametrize("seal", ["seal: L0", "seal: L1"])
def test_a_job_that_names_no_key_asks_nothing(compiled, seal):
    made, run = compiled
    asked = len(made.cloud.app.requests)
    code, document, _ = run(seal)
    assert (code, document["kms"]) == (0, None)
    assert len(made.cloud.app.requests) == asked


def test_an_islands_key_where_the_plan_names_a_file_or_nothing(tmp_path):
    file = tmp_path / "data.key"
    key = generate_data_key(file)
    assert artifact_key(make_plan(key_file=str(file))) == key
    assert artifact_key(make_plan()) is None


def test_a_role_of_the_instance_is_asked_for_only_where_the_job_says_so(monkeypatch, tenant):
    from runtime.artifact import kms as package

    made = tenant("L1")
    seen = []
    real = package.AwsAccess
    monkeypatch.setattr(package, "AwsAccess", lambda **given: seen.append(given) or real(**given))
    reference = KmsPlan(key_arn=made.arn, customer=made.customer)
    artifact_key(make_plan(kms=reference))
    assert seen == [{"instance_role": False}]


def test_the_customer_of_the_plan_is_the_islands_own(compiled, tmp_path, home, monkeypatch):
    made, run = compiled
    assert run(kms(made))[0] == 0
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["agent"])
    other = artifact_key(make_plan(kms=KmsPlan(key_arn=made.arn, customer="someone-else")))
    with pytest.raises(KeyServiceError, match="someone-else"):
        open_artifact(tmp_path / "sealed.luma", trusted_signer=_own_signer(home), key=other)


@pytest.mark.parametrize("kms", ["text", {"key_arn": "arn"}, {"key_arn": "a", "more": 1}, []])
def test_a_plan_whose_key_is_not_one_is_refused(tmp_path, kms):
    make_plan().write(tmp_path)
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(document | {"kms": kms}))
    with pytest.raises(RunError, match=r"plan\.json"):
        RunPlan.read(tmp_path)


def test_the_job_file_says_the_same(tmp_path):
    path = tmp_path / "job.yaml"
    arn = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    path.write_text(
        JOB.format(seal=f"kms: {{key_arn: '{arn}', customer: acme, instance_role: true}}")
    )
    spec = JobSpec.from_yaml(path)
    assert spec.compile.kms is not None
    assert spec.compile.kms.model_dump() == {
        "key_arn": arn,
        "customer": "acme",
        "instance_role": True,
    }
    assert JobSpec.from_yaml(_rewritten(spec, tmp_path)) == spec


def _rewritten(spec, folder):
    path = folder / "again.yaml"
    path.write_text(spec.to_yaml())
    return path


def test_a_service_of_this_machine_seals_under_the_key_that_the_client_asks_for(
    compiled, tmp_path, monkeypatch, capsys
):
    made, _ = compiled
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["sealer"])
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(seal=kms(made)))
    key = rsa.generate_private_key(public_exponent=65537, key_size=3072)
    with running(key) as service:
        code = main(["compile", str(path), "--service", str(service.address), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["seal"]) == (0, "L1 (local service)")
    assert made.cloud.app.requests[-1][0] == "GenerateDataKey"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.roles["agent"])
    reference = KmsPlan(key_arn=made.arn, customer=made.customer)
    opened = open_artifact(
        tmp_path / "sealed.luma",
        trusted_signer=load_public_key(tmp_path / "sealed.signer.pem"),
        key=artifact_key(make_plan(kms=reference)),
    )
    assert opened.target_payload("cpu").target == "cpu"
