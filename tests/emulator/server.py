"""Start an emulated account in a process of its own, and talk to it.

with EmulatedServer() as server:
    queue = server.client("sqs").create_queue(QueueName="q")
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config

from tests.emulator.faults import Fault

ACCOUNT = "123456789012"
REGION = "us-east-1"
ROOT = Path(__file__).resolve().parents[2]


class EmulatedServer:
    """A moto server with what the package adds, on a free loopback port.

    Args:
        plain: leave moto as it is.
        log: where its standard error goes. Default: a file of this name is not written.
        region: the region whose events and instances the control end-points reach.
    """

    def __init__(self, *, plain: bool = False, log: Path | None = None, region: str = REGION):
        self.plain = plain
        self.region = region
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """The URL of every service. The word `localhost` matters: see facts, section 6."""
        return f"http://localhost:{self.port}"

    def start(self) -> Self:
        """Start the process and wait until it listens.

        Raises:
            RuntimeError: it ended before it listened; its output is in the message.
        """
        command = [sys.executable, "-m", "tests.emulator.serve", "--region", self.region]
        stderr = self._log.open("ab") if self._log else subprocess.DEVNULL
        self._process = subprocess.Popen(
            command + (["--plain"] if self.plain else []),
            cwd=ROOT,
            env=environment(self.region) | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the emulated account did not start: {command}")
        self.port = json.loads(line)["port"]
        return self

    def stop(self) -> None:
        """End the process; all that it held is gone."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=30)
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def client(self, service: str, region: str | None = None) -> Any:
        """A boto3 client of the emulated account; it tries once and uses no proxy."""
        session = boto3.Session(
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name=region or self.region,
        )
        config = Config(retries={"total_max_attempts": 1}, proxies={}, read_timeout=60)
        return session.client(service, endpoint_url=self.endpoint, config=config)

    def environment(self) -> dict[str, str]:
        """The variables for a child process that works in the emulated account."""
        return environment(self.region) | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }

    def control(self, name: str, **order: Any) -> Any:
        """Call one of the emulator's own end-points (see `control`)."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/luma-emulator/{name}",
            data=json.dumps(order).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            return json.loads(response.read())

    def capacity(self, pool: str, launches: int | None) -> None:
        """Let a group or an instance type launch so many more instances; `None`: no limit."""
        self.control("capacity", pool=pool, launches=launches)

    def commands(self, answer: str | None, instance: str = "*") -> None:
        """Say how SSM commands are answered (see `commands`)."""
        self.control("command-rule", instance=instance, answer=answer)

    def fault(self, fault: Fault) -> None:
        """Order an error for coming calls."""
        self.control("fault", **fault.as_json())

    def hold(self, service: str, operation: str) -> None:
        """Hold the coming calls of an operation until they are released."""
        self.control("hold", service=service, operation=operation)

    def release(self, service: str, operation: str, *, everything: bool = False) -> None:
        """Let one held call go on, or all of them for good."""
        self.control("release", service=service, operation=operation, all=everything)

    def held(self) -> list[list[str]]:
        """`[service, operation]` of each call that waits now, oldest first."""
        return self.control("held")

    def lift_faults(self) -> int:
        """Forget all ordered errors and holds; returns how many calls have met an error."""
        return self.control("lift-faults")["met"]


def environment(region: str = REGION) -> dict[str, str]:
    """This process's variables with dummy credentials and nothing that leads out.

    Names of AWS profiles, tokens, end-points and proxies of the caller are dropped.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
    }
    return kept | {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "localhost,127.0.0.1",
    }
