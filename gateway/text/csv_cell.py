"""Cells of CSV files whose text strangers chose: a tenant's name, a model, a user agent."""

from __future__ import annotations

import re
from typing import TypeVar

_Value = TypeVar("_Value")
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=[=+\-@\t\r\n＝＋－＠])")
"""Before what spreadsheets take for the beginning of a formula
(https://owasp.org/www-community/attacks/CSV_Injection): of a cell, or of what they make one where the country's
separator is another than the comma."""


def csv_cell(value: _Value) -> _Value | str:
    """``value``, of which no spreadsheet takes anything for a formula; numbers stay numbers."""
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
