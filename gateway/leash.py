"""Becomes another program that cannot outlive its parent: ``python leash.py PARENT_PID PROGRAM ARGUMENT…``.

On Linux the kernel is asked to kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG), which an exec
leaves in force; then the program takes over, under the same process id. It is a step of its own because running
Python between fork and exec (``preexec_fn``) can deadlock. Elsewhere it only hands over.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main(argv: list[str]) -> None:
    parent, command = int(argv[1]), argv[2:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv)
