"""No key of the policy is without an experiment that shows what it does."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.e2e.keys.harness import shown_by
from tests.policy_keys import named

SHOWN = {
    key
    for file in sorted(Path(__file__).parent.glob("test_*.py"))
    if file != Path(__file__)
    for key in shown_by(import_module(f"tests.e2e.keys.{file.stem}"))
}


@pytest.mark.parametrize("key", named())
def test_it_has_an_experiment(key: str) -> None:
    assert key in SHOWN, (
        f"nothing in tests/e2e/keys shows what '{key}' does: add a Row, or a test that shows it"
    )


def test_every_experiment_is_about_a_key() -> None:
    assert set(named()) >= SHOWN
