"""`python -m runtime.agent.node.tied PID COMMAND...`: become COMMAND, and die with process PID.

A node that is killed takes its island with it. On a real instance the whole machine goes; where the
daemon alone dies, an island without its daemon would train on beside the one that replaces it.

Linux only: prctl(2), PR_SET_PDEATHSIG. The setting outlives execve(2), and the signal comes when the
*thread* that forked ends, so the daemon starts its children from its main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then become the command.

    Raises:
        OSError: the kernel refuses, or the command cannot be started.
    """
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:  # it died before the signal was asked for
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - the daemon's own command, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
