"""Runs a command that is sent SIGTERM when the process that asked for it is gone, however that ended.

``python with_parent.py PARENT_PID COMMAND...``; the command takes this process's place. Linux only, as the CPU server.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; kept over exec


def main() -> None:
    """Ask the kernel for the signal, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was asked for
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
