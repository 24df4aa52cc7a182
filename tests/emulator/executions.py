"""Step Functions as AWS documents it, where moto's interpreter differs.

- An execution started without a name gets a UUID, so that `$$.Execution.Name` is never null.
- `StopExecution` ends an execution at once, with its error and cause; moto waits for the task in
  progress, for ever if that one waits for a token.
- A task token is closed when its task ended, whatever ended it (an answer, a time-out, a stop, a
  failed branch beside it): a later call with it fails with `TaskTimedOut`, a token that never was
  with `InvalidToken`. moto goes on accepting heartbeats. A heartbeat that comes between the message
  and the task's own wait counts; moto drops it.
- `SendTaskFailure` keeps its cause.
- Every start and end sends the event "Step Functions Execution Status Change" to the default bus.
"""

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from moto.core.exceptions import AWSError
from moto.core.responses import ActionResult, EmptyResult
from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_callback import (
    StateTaskServiceCallback,
)
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    CallbackConsumerTimeout,
    CallbackOutcomeFailure,
    CallbackOutcomeSuccess,
    CallbackOutcomeTimedOut,
    HeartbeatTimedOut,
)
from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication, Execution
from moto.stepfunctions.parser.models import StepFunctionsParserBackend
from moto.stepfunctions.responses import StepFunctionResponse

from tests.emulator.bridge import emit
from tests.emulator.patching import extends

_LOOK_S = 0.05  # how often a waiting task looks whether it was stopped


def install() -> None:
    """Correct the interpreter in this process; call it before the first request."""
    extends(StepFunctionsParserBackend, "start_execution")(_start_execution)
    extends(Execution, "start")(_start)
    extends(BaseExecutionWorkerCommunication, "terminated")(_terminated)
    extends(StateTaskServiceCallback, "_eval_wait_for_task_token")(_wait_for_task_token)
    extends(StateTaskServiceCallback, "_eval_integration_pattern")(_closing_the_token)
    extends(StepFunctionResponse, "stop_execution")(_stop_execution)
    extends(StepFunctionResponse, "send_task_success")(_send_task_success)
    extends(StepFunctionResponse, "send_task_failure")(_send_task_failure)
    extends(StepFunctionResponse, "send_task_heartbeat")(_send_task_heartbeat)
    extends(StepFunctionResponse, "describe_execution")(_describe_execution)


def status_change(execution: Execution) -> dict[str, Any]:
    """The event of an execution's status, as AWS documents its fields."""
    ended = execution.stop_date
    detail = {
        "executionArn": execution.exec_arn,
        "stateMachineArn": execution.state_machine_arn,
        "name": execution.name,
        "status": str(execution.status),
        "startDate": _milliseconds(execution.start_date),
        "stopDate": _milliseconds(ended) if ended else None,
        "input": json.dumps(execution.input_data),
        "output": json.dumps(execution.output) if execution.output is not None else None,
        "inputDetails": {"included": True},
        "outputDetails": {"included": True} if execution.output is not None else None,
        "error": execution.error,
        "cause": execution.cause,
    }
    return {
        "source": "aws.states",
        "detail-type": "Step Functions Execution Status Change",
        "resources": [execution.exec_arn],
        "detail": detail,
    }


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _announce(execution: Execution) -> None:
    emit(status_change(execution), account=execution.account_id, region=execution.region_name)


def _start_execution(
    original: Any,
    backend: Any,
    state_machine_arn: str,
    name: str | None = None,
    execution_input: str | None = None,
    trace_header: Any = None,
) -> Execution:
    name = name or str(uuid.uuid4())
    return original(backend, state_machine_arn, name, execution_input, trace_header)


def _start(original: Any, execution: Execution) -> None:
    execution.exec_status = ExecutionStatus.RUNNING
    _announce(execution)  # before the worker runs, whose end may come at once
    original(execution)


def _terminated(original: Any, communication: BaseExecutionWorkerCommunication) -> None:
    execution = communication.execution
    if execution.exec_status != ExecutionStatus.RUNNING:
        return  # stopped: its end was announced then
    original(communication)
    _announce(execution)


