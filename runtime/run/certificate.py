"""The certificate of a run: what its result is worth, each line from a record, none from hope.

`certificate.json` is a contract for scripts (docs/reference): the fields of `certify` are stable,
new ones may be added.

Levels (design, section 4): `exact` is given when every island ran the same payload on one chip
class, no committed step is missing, every micro-shard was summed exactly once, the checkpoint of
the last step is there with every byte that its manifest says and holds the state whose hash the
islands gave, and, where the uninterrupted reference was run, its final hash is the same. `violated` says that one of these does
not hold; `problems` says which.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from runtime.coordinator.plan import RunPlan
from runtime.run.audit import SampleAudit, audit_samples
from runtime.run.files import write_json
from runtime.run.folder import RunFolder
from runtime.run.history import History
from runtime.spec import RunError

CERTIFICATE_FORMAT = 1

Certificate = dict[str, Any]


def certify(folder: RunFolder, *, reference_state_hash: str | None = None) -> Certificate:
    """Make the certificate of a run that is done, and write `certificate.json`.

    Args:
        folder: the run.
        reference_state_hash: final hash of the uninterrupted reference, where one was run.

    Returns:
        The certificate, as written.

    Raises:
        RunError: the run is not done, or its records cannot be read.
    """
    plan, history, record = RunPlan.read(folder.path), History.read(folder.path), folder.record()
    ending = history.final()
    if ending is None or ending["kind"] != "done":
        raise RunError(
            f"'{folder.path}' has no certificate: the run is not done",
            remedy=f"finish it with `luma launch --resume {folder.path}`",
        )
    audit = audit_samples(history.commits, plan)
    problems = _problems(plan, history, audit, ending["state_hash"], reference_state_hash)
    problems += _checkpoint_problems(folder, plan, ending["state_hash"])
    certificate: Certificate = {
        "format": CERTIFICATE_FORMAT,
        "name": record["name"],
        "level": "violated" if problems else "exact",
        "problems": problems,
        "state_hash": ending["state_hash"],
        "reference_state_hash": reference_state_hash,
        **_training(plan, history),
        "samples_seen": audit.seen,
        "samples_exactly_once": audit.exactly_once,
        "epochs_begun": audit.epochs,
        "interruptions": [_plain(item) for item in history.interruptions()],
        "seconds_lost": _seconds_lost(history),
        "artifact_digest": record["artifact"]["digest"],
        "seal": record["artifact"]["seal"],
        "job_digest": plan.job_digest,
        "data_digest": plan.data_digest,
        "seed": plan.seed,
        "target": plan.target,
        "chip_classes": history.chip_classes(),
        "micro_shards": plan.micro_shards,
        "islands": plan.islands,
        "versions": record["versions"],
        "machine": record["machine"],
    }
    write_json(folder.certificate_file, certificate)
    return certificate


def read_certificate(folder: RunFolder) -> Certificate | None:
    """Give the certificate of a run folder, or None where there is none yet.

    Raises:
        RunError: the file is there and is not a certificate.
    """
    try:
        document = json.loads(folder.certificate_file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.certificate_file}: cannot be read ({error})") from None
    if not isinstance(document, dict) or document.get("format") != CERTIFICATE_FORMAT:
        raise RunError(f"{folder.certificate_file}: not a certificate of this version of luma")
    return document


def certificate_lines(certificate: Certificate) -> list[tuple[str, str]]:
    """Give the certificate as (label, text) rows for the terminal."""
    reference = certificate["reference_state_hash"]
    same = reference == certificate["state_hash"]
    compared = "not run (--reference runs it)"
    if reference is not None:
        compared = f"{reference[:16]}… {'the same' if same else 'DIFFERENT'}"
    once = "each exactly once" if certificate["samples_exactly_once"] else "NOT exactly once"
    rows = [
        ("level", certificate["level"]),
        ("state hash", certificate["state_hash"]),
        ("reference", compared),
        ("steps", f"{certificate['steps']}, {certificate['steps_lost']} lost"),
        ("attempts redone", str(certificate["attempts_redone"])),
        ("samples", f"{certificate['samples_seen']:,} used as planned, {once} in its epoch"),
        ("loss", _loss_text(certificate)),
        *(("interruption", _interruption_text(item)) for item in certificate["interruptions"]),
        ("artifact", certificate["artifact_digest"]),
        ("seal", certificate["seal"]),
        ("versions", ", ".join(f"{k} {v}" for k, v in certificate["versions"].items())),
    ]
    return rows + [("problem", text) for text in certificate["problems"]]


def _problems(
    plan: RunPlan,
    history: History,
    audit: SampleAudit,
    state_hash: str | None,
    reference: str | None,
) -> list[str]:
    problems = list(audit.problems)
    if len(history.commits) != plan.total_steps:
        problems.append(f"{len(history.commits)} steps are committed of {plan.total_steps}")
    lost = history.lost_steps()
    if lost:
        problems.append(f"committed steps are missing from the final history: {lost[:20]}")
    classes = history.chip_classes()
    if len(classes) > 1:
        problems.append(f"the islands were of several chip classes: {', '.join(classes)}")
    if state_hash is None:
        problems.append("no island gave a hash of the final state")
    if reference is not None and reference != state_hash:
        problems.append(
            f"the uninterrupted reference ended in {reference}, this run in {state_hash}"
        )
    return problems


def _checkpoint_problems(folder: RunFolder, plan: RunPlan, state_hash: str | None) -> list[str]:
    """Open the final checkpoint and verify every byte of it: the hash of a state is not the state."""
    from runtime.agent.checkpoint_load import latest_checkpoint
    from runtime.agent.checkpoint_manifest import RejectedCheckpoint, folder_name

    rejected: list[RejectedCheckpoint] = []
    found = latest_checkpoint(folder.checkpoints_dir, plan.job_digest, report=rejected)
    name = folder_name(plan.total_steps)
    if found is None or found.step != plan.total_steps:
        reasons = [item.reason for item in rejected if item.path.name == name]
        return [f"the final checkpoint {name} cannot be used: {(reasons or ['it is missing'])[0]}"]
    if found.state_hash != state_hash:
        return [f"the final checkpoint holds the state {found.state_hash}, not {state_hash}"]
    return []


def _training(plan: RunPlan, history: History) -> dict[str, Any]:
    commits = history.commits
    times = [event["time"] for event in history.of_kind("commit")]
    begins = [event["time"] for event in history.of_kind("epoch", "coordinator_started")]
    return {
        "steps": plan.total_steps,
        "steps_lost": len(history.lost_steps()),
        "attempts_redone": history.redone_attempts(),
        "tokens": sum(commit.tokens for commit in commits),
        "first_loss": commits[0].loss if commits else None,
        "final_loss": commits[-1].loss if commits else None,
        "train_seconds": round(times[-1] - min(begins), 3) if times and begins else None,
    }


def _seconds_lost(history: History) -> float:
    """Sum the interruptions' times to the next commit; those of one moment count once."""
    spans: dict[float, float] = {}
    for item in history.interruptions():
        if item.seconds_to_next_commit is not None:
            end = round(item.time + item.seconds_to_next_commit, 2)
            spans[end] = max(spans.get(end, 0.0), item.seconds_to_next_commit)
    return round(sum(spans.values()), 3)


def _plain(item: Any) -> dict[str, Any]:
    fields = asdict(item)
    fields.pop("time")
    return fields


def _loss_text(certificate: Certificate) -> str:
    first, last = certificate["first_loss"], certificate["final_loss"]
    return f"{first:.4f} at step 0, {last:.4f} at the end"


def _interruption_text(item: dict[str, Any]) -> str:
    seconds = item["seconds_to_next_commit"]
    after = "no commit followed" if seconds is None else f"next commit after {seconds:.2f} s"
    return f"{item['island']} {item['kind']} in step {item['at_step']}; {after}"
