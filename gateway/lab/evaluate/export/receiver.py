"""A tool's API over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import httpx

from gateway.lab.evaluate.errors import EvaluationError

TIMEOUT = 60.0
"""Seconds for one request."""
_LONGEST = 300


class Receiver:
    """``with`` it. Every method raises ``EvaluationError``, which says what the tool said."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._http = httpx.Client(base_url=url, headers=dict(headers), timeout=TIMEOUT)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        unless: Iterable[int] = (),
        headers: Mapping[str, str] = {},
    ) -> Any:
        """What it answers, from JSON; None for a status that is in ``unless``."""
        try:
            response = self._http.request(method, path, json=body, headers=dict(headers))
        except httpx.HTTPError as error:
            raise EvaluationError(
                f"--export-to: {self._url} cannot be reached ({type(error).__name__}: {error}); the results are there: "
                "the same command exports them again, and asks nobody"
            ) from None
        if response.status_code in unless:
            return None
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise EvaluationError(
                f"--export-to: {self._url} refuses the key (status {response.status_code}); docs/lab.md says in which "
                "variables it looks for it"
            )
        if not response.is_success:
            said = " ".join(response.text.split())[:_LONGEST]
            raise EvaluationError(
                f"--export-to: {method} {path} was answered with {response.status_code}: {said}"
            )
        try:
            return response.json()
        except ValueError:
            return {}
