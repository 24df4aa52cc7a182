"""A parent between client and service records every byte, and the service's log: nothing is there.

The compile is a real one. The needles are all that a parent might want: names of ops, inputs and
parameters, the graph's own bytes, the target, the customer's key, the artifact's plain payload.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading

import cbor2
import pytest

from enclave_image.nsm import Nsm
from enclave_image.service.address import Address, listen
from enclave_image.service.client import compile_in_service, read_metrics
from enclave_image.service.logs import LOGGER, log_to
from enclave_image.service.session import Trust
from runtime.artifact.attestation import PcrPolicy, TrustRoots
from tests.attestation_support import Pki, SoftwareNsm
from tests.attestation_support.documents import MEASURED
from tests.support.compile_service import DATA_KEY, PATIENCE_S, order, running, short_folder

ABSENT_TARGET = "no-such-target-name"
"""A target's name that cannot turn up in random bytes, as "cpu" can."""


class Parent:
    """Carries bytes between a client and the service, and keeps them."""

    def __init__(self, address: Address, service: Address) -> None:
        self.recorded = {"to service": bytearray(), "to client": bytearray()}
        self._listener = listen(address)
        self._service = service
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(PATIENCE_S)
        self._listener.close()
        assert not self._thread.is_alive()

    def _carry(self) -> None:
        """Carry one connection."""
        client, _ = self._listener.accept()
        service = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        service.connect(self._service.path)
        back = threading.Thread(target=self._copy, args=(service, client, "to client"))
        back.start()
        self._copy(client, service, "to service")
        back.join()
        client.close()
        service.close()

    def _copy(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):  # whoever closes first has all that it wanted
            while data := source.recv(1 << 16):
                self.recorded[name] += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def frames(self, name: str) -> list[dict]:
        """Give the frames of a direction, read by a second implementation."""
        data, frames = bytes(self.recorded[name]), []
        while data:
            (length,) = struct.unpack(">I", data[:4])
            frames.append(cbor2.loads(data[4 : 4 + length]))
            data = data[4 + length :]
        return frames


@pytest.fixture(scope="module")
def pki():
    return Pki.create()


@pytest.fixture
def log_lines():
    before = (LOGGER.handlers, LOGGER.propagate, LOGGER.level)
    stream = io.StringIO()
    log_to(stream)
    yield stream
    LOGGER.handlers, LOGGER.propagate, LOGGER.level = before


def needles(package, payload: bytes) -> dict[str, bytes]:
    graph = package.graphs["grad"]
    found = {f"op {node.op}": node.op.encode() for node in graph.nodes}
    found |= {f"input {item.target}": item.target.encode() for item in graph.inputs[:-1]}
    found |= {f"output {label}": label.encode() for label, _ in graph.outputs if len(label) > 6}
    found |= {
        f"word {word}": word.encode()
        for word in ("micro_shards", "max_package_bytes", "statistics")
    }
    package_bytes = package.to_bytes()
    found |= {f"package at {i}": package_bytes[i : i + 16] for i in range(0, 800, 16)}
    found |= {f"payload at {i}": payload[i : i + 16] for i in range(0, 4096, 16)}
    found = {name: part for name, part in found.items() if len(set(part)) > 3}
    found |= {"key": DATA_KEY[:16], "key in hex": DATA_KEY.hex().encode()}
    found |= {"target": ABSENT_TARGET.encode()}
    return found


@pytest.mark.parametrize("attested", [False, True])
def test_the_parent_sees_lengths_and_ciphertext(
    rsa_key, pki, package, tmp_path, log_lines, attested
):
    nsm = Nsm(SoftwareNsm(pki=pki)) if attested else None
    policy = PcrPolicy.of("nitro-enclave", {0: [MEASURED[0].hex()]})
    roots = TrustRoots.of_certificates([pki.cabundle[0]])
    trust = Trust(policy=policy, roots=roots) if attested else Trust()
    with running(rsa_key, attester=nsm) as service, short_folder() as folder:
        between = Address.parse(f"unix:{folder}/p")
        with Parent(between, service.address) as parent:
            wanted = order(package, targets=(ABSENT_TARGET, "cpu"))
            events = []
            made = compile_in_service(
                between,
                wanted,
                output=tmp_path / "a.luma",
                trust=trust,
                progress=events.append,
            )
        figures = read_metrics(service.address)
    assert made.artifact.manifest.targets == ("cpu",)
    assert {event["stage"] for event in events} >= {"lower", "compile"}

    looked_for = needles(package, made.artifact.payload("cpu"))
    assert len(looked_for) > 100
    for direction, data in parent.recorded.items():
        assert len(data) > 1000
        for name, needle in looked_for.items():
            assert needle not in data, f"{name}, {direction}"
    # A needle can be found where it is: the client has it all.
    assert looked_for["op aten.mul.Tensor"] in package.to_bytes()

    assert {frame["kind"] for frame in parent.frames("to service")} == {"hello", "open", "record"}
    assert {frame["kind"] for frame in parent.frames("to client")} == {"attest", "record"}
    for frame in parent.frames("to service") + parent.frames("to client"):
        if frame["kind"] == "record":
            assert set(frame) == {"kind", "data"}

    told = log_lines.getvalue() + figures
    assert '"event": "done"' in told
    for name, needle in looked_for.items():
        assert needle.decode("latin-1") not in told, name
    for word in ("cpu", "aten", "layer", "weight", DATA_KEY.hex(), package.digest()):
        assert word not in told
    assert made.artifact.digest.removeprefix("sha384:") not in told
