"""Names of errors in state machines as AWS documents them, where moto's interpreter differs.

- A missed heartbeat is `States.HeartbeatTimeout`; a Retry or Catch of `States.Timeout` matches it
  too (AWS's guide, "Error names": a task that ran too long, or failed to send a heartbeat). moto
  knows `States.Timeout` alone.
- A branch or an iteration that fails with a `States.` error fails its Parallel or Map with that
  name; moto ends the whole execution with `States.Runtime`, past every Catch.
- Errors of `aws-sdk:` tasks begin with the service's name as the SDK for Java writes it
  (`AutoScaling.`, `Ec2.`, `Ssm.`); moto writes most of them in lower case.
"""

from typing import Any

import moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_aws_sdk as sdk_task
from moto.stepfunctions.parser.asl.component.common.error_name.custom_error_name import (
    CustomErrorName,
)
from moto.stepfunctions.parser.asl.component.common.error_name.error_equals_decl import (
    ErrorEqualsDecl,
)
from moto.stepfunctions.parser.asl.component.common.error_name.error_name import ErrorName
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import (
    StatesErrorName,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import (
    StatesErrorNameType,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration import iteration_worker
from moto.stepfunctions.parser.asl.component.state.exec.state_parallel import branches_decl
from moto.stepfunctions.parser.asl.component.state.exec.state_task.state_task import StateTask
from moto.stepfunctions.parser.asl.eval.callback.callback import HeartbeatTimeoutError

from tests.emulator.patching import extends

SDK_NAMES = {
    "autoscaling": "AutoScaling",
    "cloudwatch": "CloudWatch",
    "dynamodb": "DynamoDb",
    "ec2": "Ec2",
    "eventbridge": "EventBridge",
    "s3": "S3",
    "sfn": "Sfn",
    "sns": "Sns",
    "sqs": "Sqs",
    "ssm": "Ssm",
}
_HEARTBEAT = StatesErrorName(typ=StatesErrorNameType.StatesHeartbeatTimeout)
_TIMEOUT = StatesErrorName(typ=StatesErrorNameType.StatesTimeout)


def install() -> None:
    """Correct the names in this process; call it before the first request."""
    sdk_task._SERVICE_ERROR_NAMES.update(SDK_NAMES)
    branches_decl.CustomErrorName = any_error_name
    iteration_worker.CustomErrorName = any_error_name
    extends(StateTask, "_from_error")(_from_error)
    extends(ErrorEqualsDecl, "_eval_body")(_matches)


def any_error_name(error_name: str | None) -> ErrorName:
    """The interpreter's object for a name, reserved or not."""
    if error_name is not None and error_name.startswith("States."):
        return StatesErrorName.from_name(error_name)
    return CustomErrorName(error_name=error_name)


def _from_error(original: Any, task: StateTask, env: Any, ex: Exception) -> Any:
    event = original(task, env=env, ex=ex)
    if isinstance(ex, HeartbeatTimeoutError):
        event.error_name = _HEARTBEAT
        for details in event.event_details.values():
            details["error"] = _HEARTBEAT.error_name
    return event


def _matches(original: Any, declared: ErrorEqualsDecl, env: Any) -> None:
    error = env.stack[-1]
    original(declared, env)
    if error == _HEARTBEAT and _TIMEOUT in declared.error_names:
        env.stack[-1] = True
