"""Figures that Prometheus's own parser reads, and log lines that can hold nothing of a customer."""

from __future__ import annotations

import io
import json
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enclave_image.service.logs import FIELDS, LOGGER, log, log_to
from enclave_image.service.metrics import REASONS, Metrics


def samples(text: str) -> dict:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_figures():
    metrics = Metrics()
    metrics.done()
    metrics.compiled(2.5, failed=False)
    metrics.compiled(1.5, failed=True)
    metrics.refused("policy")
    metrics.refused("policy")
    found = samples(metrics.text({"queue_length": 3}))
    assert found["luma_service_requests_total",] == 1
    assert found["luma_service_compiles_total", "compiled"] == 1
    assert found["luma_service_compiles_total", "failed"] == 1
    assert found["luma_service_compile_seconds_total",] == 4.0
    assert found["luma_service_refusals_total", "policy"] == 2
    assert found["luma_service_queue_length",] == 3
    labels = {name[1] for name in found if name[0] == "luma_service_refusals_total"}
    assert labels == set(REASONS)


def test_a_reason_that_is_none_of_ours_makes_no_label():
    metrics = Metrics()
    metrics.refused("secret graph")
    text = metrics.text({})
    assert "secret" not in text
    assert samples(text)["luma_service_refusals_total", "fault"] == 1


def test_whoever_is_told_to_come_back_is_told_when():
    metrics = Metrics()
    assert metrics.retry_after_s(0) == 30
    metrics.compiled(10.0, failed=False)
    assert metrics.retry_after_s(0) == 10
    assert metrics.retry_after_s(3) == 40
    assert metrics.retry_after_s(1_000_000) == 600
    quick = Metrics()
    quick.compiled(0.01, failed=False)
    assert quick.retry_after_s(0) == 1


@pytest.fixture
def lines():
    before = (LOGGER.handlers, LOGGER.propagate, LOGGER.level)
    stream = io.StringIO()
    log_to(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    LOGGER.handlers, LOGGER.propagate, LOGGER.level = before


def test_a_line_is_one_json_object(lines):
    log("done", connection=1, artifact_bytes=5)
    log("refused", severity=logging.WARNING, connection=2, reason="frame")
    first, second = lines()
    assert {"event": "done", "connection": 1, "artifact_bytes": 5}.items() <= first.items()
    assert (second["severity"], second["reason"]) == ("warning", "frame")
    assert set(first) <= FIELDS | {"time", "severity", "event"}


def test_a_field_that_is_not_listed_cannot_be_logged():
    with pytest.raises(ValueError, match="not allowed"):
        log("done", target="cpu")


def test_what_another_library_logs_there_loses_its_values(lines):
    LOGGER.info("%s", "secret graph")
    assert "secret" not in json.dumps(lines())
