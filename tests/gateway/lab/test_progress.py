from __future__ import annotations

import io

from gateway.lab.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_which_is_wiped() -> None:
    out = Terminal()
    progress = Progress(out)
    progress.show(0.5, "halfway")
    assert "[############............] halfway" in out.getvalue()
    progress.show(0.6, "too soon")
    assert "too soon" not in out.getvalue()
    progress.wipe()
    assert out.getvalue().endswith(" \r")
    progress.show(None, "nobody knows")
    assert "[" not in out.getvalue().rsplit("\r", 1)[1]


def test_what_is_no_terminal_has_none() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.show(0.5, "halfway")
    progress.wipe()
    assert not out.getvalue()
