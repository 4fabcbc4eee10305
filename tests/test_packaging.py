"""What is shipped fits together: packages, pins, images, the Compose file, the CI script."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "engine", "kernels")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
OBSERVABILITY = ("prometheus", "grafana", "otel-collector")
"""Services of the profile of that name; all others run without one."""
IMAGES = ("gateway", "gateway-guards", "engine", "engine-gpu")
# What only the CUDA build of torch brings; the pins leave it to that build.
CUDA_ONLY = re.compile(r"nvidia-|cuda-")


def tracked(*paths: str) -> list[str]:
    """The files git would ship, or all of them where this is not a checkout (an unpacked sdist)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    found = (path for folder in paths for path in (ROOT / folder).rglob("*") if path.is_file())
    return [str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts]


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    parsed = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in parsed), "every line of constraints.txt is name==version"
    return {canonicalize_name(name): version for name, version in parsed}


def direct_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [line for group in [PROJECT["dependencies"], *extras] for line in group]
    return [Requirement(line) for line in lines if not line.startswith(PROJECT["name"])]


# --- the Python package ---------------------------------------------------------------------------------------


def test_every_folder_with_code_is_a_package() -> None:
    folders = {Path(name).parent for name in tracked(*PACKAGES) if name.endswith(".py")}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder / "__init__.py").exists()] == []


def test_the_wheel_takes_the_three_packages_and_nothing_else() -> None:
    include = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    folders = {
        str(Path(name).parent).replace("/", ".") for name in tracked(*PACKAGES) if name.endswith(".py")
    }
    assert [name for name in folders if not any(fnmatch(name, pattern) for pattern in include)] == []
    assert {pattern.removesuffix(".*") for pattern in include} == set(PACKAGES)


