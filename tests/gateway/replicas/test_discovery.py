"""The file in which the first worker writes down what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.members import Found
from gateway.policy.schema import Replicas
from gateway.replicas.discovery import FILE, FoundFile, Way

WAYS = {"pool": Way("http://pool:8000/v1", Replicas.model_validate({"dns": "pool.test"}), "/models", False)}


def test_what_was_found_is_read_as_long_as_it_is_found_in_the_same_way(tmp_path: Path) -> None:
    file, found = FoundFile(tmp_path), [Found("http://10.0.0.1:8000/v1", 2.0, "a")]
    file.write(WAYS, {"pool": found})
    assert file.read(WAYS) == {"pool": found}
    assert file.read({"pool": WAYS["pool"]._replace(base_url="http://pool:9000/v1")}) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pool": 3}', '{"pool": {}}', '{"pool": null}'])
def test_a_file_of_another_kind_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert FoundFile(tmp_path).read(WAYS) == {}
