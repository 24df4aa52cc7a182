"""The compile service: a graph package goes in encrypted, a sealed artifact comes out.

`python -m enclave_image.service` is what the enclave's image starts; the same process on a unix
socket is the local service of level L1. `client` is the other side. The flow, and what somebody
between the two sees, stands in docs/explanation/sealed-compile.md:

1. `protocol`: frames over a stream socket, each of a kind with a limit and a deadline.
2. `session`: the client verifies an attestation document, and both derive keys from a secret that
   only the attested side can read. From then on every frame is an encrypted record.
3. `messages`, `blobs`: the request, the package and the artifact in acknowledged chunks, progress.
4. `jobs`: the compile in child processes with a memory limit, the seal, the artifact's document.

Nothing is imported here: the image holds just what its modules import.
"""