def test_data_files_beside_the_code_reach_the_wheel() -> None:
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    patterns = [f"{package}/{pattern}" for package, group in data.items() for pattern in group]
    loose = [name for name in tracked(*PACKAGES) if not name.endswith((".py", ".md"))]
    assert [name for name in loose if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_the_built_in_policy_is_the_sources() -> None:
    """One file: a link here, and its content in the wheel."""
    builtin = ROOT / "gateway" / "policy" / "builtin"
    assert [file.name for file in builtin.iterdir()] == ["gateway.yaml"]
    assert (builtin / "gateway.yaml").resolve() == ROOT / "policies" / "gateway.yaml"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_version_in_the_source_is_the_released_one(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    written = {
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if ast.unparse(node.targets[0]) == "__version__"
    }
    assert written <= {PROJECT["version"]}


def test_the_changelog_is_by_version_and_knows_this_one() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    versions = [match[1] for match in released if match]
    assert len(versions) == len(headings) - 1
    # Between releases the next one is in the making, from the first commit after the tag on.
    last, number = Version(versions[0]), Version(PROJECT["version"])
    assert number == last or (number.is_devrelease and number > last)
    assert versions == sorted(versions, key=lambda one: [int(part) for part in one.split(".")], reverse=True)
    entries = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert [entry for entry in set(entries) if entries.count(entry) > 1] == [], "merged into two versions"


def test_the_commands_exist() -> None:
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_license_is_the_one_declared() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text


# --- constraints.txt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_a_direct_dependency_is_pinned_within_its_range(requirement: Requirement) -> None:
    pinned = pins().get(canonicalize_name(requirement.name))
    assert pinned is not None, "run `make lock`"
    assert requirement.specifier.contains(pinned)


def test_everything_those_bring_is_pinned_too() -> None:
    pinned, missing = pins(), set()
    queue, seen = direct_requirements(), set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        wanted = (name, frozenset(requirement.extras))
        if wanted in seen or CUDA_ONLY.match(name):
            continue
        seen.add(wanted)
        if name not in pinned:
            missing.add(name)
        for line in metadata.requires(name) or ():
            child = Requirement(line)
            if child.marker is None or any(
                child.marker.evaluate({"extra": e}) for e in ["", *requirement.extras]
            ):
                queue.append(child)
    assert missing == set(), "run `make lock`"


def test_the_pins_fit_torch_builds_for_cpu_and_cuda() -> None:
    assert all("+" not in version for version in pins().values())
    assert [name for name in pins() if CUDA_ONLY.match(name)] == []


# --- images and the Compose file ------------------------------------------------------------------------------


def stages() -> dict[str, str]:
    """Each named stage of the Dockerfile with its instructions, those of the stages that it stands on before them."""
    found: dict[str, str] = {}
    for base, name, body in re.findall(
        r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    ):
        found[name] = found.get(base, "") + body
    return found


def instruction(stage: str, name: str) -> list[str]:
    (written,) = re.findall(rf"^{name} (\[.*\])$", stages()[stage], re.MULTILINE)
    return list(json.loads(written))


def merged(*overrides: str) -> dict[str, Any]:
    """The Compose file with others laid over it: mappings are joined, all else is replaced."""

    def over(below: Any, above: Any) -> Any:
        if isinstance(below, dict) and isinstance(above, dict):
            return {key: over(below.get(key), above.get(key, below.get(key))) for key in below | above}
        return above

    whole = COMPOSE
    for name in overrides:
        whole = over(whole, yaml.safe_load((ROOT / f"docker-compose.{name}.yml").read_text()))
    return whole


def filled(text: object) -> str:
    """With what `${NAME:-default}` stands for where nothing is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(text))


def command_line(service: str) -> list[str]:
    """The whole command a service runs: its image's entrypoint, and its own command or else the image's."""
    settings = COMPOSE["services"][service]
    stage = settings["build"]["target"]
    command = settings.get("command") or instruction(stage, "CMD")
    return instruction(stage, "ENTRYPOINT") + [filled(word) for word in command]


def flags_of(command: list[str]) -> set[str]:
    """The options its --help lists, from really running it in this environment."""
    program, *rest = command
    where = [sys.executable] if program == "python" else [str(Path(sys.executable).parent / program)]
    end = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    shown = subprocess.run(
        [*where, *rest[:end], "--help"], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert shown.returncode == 0, shown.stderr
    return set(re.findall(r"--[a-z][a-z-]*", shown.stdout))


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_every_service_has_a_health_check_and_comes_back(service: str) -> None:
    settings = COMPOSE["services"][service]
    # The collector's image has no program that could ask.
    assert service == "otel-collector" or settings["healthcheck"]["test"][0] == "CMD"
    assert settings["restart"] == "unless-stopped"
    assert settings["read_only"] is True


@pytest.mark.parametrize("service", [name for name, s in COMPOSE["services"].items() if "build" in s])
def test_a_service_runs_a_command_that_exists(service: str) -> None:
    settings = COMPOSE["services"][service]
    assert settings["build"]["target"] in stages()
    command = command_line(service)
    assert {word for word in command if word.startswith("--")} <= flags_of(command)


def test_the_image_sets_no_variable_that_tollgate_does_not_read() -> None:
    shown = subprocess.run(
        [str(Path(sys.executable).parent / "tollgate"), "serve", "--help"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    set_in_image = set(re.findall(r"\bTOLLGATE_\w+(?==)", stages()["gateway"]))
    assert set_in_image <= set(re.findall(r"TOLLGATE_[A-Z_]+", re.sub(r"\s+", " ", shown.stdout)))


@pytest.mark.parametrize("service", ["gateway", "engine"])
def test_the_health_check_asks_the_port_the_command_listens_on(service: str) -> None:
    command = command_line(service)
    set_in_image = re.findall(r"TOLLGATE_PORT=(\d+)", stages()[service])
    port = int(command[command.index("--port") + 1] if "--port" in command else set_in_image[0])
    in_compose = COMPOSE["services"][service]["healthcheck"]["test"][-1]
    in_image = re.findall(r"HEALTHCHECK .*?CMD (\[.*\])", stages()[service])
    for check in [in_compose, json.loads(in_image[0])[-1]]:
        (url,) = re.findall(r"http://[^']+", check)
        assert urlsplit(url).port == port


def test_counters_are_never_evicted_and_caches_are() -> None:
    services = COMPOSE["services"]
    environment = services["gateway"]["environment"]
    kept = {}
    for variable in ("TOLLGATE_STORE", "TOLLGATE_CACHE_STORE"):
        command = services[urlsplit(environment[variable]).hostname]["command"]
        kept[variable] = (
            command[command.index("--maxmemory-policy") + 1],
            command[command.index("--appendonly") + 1],
        )
        assert "--maxmemory" in command
    assert kept == {"TOLLGATE_STORE": ("noeviction", "yes"), "TOLLGATE_CACHE_STORE": ("allkeys-lru", "no")}


def test_the_gateway_finds_engine_and_redis_under_their_names() -> None:
    services = COMPOSE["services"]
    environment = services["gateway"]["environment"]
    engine, store = urlsplit(environment["ENGINE_URL"]), urlsplit(environment["TOLLGATE_STORE"])
    assert environment["ENGINE_LAUNCH"] == "false"
    assert engine.hostname in services and str(engine.port) in services["engine"]["expose"]
    assert store.hostname in services and store.scheme == "redis"
    assert set(services["gateway"]["depends_on"]) == set(services) - {"gateway", *OBSERVABILITY}


def test_what_runs_without_a_flag_is_the_cpus() -> None:
    profiles = {name: settings.get("profiles") for name, settings in COMPOSE["services"].items()}
    assert all(profiles[name] == (["observability"] if name in OBSERVABILITY else None) for name in profiles)
    assert COMPOSE["services"]["engine"]["build"]["target"] == "engine"
    assert COMPOSE["services"]["gateway"]["build"]["target"] == "gateway"


@pytest.mark.parametrize(("override", "service"), [("gpu", "engine"), ("guards", "gateway")])
def test_an_override_changes_its_service_and_nothing_else(override: str, service: str) -> None:
    before, after = COMPOSE["services"], merged(override)["services"]
    assert {name for name in after if after[name] != before.get(name)} == {service}
    assert after[service]["build"]["target"] == f"{service}-{override}" in stages()
    assert after[service]["image"] != before[service]["image"]
    assert f"-f docker-compose.{override}.yml" in (ROOT / "docker-compose.yml").read_text()


@pytest.mark.parametrize("overrides", [(), ("gpu",), ("guards",), ("gpu", "guards")], ids=str)
def test_every_service_has_limits(overrides: tuple[str, ...]) -> None:
    for settings in merged(*overrides)["services"].values():
        assert float(filled(settings["cpus"])) > 0
        assert re.fullmatch(r"\d+[mg]", filled(settings["mem_limit"]))
        assert settings["pids_limit"] > 0


def test_the_images_run_as_nobody_in_particular_and_get_signals() -> None:
    for stage in IMAGES:
        assert re.findall(r"^USER (\S+)$", stages()[stage], re.MULTILINE)[-1] == "tollgate"
        assert instruction(stage, "ENTRYPOINT") and instruction(stage, "CMD")


def test_a_build_that_names_no_target_makes_the_gateway() -> None:
    assert list(stages())[-1] == "gateway"


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"])
def test_pips_settings_reach_every_stage_that_runs_pip(name: str) -> None:
    """In the stage itself: buildah does not hand arguments on to those built upon it."""
    bodies = re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    running = [
        (stage, body)
        for stage, body in bodies
        if re.search(r"^RUN .*(\bpip .*install|python image\.py)", body, re.MULTILINE)
    ]
    assert {stage for stage, _ in running} >= {"gateway-dependencies", "engine-dependencies", "source"}
    assert [
        stage for stage, body in running if not re.search(rf"^ARG .*\b{name}\b", body, re.MULTILINE)
    ] == []
    assert not any(stage in IMAGES for stage, _ in running), "an image keeps what pip was told"


def test_the_gateways_image_has_no_torch() -> None:
    assert re.findall(r"python image\.py (.*)", stages()["gateway-dependencies"]) == [
        "/opt/tollgate dns kubernetes kv-events otel postgres scaler"
    ]
    assert "--from=gateway-dependencies" in stages()["gateway"]


def test_what_the_dockerfile_copies_is_let_through() -> None:
    let_through = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    assert copied == set(let_through)
    assert [name for name in copied if not (ROOT / name).exists()] == []


# --- commands -------------------------------------------------------------------------------------------------


def test_the_ci_script_is_valid_and_runs_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True).returncode == 0
    text, readme = script.read_text(), (ROOT / "README.md").read_text()
    assert 'if make "$tests"; then' in text.splitlines()
    targets = re.findall(r"^\S+\) tests=(\S+) ;;$", text, re.MULTILINE)
    assert targets == ["test", "test-all"] and all(f"`make {target}`" in readme for target in targets)


@pytest.mark.skipif(
    not all(
        map(shutil.which, ("make", "redis-server", "prometheus", "promtool", "nginx", "caddy", "curl", "cc"))
    )
    or not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")),
    reason="the script would install what is missing",
)
@pytest.mark.parametrize(
    ("failures", "alone", "code", "said"),
    [(0, 0, 0, ""), (2, 0, 0, "UNSTEADY"), (2, 1, 1, ""), (11, 0, 1, ""), (None, 0, 1, "")],
    ids=["all-pass", "pass-alone", "fail-again", "too-many", "no-tests-ran"],
)
def test_ci_tries_a_few_failures_once_more(
    tmp_path: Path, failures: int | None, alone: int, code: int, said: str
) -> None:
    for name, lines in {
        ".ci/run": (ROOT / ".ci" / "run").read_text(),
        "bin/make": f"""#!/bin/sh
[ "$1" = test ] || exit 0
mkdir -p .pytest_cache/v/cache
[ -e failures ] && cp failures .pytest_cache/v/cache/lastfailed
exit {int(failures != 0)}
""",
        ".venv/bin/python": f'#!/bin/sh\necho "$@" > again\nexit {alone}\n',
        ".pytest_cache/v/cache/lastfailed": '{"tests/test_of_an_earlier_run.py": true}',
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(lines)
        file.chmod(0o755)
    if failures is not None:
        (tmp_path / "failures").write_text(
            json.dumps({f"tests/test_a.py::test_{number}": True for number in range(failures)})
        )
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", ".ci/run"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, said in done.stdout) == (code, True), done.stderr
    asked = (tmp_path / "again").read_text() if (tmp_path / "again").exists() else ""
    assert ("tests/test_a.py\n" in asked) is (failures == 2)


def test_make_explains_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    assert set(targets.split()) - {"help"} == set(re.findall(r"^make ([\w-]+)", shown, re.MULTILINE))


def test_only_who_works_on_it_gets_tests_and_linters() -> None:
    for target, stage in (
        ("setup", "serve"),
        ("serve", "serve"),
        ("test", "dev"),
        ("test-all", "dev"),
        ("lint", "dev"),
    ):
        shown = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=300
        ).stdout
        assert re.findall(r"scripts/environment\.py (\w+)", shown) == [stage], target


@pytest.mark.parametrize("python", ["/no/python", "/bin/sh"])
@pytest.mark.parametrize("target", ["setup", "lock"])
def test_make_says_where_the_python_that_is_named_is_none(target: str, python: str) -> None:
    done = subprocess.run(
        ["make", target, f"PYTHON={python}"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode and done.stderr.startswith(f"PYTHON={python} is no Python 3.11 or later")


def test_a_backup_in_the_source_is_neither_committed_nor_in_an_image() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/tollgate-*.tar.gz" in ignored and "/policies/keys.yaml" in ignored
    shipped = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in shipped and shipped.index("policies/keys.yaml") > shipped.index("!policies")
