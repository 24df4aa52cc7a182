"""The service from outside, with a compiler that waits for the test: queues, faults, bad peers."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import threading
import tracemalloc

import pytest

from enclave_image.nsm import NsmError
from enclave_image.service import jobs
from enclave_image.service.blobs import CHUNK_BYTES
from enclave_image.service.client import compile_in_service, read_metrics
from enclave_image.service.errors import PeerGoneError, ServiceBusyError, ServiceError
from enclave_image.service.messages import CustomerPolicy
from enclave_image.service.protocol import VERSION, Connection, Deadline
from runtime.artifact import open_artifact
from runtime.spec import CompileError
from tests.support.compile_service import (
    DATA_KEY,
    PATIENCE_S,
    Gate,
    client_session,
    in_thread,
    order,
    patient,
    running,
)


@pytest.fixture
def gate(compiled, monkeypatch):
    made = Gate(compiled)
    monkeypatch.setattr(jobs, "compile_package", made)
    return made


@pytest.fixture
def service(rsa_key, gate):
    with running(rsa_key) as made:
        yield made


def send_whole(session, package: bytes, **changes) -> None:
    """Send a request and its package, and read nothing of what follows."""
    session.send("request", **order(package, **changes).request().fields())
    session.receive("go")
    for index in range(-(-len(package) // CHUNK_BYTES)):
        data = package[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        session.send("chunk", index=index, data=data)
        session.receive("ack")


def test_an_artifact_comes_back_sealed_and_signed(service, gate, package, compiled, tmp_path):
    gate.go.set()
    events, said = [], []
    path = tmp_path / "a.luma"
    made = compile_in_service(
        service.address, order(package), output=path, progress=events.append, said=said.append
    )
    opened = open_artifact(path, trusted_signer=made.signer, key=DATA_KEY)
    assert opened.target_payload("cpu") == compiled.payload
    assert opened.manifest.graph_digest == package.digest()
    assert opened.manifest.level == "L1"
    assert (made.label, made.attested) == ("L1 (local service)", False)
    assert [result.target for result in said] == ["cpu"] == [r.target for r in made.targets]
    assert list(tmp_path.iterdir()) == [path]


def test_no_two_requests_are_compiled_by_one_user(rsa_key, gate, package, tmp_path):
    gate.go.set()
    limits = dataclasses.replace(patient(), child_user=20_000)
    with running(rsa_key, limits=limits) as service:
        for name in ("a", "b"):
            path = tmp_path / f"{name}.luma"
            compile_in_service(service.address, order(package), output=path)
    assert len(set(gate.users)) == 2
    assert all(user is not None and user > 20_000 for user in gate.users)


def test_at_level_l0_it_is_signed_alone(service, gate, package, tmp_path):
    gate.go.set()
    made = compile_in_service(
        service.address,
        order(package, level="L0", data_key=None, statistics={"parameters": 5}),
        output=tmp_path / "a.luma",
    )
    manifest = made.artifact.manifest
    assert (manifest.level, manifest.seal) == ("L0", None)
    assert manifest.statistics == {"parameters": 5}
    assert manifest.versions["jax"]


def test_the_policy_is_checked_inside(service, package, tmp_path):
    path = tmp_path / "a.luma"
    narrow = CustomerPolicy(targets=("tpu-v5e",), level="L1", max_package_bytes=1 << 20)
    with pytest.raises(ServiceError, match=r"request.targets: 'cpu'") as caught:
        compile_in_service(service.address, order(package, policy=narrow), output=path)
    assert caught.value.reason == "policy"
    with pytest.raises(ServiceError, match=r"request.level: 'L2'"):
        compile_in_service(service.address, order(package, level="L2"), output=path)
    service.wait_for_refusal("policy", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_package_larger_than_it_takes_is_refused_before_it_is_sent(rsa_key, tmp_path):
    with (
        running(rsa_key, limits=patient(package_bytes=10)) as service,
        pytest.raises(ServiceError, match="at most 10, which is what this service takes"),
    ):
        compile_in_service(service.address, order(b"x" * 11), output=tmp_path / "a.luma")


def test_bytes_that_are_no_package_are_refused(service, tmp_path):
    with pytest.raises(ServiceError, match="graph package") as caught:
        compile_in_service(service.address, order(b"\x00" * 100), output=tmp_path / "a.luma")
    assert caught.value.reason == "package"
    service.wait_for_refusal("package")


def test_a_target_that_fails_leaves_the_others(service, package, compiled, monkeypatch, tmp_path):
    def compile_one(_package, *, target, **_options):
        if target == "cpu":
            return compiled
        raise CompileError("the op 'aten.x' of layers.0 has no form", remedy="leave it out")

    monkeypatch.setattr(jobs, "compile_package", compile_one)
    wanted = order(package, targets=("tpu-v5e", "cpu"))
    made = compile_in_service(service.address, wanted, output=tmp_path / "a.luma")
    assert made.artifact.manifest.targets == ("cpu",)
    failed, fine = made.targets
    assert fine.error is None
    assert isinstance(failed.error, CompileError)
    assert (failed.target, failed.error.remedy) == ("tpu-v5e", "leave it out")


def test_where_every_target_fails_there_is_no_artifact(service, package, tmp_path):
    def fail(_package, **_options):
        raise CompileError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "compile_package", fail)
        with pytest.raises(CompileError, match="no target compiled"):
            compile_in_service(service.address, order(package), output=tmp_path / "a.luma")
    service.wait_for_refusal("compile")
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_of_ours_is_told_without_its_text(
    service, package, monkeypatch, tmp_path, caplog
):
    def fault(_package, **_options):
        raise KeyError("secret_name_of_a_layer")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "compile_package", fault)
        with pytest.raises(ServiceError, match="failed with KeyError") as caught:
            compile_in_service(service.address, order(package), output=tmp_path / "a.luma")
    assert caught.value.reason == "fault"
    assert "secret" not in caught.value.message
    assert "secret" not in caplog.text
    assert "queue_length 0" in read_metrics(service.address)


def test_two_clients_at_once_and_one_compile_at_a_time(service, gate, package, tmp_path):
    joins = [
        in_thread(
            lambda n=n: compile_in_service(
                service.address, order(package), output=tmp_path / f"{n}.luma"
            )
        )
        for n in range(2)
    ]
    gate.wait_started()
    service.wait_until(lambda: service.service.gauges()["queue_length"] == 1)
    gate.go.set()
    first, second = (join() for join in joins)
    assert gate.most == 1
    assert first.artifact.digest != second.artifact.digest  # each is sealed with its own salt
    assert first.signer == second.signer


def test_as_many_compiles_as_were_allowed_run_at_once(rsa_key, gate, package, tmp_path):
    with running(rsa_key, limits=patient(compiles=2)) as service:
        joins = [
            in_thread(
                lambda n=n: compile_in_service(
                    service.address, order(package), output=tmp_path / f"{n}.luma"
                )
            )
            for n in range(2)
        ]
        gate.wait_started()
        gate.wait_started()
        gate.go.set()
        for join in joins:
            join()
    assert gate.most == 2


def test_a_full_queue_says_when_to_come_back(rsa_key, gate, package, tmp_path):
    with running(rsa_key, limits=patient(compiles=1, queue=1)) as service:
        joins = []
        for number in range(2):
            joins.append(
                in_thread(
                    lambda n=number: compile_in_service(
                        service.address, order(package), output=tmp_path / f"{n}.luma"
                    )
                )
            )
            service.wait_until(lambda n=number: service.service.gauges()["places_taken"] == n + 1)
        with pytest.raises(ServiceBusyError) as caught:
            compile_in_service(service.address, order(package), output=tmp_path / "no.luma")
        assert caught.value.retry_after_s >= 1
        assert "queue is full" in caught.value.message
        # The figures can still be read.
        service.wait_until(
            lambda: 'refusals_total{reason="busy"} 1' in read_metrics(service.address)
        )
        gate.go.set()
        for join in joins:
            join()
        service.wait_until(lambda: service.service.gauges()["places_taken"] == 0)
        compile_in_service(service.address, order(package), output=tmp_path / "yes.luma")


def test_a_client_that_leaves_in_the_middle_ends_its_job_alone(service, gate, package, tmp_path):
    peer = service.connect()
    with client_session(peer) as session:
        send_whole(session, package.to_bytes())
        gate.wait_started()
    service.wait_for_refusal("gone")
    assert gate.running == 0
    gate.go.set()
    compile_in_service(service.address, order(package), output=tmp_path / "a.luma")


def test_a_client_that_leaves_while_it_waits_frees_its_place(service, gate, package, tmp_path):
    first = in_thread(
        lambda: compile_in_service(service.address, order(package), output=tmp_path / "a.luma")
    )
    gate.wait_started()
    with client_session(service.connect()) as session:
        send_whole(session, package.to_bytes())
        service.wait_until(lambda: service.service.gauges()["queue_length"] == 1)
    service.wait_until(lambda: service.service.gauges()["connections"] == 1)
    assert service.service.gauges() == {"connections": 1, "places_taken": 1, "queue_length": 0}
    gate.go.set()
    first()


def test_a_client_that_speaks_out_of_turn_is_ended(service, gate, package):
    with client_session(service.connect()) as session:
        send_whole(session, package.to_bytes())
        gate.wait_started()
        session.send("chunk", index=0, data=b"more")
        service.wait_for_refusal("frame")
        assert gate.running == 0


def test_a_half_sent_request_frees_its_memory(rsa_key):
    size = 48 << 20
    with running(rsa_key, limits=patient(package_bytes=size)) as service:
        held, left = send_half(service, size)
    assert held > size * 0.9
    assert left < size * 0.1


def send_half(service, size: int) -> tuple[int, int]:
    """Send a request but for its last chunk, and leave; give the memory before and after."""
    tracemalloc.start()
    try:
        with client_session(service.connect()) as session:
            wanted = order(b"", statistics={}).request()
            fields = wanted.fields() | {"package_bytes": size}
            fields["policy"] = fields["policy"] | {"max_package_bytes": size}
            session.send("request", **fields)
            session.receive("go")
            chunk = bytes(CHUNK_BYTES)
            for index in range(size // CHUNK_BYTES - 1):
                session.send("chunk", index=index, data=chunk)
                session.receive("ack")
            held, _ = tracemalloc.get_traced_memory()
        service.wait_for_refusal("gone")
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held, left


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "gone"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame"),
        (b"\x00\x00\x00\x01\xff", "frame"),
        (b"\x00\x00", "gone"),
        (b"\xff\xff\xff\xff", "frame"),
    ],
)
def test_strangers_do_not_disturb_it(service, gate, package, tmp_path, sent, reason):
    with service.connect() as peer:
        peer.sendall(sent)
    service.wait_for_refusal(reason)
    gate.go.set()
    compile_in_service(service.address, order(package), output=tmp_path / "a.luma")


def test_another_version_is_told_so(service):
    with Connection(
        service.connect(), deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S
    ) as connection:
        connection.send("hello", version=VERSION + 1, nonce=b"n" * 32)
        assert connection.receive("refused")["reason"] == "version"
    service.wait_for_refusal("version")


def test_a_silent_client_is_ended_by_the_deadline(rsa_key):
    with running(rsa_key, limits=patient(opening_s=0.05)) as service, service.connect() as peer:
        service.wait_for_refusal("deadline")
        assert peer.recv(1) == b""


def test_a_client_that_stops_half_way_is_ended_by_the_deadline(rsa_key, package):
    with running(rsa_key, limits=patient(frame_s=0.2)) as service:
        # On a machine that stalls, the deadline may come before the request is out.
        with contextlib.suppress(PeerGoneError), client_session(service.connect()) as session:
            session.send("request", **order(package).request().fields())
            session.receive("go")
            service.wait_for_refusal("deadline")
        service.wait_for_refusal("deadline")


def test_a_request_that_takes_too_long_is_ended(rsa_key, gate, package):
    with running(rsa_key, limits=patient(request_s=0.5)) as service:
        # On a machine that stalls, the deadline may come before the package is out.
        with contextlib.suppress(PeerGoneError), client_session(service.connect()) as session:
            send_whole(session, package.to_bytes())
            service.wait_for_refusal("deadline")
        service.wait_for_refusal("deadline")
        assert gate.running == 0


def test_a_module_that_fails_ends_the_connection_alone(rsa_key, gate, package, tmp_path):
    class Broken:
        """A security module that refuses everything."""

        def attestation(self, **_asked):
            raise NsmError("no", code="InternalError")

    with running(rsa_key, attester=Broken()) as service:
        with pytest.raises(PeerGoneError):
            compile_in_service(service.address, order(package), output=tmp_path / "a.luma")
        service.wait_for_refusal("attestation")
        assert 'reason="attestation"} 1' in read_metrics(service.address)


def test_without_another_thread_it_goes_on(service, gate, package, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        start = threading.Thread.start

        def no_more(thread):
            if thread.name == "luma-connection":
                raise RuntimeError("can't start new thread")
            start(thread)

        patch.setattr(threading.Thread, "start", no_more)
        with service.connect() as other:
            assert other.recv(1) == b""
    gate.go.set()
    compile_in_service(service.address, order(package), output=tmp_path / "a.luma")


def test_stopping_ends_every_job(rsa_key, gate, package, tmp_path):
    with running(rsa_key) as service:
        join = in_thread(
            lambda: compile_in_service(service.address, order(package), output=tmp_path / "a.luma")
        )
        gate.wait_started()
        service.service.stop()
        with pytest.raises(PeerGoneError):
            join()
    assert gate.running == 0
    assert not [t for t in threading.enumerate() if t.name in {"luma-job", "luma-connection"}]
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_named(service, gate, package, tmp_path):
    gate.go.set()
    with pytest.raises(ServiceError, match="cannot be written"):
        compile_in_service(service.address, order(package), output=tmp_path / "no" / "a.luma")
    service.wait_for_refusal("gone")


def test_an_artifact_that_was_there_stays_until_the_new_one_is_checked(
    service, gate, package, tmp_path
):
    path = tmp_path / "a.luma"
    path.write_bytes(b"old")
    with pytest.raises(ServiceError, match="graph package"):
        compile_in_service(service.address, order(b"\x00"), output=path)
    assert path.read_bytes() == b"old"
    gate.go.set()
    compile_in_service(service.address, order(package), output=path)
    assert open_artifact(path, trusted_signer=None).manifest.targets == ("cpu",)
