"""The evaluator of key policies against rows of AWS's documentation."""

from __future__ import annotations

import pytest

from tests.support.iam_policy import decide

ROLE = "arn:aws:iam::123456789012:role/a"
ROOT = "arn:aws:iam::123456789012:root"
KEY = "kms:RecipientAttestation:PCR8"


def statement(effect="Allow", principal="*", action="kms:Decrypt", **condition):
    made = {"Effect": effect, "Principal": principal, "Action": action, "Resource": "*"}
    return made | ({"Condition": condition} if condition else {})


def judged(*statements, keys=None, action="kms:Decrypt", principal=ROLE):
    policy = {"Version": "2012-10-17", "Statement": list(statements)}
    return decide(policy, principal=principal, action=action, keys=keys or {})


def test_default_is_no_and_deny_beats_allow():
    assert judged() == "none"
    assert judged(statement()) == "allow"
    assert judged(statement(), statement("Deny")) == "deny"
    assert judged(statement("Deny"), statement()) == "deny"


@pytest.mark.parametrize(
    ("principal", "names"),
    [
        ("*", True),
        ({"AWS": "*"}, True),
        ({"AWS": ROLE}, True),
        ({"AWS": [ROLE + "b", ROLE]}, True),
        ({"AWS": ROOT}, True),
        ({"AWS": ROLE + "b"}, False),
        ({"AWS": "arn:aws:iam::999999999999:root"}, False),
    ],
)
def test_principals(principal, names):
    assert judged(statement(principal=principal)) == ("allow" if names else "none")


@pytest.mark.parametrize(
    ("action", "covers"),
    [
        ("kms:Decrypt", True),
        ("kms:decrypt", True),
        ("kms:*", True),
        (["kms:Encrypt", "kms:De*"], True),
        ("kms:Encrypt", False),
        ("kms:Decryp", False),
    ],
)
def test_actions(action, covers):
    assert judged(statement(action=action)) == ("allow" if covers else "none")


@pytest.mark.parametrize(
    ("operator", "values", "found", "holds"),
    [
        ("StringEquals", "aB", "aB", True),
        ("StringEquals", "aB", "ab", False),
        ("StringEquals", ["x", "aB"], "aB", True),
        ("StringEquals", "aB", None, False),
        ("StringNotEquals", "aB", "aB", False),
        ("StringNotEquals", ["x", "aB"], "aB", False),
        ("StringNotEquals", "aB", "ab", True),
        ("StringNotEquals", "aB", None, True),
        ("StringEqualsIgnoreCase", "aB", "Ab", True),
        ("StringEqualsIgnoreCase", "aB", None, False),
        ("StringNotEqualsIgnoreCase", "aB", "Ab", False),
        ("StringNotEqualsIgnoreCase", ["x", "aB"], "Ab", False),
        ("StringNotEqualsIgnoreCase", "aB", "c", True),
        ("StringNotEqualsIgnoreCase", "aB", None, True),
        ("Null", "true", None, True),
        ("Null", "true", "x", False),
        ("Null", "false", "x", True),
        ("Null", "false", None, False),
    ],
)
def test_operators(operator, values, found, holds):
    keys = {} if found is None else {KEY.upper(): found}
    made = statement(**{operator: {KEY: values}})
    assert judged(made, keys=keys) == ("allow" if holds else "none")


def test_keys_and_operators_are_joined_by_and():
    both = statement(StringEquals={"kms:a": "1", "kms:b": "2"}, Null={"kms:c": "true"})
    assert judged(both, keys={"kms:a": "1", "kms:b": "2"}) == "allow"
    assert judged(both, keys={"kms:a": "1", "kms:b": "3"}) == "none"
    assert judged(both, keys={"kms:a": "1", "kms:b": "2", "kms:c": "x"}) == "none"
    # Why one Deny holds one register: a match of either lifts a Deny of both.
    lifted = statement("Deny", StringNotEquals={"kms:a": "1", "kms:b": "2"})
    assert judged(statement(), lifted, keys={"kms:a": "1", "kms:b": "9"}) == "allow"


@pytest.mark.parametrize(
    "strange",
    [
        statement(StringLike={KEY: "a*"}),
        statement(**{"ForAnyValue:StringEquals": {KEY: "a"}}),
        statement(principal={"Service": "ec2.amazonaws.com"}),
        statement() | {"NotAction": "kms:Decrypt"},
        statement() | {"Resource": ROLE},
        statement(effect="Maybe"),
    ],
)
def test_what_it_does_not_know_raises(strange):
    with pytest.raises(NotImplementedError):
        judged(strange)
