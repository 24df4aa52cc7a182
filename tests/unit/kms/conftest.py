"""One emulated KMS for all tests of this folder; each test has its own key, roles and nonces."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import botocore.session
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from enclave_image.eif import policy_document
from enclave_image.nsm import Nsm
from luma_constructs.key_policy import AcceptedAmis, Measurements, key_policy
from runtime.artifact import KeyReference
from runtime.artifact.attestation import TrustRoots
from runtime.artifact.kms import AwsAccess, AwsCredentials, KmsKeys, Recipient
from tests.attestation_support import Pki, SoftwareNsm
from tests.support.fake_kms import ACCOUNT, REGION, FakeKms, Server

IMAGE = {0: b"\xa0" * 48, 1: b"\xa1" * 48, 2: b"\xa2" * 48, 8: b"\xa8" * 48}
"""What the accepted enclave measures."""
MEASUREMENTS = json.dumps(
    policy_document({"compiler": {f"PCR{i}": value.hex() for i, value in IMAGE.items()}})
)
"""The accepted enclave's measurements, in the file that key policies are made from."""
OTHER_IMAGE = {0: b"\xb0" * 48, 1: b"\xb1" * 48, 2: b"\xb2" * 48, 8: b"\xb8" * 48}
AMI = {4: b"\xc4" * 48, 7: b"\xc7" * 48, 12: bytes(48)}
"""What the accepted AMI measures; nothing overrode its command line."""

ADMIN = f"arn:aws:iam::{ACCOUNT}:role/key-admin"

_PRELUDE = struct.Struct(">8sHHII")
_numbers = itertools.count()


class Parts:
    """A file taken apart around its evidence."""

    def __init__(self, data: bytes) -> None:
        self.magic, self.version, _, size, evidence = _PRELUDE.unpack(data[: _PRELUDE.size])
        start = _PRELUDE.size + size
        self.envelope = data[_PRELUDE.size : start]
        self.evidence = data[start : start + evidence]
        self.chunks = data[start + evidence :]

    def with_evidence(self, evidence: bytes) -> bytes:
        head = _PRELUDE.pack(self.magic, self.version, 0, len(self.envelope), len(evidence))
        return head + self.envelope + evidence + self.chunks


@pytest.fixture(scope="session")
def recipient() -> rsa.RSAPrivateKey:
    """Give the key pair of an attested recipient: one for all, since making one takes a while."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def stranger() -> rsa.RSAPrivateKey:
    """Give another one's key pair."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class Cloud:
    """The emulated KMS, and what stands around it."""

    app: FakeKms
    url: str
    pki: Pki
    recipient_key: rsa.RSAPrivateKey
    session: botocore.session.Session = field(default_factory=botocore.session.Session)

    def client(self, access_key: str):
        """Give a plain client, for administration and for what our own client never does."""
        return self.session.create_client(
            "kms",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=access_key,
            aws_secret_access_key="testing",
        )

    def recipient(self, attester) -> Recipient:
        """Give an attested side; all share a key pair, since making one takes a while."""
        return Recipient(attester, key=self.recipient_key)

    def access(self, access_key: str, **changes) -> AwsAccess:
        """Give what our client needs to ask as a role: one attempt, and time enough for it."""
        given = {
            "credentials": AwsCredentials(access_key=access_key, secret_key="testing"),
            "endpoint_url": self.url,
            "attempts": 1,
            "connect_timeout_s": 60.0,
            "read_timeout_s": 60.0,
        }
        return AwsAccess(**given | changes)

    def nsm(self, measured: Mapping[int, bytes] = IMAGE, **changes) -> SoftwareNsm:
        """Give a module of the hierarchy that the emulated KMS believes."""
        return SoftwareNsm(**{"pki": self.pki, "measured": measured} | changes)


@dataclass
class Tenant:
    """A customer: a key under the policy of a level, and the roles that the policy names."""

    cloud: Cloud
    customer: str
    level: str
    arn: str = ""
    roles: dict[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> KeyReference:
        return KeyReference(arn=self.arn, customer=self.customer)

    @property
    def admin(self):
        return self.cloud.client("ADMIN")

    @property
    def key_id(self) -> str:
        """The key's id: moto's DisableKey and its like know no ARN."""
        return self.arn.rpartition("/")[2]

    def policy(self, **changes) -> dict:
        """Give the policy of this tenant's level, as `luma_constructs` makes it."""
        given = {
            "level": self.level,
            "customer": self.customer,
            "administrators": [ADMIN],
            "sealers": [self.cloud.app.principals[self.roles["sealer"]]],
            "agents": [self.cloud.app.principals[self.roles["agent"]]],
        }
        if self.level != "L1":
            given["images"] = Measurements.from_json(MEASUREMENTS).accepted("compiler")
        if self.level == "L3":
            given["amis"] = AcceptedAmis(pcrs={f"PCR{i}": [AMI[i].hex()] for i in (4, 12)})
        return key_policy(**given | changes)

    def put_policy(self, policy: dict) -> None:
        self.admin.put_key_policy(KeyId=self.arn, PolicyName="default", Policy=json.dumps(policy))

    def keys(self, role: str, nsm: SoftwareNsm | None = None, **changes) -> KmsKeys:
        """Give the key service as a role sees it, attested by a module or not."""
        given = {
            "recipient": None if nsm is None else self.cloud.recipient(Nsm(nsm)),
            "access": self.cloud.access(self.roles[role]),
        }
        return KmsKeys(changes.pop("reference", self.reference), **given | changes)


@pytest.fixture(scope="module", autouse=True)
def dummy_account():
    """Give dummy credentials and no instance metadata, no longer than a module runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        for name in (
            "AWS_PROFILE",
            "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_KMS",
        ):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def cloud(recipient):
    """Start the emulated KMS."""
    pki = Pki.create()
    app = FakeKms(TrustRoots.of_certificates([pki.cabundle[0]]))
    app.principals["ADMIN"] = ADMIN
    with Server(app) as server:
        yield Cloud(app=app, url=server.url, pki=pki, recipient_key=recipient)


@pytest.fixture(scope="session")
def tenant_maker(cloud):
    """Give the maker of tenants."""

    def make(level: str, **policy_changes) -> Tenant:
        number = next(_numbers)
        made = Tenant(cloud=cloud, customer=f"customer-{number}", level=level)
        for role in ("sealer", "agent", "other"):
            made.roles[role] = f"{role.upper()}{number}"
            arn = f"arn:aws:iam::{ACCOUNT}:role/{role}-{number}"
            cloud.app.principals[made.roles[role]] = arn
        made.arn = made.admin.create_key()["KeyMetadata"]["Arn"]
        made.put_policy(made.policy(**policy_changes))
        return made

    return make


@pytest.fixture
def tenant(tenant_maker):
    """Give the maker of tenants; each is new."""
    return tenant_maker
