"""The metadata client and the notices in it, against a service that only knows version 2."""

from __future__ import annotations

import queue
import time
from datetime import UTC, datetime, timedelta

import pytest

from runtime.agent.node.imds import Imds, ImdsError
from runtime.agent.node.notices import DEFAULT_LEAVE_S, Notice, NoticeWatch, look
from tests.emulator.imds import FakeImds, Metadata


@pytest.fixture
def metadata():
    return Metadata(
        instance_id="i-1", instance_type="c7i.large", region="eu-west-1", zone="eu-west-1b"
    )


@pytest.fixture
def service(metadata):
    with FakeImds(metadata) as running:
        yield running


@pytest.fixture
def imds(service):
    return Imds(service.endpoint)


def test_identity_is_read(imds):
    found = imds.identity()
    assert (found.instance, found.instance_type) == ("i-1", "c7i.large")
    assert (found.region, found.zone, found.address) == ("eu-west-1", "eu-west-1b", "127.0.0.1")


def test_a_service_that_is_slow_at_boot_is_asked_again(imds, monkeypatch):
    """One slow answer would otherwise end the daemon: a node lost in its set-up."""
    asked: list[str] = []
    ask = imds._ask

    def slow_at_first(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        asked.append(path)
        if len(asked) < 3:
            raise ImdsError("instance metadata does not answer (timed out)")
        return ask(method, path, headers)

    monkeypatch.setattr(imds, "_ask", slow_at_first)
    monkeypatch.setattr("runtime.agent.node.imds._PAUSE_S", 0.0)
    assert imds.identity().instance == "i-1"
    assert len(asked) == 4, "the token twice in vain, the token, the document"


def test_a_service_that_never_answers_is_an_error_in_the_end(imds, monkeypatch):
    monkeypatch.setattr("runtime.agent.node.imds._PAUSE_S", 0.0)
    imds._port = 9  # nobody listens there
    with pytest.raises(ImdsError, match="does not answer"):
        imds.identity()


def test_a_token_that_the_service_forgot_is_got_anew(imds, service):
    assert imds.get("meta-data/instance-id") == "i-1"
    service._server.tokens.clear()
    assert imds.get("meta-data/instance-id") == "i-1"


def test_what_is_not_there_is_none(imds):
    assert imds.get("meta-data/spot/instance-action") is None
    assert imds.get_json("meta-data/spot/instance-action") is None


def test_a_silent_service_is_an_error_that_names_it(service, imds):
    service.stop()
    with pytest.raises(ImdsError, match="does not answer"):
        imds.get("meta-data/instance-id")
    service._server.server_close = lambda: None
    service.stop = lambda: None


def test_what_is_no_object_is_an_error(imds, metadata):
    metadata.values["spot/instance-action"] = "soon"
    with pytest.raises(ImdsError, match="holds no JSON object"):
        imds.get_json("meta-data/spot/instance-action")


def test_the_environment_names_the_service(monkeypatch, service):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    with pytest.raises(ImdsError, match="could not hear of an interruption"):
        Imds.from_environment()
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.endpoint)
    assert Imds.from_environment().identity().instance == "i-1"
    for wrong in ("https://x", "localhost:1", "ftp://h"):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", wrong)
        with pytest.raises(ImdsError, match="expected http"):
            Imds.from_environment()


def test_each_source_of_notices_is_heard(imds, metadata):
    now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    assert look(imds, now.timestamp()) is None
    metadata.recommend_rebalance()
    assert look(imds, now.timestamp()) == Notice(kind="rebalance", leave_s=DEFAULT_LEAVE_S)
    metadata.values["autoscaling/target-lifecycle-state"] = "Terminated"
    assert look(imds, now.timestamp()) == Notice(kind="lifecycle", leave_s=DEFAULT_LEAVE_S)
    end = (now + timedelta(seconds=40)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata.values["spot/instance-action"] = f'{{"action": "terminate", "time": "{end}"}}'
    assert look(imds, now.timestamp()) == Notice(kind="spot", leave_s=25.0)


@pytest.mark.parametrize(
    ("end", "leave_s"),
    [
        ("2026-11-30T12:02:00Z", 60.0),
        ("2026-11-30T12:00:10Z", 0.0),
        ("2026-11-30T11:00:00Z", 0.0),
        ("2026-11-30T12:00:45", 30.0),
        ("soon", 60.0),
    ],
)
def test_the_time_to_leave_is_never_more_than_is_left(imds, metadata, end, leave_s):
    now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp()
    metadata.values["spot/instance-action"] = f'{{"action": "stop", "time": "{end}"}}'
    assert look(imds, now) == Notice(kind="spot", leave_s=leave_s)


def test_the_watch_tells_once_and_survives_silence(imds, metadata, service):
    told: queue.SimpleQueue = queue.SimpleQueue()
    complaints: list[str] = []
    tokens = dict(service._server.tokens)
    metadata.values["events/recommendations/rebalance"] = "broken"
    watch = NoticeWatch(imds, told.put, complaints.append, every_s=0.01)
    watch.start()
    deadline = time.monotonic() + 60
    while not complaints and time.monotonic() < deadline:
        time.sleep(0.01)
    metadata.notice_interruption()
    assert told.get(timeout=60).kind == "spot"
    watch.stop()
    assert len(complaints) == 1
    assert told.empty()
    assert tokens == {}
