"""`luma serve`: answer OpenAI chat completions from a run's newest checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import note

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
) -> int:
    """Serve a run's newest checkpoint over an OpenAI-compatible API, until Ctrl-C.

    Clients must send the key in the environment variable LUMA_API_KEY, where it is set.

    For example:

        luma serve runs/quickstart --port 8000

    Args:
        run: a run folder, or a checkpoint or HF model folder
        port: the TCP port (default: the job's, else 8000)
        host: the address to listen on
        model_name: the model's name for clients (default: the job's)
    """
    from runtime.serve import find_checkpoint
    from runtime.serve import serve as serve_checkpoint

    checkpoint = find_checkpoint(run)
    record = _record(run)
    name = model_name or record.get("model_name") or run.resolve().name
    port = port or record.get("port") or _DEFAULT_PORT

    def ready(url: str) -> None:
        note(
            f"serving {name} from {checkpoint} at {url}\n"
            f"  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
            f"""    -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
        )

    note(f"loading {checkpoint} (Ctrl-C ends it)")
    return serve_checkpoint(
        checkpoint,
        model_name=name,
        host=host,
        port=port,
        api_key=os.environ.get("LUMA_API_KEY") or None,
        on_ready=ready,
    )


def _record(run: Path) -> dict[str, Any]:
    """Give what the job said of its service; nothing where this is no run folder."""
    from runtime.run.folder import RunFolder
    from runtime.spec.errors import RunError

    try:
        return RunFolder.open(run).record()
    except RunError:
        return {}
