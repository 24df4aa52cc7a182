"""Names of fields in `aws-sdk:sfn` tasks, which moto hands to boto3 as the state machine wrote them.

AWS writes every field of an SDK task with a capital letter; boto3 wants Step Functions' own, which
begin with a small one, and moto fails with a KeyError before the call.
"""

from typing import Any

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_aws_sdk import (
    StateTaskServiceAwsSdk,
)
from moto.stepfunctions.parser.asl.utils.boto_client import boto_client_for

from tests.emulator.patching import extends


def install() -> None:
    """Translate the names in this process; call it before the first request."""
    extends(StateTaskServiceAwsSdk, "_eval_service_task")(_eval_service_task)


def _eval_service_task(
    original: Any,
    task: StateTaskServiceAwsSdk,
    env: Any,
    resource_runtime_part: Any,
    normalised_parameters: dict[str, Any],
    state_credentials: Any,
) -> None:
    if task.resource.api_name != "sfn":
        original(task, env, resource_runtime_part, normalised_parameters, state_credentials)
        return
    client = boto_client_for(
        service=task._get_boto_service_name(),
        region=resource_runtime_part.region,
        state_credentials=state_credentials,
    )
    action = task.resource.api_action
    operation = client.meta.service_model.operation_model(action[0].upper() + action[1:])
    task._to_boto_request(normalised_parameters, operation.input_shape)
    original(task, env, resource_runtime_part, normalised_parameters, state_credentials)
    task._from_boto_response(env.stack[-1], operation.output_shape)
