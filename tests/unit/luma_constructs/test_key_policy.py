"""Key policies from measurements: what stands in them, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import luma_constructs
from luma_constructs.key_policy import (
    ADMINISTRATION,
    SCHEMA,
    AcceptedAmis,
    AcceptedImages,
    KeyPolicyError,
    Measurements,
    key_policy,
    key_statements,
    policy_statements,
)
from tests.support.iam_policy import decide

ROOT_FOLDER = Path(luma_constructs.__file__).parents[1]
ONE, TWO, SIGNED, ZEROS = "a1" * 48, "b2" * 48, "c8" * 48, "00" * 48
ADMIN, SEALER, AGENT = (f"arn:aws:iam::111122223333:role/{n}" for n in ("admin", "sealer", "agent"))
ROOT = "arn:aws:iam::111122223333:root"
CONTEXT = "kms:EncryptionContext:luma:"
ATTESTED = "kms:RecipientAttestation:"
BASE = {
    "customer": "acme",
    "administrators": [ADMIN],
    "sealers": [SEALER],
    "agents": [AGENT],
}
IMAGES = AcceptedImages(pcrs={"PCR0": [ONE, TWO]})
AMIS = AcceptedAmis(pcrs={"PCR4": [ONE], "PCR12": [ZEROS]})


def by_sid(statements):
    return {statement["Sid"]: statement for statement in statements}


def measurements(**images) -> Measurements:
    return Measurements.from_json(json.dumps({"schema": SCHEMA, "images": images}))


CPU = {"PCR0": ONE, "PCR1": "11" * 48, "PCR2": "22" * 48, "PCR8": SIGNED}
CUDA = {"PCR0": TWO, "PCR1": "33" * 48, "PCR2": "44" * 48}


def test_l2_word_by_word():
    statements = key_statements(level="L2", images=IMAGES, **BASE)
    assert statements == [
        {
            "Sid": "Administration",
            "Effect": "Allow",
            "Principal": {"AWS": ADMIN},
            "Action": list(ADMINISTRATION),
            "Resource": "*",
        },
        {
            "Sid": "Seal",
            "Effect": "Allow",
            "Principal": {"AWS": SEALER},
            "Action": "kms:GenerateDataKey",
            "Resource": "*",
            "Condition": {
                "StringEquals": {"kms:EncryptionContext:luma:customer": "acme"},
                "StringEqualsIgnoreCase": {"kms:RecipientAttestation:ImageSha384": [ONE, TWO]},
            },
        },
        {
            "Sid": "Open",
            "Effect": "Allow",
            "Principal": {"AWS": AGENT},
            "Action": "kms:Decrypt",
            "Resource": "*",
            "Condition": {"StringEquals": {"kms:EncryptionContext:luma:customer": "acme"}},
        },
        {
            "Sid": "SealOnlyAttestedImageSha384",
            "Effect": "Deny",
            "Principal": "*",
            "Action": [
                "kms:GenerateDataKey",
                "kms:Encrypt",
                "kms:GenerateDataKeyPair",
                "kms:GenerateDataKeyPairWithoutPlaintext",
                "kms:GenerateDataKeyWithoutPlaintext",
                "kms:ReEncryptTo",
            ],
            "Resource": "*",
            "Condition": {
                "StringNotEqualsIgnoreCase": {"kms:RecipientAttestation:ImageSha384": [ONE, TWO]}
            },
        },
        {
            "Sid": "OnlyThisCustomer",
            "Effect": "Deny",
            "Principal": "*",
            "Action": [
                "kms:GenerateDataKey",
                "kms:Encrypt",
                "kms:GenerateDataKeyPair",
                "kms:GenerateDataKeyPairWithoutPlaintext",
                "kms:GenerateDataKeyWithoutPlaintext",
                "kms:ReEncryptTo",
                "kms:Decrypt",
                "kms:ReEncryptFrom",
            ],
            "Resource": "*",
            "Condition": {"StringNotEquals": {"kms:EncryptionContext:luma:customer": "acme"}},
        },
        {
            **statements[-2],
            "Sid": "OnlyForAnArtifact",
            "Condition": {"Null": {"kms:EncryptionContext:luma:artifact": "true"}},
        },
    ]


def test_l3_asks_for_the_ami_with_one_deny_a_register():
    found = by_sid(key_statements(level="L3", images=IMAGES, amis=AMIS, **BASE))
    assert found["Open"]["Condition"]["StringEqualsIgnoreCase"] == {
        f"{ATTESTED}NitroTPMPCR12": [ZEROS],
        f"{ATTESTED}NitroTPMPCR4": [ONE],
    }
    for register, value in (("NitroTPMPCR4", ONE), ("NitroTPMPCR12", ZEROS)):
        deny = found[f"OpenOnlyAttested{register}"]
        assert deny["Effect"] == "Deny"
        assert deny["Action"] == ["kms:Decrypt", "kms:ReEncryptFrom"]
        assert deny["Condition"] == {
            "StringNotEqualsIgnoreCase": {f"{ATTESTED}{register}": [value]}
        }


def test_l1_needs_no_image_and_takes_one():
    bare = by_sid(key_statements(level="L1", **BASE))
    assert "StringEqualsIgnoreCase" not in bare["Seal"]["Condition"]
    assert not any(sid.startswith("SealOnly") for sid in bare)
    attested = by_sid(key_statements(level="L1", images=IMAGES, **BASE))
    assert "SealOnlyAttestedImageSha384" in attested


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
def test_every_deny_has_one_operator_and_one_key(level):
    images = AcceptedImages(pcrs={"PCR0": [ONE], "PCR8": [SIGNED]})
    amis = AMIS if level == "L3" else None
    policy = key_policy(level=level, images=images, amis=amis, **BASE)
    sids = [statement["Sid"] for statement in policy["Statement"]]
    assert len(sids) == len(set(sids))
    for statement in policy["Statement"]:
        if statement["Effect"] == "Deny":
            ((_, keys),) = statement["Condition"].items()
            assert len(keys) == 1
    assert json.loads(json.dumps(policy)) == policy
    assert len(json.dumps(policy)) < 32_768  # KMS's limit of a key policy


def test_no_allow_is_unconditional_but_administration():
    policy = key_policy(level="L3", images=IMAGES, amis=AMIS, **BASE)
    for statement in policy["Statement"]:
        if statement["Effect"] == "Allow" and statement["Sid"] != "Administration":
            assert statement["Condition"]
            assert statement["Principal"] != "*"
    using = ("Decrypt", "Encrypt", "GenerateDataKey", "ReEncrypt", "CreateGrant", "Sign", "*")
    assert not [a for a in ADMINISTRATION if a.removeprefix("kms:").startswith(using)]


def decision(level: str, action: str, principal: str, keys: dict[str, str]) -> str:
    amis = AMIS if level == "L3" else None
    policy = key_policy(level=level, images=IMAGES, amis=amis, **BASE)
    named = {f"{CONTEXT}customer": "acme", f"{CONTEXT}artifact": "0d" * 48}
    return decide(policy, principal=principal, action=action, keys=named | keys)


@given(
    level=st.sampled_from(["L2", "L3"]),
    action=st.sampled_from(
        ["kms:GenerateDataKey", "kms:Encrypt", "kms:ReEncryptTo", "kms:GenerateDataKeyPair"]
    ),
    principal=st.sampled_from([SEALER, AGENT, ADMIN]),
    pcr0=st.sampled_from([None, ONE, TWO, TWO.upper(), SIGNED, ZEROS]),
    other=st.sampled_from(["PCR0", "PCR8", "NitroTPMPCR4"]),
)
def test_only_the_sealer_in_an_accepted_image_seals(level, action, principal, pcr0, other):
    keys = {f"{ATTESTED}{other}": ONE}
    if pcr0 is not None:
        keys[f"{ATTESTED}ImageSha384"] = pcr0
    allowed = decision(level, action, principal, keys) == "allow"
    accepted = pcr0 is not None and pcr0.lower() in (ONE, TWO)
    assert allowed == (action == "kms:GenerateDataKey" and principal == SEALER and accepted)


@given(
    level=st.sampled_from(["L2", "L3"]),
    principal=st.sampled_from([SEALER, AGENT, ADMIN]),
    pcr4=st.sampled_from([None, ONE, TWO, ZEROS]),
    pcr12=st.sampled_from([None, ZEROS, ONE]),
    customer=st.sampled_from([None, "acme", "other"]),
)
def test_only_agents_open_and_at_l3_only_on_an_accepted_ami(
    level, principal, pcr4, pcr12, customer
):
    keys = {f"{ATTESTED}NitroTPMPCR4": pcr4, f"{ATTESTED}NitroTPMPCR12": pcr12}
    keys |= {f"{CONTEXT}customer": customer, f"{CONTEXT}artifact": "0d"}
    keys = {name: value for name, value in keys.items() if value is not None}
    amis = AMIS if level == "L3" else None
    policy = key_policy(level=level, images=IMAGES, amis=amis, **BASE)
    found = decide(policy, principal=principal, action="kms:Decrypt", keys=keys)
    attested = level == "L2" or (pcr4 == ONE and pcr12 == ZEROS)
    assert (found == "allow") == (principal == AGENT and attested and customer == "acme")
    without = {name: value for name, value in keys.items() if not name.endswith("artifact")}
    assert decide(policy, principal=principal, action="kms:Decrypt", keys=without) != "allow"


@pytest.mark.parametrize("action", ["kms:PutKeyPolicy", "kms:DisableKey", "kms:DescribeKey"])
def test_administrators_administer(action):
    assert decision("L3", action, ADMIN, {}) == "allow"
    assert decision("L3", action, SEALER, {}) == "none"


def test_root_may_administer_and_nothing_else():
    policy = key_policy(level="L2", images=IMAGES, **BASE | {"administrators": [ROOT]})
    anyone = "arn:aws:iam::111122223333:role/anyone"
    named = {f"{CONTEXT}customer": "acme", f"{CONTEXT}artifact": "0d"}
    for action in ("kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant"):
        assert decide(policy, principal=anyone, action=action, keys=named) != "allow"
    assert decide(policy, principal=anyone, action="kms:DisableKey", keys={}) == "allow"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"level": "L0"}, "level: 'L0'"),
        ({"level": "L4"}, "level: 'L4'"),
        ({"customer": "Acme Inc"}, "customer: 'Acme Inc'"),
        ({"customer": ""}, "customer: ''"),
        ({"administrators": []}, "administrators"),
        ({"agents": AGENT}, "agents: .* expected a list"),
        ({"agents": ["*"]}, r"agents: '\*'"),
        ({"agents": [ROOT]}, "agents: .*root"),
        ({"sealers": [ROOT]}, "sealers: .*root"),
        ({"sealers": ["arn:aws:s3:::bucket"]}, "sealers"),
        ({"sealers": [AGENT + "*"]}, "sealers"),
        ({"images": None}, "images: missing; at L2"),
        ({"level": "L3"}, "amis: missing; at L3"),
        ({"amis": AMIS}, "amis: given; at L2"),
    ],
)
def test_wrong_arguments_are_named(change, match):
    with pytest.raises(KeyPolicyError, match=match):
        key_statements(**BASE | {"level": "L2", "images": IMAGES} | change)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(KeyPolicyError) as caught:
        key_statements(**BASE | {"level": "L3", "customer": "", "agents": ["x"]})
    assert str(caught.value).count("; ") >= 4


def test_roles_known_only_at_deployment_are_taken():
    token = "${Token[Role.Arn.123]}"
    found = by_sid(key_statements(**BASE | {"level": "L1", "agents": [token, AGENT]}))
    assert found["Open"]["Principal"] == {"AWS": [token, AGENT]}


@pytest.mark.parametrize(
    ("kind", "pcrs", "match"),
    [
        (AcceptedImages, {}, "images: registers"),
        (AcceptedImages, {"PCR1": [ONE]}, "images: registers"),
        (AcceptedImages, {"PCR0": [ONE], "PCR3": [ONE]}, "images: registers"),
        (AcceptedImages, {"PCR0": []}, "images.PCR0: expected a list"),
        (AcceptedImages, {"PCR0": ONE}, "images.PCR0: expected a list"),
        (AcceptedImages, {"PCR0": [ONE[:-1]]}, "images.PCR0: .* 96 hex"),
        (AcceptedImages, {"PCR0": ["g" * 96]}, "images.PCR0: .* 96 hex"),
        (AcceptedImages, {"PCR0": [None]}, "images.PCR0: .* 96 hex"),
        (AcceptedImages, {"PCR0": [ONE, ZEROS]}, "images.PCR0: zeros"),
        (AcceptedImages, {"PCR8": [ZEROS]}, "images.PCR8: zeros"),
        (AcceptedAmis, {"PCR4": [ONE]}, "amis: registers"),
        (AcceptedAmis, {"PCR12": [ZEROS]}, "amis: registers"),
        (AcceptedAmis, {"PCR0": [ONE], "PCR7": [ONE]}, "amis: registers"),
        (AcceptedAmis, {"PCR4": [ZEROS], "PCR12": [ZEROS]}, "amis.PCR4: zeros"),
        (AcceptedAmis, {"PCR7": [ZEROS]}, "amis.PCR7: zeros"),
    ],
)
def test_registers_that_pin_nothing_are_refused(kind, pcrs, match):
    with pytest.raises(KeyPolicyError, match=match):
        kind(pcrs=pcrs)


def test_values_are_lower_case_and_once():
    made = AcceptedImages(pcrs={"PCR0": [ONE.upper(), ONE, TWO]})
    assert made.pcrs["PCR0"] == (ONE, TWO)
    with pytest.raises(TypeError):
        made.pcrs["PCR0"] = ()
    assert AcceptedAmis(pcrs={"PCR7": [ONE]}).conditions == {f"{ATTESTED}NitroTPMPCR7": [ONE]}


def test_measurements_become_pins():
    read = measurements(cpu=CPU, cuda=CUDA)
    assert read.accepted().conditions == {f"{ATTESTED}ImageSha384": [ONE, TWO]}
    assert read.accepted("cuda").conditions == {f"{ATTESTED}ImageSha384": [TWO]}
    both = read.accepted("cpu", pins=("PCR0", "PCR8"))
    assert both.conditions == {f"{ATTESTED}ImageSha384": [ONE], f"{ATTESTED}PCR8": [SIGNED]}


@pytest.mark.parametrize(
    ("names", "pins", "match"),
    [
        (["rocm"], ("PCR0",), "no rocm; there are cpu, cuda"),
        (["cuda"], ("PCR8",), r"images\.cuda\.PCR8: missing; sign"),
        (["cpu"], (), "images: registers"),
        (["cpu"], ("PCR1",), "images: registers"),
    ],
)
def test_pins_that_are_not_there(names, pins, match):
    with pytest.raises(KeyPolicyError, match=match):
        measurements(cpu=CPU, cuda=CUDA).accepted(*names, pins=pins)


def test_the_builders_measurements_are_read():
    from enclave_image.eif import policy_document, policy_registers

    unsigned = CPU | {"PCR8": ZEROS}
    written = policy_document({"cpu": policy_registers(unsigned), "cuda": policy_registers(CUDA)})
    read = Measurements.from_json(json.dumps(written | {"ramdisks": {}, "references": []}))
    assert read.accepted("cpu").pcrs == {"PCR0": (ONE,)}
    with pytest.raises(KeyPolicyError, match="sign the image"):
        read.accepted("cpu", pins=("PCR8",))


def test_debug_measurements_become_no_policy():
    debug = measurements(cpu=CPU | {"PCR0": ZEROS})
    with pytest.raises(KeyPolicyError, match="zeros; every enclave in debug mode"):
        debug.accepted("cpu")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not JSON"),
        ("[]", r"measurements\.schema"),
        ("{}", r"measurements\.schema"),
        (json.dumps({"schema": "luma/measurements/0", "images": {}}), r"measurements\.schema"),
        (json.dumps({"schema": SCHEMA}), r"measurements\.images"),
        (json.dumps({"schema": SCHEMA, "images": {}}), r"measurements\.images"),
        (json.dumps({"schema": SCHEMA, "images": {"cpu": []}}), r"images\.cpu: expected"),
        (
            json.dumps({"schema": SCHEMA, "images": {"cpu": {"PCR0": ONE}}}),
            r"images\.cpu: expected",
        ),
        (
            json.dumps({"schema": SCHEMA, "images": {"cpu": CPU | {"PCR2": "x"}}}),
            r"images\.cpu\.PCR2: 'x'",
        ),
    ],
)
def test_other_measurements_are_refused(text, match):
    with pytest.raises(KeyPolicyError, match=match):
        Measurements.from_json(text)


def test_it_imports_the_standard_library_alone():
    script = (
        "import sys; before = set(sys.modules); import luma_constructs.key_policy;"
        "new = {n.split('.')[0] for n in set(sys.modules) - before} - {'luma_constructs'};"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT_FOLDER)!r}); {script}"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == []


def test_cdk_takes_the_statements():
    pytest.importorskip("aws_cdk", reason="needs aws-cdk-lib and Node")
    statements = key_statements(level="L3", images=IMAGES, amis=AMIS, **BASE)
    made = policy_statements(statements)
    assert len(made) == len(statements)
    for statement, ours in zip(made, statements, strict=True):
        back = statement.to_statement_json()
        assert back["Effect"] == ours["Effect"]
        assert back.get("Condition") == ours.get("Condition")
        assert back["Sid"] == ours["Sid"]
