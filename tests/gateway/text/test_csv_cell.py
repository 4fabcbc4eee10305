"""No cell of a CSV file begins a formula, whatever a spreadsheet takes for a separator."""

from __future__ import annotations

import pytest

from gateway.text.csv_cell import csv_cell


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd|'/C calc'!A0", "'=cmd|'/C calc'!A0"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("＝1", "'＝1"),
        ("\t=1", "'\t'=1"),
        ("\n=1", "'\n'=1"),
        ("x;=1", "x;'=1"),
        ("x\t@y", "x\t'@y"),
        ("x\r\n+1", "x\r'\n'+1"),
    ],
)
def test_what_a_spreadsheet_would_compute_is_text(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


@pytest.mark.parametrize(
    "value", ["gpt-4o", "a=b", "openai-python/2.8", "Mozilla/5.0 (X11; Linux)", "", -1, 0.5]
)
def test_all_else_stays(value: object) -> None:
    assert csv_cell(value) == value and type(csv_cell(value)) is type(value)
