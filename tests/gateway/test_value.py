"""Values: equal and hashed by what they hold, and as cheap to make as dataclasses are."""

from __future__ import annotations

import pickle
from dataclasses import replace

from gateway.types import Usage


def test_a_value_is_what_it_holds() -> None:
    one, same = Usage(1, 2, more={"a": 1}), replace(Usage(1, 3), completion=2)
    assert (one, hash(one)) == (same, hash(same))
    assert one != Usage(1, 3)
    assert pickle.loads(pickle.dumps(one)).more == {"a": 1}
    assert not hasattr(one, "__dict__")
