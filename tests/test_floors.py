"""Floors: a room imports from its own floor and from those below it; no capability another; and no rooms in a circle.

A room of a folder is a file or a folder in it. All imports count, those in functions and for types alone included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.import_graph import ROOT, Graph, circles, file_graph, folders, grow, modules_under, room_graph

FLOORS: Mapping[str, tuple[str, ...]] = {
    "gateway": (
        (
            "errors settings backoff private secret_box extras packages version findings client_metadata engine_load "
            "fair_turns value regex pii text children apis media intervals "
            "redis_address message_classes"
        ),
        "policy",
        "types deltas joined_chunks prefix_sharing residency metering control spans",
        "stores databases files observe server",
        (
            "identity quota admission routing fallback cascade caching guards experiments replicas held_prefixes "
            "wire sidecar"
        ),
        "backends",
        "adapters stages batches feedback recording evaluation drift",
        "pipeline rendered runtime upstream_loop",
        "web",
        "lab scaler picker",
        "admin",
        "app process cli __main__",
    ),
    "engine": (
        (
            "errors logs channel startup heap extras version nodes config parallel attention kv_cache kv_groups "
            "state_batch state_cache adapter_files processes"
        ),
        "core demo",
        "weights handover",
        "messages grammar layers step_loop",
        "models",
        "worker",
        (
            "client generation refusals begun_process engine_process process engine_core bootstrap adapter_loading "
            "adapter_memory offline pooling"
        ),
        "server",
        "bench verify quantizer evaluation drafts simulation",
        "arguments options",
        "fleet",
        "*",
    ),
    "kernels": ("launch tree_mask", "native", "*", "compile report", "bench", "__main__"),
}
"""From the ground up. ``*`` is every file that is not named; without one, all must be."""
CAPABILITIES = frozenset(
    [
        *("identity", "quota", "admission", "routing", "fallback", "cascade", "caching", "guards"),
        *("experiments", "replicas", "held_prefixes"),
    ]
)


def upward(rooms: Graph, package: str) -> Iterator[str]:
    """One line for every room that imports one above it, and every capability that imports another."""
    floor_of = {room: floor for floor, names in enumerate(FLOORS[package]) for room in names.split()}
    floors = {room: floor_of.get(room, floor_of.get("*", 0)) for room in {*rooms}.union(*rooms.values())}
    for room, targets in rooms.items():
        for target in sorted(targets):
            if floors[target] > floors[room]:
                yield f"{package}.{room} imports {package}.{target}, which stands on a floor above"
            elif package == "gateway" and {room, target} <= CAPABILITIES:
                yield f"{package}.{room} imports {package}.{target}: capabilities do not know each other"


@pytest.fixture(scope="module")
def files() -> Graph:
    return file_graph(ROOT)


@pytest.mark.parametrize("package", FLOORS)
def test_no_import_goes_up(package: str, files: Graph) -> None:
    assert list(upward(room_graph(files, package), package)) == []


@pytest.mark.parametrize("folder", folders(ROOT))
def test_no_rooms_of_a_folder_import_each_other_in_a_circle(folder: str, files: Graph) -> None:
    assert circles(room_graph(files, folder)) == []


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_has_its_floor_and_every_name_is_a_room(package: str) -> None:
    rooms = {module.split(".")[1] for module in modules_under(ROOT) if module.startswith(f"{package}.")}
    packages = {folder.split(".")[1] for folder in folders(ROOT) if folder.startswith(f"{package}.")}
    named = [room for names in FLOORS[package] for room in names.split()]
    assert len(named) == len(set(named))
    assert set(named) - {"*"} <= rooms
    assert (packages if "*" in named else rooms) <= set(named)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"gateway/policy/a.py": "from gateway.guards import b", "gateway/guards/b.py": ""}, "floor above"),
        ({"gateway/quota/a.py": "def f():\n    import gateway.web.b", "gateway/web/b.py": ""}, "floor above"),
        ({"gateway/quota/a.py": "from gateway.guards.b import C", "gateway/guards/b.py": ""}, "capabilities"),
        ({"engine/layers/a.py": "import engine.models.b", "engine/models/b.py": ""}, "floor above"),
        ({"engine/core/a.py": "from engine.new import x", "engine/new.py": ""}, "floor above"),
        (
            {
                "kernels/launch.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kernels.native.a",
                "kernels/native/a.py": "",
            },
            "floor above",
        ),
    ],
    ids=["up", "lazy", "capabilities", "engine", "no-floor", "for-types"],
)
def test_a_wrong_import_is_found(tmp_path: Path, tree: dict[str, str], said: str) -> None:
    package = next(iter(tree)).split("/")[0]
    (found,) = upward(room_graph(file_graph(grow(tmp_path, tree)), package), package)
    assert said in found


def test_rooms_in_a_circle_are_found_where_no_files_make_one(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            "engine/layers/norm.py": "from engine.weights import loader",
            "engine/weights/loader.py": "",
            "engine/weights/adapters.py": "def read():\n    from engine.layers.linear import Linear",
            "engine/layers/linear.py": "",
            "engine/deep/one/a.py": "from engine.deep.two import b",
            "engine/deep/two/b.py": "",
            "engine/deep/two/c.py": "import engine.deep.one.d",
            "engine/deep/one/d.py": "from engine.errors import x",
            "engine/errors.py": "",
        },
    )
    files = file_graph(tmp_path)
    assert circles(files) == []
    assert circles(room_graph(files, "engine")) == [["layers", "weights"]]
    assert circles(room_graph(files, "engine.deep")) == [["one", "two"]]
    assert circles(room_graph(files, "engine.layers")) == []
