import os
from pathlib import Path

from gateway.policy.file_changes import replace_file


def test_a_draft_that_a_killed_process_of_the_same_id_left_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    (tmp_path / f".policy.yaml.{os.getpid()}").write_text("half of")
    replace_file(file, "version: 1\n", 0o640)
    assert file.read_text() == "version: 1\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert [*tmp_path.iterdir()] == [file]
