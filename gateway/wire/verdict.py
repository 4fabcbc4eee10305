"""What a provider's filter found: a word or a yes or no, and no text that could quote anything."""

from __future__ import annotations

import re

from gateway.types import Json

_WORD = re.compile(r"[A-Za-z_]{1,40}", re.ASCII)


def is_verdict(value: Json) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and bool(_WORD.fullmatch(value)))
