"""The story: deploy, train, interrupt, move, finish, update, destroy."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.emulate.branch_tests import BranchTests
from tests.e2e.emulate.command_line import CommandLine
from tests.e2e.emulate.deployment import CONTEXT, Deployment
from tests.e2e.emulate.job import ISLANDS, JobFiles, write_jobs
from tests.e2e.emulate.report import Failover, Report
from tests.emulator import events
from tests.emulator.account import EmulatedAccount
from tests.emulator.branches import BranchRecord
from tests.emulator.server import REGION
from tests.emulator.waiting import until

RUN = "tiny"


class Story:
    """One run of it.

    Args:
        work: folder for everything; logs stay there.
        report: filled in as it goes.
        say: told of each part.
    """

    def __init__(self, work: Path, report: Report, say: Callable[[str], None]):
        self._work = work
        self._report = report
        self._say = say
        self.luma = CommandLine(work)

    def tell(self) -> None:
        """Tell it all.

        Raises:
            AssertionError: something did not come.
        """
        jobs = write_jobs(self._work / "job", region=REGION)
        self.train_uninterrupted(jobs)
        with (
            EmulatedAccount(self._work, context=CONTEXT) as account,
            BranchTests(self._work) as tests,
        ):
            deployment = self.deploy(account)
            execution = self.start(account, deployment, jobs)
            self._interrupt(account, deployment)
            self._finish(account, deployment, execution, jobs)
            self._repeat(account, deployment)
            self._count_branches(account, tests)
            self._update_and_destroy(account, deployment)

    def train_uninterrupted(self, jobs: JobFiles) -> None:
        """Train the reference on this machine."""
        self._say("the same job on this machine, uninterrupted")
        folder = self._work / "reference"
        shutil.rmtree(folder, ignore_errors=True)
        done = self.luma.run({}, "launch", jobs.local, "--yes", "--json", "--run", folder)
        self._report.reference_state_hash = done["certificate"]["state_hash"]

    def deploy(self, account: EmulatedAccount) -> Deployment:
        """Bootstrap the account, deploy the stack, and play its instances from then on."""
        self._say("cdk bootstrap and cdk deploy")
        account.cdk.bootstrap()
        self._report.deploy_s = round(account.deploy().seconds, 2)
        deployment = Deployment(account)
        deployment.alive = account.players.alive
        idle = deployment.sizes()
        self._report.check("an idle deployment has no instance", not any(map(any, idle.values())))
        account.play()
        return deployment

    def start(self, account: EmulatedAccount, deployment: Deployment, jobs: JobFiles) -> str:
        """Prepare the run, start it, and wait for its third commit; returns the execution."""
        self._say("luma launch prepares the run; Step Functions starts it")
        folder = self._work / RUN
        shutil.rmtree(folder, ignore_errors=True)
        environment = account.server.environment()
        options = ("--stack", account.stack, "--prepare-only", "--yes", "--json", "--run", folder)
        self.luma.run(environment, "launch", jobs.account, *options)
        self._report.check("prepared, not started", deployment.run(RUN).get("state") == "pending")
        deployment.place(RUN, "SLOT#02", "m7i")
        execution = deployment.start(RUN)
        deployment.wait_for_commits(RUN, 3)
        run, slots = deployment.run(RUN), deployment.slots(RUN)
        fleets = {slot["fleet"] for slot in slots.values()}
        self._report.check("compiled in the account", run.get("artifact"))
        self._report.check(
            "three islands on two families", (len(slots), len(fleets)) == (ISLANDS, 2)
        )
        return execution

    def _interrupt(self, account: EmulatedAccount, deployment: Deployment) -> None:
        """Two interruptions, one after the other, then a repetition of the first."""
        self._say("a spot interruption: notice, 2 s, SIGKILL")
        first = self._reclaim(account, deployment, "m7i")
        self._say("another one, and no capacity left in its family")
        account.server.capacity(account.fleet("c7i")["asg"], 0)
        second = self._reclaim(account, deployment, "c7i")
        for failover in (first, second):
            self._follow(account, deployment, failover)
        report = self._report
        report.check("an interruption is answered by a replacement", first.path == "replaced")
        report.check(
            "without capacity the island moves to the next family",
            (second.path, second.to_fleet) == ("moved", "m7i"),
        )

    def _reclaim(self, account: EmulatedAccount, deployment: Deployment, fleet: str) -> Failover:
        """Reclaim an instance of a fleet, and wait for the commit that its replacement allows."""
        victim = deployment.instance_of(RUN, fleet)
        slot = (account.item(f"NODE#{victim.id}", "NODE") or {})["slot"]
        event = account.players.interrupt(victim, notice_s=2.0)
        ended_at, committed = time.time(), len(deployment.commits(RUN))
        next_commit = deployment.wait_for_commits(RUN, committed + 1)[committed]
        seconds = round(max(0.0, float(next_commit["time"]) - ended_at), 2)
        failover = Failover(
            cause="EC2 Spot Instance Interruption Warning",
            path="",
            seconds_to_next_commit=seconds,
            fleet=fleet,
            to_fleet=deployment.slots(RUN)[f"SLOT#{slot:02d}"]["fleet"],
            event=event,
            instance=victim.id,
        )
        self._report.failovers.append(failover)
        self._say(f"  {fleet} -> {failover.to_fleet}, next commit after {seconds} s")
        return failover

    def _follow(self, account: EmulatedAccount, deployment: Deployment, failover: Failover) -> None:
        """Wait for the end of a failover, and note its path.

        Two events tell of one reclaim, the warning and the instance's end. Their executions run
        side by side; whichever comes first moves the island, and the other finds it moved.
        """
        executions = deployment.wait_for_failovers_of_instance(failover.instance, 2)
        found = account.item(f"EVENT#{failover.event}", "EVENT") or {}
        paths = deployment.paths_of_instance(failover.instance)
        failover.path = "moved" if "moved" in paths else found.get("path", "")
        self._say(f"  failover {found.get('status')}: {failover.path} (events: {paths})")
        well = all(execution["status"] == "SUCCEEDED" for execution in executions)
        ended_well = well and found.get("status") == "done"
        self._report.check(f"the failover from {failover.fleet} ends well", ended_well)

    def _repeat(self, account: EmulatedAccount, deployment: Deployment) -> None:
        self._say("the first interruption's event again")
        first = self._report.failovers[0]
        before = deployment.state(RUN)
        events.interruption(account.server, first.instance, first.event)
        executions = deployment.wait_for_failovers(first.event, 2)
        well = all(execution["status"] == "SUCCEEDED" for execution in executions)
        same = deployment.state(RUN) == before
        self._report.check("a duplicate event changes nothing", well and same)

    def _finish(
        self, account: EmulatedAccount, deployment: Deployment, execution: str, jobs: JobFiles
    ) -> None:
        self._say("to the last step, export, scale to zero")
        run = deployment.wait_for_end(RUN, execution)
        report = self._report
        report.job_state, report.state_hash = run["state"], run.get("state_hash", "")
        report.check("the job is done", report.job_state == "done")
        same = report.state_hash == report.reference_state_hash
        report.check("the state hash is the uninterrupted run's", report.state_hash and same)
        steps = [commit["step"] for commit in deployment.commits(RUN)]
        report.check("every step is committed once", steps == list(range(jobs.steps)))
        until(lambda: not account.players.alive(), "no instance", seconds=600)
        report.check("scaled to zero", not any(map(any, deployment.sizes().values())))
        report.check("the export is in the bucket", self._exported(account, deployment))

    def _exported(self, account: EmulatedAccount, deployment: Deployment) -> bool:
        s3, bucket = account.server.client("s3"), deployment.config["bucket"]
        answer = s3.get_object(Bucket=bucket, Key=f"runs/{RUN}/certificate.json")
        certificate = json.loads(answer["Body"].read())
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=f"runs/{RUN}/export/")
        names = {item["Key"].rpartition("/")[2] for item in listed.get("Contents", [])}
        weights = any(name.endswith(".safetensors") for name in names)
        same = certificate["state_hash"] == self._report.reference_state_hash
        return same and weights and "config.json" in names

    def _count_branches(self, account: EmulatedAccount, tests: BranchTests) -> None:
        self._say("branches, with those of the state machines' own tests")
        self._report.check("the state machines' own tests pass", tests.passed())
        client = account.server.client("stepfunctions")
        record = BranchRecord()
        for machine in client.list_state_machines()["stateMachines"]:
            record.add_machine(client, machine["stateMachineArn"])
        for part in tests.records():
            record.merge(part)
        self._report.branches_executed = record.executed
        self._report.branches_total = record.total
        record.write(self._work / "branches.json")
        for before, after in record.missing():
            self._say(f"  not executed: {before} -> {after}")

    def _update_and_destroy(self, account: EmulatedAccount, deployment: Deployment) -> None:
        self._say("an update of the stack")
        account.deploy(heartbeat="7")
        self._report.check("an update keeps the run", deployment.run(RUN)["state"] == "done")
        self._say("cdk destroy")
        account.cdk.destroy(account.stack)
        self._report.check("destroyed, the data kept", self._only_data_left(account, deployment))
        self._report.destroyed = self._report.checks["destroyed, the data kept"]

    def _only_data_left(self, account: EmulatedAccount, deployment: Deployment) -> bool:
        client = account.server.client
        names = {
            stack["StackName"]
            for stack in client("cloudformation").describe_stacks()["Stacks"]
            if stack["StackStatus"] != "DELETE_COMPLETE"
        }
        machines = client("stepfunctions").list_state_machines()["stateMachines"]
        kept = deployment.run(RUN)["state"] == "done" and self._exported(account, deployment)
        return account.stack not in names and not machines and not deployment.sizes() and kept
