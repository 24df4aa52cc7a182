"""CloudFormation's stacks, and machines that go with them, where moto differs from AWS.

- A stack whose creation fails half-way is rolled back: what it made is deleted, except what is to
  be retained, and it stands as `ROLLBACK_COMPLETE` with the reason in its events. moto answers with
  an error, keeps what it had made, and the stack can be neither used nor made again.
- Deleting a state machine ends its executions, as AWS does at their next transition: here at once.
  In moto they run on.
"""

import logging
from datetime import UTC, datetime
from typing import Any

from moto.cloudformation.models import Stack
from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.models import StepFunctionsParserBackend

from tests.emulator.executions import stop
from tests.emulator.patching import extends

log = logging.getLogger(__name__)


def install() -> None:
    """Correct both in this process; call it before the first request."""
    extends(Stack, "create_resources")(_create_resources)
    extends(StepFunctionsParserBackend, "delete_state_machine")(_delete_state_machine)


def _create_resources(original: Any, stack: Stack) -> None:
    try:
        original(stack)
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        log.warning("stack %s is rolled back: %s", stack.name, reason)
        stack._add_stack_event("CREATE_FAILED", resource_status_reason=reason)
        stack._add_stack_event("ROLLBACK_IN_PROGRESS", resource_status_reason=reason)
        stack.resource_map.delete()
        _forget_resources(stack)
        stack.status = "ROLLBACK_COMPLETE"
        stack._add_stack_event("ROLLBACK_COMPLETE")


def _forget_resources(stack: Stack) -> None:
    """Look at nothing of it any more: moto makes a resource when an output that names it is read."""
    stack.template_dict = {**stack.template_dict, "Resources": {}, "Outputs": {}}
    stack.resource_map._resource_json_map = {}
    stack.output_map = stack._create_output_map()


def _delete_state_machine(original: Any, backend: StepFunctionsParserBackend, arn: str) -> None:
    machine = next((m for m in backend.state_machines if m.arn == arn), None)
    original(backend, arn)
    for execution in machine.executions if machine else []:
        if execution.exec_status == ExecutionStatus.RUNNING:
            stop(execution, datetime.now(UTC), None, "the state machine was deleted")
