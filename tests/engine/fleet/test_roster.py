from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import parser
from engine.errors import StartupError
from engine.fleet.flags import is_fleet, read_fleet
from engine.fleet.roster import FleetConfig, read_roster, seconds

FILE = """\
memory: 2GiB
sleep_after: 90s
models:
  small: {model: /m/small.gguf, pinned: true}
  large:
    model: /m/large.gguf
    sleep_after: off
    unload_after: 2h
    args: [--max-model-len=4096]
  plain: demo
"""


def fleet(*arguments: str) -> FleetConfig:
    options = vars(parser().parse_args(["serve", *arguments]))
    assert is_fleet(options)
    return read_fleet(options, arguments)


def test_a_file_and_flags_say_which_models_there_are(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(FILE)
    config = fleet(
        *("--models", str(file), "--model", "org/hub", "--pin", "large", "--port", "0", "--host=::1"),
        *("--quantization", "int8", "--sleep-level", "2", "--memory=3GiB", "--max-load-wait", "10s"),
    )
    models = {one.name: one for one in config.roster.models}
    assert list(models) == ["org/hub", "small", "large", "plain"]
    assert (config.host, config.port) == ("::1", 0)
    assert (config.roster.memory, config.roster.max_load_wait) == (3 * 2**30, 10.0)
    assert [one.terms.pinned for one in models.values()] == [False, True, True, False]
    assert [one.terms.sleep_after for one in models.values()] == [90.0, 90.0, float("inf"), 90.0]
    assert {one.terms.sleep_level for one in models.values()} == {2}
    assert models["large"].terms.unload_after == 7200
    shared = ("--quantization", "int8")
    assert models["large"].args == (*shared, "--max-model-len=4096")
    assert models["org/hub"].args == shared


@pytest.mark.parametrize(
    ("flag", "value"), [("--handover-address", "tcp://127.0.0.1:8200"), ("--nodes", "127.0.0.1:7100")]
)
def test_an_address_is_not_for_each_model(flag: str, value: str) -> None:
    """The second would not start, as the first has it."""
    with pytest.raises(StartupError, match=f"{flag} is one model's"):
        fleet("--model", "a", "--model", "b", flag, value)


def test_one_model_is_no_fleet_until_a_flag_says_so() -> None:
    assert not is_fleet(vars(parser().parse_args(["serve", "--model", "demo", "--port", "0"])))
    assert fleet("--model", "demo", "--min", "0").roster.models[0].terms.min == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {a: {model: x, pined: true}}", "models.a: 'pined' is not a key of a model"),
        ("models: {a: {pinned: true}}", "models.a needs 'model'"),
        ("models: {a: {model: x, sleep_after: soon}}", "models.a.sleep_after: 'soon' is not a time"),
        ("models: {a: {model: x, sleep_level: 3}}", "models.a.sleep_level must be one of 0, 1, 2"),
        ("models: {a: {model: x, min: true}}", "models.a.min must be one of 0, 1, not True"),
        ("models: {a: {model: x, pinned: 1}}", "models.a.pinned must be true or false"),
        ("models: {a: {model: x, args: [--port=1]}}", "models.a.args: --port is not a model's own"),
        ("models: {a: {model: x, args: --x}}", "models.a.args must be a list"),
        ("models: {'a b': x}", "a name has letters"),
        ("models: [x]", "'models' must map names"),
        ("models: {}", "There is no model to serve"),
        ("memory: lots\nmodels: {a: x}", "memory: 'lots' is not a size"),
        ("memroy: 1GiB\nmodels: {a: x}", "'memroy' is not a key here"),
        ("modells: {a: x}", "must have a key 'models'"),
        ("a: [", "models.yaml:1: this is no YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    with pytest.raises(StartupError, match="(?s)" + said.replace("(", r"\(")):
        read_roster(file)


def test_names_must_differ_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="Two models are called 'x'"):
        read_roster(None, ["x", "x"])
    with pytest.raises(StartupError, match="--pin y: no model is called that; there are x"):
        read_roster(None, ["x"], pinned=["y"])
    with pytest.raises(StartupError, match=r"cannot be read: No such file"):
        read_roster(tmp_path / "absent.yaml")


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("off", float("inf"))])
def test_times(text: str, value: float) -> None:
    assert seconds(text) == value


def test_a_time_that_is_none_is_refused() -> None:
    wrong: list[Any] = ["-1s", "5d", ""]
    for text in wrong:
        with pytest.raises(ValueError, match="is not a time"):
            seconds(text)
