"""The command line as a whole."""

from __future__ import annotations

import re

import pytest

from gateway.__main__ import main


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    usage = re.sub(r"\s+", "", capsys.readouterr().out.partition("\n\n")[0])
    commands = usage.partition("[--version]")[2].removesuffix("...").split("|")
    assert {"serve", "evaluate", "bench"} <= {*commands}
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert f"usage: tollgate {command}" in capsys.readouterr().out
