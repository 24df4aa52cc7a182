"""The Python SDK: `Job.from_yaml("job.yaml").launch()` gives a `Run`.

A launch runs in a thread of the caller's process; the work itself is in processes of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.coordinator.client import read_status, request_stop
from runtime.run.certificate import Certificate, read_certificate
from runtime.run.chaos import parse_faults
from runtime.run.events import Event, EventFollower
from runtime.run.folder import RunFolder, default_run_path
from runtime.run.interrupt import StopSwitch
from runtime.run.launch import LaunchOptions, LaunchResult, launch, resume
from runtime.run.logs import follow_logs, read_logs
from runtime.spec import JobSpec, LumaError, RunError

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for.

    Attributes:
        file: the job file.
        spec: its content, checked.
    """

    file: Path
    spec: JobSpec

    @classmethod
    def from_yaml(cls, path: str | Path) -> Job:
        """Read a job file.

        Raises:
            SpecError: the file is wrong; the message lists every fault.
        """
        return cls(Path(path), JobSpec.from_yaml(path))

    def launch(
        self,
        *,
        run: str | Path | None = None,
        islands: int | None = None,
        chaos: str | Sequence[str] = (),
        reference: bool = False,
    ) -> Run:
        """Launch the job on this machine and return at once; the plan counts as accepted.

        Args:
            run: the run folder; the default is `runs/NAME-TIME`.
            islands: islands instead of the job's.
            chaos: faults as `luma launch --chaos` takes them.
            reference: whether the uninterrupted reference is run afterwards.

        Raises:
            SpecError: a fault of `chaos` is wrong.
        """
        texts = [chaos] if isinstance(chaos, str) else list(chaos)
        path = Path(run) if run is not None else default_run_path(self.spec.name)
        options = LaunchOptions(
            run=path, islands=islands, faults=parse_faults(texts), reference=reference
        )
        stop = StopSwitch()
        return Run._start(path, lambda: launch(self.file, options, stop=stop), stop)  # noqa: SLF001


class Run:
    """One execution of a job: started here, or opened by its folder.

    Attributes:
        path: the run folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self._thread: threading.Thread | None = None
        self._stop: StopSwitch | None = None
        self._result: LaunchResult | None = None
        self._error: BaseException | None = None

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open the run of a folder, whoever started it.

        Raises:
            RunError: this is no run folder of this version.
        """
        return cls(RunFolder.open(Path(path)).path)

    @classmethod
    def resume(cls, path: str | Path, *, islands: int | None = None) -> Run:
        """Go on with a stopped run from its last durable step, and return at once.

        Raises:
            RunError: this is no run folder of this version.
        """
        folder, stop = RunFolder.open(Path(path)), StopSwitch()
        options = LaunchOptions(islands=islands)
        return cls._start(folder.path, lambda: resume(folder.path, options, stop=stop), stop)

    @classmethod
    def _start(cls, path: Path, work: Callable[[], LaunchResult], stop: StopSwitch) -> Run:
        run = cls(path)
        run._stop = stop

        def body() -> None:
            try:
                run._result = work()
            except BaseException as error:  # noqa: BLE001 - raised again by `wait`
                run._error = error

        run._thread = threading.Thread(target=body, name=f"luma {path.name}", daemon=True)
        run._thread.start()
        return run

    def wait(self, timeout_s: float | None = None) -> Certificate:
        """Wait for the run's end and give its certificate.

        Args:
            timeout_s: give up waiting after that time; the run goes on.

        Raises:
            RunError: the run failed or was stopped.
            LumaError: the launch failed before it began.
            TimeoutError: time is up.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                msg = f"the run in {self.path} has not ended after {timeout_s} s"
                raise TimeoutError(msg)
            if self._error is not None:
                raise self._error
        else:
            self._wait_for_others(timeout_s)
        certificate = read_certificate(RunFolder.open(self.path))
        if certificate is None:
            raise RunError(
                f"the run in {self.path} has stopped before its end",
                remedy=f"go on with `luma launch --resume {self.path}`",
            )
        return certificate

    def status(self) -> dict[str, Any]:
        """Give the run's state, as `luma status --json`.

        Raises:
            RunError: there is no run folder yet, or it is broken.
        """
        return read_status(self.path)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """Give the run's events in order.

        Args:
            follow: go on with new events until the run ends.
        """
        follower = EventFollower(self.path)
        while True:
            running = follow and self._running()
            yield from follower.poll()
            if not running:
                return
            time.sleep(_POLL_S)

    def logs(self, name: str | None = None, *, follow: bool = False) -> Iterator[str]:
        """Give the lines of the logs of the run's processes.

        Args:
            name: of one process: `island-0`, `coordinator`; None for all, each line with a name.
            follow: go on with new lines until the run ends.

        Raises:
            RunError: no process of that name has a log.
        """
        folder = RunFolder(self.path)
        return follow_logs(folder, name, self._running) if follow else read_logs(folder, name)

    def cancel(self) -> None:
        """Ask the run to end resumably, after the step in flight.

        Raises:
            CoordinationError: nothing runs for this folder.
        """
        if self._stop is not None and self._thread is not None and self._thread.is_alive():
            self._stop.request()
            return
        request_stop(self.path)

    def _running(self) -> bool:
        if self._thread is not None:
            return self._thread.is_alive()
        try:
            return read_status(self.path)["coordinator"] is not None
        except LumaError:
            return False

    def _wait_for_others(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._running():
            if deadline is not None and time.monotonic() > deadline:
                msg = f"the run in {self.path} has not ended after {timeout_s} s"
                raise TimeoutError(msg)
            time.sleep(_POLL_S)
