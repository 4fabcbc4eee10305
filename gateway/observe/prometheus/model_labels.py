"""Which models metrics tell apart: those of the policy. All adapters of one share a label, as tenants make them."""

from __future__ import annotations

from collections.abc import Collection

ADAPTERS = "*"
"""In place of an adapter's name."""


class ModelLabels:
    def __init__(self) -> None:
        self._models: Collection[str] = ()

    def update(self, models: Collection[str]) -> None:
        """Apply a policy's names of models."""
        self._models = models

    def of(self, name: str) -> str:
        """The value of the label ``model``: ``base:*`` for an adapter's ``base:name``."""
        base, colon, _ = name.rpartition(":")
        return f"{base}:{ADAPTERS}" if colon and base in self._models and name not in self._models else name
