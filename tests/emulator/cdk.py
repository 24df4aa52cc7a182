"""The real CDK CLI against an emulated account: bootstrap, deploy, destroy.

Three options of `deploy` carry the weight (facts of moto 5.2.5): without `--method=direct` a stack
has no outputs and cannot be updated, without `--no-previous-parameters` an update fails, and
`--no-lookups` fails where something would be looked up outside.
"""

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulator import node
from tests.emulator.server import ACCOUNT, EmulatedServer

_LIMIT_S = 900


class CdkFailedError(AssertionError):
    """The CLI ended with an error; the message holds what it wrote."""


@dataclass(frozen=True)
class CdkRun:
    """What one call of the CLI gave.

    Attributes:
        code: exit code.
        output: standard output and error, as they came.
        seconds: how long it took.
    """

    code: int
    output: str
    seconds: float


class Cdk:
    """The CLI for one app in one emulated account.

    Args:
        server: the account.
        app: the command that synthesizes the app, run in `folder`.
        folder: where `cdk.json` is.
        work: where the cloud assembly, the CLI's cache and its log go.
        context: context parameters of the app.
    """

    def __init__(
        self,
        server: EmulatedServer,
        *,
        app: str,
        folder: Path,
        work: Path,
        context: Mapping[str, str] | None = None,
    ):
        self._server = server
        self._app = app
        self._folder = folder
        self._work = work
        self._context = dict(context or {})
        work.mkdir(parents=True, exist_ok=True)

    def with_context(self, **context: str) -> "Cdk":
        """The same app with other context parameters."""
        return Cdk(
            self._server,
            app=self._app,
            folder=self._folder,
            work=self._work,
            context=self._context | context,
        )

    def run(self, *arguments: str, check: bool = True, folder: Path | None = None) -> CdkRun:
        """Call the CLI and keep its output in `work/cdk.log`.

        Raises:
            CdkFailedError: it ended with an error, and `check` is set.
        """
        started = time.monotonic()
        ended = subprocess.run(
            node.cdk(*arguments),
            cwd=folder or self._folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
        output = ended.stdout.decode("utf-8", "replace")
        with (self._work / "cdk.log").open("a") as log:
            log.write(f"$ cdk {' '.join(arguments)}\n{output}\n")
        if check and ended.returncode != 0:
            raise CdkFailedError(f"cdk {arguments[0]} ended with {ended.returncode}:\n{output}")
        return CdkRun(ended.returncode, output, time.monotonic() - started)

    def bootstrap(self) -> CdkRun:
        """`cdk bootstrap`: the bucket and roles that every deployment needs; no app is run."""
        target = f"aws://{ACCOUNT}/{self._server.region}"
        return self.run("bootstrap", target, "--no-notices", folder=self._work)

    def deploy(self, *stacks: str, check: bool = True) -> CdkRun:
        """`cdk deploy`, unattended."""
        return self.run(
            "deploy",
            *(stacks or ("--all",)),
            "--method=direct",
            "--no-previous-parameters",
            "--require-approval",
            "never",
            "--no-notices",
            "--no-lookups",
            *self._app_options(),
            check=check,
        )

    def destroy(self, *stacks: str) -> CdkRun:
        """`cdk destroy`, unattended."""
        assembly = self._work / "cdk.out"  # of the last deploy: nothing is synthesized again
        return self.run(
            "destroy", *(stacks or ("--all",)), "--force", "--no-notices", "--app", str(assembly)
        )

    def outputs(self, stack: str) -> dict[str, str]:
        """A deployed stack's outputs."""
        found = self._server.client("cloudformation").describe_stacks(StackName=stack)
        outputs = found["Stacks"][0].get("Outputs", [])
        return {output["OutputKey"]: output["OutputValue"] for output in outputs}

    def _app_options(self) -> list[str]:
        options = ["--app", self._app, "--output", str(self._work / "cdk.out")]
        for name, value in self._context.items():
            options += ["--context", f"{name}={value}"]
        return options

    def _environment(self) -> dict[str, Any]:
        folder = node.node_folder()
        variables = self._server.environment()
        return variables | {
            "PATH": f"{folder}{os.pathsep}{variables.get('PATH', '')}",
            "JSII_NODE": str(node.node()),
            "CDK_HOME": str(self._work / "cdk-home"),
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "CDK_DISABLE_VERSION_CHECK": "true",
            "CI": "1",
            "NO_COLOR": "1",
        }
