"""Changes where no gateway runs to make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.control.changes import ChangeRefused
from gateway.control.client import change


def test_without_a_gateway_and_its_state_folder_it_is_said_that_neither_is_known(tmp_path: Path) -> None:
    """``policy history`` reads the default folder; another one may be that of the gateway which is stopped."""
    with pytest.raises(ChangeRefused, match=r"no gateway runs here.*TOLLGATE_STATE_DIR"):
        change(
            {"do": "roll_back", "generation": 1, "by": {}},
            policies=tmp_path,
            state_dir=tmp_path / "state",
            env={},
            kept=False,
        )
