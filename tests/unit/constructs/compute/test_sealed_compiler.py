"""The sealed compiler: its host's template, its key's policy, what is refused."""

from __future__ import annotations

import json
import shlex

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from luma_constructs import EnclaveImage, PropError, RunStore, SealedCompiler
from luma_constructs.key_policy import AcceptedAmis, key_policy
from runtime.artifact.accepted import AcceptedMeasurements
from tests.support.cdk import synthesized
from tests.unit.constructs.compute import stacks
from tests.unit.constructs.compute.policies import listed, statements_of
from tests.unit.constructs.compute.test_accelerator_fleet import one, templates, text_of

GOLDEN_PCR0 = (  # of `stacks.small_image`, as QEMU's Nitro Enclave measured the same sections
    "7d2bfb6d7c3d301485045ddbed03e21a0304d6f540a23a4522c8ca9133813c0b"
    "3b2956ef72606e06559ce0608a156fdc"
)
KEY = "AWS::KMS::Key"


@pytest.fixture(scope="module")
def sealed():
    return synthesized(stacks.sealed)


@pytest.fixture(scope="module")
def attested():
    return synthesized(stacks.sealed_l3)


@pytest.fixture(scope="module")
def key_file():
    return synthesized(stacks.key_file)


def policy_of(assembly):
    (key,) = [k for n, k in assembly.of_type(KEY).items() if n.startswith("CompilerKey")]
    return key["Properties"]["KeyPolicy"]["Statement"]


def by_sid(assembly):
    return {statement["Sid"]: statement for statement in policy_of(assembly)}


def test_the_image_s_measurement_is_a_literal_in_the_key_s_policy(sealed):
    statements = by_sid(sealed)
    measured = {"kms:RecipientAttestation:ImageSha384": [stacks.PCR0]}
    assert statements["Seal"]["Condition"]["StringEqualsIgnoreCase"] == measured
    denial = statements["SealOnlyAttestedImageSha384"]
    assert (denial["Effect"], denial["Principal"]) == ("Deny", "*")
    assert denial["Condition"] == {"StringNotEqualsIgnoreCase": measured}
    assert "kms:Encrypt" in denial["Action"]


def test_the_policy_is_the_one_that_the_module_makes(attested):
    """What CDK wrote, with the roles' references in place, is the module's own policy."""
    agent, admin = "arn:aws:iam::111122223333:role/agent", "arn:aws:iam::111122223333:role/admin"
    expected = key_policy(
        level="L3",
        customer="acme",
        administrators=[admin],
        sealers=["arn:aws:iam::111122223333:role/compiler"],
        agents=[agent],
        images=EnclaveImage.from_file(stacks.small_image()).accepted,
        amis=AcceptedAmis(pcrs={"PCR7": ("12" * 48,)}),
    )["Statement"]
    found = json.loads(json.dumps(policy_of(attested)))
    for statement in found:
        role = statement["Principal"]
        if isinstance(role, dict) and "Fn::GetAtt" in role["AWS"]:
            role["AWS"] = "arn:aws:iam::111122223333:role/compiler"
    assert list(map(sorted_actions, found)) == list(map(sorted_actions, expected))


def sorted_actions(statement):
    """A statement with its actions in one order: CDK sorts them, and IAM does not care."""
    return statement | {"Action": sorted(listed(statement["Action"]))}


def test_a_file_is_measured_at_synth_and_uploaded(attested):
    condition = by_sid(attested)["Seal"]["Condition"]["StringEqualsIgnoreCase"]
    assert condition == {"kms:RecipientAttestation:ImageSha384": [GOLDEN_PCR0]}
    script = text_of(templates(attested, "CompilerTemplate")[0]["UserData"])
    assert "--eif 's3://cdk-" in script


def test_only_agents_open_and_only_the_compiler_seals(sealed):
    statements = by_sid(sealed)
    assert statements["Open"]["Action"] == "kms:Decrypt"
    assert statements["Open"]["Principal"]["AWS"]["Fn::GetAtt"][0].startswith("FleetRole")
    assert statements["Seal"]["Principal"]["AWS"]["Fn::GetAtt"][0].startswith("CompilerRole")
    root = statements["Administration"]
    assert text_of(root["Principal"]["AWS"]) == "arn:<AWS::Partition>:iam::<AWS::AccountId>:root"
    assert not [a for a in root["Action"] if "*" in a or "Decrypt" in a or "CreateGrant" in a]


