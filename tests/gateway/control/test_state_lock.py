from __future__ import annotations

from pathlib import Path

from gateway.control.state_lock import LOCK, state_lock


def test_the_lock_is_its_owners_whatever_it_was_before(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch(mode=0o644)
    (tmp_path / LOCK).chmod(0o644)
    with state_lock(tmp_path, alone=False):
        assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600
