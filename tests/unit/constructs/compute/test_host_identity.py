"""Who a host outside EC2 is: asked by the node's own client of the metadata service."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import subprocess
import sys
import threading

import pytest

from runtime.agent.node.imds import Imds
from runtime.agent.node.notices import look
from tests.support.cdk import ROOT

SCRIPT = ROOT / "luma_constructs/data/host_identity.py"
MACHINE = "0123456789abcdef0123456789abcdef\n"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("host_identity", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(script):
    document = script.identity(
        instance=script.host_id(MACHINE), region="us-east-1", chip="rocm-gfx942", address="10.8.0.7"
    )
    with script.Server(document, 0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


@pytest.fixture
def imds(server):
    return Imds(f"http://127.0.0.1:{server.server_port}")


def test_the_node_reads_who_it_is(imds, script):
    found = imds.identity()
    assert found.instance == script.host_id(MACHINE)
    assert (found.instance_type, found.region) == ("rocm-gfx942", "us-east-1")
    assert (found.zone, found.address) == ("external", "10.8.0.7")


def test_there_is_no_notice_and_no_credential(imds):
    assert look(imds, 0.0) is None
    assert imds.get("meta-data/iam/security-credentials/") is None


def test_without_the_token_nothing_is_told(server):
    for headers in ({}, {"X-aws-ec2-metadata-token": "guess"}):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("GET", "/latest/dynamic/instance-identity/document", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 401
        assert b"10.8.0.7" not in answer.read()
        connection.close()


def test_a_client_gets_a_new_token_after_a_restart(server, imds):
    imds.identity()
    server.token = "another"
    assert imds.identity().region == "us-east-1"


def test_an_id_stays_and_tells_nothing_of_the_machine(script):
    one, other = script.host_id(MACHINE), script.host_id("f" * 32)
    assert one == script.host_id(MACHINE.strip())
    assert one != other
    assert one.startswith("ext-")
    assert len(one) == len("i-0123456789abcdef0") + 2
    assert MACHINE[:8] not in one


def test_the_address_is_that_of_the_way_there(script):
    assert script.own_address("127.0.0.1") == "127.0.0.1"


def test_the_script_serves_until_it_is_ended(tmp_path):
    machine = tmp_path / "machine-id"
    machine.write_text(MACHINE)
    words = ["--region", "us-east-1", "--chip", "tpu-v5e", "--towards", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPT), *words, "--machine-id", str(machine)],
        stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    try:
        told = json.loads(process.stdout.readline())
        assert told["privateIp"] == "127.0.0.1"
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=60)
