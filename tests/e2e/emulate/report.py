"""What `make emulate` writes to build/emulate/report.json."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Failover:
    """One interruption and what became of it.

    Attributes:
        cause: what AWS sent.
        path: how the failover machine ended: `replaced`, `moved`.
        seconds_to_next_commit: from the instance's end to the next committed step. The job waits
            for the replacement, so this is a whole replacement.
        fleet: where the island was.
        to_fleet: where it went.
        event: id of the event.
        instance: whose end it was.
    """

    cause: str
    path: str
    seconds_to_next_commit: float
    fleet: str
    to_fleet: str
    event: str
    instance: str


@dataclass
class Report:
    """The figures of one run, in the form that scripts rely on, and each thing that was checked.

    Attributes:
        deploy_s: seconds of `cdk deploy`.
        job_state: last state of the run.
        state_hash: of the job in the account.
        reference_state_hash: of the same job on this machine, uninterrupted.
        failovers: one for each interruption.
        branches_executed: branches of the stack's state machines that ran.
        branches_total: branches that they have.
        destroyed: whether `cdk destroy` left the data and nothing else.
        checks: what held, and what did not, in order.
        seconds: of all of it.
        problem: the error that ended it, empty for none.
    """

    deploy_s: float = 0.0
    job_state: str = ""
    state_hash: str = ""
    reference_state_hash: str = ""
    failovers: list[Failover] = field(default_factory=list)
    branches_executed: int = 0
    branches_total: int = 0
    destroyed: bool = False
    checks: dict[str, bool] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""

    def check(self, what: str, holds: object) -> None:
        """Note whether something held."""
        self.checks[what] = bool(holds)

    @property
    def held(self) -> bool:
        """Whether all of it held; an empty report holds nothing."""
        return bool(self.checks) and all(self.checks.values()) and not self.problem

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
