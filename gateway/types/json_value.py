"""A value of a JSON document."""

from __future__ import annotations

from typing import Any

Json = Any
"""A value that came out of, or can go into, a JSON document."""
