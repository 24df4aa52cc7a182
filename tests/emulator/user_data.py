"""What an instance's user data says, read as the instance would act on it.

A played instance takes its deployment, fleet, region, environment and the runtime's code from the
user data that was really deployed, so a mistake there shows. What is not done is what needs root on
an instance of its own: packages are this environment's, and the service runs without systemd.
"""

import base64
import re
import shlex
from dataclasses import dataclass, field

_ASSET = re.compile(r"aws s3 cp \S* ?'?s3://(?P<bucket>[^/\s']+)/(?P<key>[^\s']+\.zip)'?")
_DIGEST = re.compile(r"echo '(?P<digest>[0-9a-f]{64})  ")


class UserDataError(ValueError):
    """The user data does not make a Luma node."""


@dataclass(frozen=True)
class NodeSettings:
    """What a node's user data sets.

    Attributes:
        environment: the service's variables, such as `LUMA_FLEET`.
        bucket: where the runtime's archive lies.
        key: its name there.
        digest: SHA-256 of the archive, hex.
        options: all options of the bootstrap script, by name without dashes.
    """

    environment: dict[str, str]
    bucket: str
    key: str
    digest: str
    options: dict[str, str] = field(default_factory=dict)


def read(encoded: str) -> NodeSettings:
    """Read user data as `DescribeInstanceAttribute` gives it.

    Raises:
        UserDataError: it fetches no runtime or calls no bootstrap script.
    """
    text = base64.b64decode(encoded).decode()
    asset, digest = _ASSET.search(text), _DIGEST.search(text)
    call = next((line for line in text.splitlines() if "bootstrap.sh " in line), None)
    if asset is None or digest is None or call is None:
        raise UserDataError(f"not a node's user data:\n{text}")
    words = shlex.split(call.partition("bootstrap.sh ")[2])
    pairs = list(zip(words[::2], words[1::2], strict=True))
    options = {name.removeprefix("--"): value for name, value in pairs if name != "--env"}
    variables = dict(value.split("=", 1) for name, value in pairs if name == "--env")
    environment = {
        "LUMA_STACK": options["deployment"],
        "LUMA_FLEET": options["fleet"],
        "AWS_REGION": options["region"],
        **variables,
    }
    return NodeSettings(environment, asset["bucket"], asset["key"], digest["digest"], options)
