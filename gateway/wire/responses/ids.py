"""Ids of responses and of their items. An item's id holds its response's, so that references can be looked up."""

from __future__ import annotations

import re

RESPONSE = "resp_"
PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}
"""How ids of items begin, by the items' types."""

_REQUEST = "req_"
_ITEM = re.compile(r"(?:msg|rs|fc|fco|ctc|ctco|cmp)_([0-9a-f]{24})_i?\d{1,6}", re.ASCII)
_RESPONSE = re.compile(RESPONSE + r"[0-9a-f]{24}", re.ASCII)


def response_id(request_id: str) -> str:
    return RESPONSE + request_id.removeprefix(_REQUEST)


def request_id(response: str) -> str:
    return _REQUEST + response.removeprefix(RESPONSE)


def item_id(kind: str, response: str, index: int, *, given: bool = False) -> str:
    """``given``: it is part of the input, not of the output."""
    own = response.removeprefix(RESPONSE)
    return f"{PREFIXES.get(kind, 'cmp_')}{own}_{'i' if given else ''}{index}"


def response_of(item: str) -> str | None:
    """The id of the response that an item belongs to; None where it is not one of ours."""
    found = _ITEM.fullmatch(item)
    return RESPONSE + found[1] if found else None


def is_response_id(text: str) -> bool:
    """Whether it can be one of ours: nothing else is looked up."""
    return _RESPONSE.fullmatch(text) is not None
