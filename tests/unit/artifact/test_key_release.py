"""What a key policy makes sure of, held against an evaluation of the policy as IAM does it."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luma_constructs.key_policy import AcceptedAmis, AcceptedImages, key_policy
from runtime.artifact import AcceptedMeasurements, KeyPolicy
from runtime.spec import ArtifactError
from tests.support.iam_policy import decide

ACCOUNT = "arn:aws:iam::123456789012"
AGENT, OTHER = f"{ACCOUNT}:role/agent", f"{ACCOUNT}:role/other"
ZEROS, IMAGE = "0" * 96, "a0" * 48
KERNEL, NEXT_KERNEL, BOOT, OVERRIDE = "c4" * 48, "d4" * 48, "c7" * 48, "ee" * 48
ACCEPTED = AcceptedMeasurements.from_json(
    {
        "schema": "luma/measurements/1",
        "images": {},
        "amis": {
            "node": {"PCR4": KERNEL, "PCR12": ZEROS},
            "node-next": {"PCR4": NEXT_KERNEL, "PCR12": ZEROS},
            "secure": {"PCR7": BOOT},
        },
    }
)


def made(level: str = "L3", pcrs=None, **changes) -> dict:
    """Give the policy that `luma_constructs` makes."""
    given = {
        "level": level,
        "customer": "acme",
        "administrators": [f"{ACCOUNT}:root"],
        "sealers": [f"{ACCOUNT}:role/sealer"],
        "agents": [AGENT],
        "images": AcceptedImages(pcrs={"PCR0": (IMAGE,)}),
    }
    if level == "L3":
        given["amis"] = AcceptedAmis(pcrs=pcrs or {"PCR4": (KERNEL,), "PCR12": (ZEROS,)})
    return key_policy(**given | changes)


def opens_only_for_amis(policy: dict) -> bool:
    return KeyPolicy.from_json(policy).opens_only_for(ACCEPTED)


@pytest.mark.parametrize(
    "pcrs",
    [
        {"PCR4": (KERNEL,), "PCR12": (ZEROS,)},
        {"PCR4": (KERNEL.upper(), NEXT_KERNEL), "PCR12": (ZEROS,)},
        {"PCR7": (BOOT,)},
        {"PCR4": (OVERRIDE,), "PCR7": (BOOT,), "PCR12": (OVERRIDE,)},
    ],
)
def test_the_policies_that_the_constructs_make_at_l3(pcrs):
    policy = KeyPolicy.from_json(made(pcrs=pcrs))
    assert policy.opens_only_for(ACCEPTED)
    assert policy.is_of("acme")
    assert not policy.is_of("someone-else")
    told = policy.told()
    assert len(told["opening"]) == len(pcrs)
    assert told["sealing"] == (f"SealOnlyAttestedImageSha384: PCR0 must be one of {IMAGE}",)


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_weaker_levels_open_on_any_machine(level):
    policy = KeyPolicy.from_json(made(level))
    assert not policy.opens_only_for(ACCEPTED)
    assert policy.is_of("acme")
    assert policy.told()["opening"] == ("no attestation is asked for",)


@pytest.mark.parametrize(
    "pcrs",
    [
        {"PCR4": (OVERRIDE,), "PCR12": (ZEROS,)},
        {"PCR4": (KERNEL, OVERRIDE), "PCR12": (ZEROS,)},
        {"PCR4": (KERNEL,), "PCR12": (OVERRIDE,)},
        {"PCR4": (KERNEL,), "PCR12": (ZEROS, OVERRIDE)},
        {"PCR7": (OVERRIDE,)},
        {"PCR7": (BOOT, OVERRIDE)},
    ],
)
def test_amis_that_nobody_accepts(pcrs):
    assert not opens_only_for_amis(made(pcrs=pcrs))


def changed(change) -> dict:
    """Give the policy of L3 after a change to its Denies of opening."""
    policy = copy.deepcopy(made())
    for statement in policy["Statement"]:
        if statement["Effect"] == "Deny" and statement["Sid"].startswith("OpenOnly"):
            change(statement)
    return policy


def two_keys(statement):
    statement["Condition"]["StringNotEqualsIgnoreCase"] |= {"aws:RequestedRegion": "eu-west-1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(Effect="Allow"),
        lambda s: s.update(Principal={"AWS": AGENT}),
        lambda s: s.update(Resource="arn:aws:kms:eu-west-1:123456789012:key/other"),
        lambda s: s.update(Action="kms:GenerateDataKey"),
        lambda s: s.update(Action=["kms:Decrypt"]),
        lambda s: s.update(Action=["kms:ReEncryptFrom"]),
        lambda s: s.update(Action=["kms:Decryp"]),
        lambda s: s.update(Action=[]),
        lambda s: s.update(NotAction=s.pop("Action")),
        lambda s: s.update(NotPrincipal={"AWS": AGENT}),
        lambda s: s.pop("Condition"),
        two_keys,
        lambda s: s["Condition"].update(Bool={"aws:SecureTransport": "true"}),
        lambda s: s.update(
            Condition={"StringEqualsIgnoreCase": s["Condition"]["StringNotEqualsIgnoreCase"]}
        ),
        lambda s: s.update(
            Condition={"StringNotLike": s["Condition"]["StringNotEqualsIgnoreCase"]}
        ),
        lambda s: s.update(
            Condition={"ForAllValues:StringNotEquals": s["Condition"]["StringNotEqualsIgnoreCase"]}
        ),
        lambda s: s.update(
            Condition={"StringNotEquals": {"kms:RecipientAttestation:PCR4": [KERNEL]}}
        ),
        lambda s: s.update(
            Condition={"StringNotEquals": {"kms:RecipientAttestation:NitroTPMPCR4": ["${x}"]}}
        ),
        lambda s: s.update(
            Condition={"StringNotEquals": {"kms:RecipientAttestation:NitroTPMPCR4": [7]}}
        ),
    ],
)
def test_a_deny_that_makes_sure_of_less_counts_for_nothing(change):
    assert not opens_only_for_amis(changed(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(Action="kms:*"),
        lambda s: s.update(Action=["KMS:de*", "kms:?eEncryptFrom"]),
        lambda s: s.update(Action="*"),
        lambda s: s.update(Resource=["*"]),
        lambda s: s.pop("Sid"),
    ],
)
def test_other_ways_to_write_the_same_deny(change):
    assert opens_only_for_amis(changed(change))


def test_one_register_of_two_is_not_enough():
    for gone in ("OpenOnlyAttestedNitroTPMPCR4", "OpenOnlyAttestedNitroTPMPCR12"):
        policy = made()
        policy["Statement"] = [s for s in policy["Statement"] if s["Sid"] != gone]
        assert not opens_only_for_amis(policy)


@pytest.mark.parametrize("action", ["kms:Decrypt", "kms:ReEncryptFrom", "kms:Encrypt"])
def test_a_customer_must_be_named_for_each_way_of_opening(action):
    policy = made()
    for statement in policy["Statement"]:
        if statement["Sid"] == "OnlyThisCustomer":
            statement["Action"] = action
    assert not KeyPolicy.from_json(policy).is_of("acme")


def test_a_deny_that_lets_two_customers_through_is_of_neither():
    policy = made()
    for statement in policy["Statement"]:
        if statement["Sid"] == "OnlyThisCustomer":
            named = statement["Condition"]["StringNotEquals"]
            named["kms:EncryptionContext:luma:customer"] = ["acme", "other"]
    assert not KeyPolicy.from_json(policy).is_of("acme")
    assert not KeyPolicy.from_json(policy).is_of("other")


def test_another_statement_lifts_no_deny():
    policy = made()
    anyone = {"Effect": "Allow", "Principal": "*", "Action": "kms:*", "Resource": "*"}
    policy["Statement"].append(anyone)
    assert opens_only_for_amis(policy)
    assert KeyPolicy.from_json(policy).is_of("acme")


def test_several_denies_of_a_register_leave_what_all_let_through():
    policy = made(pcrs={"PCR4": (KERNEL, OVERRIDE), "PCR12": (ZEROS,)})
    assert not opens_only_for_amis(policy)
    tighter = made(pcrs={"PCR4": (KERNEL, NEXT_KERNEL), "PCR12": (ZEROS,)})
    policy["Statement"] += tighter["Statement"]
    assert opens_only_for_amis(policy)
    register = KeyPolicy.from_json(policy).machines("kms:Decrypt")[4]
    assert register == {bytes.fromhex(KERNEL)}


def test_too_many_combinations_make_sure_of_nothing():
    many = tuple(f"{i:096x}" for i in range(1, 66))
    pcrs = {"PCR4": many, "PCR7": many, "PCR12": (ZEROS, OVERRIDE)}
    assert not opens_only_for_amis(made(pcrs=pcrs))


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ([], r"key policy\.Version"),
        ({}, r"key policy\.Version: None"),
        ({"Version": "2008-10-17", "Statement": []}, r"key policy\.Version: '2008-10-17'"),
        ({"Version": "2012-10-17"}, r"key policy\.Statement"),
        ({"Version": "2012-10-17", "Statement": [{}] * 257}, r"key policy\.Statement"),
    ],
)
def test_what_is_no_policy(document, match):
    with pytest.raises(ArtifactError, match=match):
        KeyPolicy.from_json(document)


def test_one_statement_needs_no_list():
    statement = made()["Statement"][-1]
    policy = {"Version": "2012-10-17", "Statement": statement}
    assert KeyPolicy.from_json(policy).told()["sealing"] == ("no attestation is asked for",)


@pytest.mark.parametrize("statement", [None, 7, [], {}, {"Effect": "Deny"}, {"Sid": {}}])
def test_statements_of_any_form_make_sure_of_nothing(statement):
    policy = KeyPolicy.from_json({"Version": "2012-10-17", "Statement": [statement]})
    assert policy.denials == ()


def test_a_policy_is_read_from_its_file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(made()))
    assert KeyPolicy.from_file(path).opens_only_for(ACCEPTED)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="not JSON"):
        KeyPolicy.from_file(path)


PREFIX = "kms:RecipientAttestation:"
keys = st.sampled_from(
    [f"{PREFIX}NitroTPMPCR{i}" for i in (4, 7, 12)]
    + [f"{PREFIX}PCR4", "kms:EncryptionContext:luma:customer"]
)
values = st.lists(
    st.sampled_from([KERNEL, KERNEL.upper(), NEXT_KERNEL, BOOT, ZEROS, OVERRIDE, "acme", "other"]),
    min_size=1,
    max_size=3,
)
conditions = st.dictionaries(
    st.sampled_from(
        [
            "StringNotEqualsIgnoreCase",
            "StringNotEquals",
            "StringEqualsIgnoreCase",
            "StringEquals",
        ]
    ),
    st.dictionaries(keys, values, min_size=1, max_size=2),
    max_size=2,
)
statements = st.fixed_dictionaries(
    {
        "Effect": st.sampled_from(["Deny", "Deny", "Allow"]),
        "Principal": st.sampled_from(["*", "*", {"AWS": AGENT}]),
        "Action": st.sampled_from(
            ["kms:*", "kms:Decrypt", ["kms:Decrypt", "kms:ReEncryptFrom"], "kms:Encrypt", "kms:De*"]
        ),
        "Resource": st.just("*"),
        "Condition": conditions,
    }
)


def machines():
    """Give the requests of every machine: what each register measured, or nothing of it."""
    choices = {
        4: (None, KERNEL, NEXT_KERNEL, OVERRIDE),
        7: (None, BOOT, OVERRIDE),
        12: (None, ZEROS, OVERRIDE),
    }
    for combination in itertools.product(*choices.values()):
        yield {
            f"{PREFIX}NitroTPMPCR{register}": value
            for register, value in zip(choices, combination, strict=True)
            if value is not None
        }


def is_accepted(machine: dict) -> bool:
    found = {int(key.rpartition("PCR")[2]): bytes.fromhex(v) for key, v in machine.items()}
    return any(
        all(found.get(register) in values for register, values in ami.accepted.items())
        for ami in ACCEPTED.amis.values()
    )


@settings(max_examples=300)
@given(
    st.lists(statements, max_size=4),
    st.sampled_from([made(), made(pcrs={"PCR7": (BOOT,)}), made("L2")]),
    st.booleans(),
)
def test_what_it_makes_sure_of_is_so_whatever_else_allows(extra, base, with_base):
    """Wherever it says "only accepted AMIs", IAM's own rules deny every other machine."""
    policy = {"Version": "2012-10-17", "Statement": list(extra)}
    if with_base:
        policy["Statement"] += base["Statement"]
    judged = KeyPolicy.from_json(policy)
    if judged.opens_only_for(ACCEPTED):
        for machine, action, customer in itertools.product(
            machines(), ("kms:Decrypt", "kms:ReEncryptFrom"), ("acme", "other")
        ):
            request = machine | {"kms:EncryptionContext:luma:customer": customer}
            for principal in (AGENT, OTHER):
                decision = decide(policy, principal=principal, action=action, keys=request)
                assert decision == "deny" or is_accepted(machine)
    if judged.is_of("acme"):
        for action, customer in itertools.product(
            ("kms:Decrypt", "kms:ReEncryptFrom"), ("other", "someone", None)
        ):
            request = {"kms:EncryptionContext:luma:artifact": "0d" * 48}
            if customer is not None:
                request["kms:EncryptionContext:luma:customer"] = customer
            assert decide(policy, principal=AGENT, action=action, keys=request) == "deny"
