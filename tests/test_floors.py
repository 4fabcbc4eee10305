"""The gateway's floors: a package imports from its own floor and from those below it, and no capability another."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_imports import Import, all_imports, grow, modules_under

ROOT = Path(__file__).resolve().parents[1]
FLOORS = (
    "errors settings private packages version findings engine_figures regex pii",
    "policy",
    "types prefixes metering",
    "stores observe aside child",
    "identity quota admission routing fallback cascade caching guards wire sidecar",
    "backends",
    "stages",
    "pipeline rendered runtime",
    "web cli app alone connection control crowd cycle half_close inheritance leash supervisor watchdog worker __main__",
)
"""From the ground up. What a floor holds beside packages are modules of ``gateway`` itself."""
CAPABILITIES = frozenset(
    ["identity", "quota", "admission", "routing", "fallback", "cascade", "caching", "guards"]
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names.split()}


def part_of(module: str) -> str:
    """The package of ``gateway`` that a module is in, or the module where it is in none."""
    return module.split(".")[1]


def between_parts(root: Path) -> Iterator[tuple[str, str, Import]]:
    """Every import of one part of the gateway by another, those in functions and for types alone included."""
    modules = modules_under(root)
    for found in all_imports(root):
        if not found.importer.startswith("gateway.") or not found.target.startswith("gateway."):
            continue
        importer, target = part_of(found.importer), part_of(found.target)
        if importer != target and (f"gateway.{target}" in modules or found.target in modules):
            yield importer, target, found


def upward(root: Path) -> list[str]:
    """One line for every import that goes up, or from one capability to another."""
    wrong = []
    for importer, target, found in between_parts(root):
        if FLOOR_OF[importer] < FLOOR_OF[target]:
            wrong.append(f"{found}: {target} is on a floor above {importer}")
        elif importer in CAPABILITIES and target in CAPABILITIES:
            wrong.append(f"{found}: capabilities do not know each other")
    return wrong


def circle(root: Path) -> list[str]:
    """Parts of the gateway that import each other in a circle, or nothing."""
    graph: dict[str, set[str]] = {}
    for importer, target, _ in between_parts(root):
        graph.setdefault(importer, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_goes_up() -> None:
    assert upward(ROOT) == []


def test_no_parts_import_each_other() -> None:
    assert circle(ROOT) == []


def test_every_part_has_its_floor_and_every_name_is_a_part() -> None:
    modules = modules_under(ROOT)
    assert {part_of(module) for module in modules if module.startswith("gateway.")} == set(FLOOR_OF)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"gateway/policy/a.py": "from gateway.guards import b", "gateway/guards/b.py": ""}, "floor above"),
        ({"gateway/quota/a.py": "def f():\n    import gateway.web.b", "gateway/web/b.py": ""}, "floor above"),
        ({"gateway/quota/a.py": "from gateway.guards.b import C", "gateway/guards/b.py": ""}, "capabilities"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, files: dict[str, str], said: str) -> None:
    (found,) = upward(grow(tmp_path, files))
    assert said in found


def test_a_circle_of_packages_is_found_where_no_files_make_one(tmp_path: Path) -> None:
    files = {
        "gateway/wire/a.py": "from gateway.sidecar import b",
        "gateway/sidecar/b.py": "",
        "gateway/sidecar/c.py": "def f():\n    from gateway.wire import d",
        "gateway/wire/d.py": "",
    }
    assert set(circle(grow(tmp_path, files))) == {"wire", "sidecar"}
