"""Azure OpenAI: OpenAI's API at other addresses (https://learn.microsoft.com/azure/ai-foundry/openai/reference).

A model is a deployment there. Without an API version it is named in the body (the v1 API), with one in the path.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from gateway.backends.endpoint import Endpoint

KEY_HEADER = "api-key"


class AzureEndpoints:
    """Where one resource is asked for each of its deployments. ``base_url`` ends where ``/openai`` follows."""

    def __init__(self, base_url: str, api_version: str | None) -> None:
        self._root = base_url.rstrip("/") + "/openai"
        self._query = f"?{urlencode({'api-version': api_version})}" if api_version else ""
        self._known: dict[tuple[str, str], Endpoint] = {}

    @property
    def probe_url(self) -> str:
        """The list of models, which costs nothing and needs good credentials."""
        return f"{self._root}/models{self._query}" if self._query else f"{self._root}/v1/models"

    def __call__(self, path: str, deployment: str) -> Endpoint:
        known = self._known.get((path, deployment))
        if known is None:
            url = (
                f"{self._root}/deployments/{quote(deployment, safe='')}{path}{self._query}"
                if self._query
                else f"{self._root}/v1{path}"
            )
            known = self._known[path, deployment] = Endpoint("POST", url)
        return known
