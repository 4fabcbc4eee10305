"""Gemini CLI (https://github.com/google-gemini/gemini-cli), which speaks Google's Gemini API."""

from __future__ import annotations

import json
from typing import Any

from agent import CONTENT, Errand, run

SETTINGS: dict[str, Any] = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    # Else it asks its maker for updates, and tells it what it does.
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def errand(errand: Errand) -> str:
    settings = errand.home / ".gemini"
    settings.mkdir()
    (settings / "settings.json").write_text(json.dumps(SETTINGS))
    return errand.start(
        *("gemini", "--model", errand.model, "--approval-mode", "auto_edit"),
        *("--prompt", errand.words("write_file", file_path=str(errand.file), content=CONTENT)),
        GOOGLE_GEMINI_BASE_URL=errand.url,
        GEMINI_API_KEY=errand.key,
        GEMINI_CLI_TRUST_WORKSPACE="true",
    )


run("@google/gemini-cli", errand)
