"""The pre-flight of a job: what its targets cannot compile, asked in a process of its own.

A stage (`python -m runtime.run.preflight`), since lowering imports jax, which reads its environment
when it is first used and would stay in the command's memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.run.folder import RunFolder
from runtime.run.stage import Progress, run_stage, serve_stage
from runtime.spec import JobSpec, LoweringError

__all__ = ["check_supported", "preflight_targets"]

_REMEDY = (
    "change the model there, or add what is missing: docs/how-to/add-an-op.md, "
    "docs/how-to/add-a-decomposition.md"
)


def preflight_targets(
    spec: JobSpec, targets: Sequence[str], folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    """Judge a folder's captured graph for targets; nothing is compiled.

    Args:
        spec: the job.
        targets: names of targets.
        folder: holds the captured graph.
        progress: called with lines of progress.

    Returns:
        `unsupported`: [{target, op, reasons, modules}], `decomposed`: [{target, op, by, because,
        nodes, into, modules}], `assumed`: [{target, operators}].

    Raises:
        CompileError: a target is unknown, or the graph package is broken.
    """
    request = {
        "graph": str(folder.graph_file),
        "targets": list(targets),
        "micro_shards": spec.train.micro_shards,
    }
    log = folder.path / "preflight.log"
    return run_stage("runtime.run.preflight", request, log=log, progress=progress)


def check_supported(found: dict[str, Any]) -> None:
    """Raise one error for all that is unsupported.

    Raises:
        LoweringError: a target cannot compile an op; every one is listed with its modules.
    """
    lines = [
        f"{item['target']}: {item['op']}{_where(item['modules'])}: {'; '.join(item['reasons'])}"
        for item in found["unsupported"]
    ]
    if lines:
        listed = "\n  ".join(lines)
        raise LoweringError(f"the graph cannot be compiled:\n  {listed}", remedy=_REMEDY)


def _where(modules: Sequence[str]) -> str:
    return f" in {', '.join(modules)}" if modules else ""


def _work(request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from runtime.compiler.targets.target import COMMON_ENVIRONMENT

    os.environ.update(COMMON_ENVIRONMENT)
    from runtime.compiler.graph import GraphPackage
    from runtime.compiler.preflight import preflight
    from runtime.compiler.targets import find_target

    package = GraphPackage.from_bytes(Path(request["graph"]).read_bytes())
    result: dict[str, list[dict[str, Any]]] = {"unsupported": [], "decomposed": [], "assumed": []}
    for name in request["targets"]:
        progress(f"{name}: looking at every op")
        found = preflight(package, find_target(name), micro_shards=request["micro_shards"])
        result["unsupported"] += [{"target": name, **i.to_json()} for i in found.unsupported]
        result["decomposed"] += [{"target": name, **i.to_json()} for i in found.decomposed]
        if found.assumed:
            result["assumed"].append({"target": name, "operators": list(found.assumed)})
    return result


if __name__ == "__main__":
    serve_stage(_work)
