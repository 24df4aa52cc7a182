"""A stack that is deleted while a job runs: the data stay, and a new stack goes on with the job."""

import pytest

from tests.e2e.emulate.deployment import CONTEXT, Deployment
from tests.e2e.emulate.job import write_jobs
from tests.e2e.emulate.report import Report
from tests.e2e.emulate.story import RUN, Story
from tests.emulator.account import EmulatedAccount
from tests.emulator.node import ToolMissingError
from tests.emulator.node import cdk as cdk_command
from tests.emulator.server import REGION
from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_job_goes_on_in_a_new_stack_to_the_same_bits(tmp_path):
    try:
        cdk_command()
    except ToolMissingError as error:
        pytest.skip(str(error))
    report = Report()
    story = Story(tmp_path, report, lambda _text: None)
    jobs = write_jobs(tmp_path / "job", region=REGION)
    story.train_uninterrupted(jobs)
    with EmulatedAccount(tmp_path, context=CONTEXT) as account:
        old = story.deploy(account)
        story.start(account, old, jobs)
        account.cdk.destroy(account.stack)
        until(lambda: not account.players.alive(), "no instance", seconds=300)
        committed = len(old.commits(RUN))
        assert 3 <= committed < jobs.steps
        assert old.run(RUN)["state"] != "done"

        account.deploy(bucket=old.config["bucket"], table=old.config["table"])
        new = Deployment(account)
        new.alive = account.players.alive
        assert new.config["table"] == old.config["table"]
        assert new.config["jobs_machine"] != old.config["jobs_machine"]
        again = ("launch", "--resume", RUN, "--stack", account.stack, "--yes", "--json", "--detach")
        started = story.luma.run(account.server.environment(), *again)
        run = new.wait_for_end(RUN, started["execution"])
        assert (run["state"], run["state_hash"]) == ("done", report.reference_state_hash)
        assert [c["step"] for c in new.commits(RUN)] == list(range(jobs.steps))
