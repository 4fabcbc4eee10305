"""Dataclasses that are made for each request, and then left as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass as type checkers see it. At run time nothing guards its fields: that would make it three times
    as dear to make one."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
