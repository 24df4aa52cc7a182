"""The transformers back end: `transformers serve` in a child process, behind a private Unix socket.

The child is `transformers_child`; this module starts it, asks it, and ends it with all its
processes. It runs offline: nothing is looked up on a hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp

import runtime
from runtime.serve.back_ends._upstream import stream_events
from runtime.serve.back_ends.protocol import BackEndError, Event, GenerationRequest, Sampling
from runtime.spec import ServeError

_CACHE_BYTES = 1024**3
_TERM_S = 3.0
"""Seconds from SIGTERM to SIGKILL. The child has nothing to save, and with batching it took from 10
to 76 s to end by itself."""
_DEATH_S = 0.5
_TAIL_LINES = 40
_WARM_UP = GenerationRequest(
    request_id="req_warm_up",
    prompt="a",
    max_tokens=1,
    clamp_max_tokens=True,
    stop=(),
    sampling=Sampling(temperature=0, top_p=1, top_k=0, seed=None),
)


class TransformersBackEnd:
    """Runs one checkpoint folder in `transformers serve`; see `BackEnd` for the methods.

    Args:
        checkpoint: a folder in HF format.
        start_s: seconds for the engine to load and answer a first request.
        device: as transformers takes it: `auto`, `cpu`, `cuda:0`.
        cache_bytes: the budget for the cache of keys and values.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        start_s: float,
        device: str = "auto",
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._checkpoint = checkpoint
        self._start_s = start_s
        self._device = device
        self._cache_bytes = cache_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._output: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ready = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pid(self) -> int | None:
        """Give the engine's process id, also its process group's, while it runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the child; return when it has generated a token. See `BackEnd.start`."""
        await self.stop()
        self._folder = tempfile.TemporaryDirectory(prefix="luma-")
        socket_path = Path(self._folder.name) / "engine.sock"
        self._tail.clear()
        self._process = await self._spawn(socket_path)
        self._output = asyncio.create_task(self._read_output())
        self._session = aiohttp.ClientSession(
            "http://engine",
            connector=aiohttp.UnixConnector(str(socket_path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )
        try:
            async with asyncio.timeout(self._start_s):
                await self._until_listening(self._session)
                await self._warm_up()
        except TimeoutError as error:
            await self.stop()
            message = f"the back end was not ready within {self._start_s:g} s"
            raise ServeError(message, remedy=self._last_lines()) from error
        except BaseException:
            await self.stop()
            raise
        # From here on its lines could hold a client's text: none is kept.
        self._tail = deque(maxlen=0)
        self._ready = True

    def ready(self) -> bool:
        """Tell whether the child is alive and takes requests."""
        alive = self._process is not None and self._process.returncode is None
        return alive and self._ready

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Generate one answer; see `BackEnd.stream`."""
        if not self.ready():
            message = "the back end is not ready"
            raise BackEndError("unavailable", message)
        try:
            async with contextlib.aclosing(self._stream(request)) as events:
                async for event in events:
                    yield event
        except BackEndError as error:
            if error.reason in ("cut", "unavailable"):
                await self._see_death()
            raise

    async def _see_death(self) -> None:
        """Wait a moment for the news: a killed process's sockets close before it can be reaped.

        Without this, a client that saw its request fail could still be told that we are ready.
        """
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _DEATH_S)

    async def wait_dead(self) -> str:
        """Wait until the child ends by itself; see `BackEnd.wait_dead`."""
        if self._process is None:
            return "the back end was never started"
        code = await self._process.wait()
        self._ready = False
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the back end ended with {how}"

    async def drain(self, deadline_s: float) -> bool:
        """Take no more requests and wait for those in flight; see `BackEnd.drain`."""
        self._ready = False
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the child's process group; see `BackEnd.stop`."""
        self._ready = False
        process, self._process = self._process, None
        if process is not None:
            await _end_group(process)
        if self._output is not None:
            self._output.cancel()
            self._output = None
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def _spawn(self, socket_path: Path) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "runtime.serve.back_ends.transformers_child",
            f"--checkpoint={self._checkpoint}",
            f"--socket={socket_path}",
            f"--device={self._device}",
            f"--cache-bytes={self._cache_bytes}",
            # The child ends when this pipe does: a killed gateway leaves no engine behind.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=_child_environment(),
        )

    async def _read_output(self) -> None:
        """Keep the child's pipe empty; remember its last lines until it is ready."""
        process = self._process
        if process is None or process.stdout is None:
            return
        while chunk := await process.stdout.read(65536):
            self._tail.extend(chunk.decode("utf-8", "replace").splitlines())

    async def _until_listening(self, session: aiohttp.ClientSession) -> None:
        while True:
            self._check_alive()
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get("/health") as response:
                    if response.ok:
                        return
            await asyncio.sleep(0.1)

    def _check_alive(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            message = f"the back end ended at start with exit code {self._process.returncode}"
            raise ServeError(message, remedy=self._last_lines())

    def _last_lines(self) -> str:
        lines = "\n    ".join(self._tail) or "(none)"
        return f"see the back end's last lines:\n    {lines}"

    async def _warm_up(self) -> None:
        """Generate a token: the engine allocates its cache at the first request, or fails there."""
        try:
            async with contextlib.aclosing(self._stream(_WARM_UP)) as events:
                async for _ in events:
                    pass
        except BackEndError as error:
            message = f"the back end cannot generate: {error.message}"
            raise ServeError(message, remedy=self._last_lines()) from error

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        if self._session is None:
            message = "the back end is stopped"
            raise BackEndError("unavailable", message)
        path, body = _upstream_request(request)
        self._in_flight += 1
        self._idle.clear()
        try:
            answer = stream_events(self._session, path, body, request_id=request.request_id)
            async with contextlib.aclosing(answer) as events:
                async for event in events:
                    yield event
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()


def _upstream_request(request: GenerationRequest) -> tuple[str, dict[str, Any]]:
    """Give the child's path and JSON body for a request; no model name, it has only one."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "stream": True,
        "max_tokens": request.max_tokens,
        "luma": {
            "clamp_max_tokens": request.clamp_max_tokens,
            "stop": list(request.stop),
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "seed": sampling.seed,
            },
        },
    }
    if isinstance(request.prompt, str):
        return "/v1/completions", {**body, "prompt": request.prompt}
    messages = [{"role": m.role, "content": m.content} for m in request.prompt]
    return "/v1/chat/completions", {**body, "messages": messages}


def _child_environment() -> dict[str, str]:
    package_root = str(Path(runtime.__file__).resolve().parents[1])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    # The clients' key stays with the gateway.
    inherited = {k: v for k, v in os.environ.items() if k != "LUMA_API_KEY"}
    return {
        # libgomp's threads spin at each barrier; where other processes want the cores too, that cost
        # 8 times the CPU and 10 times the wall clock a token (SmolLM2-135M, 2 cores, load 8).
        "OMP_WAIT_POLICY": "PASSIVE",
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End a process group: SIGTERM, then SIGKILL for what is left of it."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _TERM_S)
    # Also when the leader has ended: a worker of its group may still hold memory.
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
