"""Becomes another program that cannot outlive its parent: ``python die_with_parent.py PARENT_PID PROGRAM ARGUMENT…``.

Two things hold on Linux. The kernel is asked to kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG),
which an exec leaves in force. And a guard is left in the process group, which kills all of the group once the parent
or the program is gone: what the program starts itself, such as an engine still loading its weights, would stay
otherwise. Then the program takes over, under the same process id.

It is a program of its own because running Python between fork and exec (``preexec_fn``) can deadlock. On other
systems it only hands over.
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
        # A guard is for a group of one's own: any other has members that are none of its business.
        if os.getpgid(0) == os.getpid():
            guard(parent)
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror or error}")


def guard(parent: int) -> None:
    """Leave a process behind that ends the group when ``parent`` or this process does."""
    import select

    try:
        watched = [os.pidfd_open(parent), os.pidfd_open(os.getpid())]
    except OSError:  # a parent that is gone, or a kernel before 5.3
        return
    if os.fork():
        for fd in watched:
            os.close(fd)
        return
    # It must hold nothing open that another waits to see closed: neither output nor the listening socket.
    low, high = sorted(watched)
    for first, last in ((0, low), (low + 1, high), (high + 1, 65536)):
        os.closerange(first, last)
    poll = select.poll()
    for fd in watched:
        poll.register(fd, select.POLLIN)
    poll.poll()
    os.killpg(0, _SIGKILL)


if __name__ == "__main__":
    main(sys.argv)
