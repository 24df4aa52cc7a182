"""`python -m runtime.cli.account_compile --folder DIR`: a run's graph package becomes its artifact.

The work `compile` of a node starts it (`runtime.agent.node.work_stage`), since nothing else of the
runtime may import the enclave's client. It compiles where LUMA_COMPILER says:

| LUMA_COMPILER | what compiles | level of the artifact |
|---|---|---|
| `vsock:CID:PORT` (the default, vsock:16:5005) | the enclave, judged by LUMA_MEASUREMENTS | L2 |
| `unix:/path` | a local service | the job's, L0 or L1 |
| `local` | a service inside this process | the job's, L0 or L1 |

The level is the one that was reached, and stands in the artifact, in `artifact.json` and in the
answer; without an enclave it is never above L1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.agent.node.work import may_pass
from runtime.agent.node.work_stage import ANSWER_FILE, MAY_PASS, REQUEST_FILE
from runtime.cli.compile_here import CompileHere
from runtime.run.files import write_json
from runtime.run.folder import RunFolder
from runtime.spec import CompileError, JobSpec, LumaError, RunError, SpecError
from runtime.spec.account import (
    ARTIFACT_OBJECT,
    ARTIFACT_RECORD,
    RUN_ITEM,
    run_key,
    run_object,
    run_prefix,
)
from runtime.spec.objects import Bucket
from runtime.spec.table import Table

if TYPE_CHECKING:
    from enclave_image.service.address import Address
    from enclave_image.service.client import CompiledInService, CompileOrder
    from enclave_image.service.session import Trust
    from runtime.artifact import Level

_DEFAULT: Final = "vsock:16:5005"
_LOCAL: Final = "local"
_NEEDED: Final = ("run.json", "plan.json", "job.yaml", "model.graph")


def main() -> int:
    """Compile a run; 0 done, 75 for what may pass, another code for a job that does not compile."""
    parser = argparse.ArgumentParser(prog="runtime.cli.account_compile", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the scratch folder")
    folder: Path = parser.parse_args().folder
    try:
        answer = compile_run(folder, json.loads((folder / REQUEST_FILE).read_text()))
        write_json(folder / ANSWER_FILE, answer)
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the stage's own log
        return MAY_PASS if _may_pass(error) else 1
    return 0


def _may_pass(error: LumaError) -> bool:
    """Tell what another attempt may not meet from what it would."""
    from enclave_image.service.errors import PeerGoneError, ServiceBusyError

    return may_pass(error) or isinstance(error, PeerGoneError | ServiceBusyError)


def compile_run(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Compile a run of the account, and put its artifact where the run's islands find it.

    Args:
        path: the scratch folder; the data key of a run that is sealed with one is in it.
        request: `run`, `region`, `bucket` and `table`.

    Returns:
        `artifact` (its key), `level` and `targets`.

    Raises:
        LumaError: the run is not whole, does not compile, or AWS refuses.
    """
    run, folder = request["run"], RunFolder(path)
    bucket = Bucket(request["bucket"], region=request["region"])
    bucket.download_tree(run_prefix(run), path, wanted=_NEEDED.__contains__)
    made = _read_made(bucket, run)
    if made is None:
        made = _compile(folder)
        _upload(bucket, run, folder, made)
    key = run_object(run, ARTIFACT_OBJECT)
    table = Table(request["table"], region=request["region"])
    table.update(run_key(run), RUN_ITEM, {"artifact": key})
    return {"artifact": key, "level": made["seal"], "targets": made["targets"]}


def _read_made(bucket: Bucket, run: str) -> dict[str, Any] | None:
    """Give the record of an artifact that another attempt has made, None where there is none."""
    data = bucket.read(run_object(run, ARTIFACT_RECORD))
    return None if data is None else json.loads(data)


def _upload(bucket: Bucket, run: str, folder: RunFolder, made: dict[str, Any]) -> None:
    """Upload artifact and signer, then the record, which says that both are there."""
    for path in (folder.artifact_file, folder.signer_file):
        bucket.upload(path, run_object(run, path.name))
    bucket.write(run_object(run, ARTIFACT_RECORD), json.dumps(made).encode())


