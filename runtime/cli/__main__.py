"""`python -m runtime.cli`: the same as `luma`."""

import sys

from runtime.cli.app import main

sys.exit(main())