def test_the_key_is_kept_and_rotates(sealed):
    (key,) = sealed.of_type(KEY).values()
    assert key["DeletionPolicy"] == key["UpdateReplacePolicy"] == "Retain"
    assert key["Properties"]["EnableKeyRotation"] is True
    assert list(sealed.of_type(KEY)) == ["CompilerKey27DCA913"]


def test_the_host_can_start_an_enclave_and_asks_imdsv2(sealed):
    (template,) = templates(sealed, "CompilerTemplate")
    assert template["EnclaveOptions"] == {"Enabled": True}
    assert template["MetadataOptions"]["HttpTokens"] == "required"
    assert template["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


def test_the_host_is_on_demand_and_none_while_nothing_is_compiled(sealed):
    group = one(sealed, "AWS::AutoScaling::AutoScalingGroup", "CompilerGroup")
    assert (group["MinSize"], group["MaxSize"]) == ("0", "1")
    policy = group["MixedInstancesPolicy"]
    assert policy["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 100
    hook = one(sealed, "AWS::AutoScaling::LifecycleHook", "CompilerGroup")
    assert hook["HeartbeatTimeout"] == 900


def lines_of(assembly):
    return text_of(templates(assembly, "CompilerTemplate")[0]["UserData"]).splitlines()


def test_user_data_makes_the_parent_before_the_node(sealed):
    lines = lines_of(sealed)
    (parent,) = [line for line in lines if "enclave_host.sh" in line]
    assert shlex.split(parent)[2:] == [
        "--eif", "s3://team-images/compiler.eif", "--memory-mib", "12288", "--cpus", "6",
        "--region", "<AWS::Region>",
    ]  # fmt: skip
    (node,) = [line for line in lines if "bootstrap.sh" in line]
    assert lines.index(parent) < lines.index(node)
    assert "--family cpu " in node
    assert "--env LUMA_COMPILER=vsock:16:5005" in node
    assert "--env LUMA_MEASUREMENTS=/etc/luma/measurements.json" in node


def test_clients_check_the_enclave_against_the_same_measurements(sealed, tmp_path):
    (line,) = [line for line in lines_of(sealed) if line.startswith("echo '{")]
    command, text, target = shlex.split(line)
    assert (command, target) == ("echo", ">/etc/luma/measurements.json")
    path = tmp_path / "measurements.json"
    path.write_text(text)
    accepted = AcceptedMeasurements.from_file(path).images
    assert list(accepted) == ["compiler-cpu"]


def resources_of(assembly, action):
    """What the compiler's role may do this to; CDK joins statements with the same actions."""
    return {
        text_of(resource)
        for statement in statements_of(assembly, "CompilerRole")
        if action in statement["Action"]
        for resource in listed(statement["Resource"])
    }


def test_the_role_fetches_its_image_and_no_other_object_of_that_bucket(sealed):
    images = {r for r in resources_of(sealed, "s3:GetObject") if "team-images" in r}
    assert images == {"arn:<AWS::Partition>:s3:::team-images/compiler.eif"}


def test_the_compiler_sees_a_run_s_graph_and_nothing_else_of_it(sealed):
    def objects(action):
        found = (r.partition("/runs/*/") for r in resources_of(sealed, action))
        return {name for bucket, _, name in found if bucket.startswith("<StoreBucket")}

    read = {"run.json", "plan.json", "job.yaml", "model.graph", "artifact.json"}
    assert objects("s3:GetObject") == read
    written = {"artifact.luma", "artifact.json", "signer.pem", "logs/*"}
    assert objects("s3:PutObject") == written
    assert objects("s3:DeleteObject") == set()


def test_iam_gives_the_role_nothing_of_the_key(sealed):
    assert not [a for s in statements_of(sealed, "CompilerRole") for a in s["Action"] if "kms" in a]


def test_with_key_files_there_is_neither_key_nor_enclave(key_file):
    assert key_file.of_type(KEY) == {}
    (template,) = templates(key_file, "CompilerTemplate")
    assert "EnclaveOptions" not in template
    script = text_of(template["UserData"])
    assert "enclave_host.sh" not in script
    assert "--family compiler " in script
    assert "--env LUMA_COMPILER=local" in script


# -------------------------------------------------------------------------- refused


@pytest.fixture
def scope():
    stack = cdk.Stack(cdk.App(), "Luma")
    vpc = ec2.Vpc.from_vpc_attributes(
        stack, "Vpc", vpc_id="vpc-1", availability_zones=["a"], private_subnet_ids=["subnet-1"]
    )
    role = iam.Role.from_role_arn(stack, "Agent", "arn:aws:iam::111122223333:role/agent")
    return stack, {"vpc": vpc, "store": RunStore(stack, "Store"), "agents": [role]}


def placed(stack, registers=stacks.REGISTERS):
    bucket = s3.Bucket.from_bucket_name(stack, "Images", "team-images")
    return EnclaveImage.from_bucket(bucket, "a.eif", registers=registers)


WRONG = {
    "no such level": ({"level": "L4"}, "level: 'L4'; expected 'L1', 'L2' or 'L3'"),
    "no image": (
        {"customer": "acme"},
        "enclave_image: None; expected an image at L2; EnclaveImage.from_file measures one",
    ),
    "an image at L1": (
        {"level": "L1", "customer": "acme", "enclave_image": placed},
        "enclave_image: .*; expected nothing at L1; ask for L2",
    ),
    "no customer": ({"enclave_image": placed}, "customer: None; expected the customer's name"),
    "a bad customer": (
        {"customer": "Acme Inc", "enclave_image": placed},
        "customer: 'Acme Inc'; expected 1 to 63 of a-z",
    ),
    "no attested AMI": (
        {"level": "L3", "customer": "acme", "enclave_image": placed},
        "amis: None; expected AcceptedAmis at L3",
    ),
    "an attested AMI at L2": (
        {
            "customer": "acme",
            "enclave_image": placed,
            "amis": AcceptedAmis(pcrs={"PCR7": ("12" * 48,)}),
        },
        "amis: .*; expected nothing at L2",
    ),
    "nobody who opens": (
        {"customer": "acme", "enclave_image": placed, "agents": []},
        r"agents: \[\]; expected at least one role .*; pass \[fleet.role for fleet in fleets\]",
    ),
    "zeros": (
        {"customer": "acme", "enclave_image": lambda s: placed(s, {"PCR0": "0" * 96})},
        "enclave_image: 'compiler-cpu'; expected measurements; images.PCR0: zeros; every enclave in",
    ),
    "no PCR0": (
        {"customer": "acme", "enclave_image": lambda s: placed(s, {"PCR2": "ab" * 48})},
        "expected measurements; images.PCR0: ''; expected 96 hex digits",
    ),
    "an odd number of processors": (
        {"customer": "acme", "enclave_image": placed, "enclave_cpus": 3},
        "enclave_cpus: 3; expected an even number; cores are whole",
    ),
    "all processors": (
        {"customer": "acme", "enclave_image": placed, "enclave_cpus": 8},
        r"enclave_cpus: 8; expected 2 less than m7i.2xlarge has \(8\)",
    ),
    "all memory": (
        {
            "customer": "acme",
            "enclave_image": placed,
            "enclave_memory": cdk.Size.gibibytes(32),
        },
        "enclave_memory: '32 GiB'; expected 2 GiB less than m7i.2xlarge has",
    ),
    "less than four images": (
        {
            "customer": "acme",
            "enclave_image": lambda _: EnclaveImage.from_file(stacks.small_image()),
            "enclave_memory": cdk.Size.mebibytes(0),
        },
        "enclave_memory: '0 GiB'; expected at least 0.00 GiB, four times the image",
    ),
    "a host that is no parent": (
        {
            "customer": "acme",
            "enclave_image": placed,
            "instance_types": [ec2.InstanceType("g5g.4xlarge")],
        },
        "instance_types: 'g5g.4xlarge'; expected types that can be an enclave's parent",
    ),
    "an arm host": (
        {
            "customer": "acme",
            "enclave_image": placed,
            "instance_types": [ec2.InstanceType("c7g.4xlarge")],
        },
        "instance_types: 'c7g.4xlarge'; expected types of x86_64",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_props_are_refused_before_any_resource(case, scope):
    stack, shared = scope
    wrong, message = WRONG[case]
    props = {**shared, **wrong}
    if callable(props.get("enclave_image")):
        props["enclave_image"] = props["enclave_image"](stack)
    with pytest.raises(PropError, match=message):
        SealedCompiler(stack, "Compiler", **props)
    left = stack.node.find_child("Compiler").node.find_all()
    assert not [c for c in left if isinstance(c, cdk.CfnResource)]


def test_a_key_of_one_s_own_is_left_as_it_is(scope):
    stack, shared = scope
    key = kms.Key.from_key_arn(stack, "Key", "arn:aws:kms:us-east-1:111122223333:key/1234")
    compiler = SealedCompiler(
        stack, "Compiler", customer="acme", enclave_image=placed(stack), key=key, **shared
    )
    assert compiler.key is key
    assert compiler.node.try_find_child("Key") is None
    assert "luma:foreignKeyPolicy" in str([entry.data for entry in compiler.node.metadata])
