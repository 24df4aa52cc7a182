"""The watcher of a gateway: real HTTP on loopback for metadata and metrics, commands recorded."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.cdk import ROOT

SCRIPT = ROOT / "luma_constructs/data/serve_watch.py"
META = "/latest/meta-data"


@pytest.fixture(scope="module")
def watch():
    spec = importlib.util.spec_from_file_location("serve_watch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pages(BaseHTTPRequestHandler):
    """Answers from `server.pages`; metadata asks for the token that PUT gave."""

    def do_PUT(self):
        self.server.puts += 1
        self._answer("token" if self.path == "/latest/api/token" else None)

    def do_GET(self):
        told = self.headers.get("X-aws-ec2-metadata-token")
        if self.path.startswith(META) and told != "token":
            self.send_error(401)
            return
        self._answer(self.server.pages.get(self.path))

    def _answer(self, text):
        if text is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as made:
        made.pages, made.puts = {f"{META}/instance-id": "i-0123"}, 0
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


def url(server):
    return f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (None, None, None),
        ("spot/instance-action", '{"action":"terminate"}', "spot/instance-action"),
        ("events/recommendations/rebalance", "{}", "events/recommendations/rebalance"),
        ("autoscaling/target-lifecycle-state", "Terminated", "autoscaling/target-lifecycle-state"),
        ("autoscaling/target-lifecycle-state", "InService", None),
    ],
)
def test_a_notice_is_seen(path, text, expected, server, watch):
    if path is not None:
        server.pages[f"{META}/{path}"] = text
    assert watch.notice(url(server)) == expected
    assert server.puts == 1  # IMDSv2: a token for each look


def test_metadata_that_does_not_answer_is_an_error(watch, server):
    server.pages.clear()
    with pytest.raises(OSError, match="names no instance"):
        watch.instance_id(url(server))
    with pytest.raises(OSError):
        watch.notice("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# TYPE luma_serve_in_flight gauge\nluma_serve_in_flight 3.0\n", 3.0),
        ("luma_serve_in_flight_total 9\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_load_is_the_gateway_s_own_figure(text, expected, server, watch):
    if text is not None:
        server.pages["/metrics"] = text
    assert watch.in_flight(server.server_port) == expected


def test_the_gateway_s_metric_has_that_name(server, watch):
    from runtime.serve.metrics import Metrics

    metrics = Metrics()
    metrics.in_flight.inc()
    server.pages["/metrics"] = metrics.text().decode()
    assert watch.in_flight(server.server_port) == 1.0


def test_a_gateway_that_does_not_answer_has_no_load(watch):
    assert watch.in_flight(1) is None


def test_the_gateway_is_stopped_even_if_the_load_balancer_could_not_be_told(watch):
    commands = []

    def run(command):
        commands.append(list(command))
        return 255 if command[0] == "aws" else 0

    assert watch.leave("i-0123", "us-east-1", "arn:tg", run) == 255
    assert [c[0] for c in commands] == ["aws", "systemctl"]
    assert commands[1] == ["systemctl", "stop", "luma-serve.service"]


def test_the_script_reports_load_and_leaves_on_a_notice(server, tmp_path):
    """The whole script, as the instance runs it: the notice is there from the second look on."""
    record = tmp_path / "record"
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("aws", "systemctl"):
        path = binaries / name
        path.write_text('#!/bin/sh\necho "$(basename "$0") $*" >>"$RECORD"\n')
        path.chmod(0o755)
    server.pages["/metrics"] = "luma_serve_in_flight 7\n"
    code = (
        "import runpy, sys; m = runpy.run_path(sys.argv[1]);"
        "sys.exit(m['main'](sys.argv[2:], every_s=0.01))"
    )
    words = [
        "--port", str(server.server_port), "--region", "us-east-1",
        "--target-group", "arn:tg", "--service", "c8",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(SCRIPT), *words],
        env={
            "PATH": f"{binaries}:/usr/bin:/bin",
            "RECORD": str(record),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url(server),
            "HTTP_PROXY": "http://127.0.0.1:1",  # never used for the instance's own services
        },
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        reported = wait_for(record, process)
        server.pages[f"{META}/spot/instance-action"] = "{}"
        _, said = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "spot/instance-action: leaving" in said
    assert reported[0] == (
        "aws cloudwatch put-metric-data --region us-east-1 --namespace Luma --metric-name InFlight "
        "--unit Count --dimensions Service=c8 --value 7"
    )
    left, stopped = record.read_text().splitlines()[1:]
    assert left == (
        "aws elbv2 deregister-targets --region us-east-1 --target-group-arn arn:tg "
        "--targets Id=i-0123"
    )
    assert stopped == "systemctl stop luma-serve.service"


def wait_for(record: Path, process: subprocess.Popen) -> list[str]:
    """Give the recorded commands once there are any; the test's own limit ends a wait for ever."""
    pause = threading.Event()
    while not (record.exists() and record.read_text().endswith("\n")):
        assert process.poll() is None, process.stderr.read()
        pause.wait(0.02)
    return record.read_text().splitlines()


def test_the_script_needs_no_package():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "--help"], capture_output=True, text=True,
        timeout=60, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert "--target-group" in done.stdout
