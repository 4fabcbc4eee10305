"""README and docs name what is there: folders, packages, files, links, `make` targets, and the order of the stages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.policy.loader import load_policy
from gateway.settings import Settings
from tests.import_graph import PACKAGES, ROOT, folders
from tests.test_floors import FLOORS
from tests.test_packaging import tracked

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "policies" / "README.md")
}
ARCHITECTURE = PAGES["docs/architecture.md"]
HISTORY = ("CHANGELOG.md", "docs/log.md")
"""Pages that tell of what was."""
MADE_UP = re.compile(r"gemini|shouting|stamp|reglu|nemotron")
"""What the worked examples of CONTRIBUTING.md add."""


def part(text: str, start: str, end: str) -> str:
    return text.split(start, 1)[1].split(end, 1)[0]


def anchors(page: str) -> set[str]:
    """The fragments that a page's headings answer to, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", PAGES[page], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readmes_tree_is_the_folders() -> None:
    tree = part(PAGES["README.md"], "## The tree", "## Licence")
    named = re.findall(r"^(\w+)/ ", tree, re.MULTILINE)
    assert sorted(named) == sorted(
        {name.split("/")[0] for name in tracked() if "/" in name and name[0] != "."}
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_its_line_in_the_order_of_the_floors(package: str) -> None:
    lines = part(part(ARCHITECTURE, "## Packages", "\0"), f"`{package}`", "\n`")
    named = [name for name in re.findall(r"`(\w+)`(?=(?:, `\w+`)*:)", lines) if name != package]
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS[package]) for room in rooms.split()}
    there = {folder.split(".")[1] for folder in folders(ROOT) if folder.startswith(f"{package}.")}
    assert len(named) == len(set(named))
    assert there <= set(named) <= set(floor_of)
    if package == "gateway":
        assert set(named) == set(floor_of)
    assert [floor_of[name] for name in named] == sorted((floor_of[name] for name in named), reverse=True)


def test_the_drawing_has_the_stages_in_their_order() -> None:
    drawn = re.search(r"--> (experiment --> record --> [\w ->]+) --> backend\[", ARCHITECTURE)
    assert drawn is not None
    assert drawn[1].split(" --> ") == stages_in_order(ROOT / "gateway" / "pipeline.py")


def stages_in_order(pipeline: Path) -> list[str]:
    """What the handler of ``Pipeline`` lists; then the loop over what is upstream."""
    parts = {
        node.name: node for node in ast.parse(pipeline.read_text()).body if isinstance(node, ast.ClassDef)
    }
    [stages] = [
        node.value
        for node in ast.walk(parts["Pipeline"])
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "stages"
    ]
    assert isinstance(stages, ast.Dict)
    calls = [ast.unparse(call.func) for call in stages.values if isinstance(call, ast.Call)]
    return [*calls, *("upstream_loop" for node in parts.values() if "UpstreamLoop(" in ast.unparse(node))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent.joinpath(file).resolve() if file else ROOT / page
        assert path.exists(), f"{page}: {target}"
        name = str(path.relative_to(ROOT))
        assert not anchor or anchor in anchors(name), f"{page}: {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY])
def test_paths_that_are_named_are_there(page: str) -> None:
    tops = "|".join(sorted({name.split("/")[0] for name in tracked() if "/" in name}))
    for path in re.findall(rf"`((?:{tops})/[\w./-]*)`", PAGES[page]):
        assert (ROOT / path).exists() or (page == "CONTRIBUTING.md" and MADE_UP.search(path)), (
            f"{page}: {path}"
        )


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY])
def test_make_targets_and_modules_that_are_named_are_there(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    code = "\n".join(re.findall(r"```sh\n(.*?)```", PAGES[page], re.DOTALL))
    for target in re.findall(r"`make ([a-z-]+)", PAGES[page]) + re.findall(
        r"^make ([a-z-]+)", code, re.MULTILINE
    ):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"
    for module in re.findall(
        r"(?<!\w)python -m\s+((?:gateway|engine|kernels|benchmarks)[\w.]*\w)", PAGES[page]
    ):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {module}"


def test_the_readmes_policies_are_one_policy(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGES["README.md"], re.DOTALL)
    assert len(blocks) >= 3
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(block)
    policy = load_policy(tmp_path, {"OPENAI_API_KEY": "sk-x", "ANTHROPIC_API_KEY": "sk-y"}).policy
    assert {"gpt-4o-mini", "claude", "chat"} <= set(policy.models) and policy.guards and policy.caches.exact


def test_commands_that_are_named_are_there() -> None:
    """Of ``tollgate``, by its own help."""
    helped = subprocess.run(
        [sys.executable, "-m", "gateway", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for page, text in PAGES.items():
        if page not in HISTORY:
            for command in re.findall(r"(?:`|^|bin/)tollgate ([a-z]+)\b", text, re.MULTILINE):
                assert re.search(rf"^\s+{command}\s", helped.stdout, re.MULTILINE), (
                    f"{page}: tollgate {command}"
                )


def test_environment_variables_that_are_named_are_read() -> None:
    names = tracked("gateway", "engine", "kernels", "scripts", "Makefile", "Dockerfile", "docker-compose.yml")
    source = "\n".join((ROOT / name).read_text() for name in names if name.endswith((".py", "file", ".yml")))
    source += " ".join(Settings().to_env())
    for page, text in PAGES.items():
        if page not in HISTORY:
            for variable in re.findall(r"TOLLGATE_[A-Z0-9_]+", text):
                assert variable in source, f"{page}: {variable}"
