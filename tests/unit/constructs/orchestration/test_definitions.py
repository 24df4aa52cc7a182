"""What every definition keeps to, so that AWS takes it and the console shows it well."""

import json
import re
import subprocess

import pytest

from tests.emulator.node import asl_validator
from tests.support.cdk import synthesized
from tests.unit.constructs.orchestration import stacks
from tests.unit.constructs.orchestration.definitions import (
    definitions,
    resource_of,
    states,
    tasks,
    texts,
)

MACHINES = (
    "Jobs/Job",
    "Jobs/CleanUp",
    "Hasty/Job",
    "Hasty/CleanUp",
    "Bare/Job",
    "Bare/CleanUp",
    "Failover",
    "Alone",
)
INTEGRATIONS = {
    "aws-sdk:autoscaling:describeAutoScalingGroups",
    "aws-sdk:autoscaling:describeAutoScalingInstances",
    "aws-sdk:autoscaling:describeScalingActivities",
    "aws-sdk:autoscaling:detachInstances",
    "aws-sdk:autoscaling:setDesiredCapacity",
    "aws-sdk:dynamodb:transactGetItems",
    "aws-sdk:dynamodb:transactWriteItems",
    "aws-sdk:ec2:terminateInstances",
    "aws-sdk:sfn:startExecution",
    "aws-sdk:ssm:getCommandInvocation",
    "aws-sdk:ssm:getParameter",
    "aws-sdk:ssm:sendCommand",
    "dynamodb:getItem",
    "dynamodb:updateItem",
    "events:putEvents",
    "sns:publish",
    "sqs:sendMessage.waitForTaskToken",
}
"""All that the machines call; no Lambda function, no activity."""


@pytest.fixture(scope="module")
def all_definitions():
    return definitions(synthesized(stacks.machines))


@pytest.fixture(params=MACHINES)
def definition(request, all_definitions):
    return all_definitions[request.param]


def test_these_are_all_machines(all_definitions):
    assert sorted(all_definitions) == sorted(MACHINES)


def test_it_begins_by_normalizing_its_input(definition):
    first = definition["States"][definition["StartAt"]]
    assert (definition["StartAt"], first["Type"]) == ("Normalize", "Pass")


def test_it_is_jsonpath_without_variables(definition):
    assert definition.get("QueryLanguage", "JSONPath") == "JSONPath"
    for name, state in states(definition):
        assert not {"Assign", "Arguments", "Output", "QueryLanguage"} & set(state), name
        assert not [text for _, text in texts(state) if text.startswith("{%")], name


def test_it_calls_nothing_that_is_not_listed(definition):
    assert {resource_of(task) for task in tasks(definition).values()} <= INTEGRATIONS


def test_an_execution_cannot_last_for_ever(definition):
    assert definition["TimeoutSeconds"] > 0


def test_what_waits_for_a_node_notices_its_silence(definition):
    for name, task in tasks(definition).items():
        if resource_of(task).endswith(".waitForTaskToken"):
            assert 0 < task["HeartbeatSeconds"] < task["TimeoutSeconds"], name


def test_only_listed_errors_are_tried_again(definition):
    for name, task in tasks(definition).items():
        errors = {error for retry in task["Retry"] for error in retry["ErrorEquals"]}
        assert errors, name
        assert not [error for error in errors if error.startswith("States.")], name
        assert not [error for error in errors if "ConditionalCheckFailed" in error], name


def test_a_refused_condition_is_caught_under_both_names(definition):
    for name, state in states(definition):
        caught = {error for catch in state.get("Catch", ()) for error in catch["ErrorEquals"]}
        conditional = {error for error in caught if "ConditionalCheckFailed" in error}
        if conditional:
            assert {error.partition(".")[0] for error in conditional} == {"DynamoDB", "DynamoDb"}
            assert "ConditionExpression" in state["Parameters"], name


def test_answers_with_times_in_them_are_selected_from(definition):
    """DateTime values of SDK answers are not JSON on every interpreter, and nobody needs them."""
    for name, task in tasks(definition).items():
        if resource_of(task).startswith(("aws-sdk:ssm", "aws-sdk:sfn")):
            assert "ResultSelector" in task, name


def test_a_token_stands_in_messages_to_nodes_alone(definition):
    messages = [
        task["Parameters"]["MessageBody"]["token.$"]
        for task in tasks(definition).values()
        if resource_of(task).startswith("sqs:")
    ]
    everywhere = [text for _, text in texts(definition) if "$$.Task" in text]
    assert everywhere == messages == ["$$.Task.Token"] * len(messages)


def test_intrinsics_read_no_name_with_a_hyphen(definition):
    for name, state in states(definition):
        for _, text in texts(state):
            if text.startswith("States."):
                assert not re.search(r"\$[\w.\[\]*]*-\w", text), f"{name}: {text}"


def test_no_field_is_read_behind_an_index(definition):
    """`$.list[0].field` is a value on AWS and a list on the interpreter of the tests."""
    for name, state in states(definition):
        for key, text in texts({k: v for k, v in state.items() if k != "Choices"}):
            if key.endswith(".$"):
                assert not re.search(r"\[\d+\]\.", text), f"{name}: {text}"


def test_names_read_well_and_fit(definition):
    for name, _ in states(definition):
        assert re.fullmatch(r"[A-Z][A-Za-z0-9 ,'?()-]{2,60}", name), name


def test_every_state_can_be_reached(definition):
    def check(part):
        seen, open_ = set(), [part["StartAt"]]
        while open_:
            name = open_.pop()
            if name in seen:
                continue
            seen.add(name)
            state = part["States"][name]
            ways = [state, *state.get("Choices", ()), *state.get("Catch", ())]
            open_ += [way["Next"] for way in ways if "Next" in way]
            open_ += [state["Default"]] if "Default" in state else []
            for inner in (*state.get("Branches", ()), state.get("ItemProcessor")):
                if inner is not None:
                    check(inner)
        assert seen == set(part["States"])

    check(definition)


def test_the_validator_of_aws_finds_nothing(all_definitions, tmp_path):
    for name, definition in all_definitions.items():
        path = tmp_path / f"{name.replace('/', '-')}.json"
        path.write_text(json.dumps(definition))
        ran = subprocess.run(
            asl_validator("--json-path", str(path)), capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_choice_has_a_way_for_everything_else(definition):
    for name, state in states(definition):
        assert state["Type"] != "Choice" or "Default" in state, name


def test_logs_hold_every_step_and_no_data():
    assembly = synthesized(stacks.machines)
    found = assembly.of_type("AWS::StepFunctions::StateMachine")
    for machine in found.values():
        properties = machine["Properties"]
        assert properties["LoggingConfiguration"]["Level"] == "ALL"
        assert properties["LoggingConfiguration"]["IncludeExecutionData"] is False
        assert properties["TracingConfiguration"] == {"Enabled": True}
        assert "DefinitionS3Location" not in properties
        assert "StateMachineName" not in properties


def test_the_states_of_the_machines_are_these(all_definitions, snapshot):
    """Names are what people see in the console, and what recorded branches are known by."""
    for name in ("Jobs/Job", "Jobs/CleanUp", "Failover"):
        found = {state: one["Type"] for state, one in states(all_definitions[name])}
        assert found == snapshot(name=name)
