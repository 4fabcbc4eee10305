"""A policy in the making: plain content, the variables that it reads, and the secrets that stood in the open."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.lab.migration.report import Report
from gateway.policy.files import TABLE
from gateway.policy.key_store import FEW, FILE
from gateway.private import private_file

POLICY_FILE, REPORT_FILE, SECRETS_FILE = "gateway.yaml", "IMPORT.md", ".env"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:/@+-]+")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-[^}]*)?\}", re.ASCII)
_NEEDED = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)\}", re.ASCII)


class ConfigError(Exception):
    """The configuration cannot be read; the message says why."""


@dataclass(slots=True)
class PolicyDraft:
    """Content is kept as it is written: a text with ``${`` refers to a variable."""

    source: str
    """What it is made from, for the report."""
    content: dict[str, Any] = field(default_factory=lambda: {"version": 1, "backends": {}, "models": {}})
    keys: list[dict[str, Any]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """Values that the configuration had in the open, by the variables that the policy reads in their place."""
    reserved: frozenset[str] = frozenset()
    """Variables that the configuration reads: none of them may come to mean another value."""
    report: Report = field(default_factory=Report)

    @property
    def backends(self) -> dict[str, dict[str, Any]]:
        backends: dict[str, dict[str, Any]] = self.content["backends"]
        return backends

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        models: dict[str, dict[str, Any]] = self.content["models"]
        return models

    def backend(self, name: str, settings: Mapping[str, Any]) -> str:
        """The name of the backend with these settings: one that is there, or a new one called ``name`` or like it."""
        for known, there in self.backends.items():
            if there == settings:
                return known
        unique = unique_name(name, self.backends)
        self.backends[unique] = dict(settings)
        return unique

    def secret(self, value: str, name: str) -> str:
        """A reference to a variable with this value."""
        for known, there in self.secrets.items():
            if there == value:
                return f"${{{known}}}"
        number, unique = 1, name
        while unique in self.secrets or unique in self.reserved:
            number += 1
            unique = f"{name}_{number}"
        self.secrets[unique] = value
        return f"${{{unique}}}"

    def price(self, target: str, **dollars: float) -> None:
        self.content.setdefault("prices", {})[target] = dollars

    @property
    def needed(self) -> list[str]:
        """Variables without a default, without which the policy is invalid or a backend disabled."""
        text = json.dumps([self.content, self.keys], default=str)
        return sorted(set(_NEEDED.findall(text)))

    def is_named(self, variable: str) -> bool:
        return variable in _VARIABLE.findall(json.dumps(self.content, default=str))

    def write(self, folder: Path) -> list[Path]:
        """Raises ``OSError``."""
        folder.mkdir(parents=True, exist_ok=True)
        policy = folder / POLICY_FILE
        schema_line = "# yaml-language-server: $schema=policy.schema.json\n"
        head = f"# Imported from {self.source}; {REPORT_FILE} tells what did not carry over.\n"
        policy.write_text(schema_line + head + _yaml(self.content), "utf-8")
        written = [policy]
        if len(self.keys) > FEW:
            table = folder / TABLE
            table.write_text("".join(f"{json.dumps(key)}\n" for key in self.keys), "utf-8")
            written.append(table)
        elif self.keys:
            file = folder / FILE
            file.write_text(
                f"# Imported from {self.source}: hashes only.\n" + _yaml({"keys": self.keys}), "utf-8"
            )
            written.append(file)
        if self.secrets:
            secrets = folder / SECRETS_FILE
            private_file(secrets)
            secrets.write_text("".join(f"{name}={_quoted(value)}\n" for name, value in self.secrets.items()))
            written.append(secrets)
        return [*written, self.write_report(folder)]

    def write_report(self, folder: Path) -> Path:
        """Raises ``OSError``."""
        report = folder / REPORT_FILE
        report.write_text("\n".join(self.told()), "utf-8")
        return report

    def told(self) -> Iterator[str]:
        counts = f"{len(self.backends)} backends, {len(self.models)} models, {len(self.keys)} keys"
        yield f"# Imported from {self.source}"
        yield ""
        yield f"{counts[0].upper()}{counts[1:]}."
        yield ""
        if self.secrets:
            yield (
                f"Secrets that stood in the configuration are in `{SECRETS_FILE}`, for its owner alone, and the policy "
                f"reads them as variables. Load them before serving: `set -a; . ./{SECRETS_FILE}; set +a`."
            )
            yield ""
        if outside := [name for name in self.needed if name not in self.secrets]:
            yield f"Variables that the policy reads: {', '.join(f'`{name}`' for name in outside)}."
            yield ""
        yield from self.report.lines()


def unique_name(name: str, taken: Mapping[str, Any]) -> str:
    name = valid_name(name)
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}-{number}"
    return unique


def valid_name(text: str) -> str:
    """As names of a policy are written."""
    return _NOT_IN_NAMES.sub("-", text).strip("._:/@+-")[:120] or "unnamed"


def duration(seconds: float) -> str:
    """The shortest way to write it; at most some years."""
    seconds = min(seconds, 1e8)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length:.0f}{unit}"
    if seconds < 1:
        return f"{max(1, round(seconds * 1000))}ms"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


class _Dumper(yaml.SafeDumper):
    """Writes each value where it stands: anchors are no help to who edits."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(content: Any) -> str:
    written = yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return written.replace("'on':", "on:")  # a word like others in a policy


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
