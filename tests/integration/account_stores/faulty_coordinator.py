"""A coordinator's process as it is, but killed between the write of a step and its announcement.

    python faulty_coordinator.py --step 4 -- --run DIR --log dynamodb:TABLE/RUN

The real entry point runs; only the log's `append` is wrapped. Nothing of this is in the product.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from runtime.coordinator.__main__ import main
from runtime.coordinator.commit_log import Commit
from runtime.coordinator.log_dynamodb import DynamoCommitLog


def install(step: int) -> None:
    """Have this process killed as soon as the step is durable."""
    original = DynamoCommitLog.append

    def append(self: DynamoCommitLog, commit: Commit) -> bool:
        new = original(self, commit)
        if commit.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return new

    DynamoCommitLog.append = append


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, required=True)
    options, rest = parser.parse_known_args()
    install(options.step)
    sys.argv = [sys.argv[0], *[word for word in rest if word != "--"]]
    sys.exit(main())
