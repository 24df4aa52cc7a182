"""From documents to the sample file: tokenise once, cut, pack, write, whole or not at all.

1. Documents are tokenised in batches; their pairs (token, the token it predicts or -100) go to two
   spool files, the lengths of the pieces stay in memory.
2. The layout gives each piece a place; rows are composed from the spool and written with their
   hashes.
3. The folder is written under a hidden name and renamed, with `samples.json` in it.

A folder that already holds the samples of the same content, tokenizer and options is kept.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from runtime.agent.samples import FORMAT, INDEX, SampleFile, samples_digest
from runtime.run.data.chat import ChatEncoder
from runtime.run.data.packing import best_fit, one_per_row
from runtime.run.data.readers import Document, Reader
from runtime.run.data.rows import Spool, write_rows
from runtime.run.data.sources import resolve_sources
from runtime.run.data.tokens import ByteEncoder, Encoder, TextEncoder
from runtime.spec import DataError, JobSpec

Progress = Callable[[str], None]
_BATCH_DOCUMENTS = 64
_REPORT_TOKENS = 1_000_000
_TEMP_PREFIX = ".preparing-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFileInfo:
    """What was prepared.

    Attributes:
        count: samples (rows).
        seq_len: tokens in a row.
        digest: digest of the samples, see `runtime.agent.samples`.
        supervised_tokens: labels that the loss counts, in all rows.
        documents: documents read.
        unused_documents: of these, the ones with nothing to learn (empty, or a chat without an
            assistant).
        largest_token: the largest token id; the model's vocabulary must be larger.
        cached: whether the samples were there already.
    """

    count: int
    seq_len: int
    digest: str
    supervised_tokens: int
    documents: int
    unused_documents: int
    largest_token: int
    cached: bool = False


def prepare_data(
    spec: JobSpec, tokenizer: Any | None, out_dir: Path, progress: Progress | None = None
) -> SampleFileInfo:
    """Prepare a job's data as a sample file.

    Args:
        spec: the job; its `data` and `train` sections are used.
        tokenizer: the model's Hugging Face tokenizer; None takes bytes as tokens.
        out_dir: the folder to make; an older one of other content is replaced.
        progress: called with lines of progress.

    Raises:
        DataError: the data cannot be read or used; the message names file, line and field.
    """
    report = progress or _silent
    encoder = _encoder(spec.data.kind, tokenizer)
    readers = _readers(spec)
    key = _key(spec, encoder, readers)
    known = _cached(out_dir, key)
    if known is not None:
        report(f"data: {known.count:,} samples are prepared already")
        return known
    temp = out_dir.with_name(f"{_TEMP_PREFIX}{out_dir.name}-{secrets.token_hex(4)}")
    try:
        temp.mkdir(parents=True)
        info = _prepare(spec, encoder, readers, temp, key, report)
        _replace(temp, out_dir)
    except OSError as error:
        msg = f"{out_dir}: the samples were not written ({error.strerror or error})"
        raise DataError(
            msg, remedy="free space or choose another folder, then try again", exit_code=1
        ) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return info


def _prepare(
    spec: JobSpec,
    encoder: Encoder,
    readers: list[Reader],
    temp: Path,
    key: str,
    report: Progress,
) -> SampleFileInfo:
    spool = Spool(temp, spec.train.seq_len)
    limit = spec.data.max_samples
    with spool:
        documents = (document for reader in readers for document in reader.documents())
        _tokenise(documents, encoder, spool, spec, report)
    lengths = np.array(spool.lengths, np.int64)
    layout = best_fit(lengths, spool.seq_len) if spec.data.packing else one_per_row(lengths)
    count = layout.count if limit is None else min(limit, layout.count)
    _check_count(spec, count, spool)
    written = write_rows(temp, spool, layout, count)
    spool.remove()
    info = SampleFileInfo(
        count=count,
        seq_len=spool.seq_len,
        digest=samples_digest(count, spool.seq_len, written.hashes),
        supervised_tokens=written.supervised_tokens,
        documents=spool.documents,
        unused_documents=spool.unused_documents,
        largest_token=written.largest_token,
    )
    _write_index(temp, info, written.hashes, key)
    return info


def _tokenise(
    documents: Iterator[Document],
    encoder: Encoder,
    spool: Spool,
    spec: JobSpec,
    report: Progress,
) -> None:
    limit, reported = spec.data.max_samples, 0
    while batch := list(islice(documents, _BATCH_DOCUMENTS)):
        for tokens in encoder.encode(batch):
            spool.add(tokens.ids, tokens.supervised)
        if spool.pairs - reported >= _REPORT_TOKENS:
            reported = spool.pairs
            report(f"tokenised {spool.documents:,} documents, {spool.pairs:,} tokens")
        # Full rows, or with packing their worth of tokens, are enough: packing never wins rows.
        filled = spool.pairs // spool.seq_len if spec.data.packing else len(spool.lengths)
        if limit is not None and filled >= limit:
            break
    report(f"tokenised {spool.documents:,} documents, {spool.pairs:,} tokens")


def _encoder(kind: str, tokenizer: Any | None) -> Encoder:
    if kind == "chat":
        return ChatEncoder(tokenizer)
    return ByteEncoder() if tokenizer is None else TextEncoder(tokenizer)


def _readers(spec: JobSpec) -> list[Reader]:
    data = spec.data
    # The field's default is that of plain text; a chat's is what every chat data set calls it.
    chat_default = data.kind == "chat" and data.text_field == "text"
    field = "messages" if chat_default else data.text_field
    sources = resolve_sources(data.sources, spec.base_dir, data.format)
    return [Reader(source, field=field, kind=data.kind) for source in sources]


def _key(spec: JobSpec, encoder: Encoder, readers: Iterable[Reader]) -> str:
    data = spec.data
    content = {
        "format": FORMAT,
        "encoder": encoder.digest(),
        "sources": [reader.digest() for reader in readers],
        "options": [data.kind, data.text_field, data.packing, data.max_samples],
        "seq_len": spec.train.seq_len,
    }
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_count(spec: JobSpec, count: int, spool: Spool) -> None:
    names = ", ".join(spec.data.sources)
    if count == 0:
        msg = (
            f"data.source: {names}: nothing to learn from in {spool.documents} documents; "
            "expected at least two tokens in one, and a supervised one"
        )
        raise DataError(msg)
    wanted = spec.train.micro_shards * spec.train.micro_batch
    if count < wanted:
        msg = (
            f"data.source: {names}: {count} samples of {spec.train.seq_len} tokens, fewer than the "
            f"{wanted} of one step (train.micro_shards * train.micro_batch)"
        )
        raise DataError(msg, remedy="give more data, or a smaller seq_len or batch")


def _write_index(folder: Path, info: SampleFileInfo, hashes: dict[str, str], key: str) -> None:
    content = {
        "format": FORMAT,
        "count": info.count,
        "seq_len": info.seq_len,
        "digest": info.digest,
        "files": hashes,
        "supervised_tokens": info.supervised_tokens,
        "documents": info.documents,
        "unused_documents": info.unused_documents,
        "largest_token": info.largest_token,
        "key": key,
    }
    with (folder / INDEX).open("x") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())


def _cached(out_dir: Path, key: str) -> SampleFileInfo | None:
    try:
        index = json.loads((out_dir / INDEX).read_bytes())
        if index["key"] != key:
            return None
        samples = SampleFile.open(out_dir)
        return SampleFileInfo(
            count=samples.count,
            seq_len=samples.seq_len,
            digest=samples.digest,
            supervised_tokens=samples.supervised_tokens,
            documents=index["documents"],
            unused_documents=index["unused_documents"],
            largest_token=index["largest_token"],
            cached=True,
        )
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None  # absent, of another version or damaged: prepared anew


def _replace(temp: Path, out_dir: Path) -> None:
    old = None
    if out_dir.exists():
        if not (out_dir / INDEX).is_file() and any(out_dir.iterdir()):
            msg = f"{out_dir}: holds other files; samples need a folder of their own"
            raise DataError(msg, remedy="choose another folder")
        old = out_dir.with_name(f"{_TEMP_PREFIX}old-{out_dir.name}-{secrets.token_hex(4)}")
        out_dir.rename(old)
    temp.rename(out_dir)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _silent(_: str) -> None:
    """Say nothing."""
