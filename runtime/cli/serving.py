"""`luma serve`: answer OpenAI chat completions from a run's newest checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json_line

if TYPE_CHECKING:
    from runtime.run.folder import RunFolder

_DEFAULT_PORT = 8000


def register(app: App) -> None:
    """Add the command."""
    app.command(serve)


def serve(
    run: Annotated[Path, Parameter(help="a run folder, or a checkpoint or HF model folder")],
    /,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    model_name: str | None = None,
    json: JsonFlag = False,
) -> int:
    """Serve a run's newest checkpoint over an OpenAI-compatible API, until Ctrl-C.

    Clients must send the key in the environment variable LUMA_API_KEY, where it is set.
    A LoRA run's adapter is first merged into its model, once for each checkpoint.

    For example:

        luma serve runs/quickstart --port 8000

    Args:
        run: a run folder, or a checkpoint or HF model folder
        port: the TCP port; 0 takes a free one (default: the job's, else 8000)
        host: the address to listen on
        model_name: the model's name for clients (default: the job's)
        json: when requests are answered, print one line: {url, model, checkpoint}
    """
    from runtime.serve import find_checkpoint
    from runtime.serve import serve as serve_checkpoint

    checkpoint = find_checkpoint(run)
    folder = _run_folder(run) or _run_folder(checkpoint.parent.parent)
    record = {} if folder is None else folder.record()
    name = model_name or record.get("model_name") or run.resolve().name
    model = checkpoint if folder is None else _whole_weights(folder, checkpoint)

    def ready(url: str) -> None:
        if json:
            print_json_line({"url": url, "model": name, "checkpoint": str(checkpoint.resolve())})
        note(
            f"serving {name} from {checkpoint} at {url}\n"
            f"  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
            f"""    -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
        )

    note(f"loading {model} (Ctrl-C ends it)")
    return serve_checkpoint(
        model,
        model_name=name,
        host=host,
        port=_port(port, record),
        api_key=os.environ.get("LUMA_API_KEY") or None,
        on_ready=ready,
    )


def _port(asked: int | None, record: dict[str, Any]) -> int:
    """Give the port: 0 is a choice too, namely any free one."""
    for port in (asked, record.get("port")):
        if port is not None:
            return port
    return _DEFAULT_PORT


def _whole_weights(folder: RunFolder, checkpoint: Path) -> Path:
    """Give a folder that an engine can load: the checkpoint, or its adapter merged."""
    from runtime.run.merge import merged_checkpoint

    return merged_checkpoint(folder, checkpoint, lambda text: note(f"  {text}"))


def _run_folder(run: Path) -> RunFolder | None:
    """Open a run folder; None where this is none."""
    from runtime.run.folder import RunFolder
    from runtime.spec.errors import RunError

    try:
        return RunFolder.open(run)
    except RunError:
        return None
