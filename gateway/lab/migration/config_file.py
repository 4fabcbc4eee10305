"""A configuration's file, read as it is: YAML or JSON with a mapping at the top."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gateway.lab.migration.draft import ConfigError


def read_yaml(file: Path, wanted: str) -> dict[str, Any]:
    """``wanted`` ends what is said of a file with something else in it. Raises ``ConfigError``."""
    return _read(file, "YAML", yaml.safe_load, wanted)


def read_json(file: Path, wanted: str) -> dict[str, Any]:
    """The same of JSON."""
    return _read(file, "JSON", json.loads, wanted)


def _read(file: Path, form: str, load: Callable[[str], Any], wanted: str) -> dict[str, Any]:
    try:
        content = load(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid {form}: {error}") from None
    except (RecursionError, ValueError):  # brackets without end; a day that no calendar has
        raise ConfigError(f"{file} is not valid {form}: a value in it cannot be read") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is {wanted}")
    return content