def _compile(folder: RunFolder) -> dict[str, Any]:
    """Compile a folder's graph; give what `artifact.json` says.

    Raises:
        CompileError: a target failed.
        LumaError: the service refused, or cannot be reached.
    """
    from enclave_image.service.client import compile_in_service

    spec, place = JobSpec.from_yaml(folder.job_file), os.environ.get("LUMA_COMPILER", _DEFAULT)
    trust = _trust(place)
    order = _order(spec, folder, enclave=place.startswith("vsock:"))
    with _service(place, spec, order) as address:
        made = compile_in_service(
            address,
            order,
            output=folder.artifact_file,
            trust=trust,
            said=lambda result: _say(
                f"{result.target}: {'failed' if result.error else 'compiled'}"
            ),
        )
    failed = {result.target: result.error for result in made.targets if result.error is not None}
    if failed:
        lines = [f"{target}: {error.message}" for target, error in failed.items()]
        raise CompileError("\n".join(lines))
    _write_signer(folder, made)
    return {
        "digest": made.artifact.digest,
        "seal": _label(order, made),
        "bytes": folder.artifact_file.stat().st_size,
        "targets": list(made.artifact.manifest.targets),
    }


def _trust(place: str) -> Trust:
    """Give what is accepted on the other side.

    Raises:
        SpecError: an enclave without measurements to judge it by.
    """
    from enclave_image.service.expected import expected_policy
    from enclave_image.service.session import Trust

    if not place.startswith("vsock:"):
        return Trust()
    measurements = os.environ.get("LUMA_MEASUREMENTS")
    if not measurements:
        raise SpecError(
            "LUMA_MEASUREMENTS is not set: the enclave cannot be judged",
            remedy="name the file of the image's measurements in the compiler host's environment, "
            "or say with LUMA_COMPILER=local that no enclave is wanted",
        )
    return Trust(policy=expected_policy(Path(measurements), os.environ.get("LUMA_IMAGE")))


def _order(spec: JobSpec, folder: RunFolder, *, enclave: bool) -> CompileOrder:
    """Give what is asked for."""
    from enclave_image.service.client import CompileOrder
    from runtime.artifact import KeyReference, load_data_key
    from runtime.artifact.kms import AwsAccess

    level: Level = spec.compile.seal
    if enclave and level != "L0":
        level = "L2"
    data_key, kms = None, None
    if spec.compile.kms is not None:
        asked = spec.compile.kms
        kms = KeyReference(arn=asked.key_arn, customer=asked.customer)
    elif level != "L0":
        data_key = load_data_key(folder.path / "data.key")
    return CompileOrder(
        package=folder.graph_file.read_bytes(),
        targets=spec.compile.targets,
        micro_shards=spec.train.micro_shards,
        level=level,
        data_key=data_key,
        kms=kms,
        access=AwsAccess(instance_role=True),
        statistics=_statistics(folder),
    )


def _statistics(folder: RunFolder) -> dict[str, Any]:
    """Give the public figures that the launch wrote down.

    Raises:
        RunError: `run.json` lacks them.
    """
    statistics = folder.record().get("statistics")
    if not isinstance(statistics, dict):
        raise RunError("run.json: lacks 'statistics'", remedy="launch the job again")
    return statistics


def _service(
    place: str, spec: JobSpec, order: CompileOrder
) -> contextlib.AbstractContextManager[Address]:
    """Give the service's address."""
    from enclave_image.service.address import Address

    if place == _LOCAL:
        return CompileHere(spec, order).service()
    return contextlib.nullcontext(Address.parse(place))


def _label(order: CompileOrder, made: CompiledInService) -> str:
    """Give the level as it is printed: never more than was seen."""
    if made.attested:
        return f"{order.level} (attested enclave)"
    return "L0" if order.level == "L0" else f"{order.level} (local service)"


def _write_signer(folder: RunFolder, made: CompiledInService) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from runtime.run.files import write_bytes

    pem = made.signer.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_bytes(folder.signer_file, pem)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the stage's own log


if __name__ == "__main__":
    sys.exit(main())
