"""One played instance: a real node process with its own metadata service.

The process runs the code that was deployed: the runtime's archive from the emulated bucket, its
digest checked as the user data does. It gets its credentials from the metadata service alone, and
its scratch folder is thrown away with it, so nothing survives a kill on a disk.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

from tests.emulator.imds import FakeImds, Metadata
from tests.emulator.server import EmulatedServer
from tests.emulator.user_data import NodeSettings

_SYSTEMCTL = """#!/bin/sh
# The one thing that a drain asks of systemd: SIGTERM to the service, and wait for its end.
[ "$1" = stop ] && [ "$2" = luma-node.service ] || { echo "systemctl $*: not played" >&2; exit 1; }
: > "$LUMA_PLAYED/stopped"
pid=$(cat "$LUMA_PLAYED/pid" 2>/dev/null) || exit 0
kill -TERM "$pid" 2>/dev/null
while [ -e "$LUMA_PLAYED/pid" ]; do sleep 0.1; done
"""


def unpacked(server: EmulatedServer, settings: NodeSettings, cache: Path) -> Path:
    """The folder of the deployed runtime, fetched and checked once for each digest.

    Raises:
        ValueError: the archive is not the one that the user data names.
    """
    folder = cache / settings.digest
    if not folder.is_dir():
        answer = server.client("s3").get_object(Bucket=settings.bucket, Key=settings.key)
        archive = cache / f"{settings.digest}.zip"
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(answer["Body"].read())
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != settings.digest:
            raise ValueError(f"{settings.key}: SHA-256 {found}, user data wants {settings.digest}")
        new = folder.with_suffix(".new")
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(new)
        new.rename(folder)
    return folder


class PlayedInstance:
    """A node process that stands for one instance.

    Args:
        server: the account it is in.
        metadata: what it can read about itself.
        settings: from its user data.
        source: the unpacked runtime.
        folder: its disk: log and scratch.
        environment: variables that replace hardware which is not here.
    """

    def __init__(
        self,
        server: EmulatedServer,
        metadata: Metadata,
        settings: NodeSettings,
        *,
        source: Path,
        folder: Path,
        environment: dict[str, str],
    ):
        self.metadata = metadata
        self.fleet = settings.environment["LUMA_FLEET"]
        self._server = server
        self._source = source
        self._folder = folder
        self._imds = FakeImds(metadata).start()
        self._variables = self._service_environment(settings, environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._write_systemctl()
        self._start()

    @property
    def id(self) -> str:
        """The instance's id."""
        return self.metadata.instance_id

    @property
    def log(self) -> Path:
        """What its process wrote."""
        return self._folder / "node.log"

    def _service_environment(self, settings: NodeSettings, extra: dict[str, str]) -> dict[str, str]:
        variables = self._server.environment()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
            del variables[name]
        return (
            variables
            | settings.environment
            | extra
            | {
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._imds.endpoint,
                "LUMA_HOME": str(self._folder / "home"),
                "PYTHONUNBUFFERED": "1",
            }
        )

    def _write_systemctl(self) -> None:
        tools = self._folder / "bin"
        tools.mkdir(parents=True, exist_ok=True)
        (tools / "systemctl").write_text(_SYSTEMCTL)
        (tools / "systemctl").chmod(0o755)

    def _start(self) -> None:
        scratch = self._folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "runtime.agent.node",
                    "--scratch",
                    str(scratch),
                    "--wait-s",
                    "2",
                ],
                cwd=self._source,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (self._folder / "pid").write_text(str(self._process.pid))
        self._started = time.monotonic()

    def look(self) -> None:
        """Do what systemd does: start a service again that failed, 5 s later (`RestartSec`)."""
        with self._lock:
            if self._ended or self._process is None:
                return
            code = self._process.poll()
            if code is None:
                return
            self._forget_pid()
            stopped = (self._folder / "stopped").exists()
            if code != 0 and not stopped and time.monotonic() - self._started > 5:
                self._start()

    def _forget_pid(self) -> None:
        """The number of a process that has ended may soon be another's."""
        (self._folder / "pid").unlink(missing_ok=True)

    def run_command(self, command: dict[str, Any]) -> None:
        """Run an SSM command's script here, in the background, and report its end."""
        threading.Thread(target=self._run_command, args=(command,), daemon=True).start()

    def _run_command(self, command: dict[str, Any]) -> None:
        document = json.loads(command["document"])
        script = "\n".join(
            line
            for step in document["mainSteps"]
            if step["action"] == "aws:runShellScript"
            for line in step["inputs"]["runCommand"]
        )
        path = f"{self._folder / 'bin'}{os.pathsep}{self._variables.get('PATH', '')}"
        ended = subprocess.run(
            ["/bin/sh", "-c", script],
            env=self._variables | {"PATH": path, "LUMA_PLAYED": str(self._folder)},
            capture_output=True,
            timeout=600,
            check=False,
        )
        if not self._ended:  # an instance that is gone reports nothing
            self._server.control(
                "answer-command",
                command_id=command["command_id"],
                instance_id=self.id,
                code=ended.returncode,
                out=ended.stdout.decode("utf-8", "replace"),
                err=ended.stderr.decode("utf-8", "replace"),
            )

    def kill(self) -> None:
        """The instance is gone: SIGKILL to all its processes, its disk and metadata with them."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._forget_pid()
        self._imds.stop()
        shutil.rmtree(self._folder / "scratch", ignore_errors=True)
        shutil.rmtree(self._folder / "home", ignore_errors=True)
