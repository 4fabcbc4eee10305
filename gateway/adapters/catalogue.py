"""All adapters, as this worker knows them: asked for by each request that names one, and so without the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.adapters.adapter import Adapter, is_adapter_id


class Catalogue:
    """``update`` with all rows, the oldest first."""

    def __init__(self) -> None:
        self.number = -1
        """Of the change that it is of."""
        self._by_id: dict[str, Adapter] = {}
        self._by_name: dict[tuple[str, str], list[Adapter]] = {}
        """By base and name."""

    def update(self, number: int, adapters: Iterable[Adapter]) -> list[Adapter]:
        """Returns those that are gone."""
        before, self.number = self._by_id, number
        self._by_id, self._by_name = {}, {}
        for one in adapters:
            self._by_id[one.id] = one
            self._by_name.setdefault((one.base, one.name), []).append(one)
        return [one for one in before.values() if one.id not in self._by_id]

    def find(self, tenant: str, base: str, name: str) -> Adapter | None:
        """By its name or its id; of several by one name the tenant's own, else the oldest that is shared with it.

        One that is not for ``tenant`` is not found, as if there were none.
        """
        if is_adapter_id(name):
            one = self._by_id.get(name)
            return one if one is not None and one.base == base and one.is_for(tenant) else None
        named = [one for one in self._by_name.get((base, name), ()) if one.is_for(tenant)]
        return next((one for one in named if one.tenant == tenant), named[0] if named else None)

    def tenants_of(self, base: str, name: str) -> list[str]:
        """All that may ask one by this name."""
        named = self._by_name.get((base, name), ())
        return sorted({tenant for one in named for tenant in (one.tenant, *one.shared_with)})

    def get(self, id: str) -> Adapter | None:
        return self._by_id.get(id)

    def all(self) -> Sequence[Adapter]:
        return list(self._by_id.values())

    def of(self, tenant: str) -> list[Adapter]:
        """Those that ``tenant`` may ask, the oldest first."""
        return [one for one in self._by_id.values() if one.is_for(tenant)]
