"""Static checks of what the constructs deploy; `make synth` runs all, the tests each for itself."""

import tests.support.cdk  # noqa: F401 (says which Node jsii runs on, before aws_cdk is imported)
