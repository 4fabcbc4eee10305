"""Cells of CSV files whose text strangers chose: a tenant's name, a model, a user agent."""

from __future__ import annotations

from typing import TypeVar

_Value = TypeVar("_Value")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What spreadsheets take for the beginning of a formula (https://owasp.org/www-community/attacks/CSV_Injection)."""


def csv_cell(value: _Value) -> _Value | str:
    """``value``, which no spreadsheet takes for a formula; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
