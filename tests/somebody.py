"""Work as another user than root, who may read and write everything."""

from __future__ import annotations

import codecs
import os
import traceback
from collections.abc import Callable

SOMEBODY = 10001


def as_somebody(work: Callable[[], object]) -> None:
    """Do it as a user who may read and write only what others may: root may anywhere."""
    if os.geteuid() != 0:
        work()
        return
    # What Python imports at need, that user may not be able to read, where Python lies in somebody's home.
    codecs.lookup("utf-8-sig")
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