def _stop_execution(_original: Any, response: StepFunctionResponse) -> ActionResult:
    arn = response._get_param("executionArn")
    execution = response.stepfunction_backend.describe_execution(arn)
    if execution.exec_status == ExecutionStatus.RUNNING:
        error, cause = response._get_param("error"), response._get_param("cause")
        stop(execution, datetime.now(UTC), error, cause)
    return ActionResult({"stopDate": execution.stop_date})


def stop(execution: Execution, at: datetime, error: str | None, cause: str | None) -> None:
    """End a running execution as `ABORTED`, at once."""
    execution.stop_date, execution.error, execution.cause = at, error, cause
    execution.exec_status = ExecutionStatus.ABORTED
    _wait_until_begun(execution)
    execution.stop(at, error, cause)
    _announce(execution)


def _wait_until_begun(execution: Execution) -> None:
    """Between its start and its first state an execution cannot be stopped by moto's means."""
    while (env := execution.exec_worker.env) is None or env.program_state() is None:
        time.sleep(_LOOK_S / 10)


def _wait_for_task_token(
    _original: Any,
    _task: StateTaskServiceCallback,
    env: Any,
    timeout_seconds: float,
    callback_endpoint: Any,
    heartbeat_endpoint: Any,
) -> Any:
    """Wait for an answer, a missed heartbeat, the time-out or the end of the execution."""
    started = last_heartbeat = time.monotonic()
    while env.is_running():
        callback_endpoint._notify_event.wait(_LOOK_S)
        outcome = callback_endpoint.get_outcome()
        if outcome is not None:
            return outcome
        now = time.monotonic()
        if heartbeat_endpoint is not None:
            if heartbeat_endpoint._next_heartbeat_event.is_set():
                heartbeat_endpoint._next_heartbeat_event.clear()
                last_heartbeat = now
            if now - last_heartbeat > heartbeat_endpoint._heartbeat_seconds:
                return HeartbeatTimedOut()
        if now - started > timeout_seconds:
            break
    return CallbackOutcomeTimedOut(callback_id=callback_endpoint.callback_id)


def _closing_the_token(
    original: Any, task: StateTaskServiceCallback, env: Any, *args: Any, **kwargs: Any
) -> None:
    token = env.states.context_object.context_object_data.get("Task", {}).get("Token")
    try:
        original(task, env, *args, **kwargs)
    finally:
        endpoint = env.callback_pool_manager.get(token) if token else None
        if endpoint is not None:
            endpoint.report(CallbackConsumerTimeout())


def _open_endpoint(response: StepFunctionResponse) -> Any:
    token = response._get_param("taskToken")
    for execution in response.stepfunction_backend._get_executions():
        env = execution.exec_worker and execution.exec_worker.env
        endpoint = env.callback_pool_manager.get(token) if env else None
        if endpoint is None:
            continue
        closed = endpoint.consumer_error is not None or endpoint.get_outcome() is not None
        if closed or execution.exec_status != ExecutionStatus.RUNNING:
            raise AWSError("The task with this token has ended", "TaskTimedOut")
        return endpoint
    raise AWSError("Invalid token", "InvalidToken")


def _send_task_success(_original: Any, response: StepFunctionResponse) -> ActionResult:
    endpoint = _open_endpoint(response)
    output = response._get_param("output")
    json.loads(output)
    endpoint.notify(CallbackOutcomeSuccess(endpoint.callback_id, output))
    return EmptyResult()


def _send_task_failure(_original: Any, response: StepFunctionResponse) -> ActionResult:
    endpoint = _open_endpoint(response)
    endpoint.notify(
        CallbackOutcomeFailure(
            endpoint.callback_id, response._get_param("error"), response._get_param("cause")
        )
    )
    return EmptyResult()


def _send_task_heartbeat(_original: Any, response: StepFunctionResponse) -> ActionResult:
    _open_endpoint(response).notify_heartbeat()
    return EmptyResult()


def _describe_execution(original: Any, response: StepFunctionResponse) -> ActionResult:
    result = original(response)
    execution = response.stepfunction_backend.describe_execution(
        response._get_param("executionArn")
    )
    if execution.stop_date is not None:  # moto leaves it out of executions that timed out
        result._result["stopDate"] = execution.stop_date
    if "output" in result._result:  # moto gives a string as it is, AWS gives JSON of it
        result._result["output"] = json.dumps(execution.output)
    return result
