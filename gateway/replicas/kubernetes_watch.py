"""Objects of one kind in Kubernetes, listed once and then watched.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.backoff import Backoff

log = logging.getLogger(__name__)

NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
WATCH = 300
"""Seconds after which the server ends a watch, and the next one goes on from there."""
_SILENT = 30
"""Seconds more, after which a connection counts as dead."""
_GONE = 410
_AGAIN = Backoff(0.5, most=30.0)

Thing = Mapping[str, Any]
"""As the API's JSON has it."""
Ask = Callable[..., Any]
"""Takes the client library's ``ApiClient`` and a list's parameters; returns the response as it comes."""


class ApiFailed(Exception):
    """The API server could not be asked; the message says why."""


class Expired(Exception):
    """What was to be gone on from is not known any more: all is listed again."""


class Watch:
    """The client library waits in threads: each of these has one of its own, which ends with its watch."""

    def __init__(self, backend: str, ask: Ask, tell: Callable[[Mapping[str, Thing]], object]) -> None:
        """``tell`` gets all that there are, by name, each time that they have changed, in that thread."""
        self._backend = backend
        self._list_or_watch = ask
        self._tell = tell
        self._stopped = threading.Event()
        self._response: Any = None
        self._api: Any = None
        self._things: dict[str, Thing] = {}

    def start(self) -> None:
        # A daemon: the process may end while the server says nothing.
        threading.Thread(target=self.run, name=f"endpoints of {self._backend}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if (response := self._response) is not None:
            try:
                response.shutdown()
            except (OSError, RuntimeError, ValueError):
                log.debug("the watch had ended", exc_info=True)

    def run(self) -> None:
        failures, version = 0, None
        while not self._stopped.is_set():
            try:
                if version is None:
                    version = self._list()
                    if failures:
                        log.warning("the replicas of backend '%s' are found again", self._backend)
                failures = 0
                version = self._follow(version)
            except Expired:
                version = None
            except Exception as error:
                if self._stopped.is_set():
                    return
                version, failures = None, failures + 1
                if failures == 1:
                    log.warning("the replicas of backend '%s' stay as they are: %s", self._backend, error)
                self._stopped.wait(_AGAIN.drawn(failures))

    def _list(self) -> str:
        """The version that a watch goes on from."""
        things: dict[str, Thing] = {}
        more = None
        while True:
            response = self._ask(limit=500, _continue=more)
            page = json.loads(response.read())
            self._close(response)
            things |= {_name(one): one for one in page.get("items") or ()}
            metadata = page["metadata"]
            more = metadata.get("continue") or None
            if more is None:
                break
        self._things = things
        self._tell(dict(things))
        return str(metadata["resourceVersion"])

    def _follow(self, version: str) -> str:
        """Until the server ends the watch. The version that the next one goes on from. Raises ``Expired``."""
        self._response = self._ask(
            watch=True, allow_watch_bookmarks=True, resource_version=version, timeout_seconds=WATCH
        )
        try:
            if self._stopped.is_set():  # it may have been before there was anything to shut
                return version
            for event in _events(self._response):
                if self._stopped.is_set():
                    break
                kind, one = event["type"], event["object"]
                if kind == "ERROR":
                    if one.get("code") == _GONE:
                        raise Expired
                    raise ApiFailed(f"the API server ended the watch: {one.get('message')}")
                version = str(one["metadata"]["resourceVersion"])
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    self._things.pop(_name(one), None)
                else:
                    self._things[_name(one)] = one
                self._tell(dict(self._things))
        finally:
            response, self._response = self._response, None
            self._close(response)
        return version

    def _close(self, response: Any) -> None:
        response.close()
        response.release_conn()
        if self._api is not None:
            self._api.rest_client.pool_manager.clear()

    def _ask(self, **more: Any) -> Any:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException

        try:
            configuration = client.Configuration()
            if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
                )
        except (ConfigException, OSError) as error:
            raise ApiFailed(f"there is no way to the Kubernetes API: {error}") from error
        self._api = client.ApiClient(configuration)
        try:
            return self._list_or_watch(
                self._api,
                _preload_content=False,
                _request_timeout=(5, WATCH + _SILENT if more.get("watch") else _SILENT),
                **{name: value for name, value in more.items() if value is not None},
            )
        except client.ApiException as error:
            if error.status == _GONE:
                raise Expired from error
            raise ApiFailed(f"the API server says {error.status}: {_message(error.body)}") from error


def _events(response: Any) -> Iterator[dict[str, Any]]:
    from kubernetes.watch.watch import iter_resp_lines

    for line in iter_resp_lines(response):  # type: ignore[no-untyped-call]
        if line:
            yield json.loads(line)


def _name(one: Thing) -> str:
    return str(one["metadata"]["name"])


def own_namespace() -> str:
    try:
        return NAMESPACE.read_text().strip()
    except OSError:
        return "default"


def _message(body: str | bytes | None) -> str:
    said = body.decode("utf-8", "replace") if isinstance(body, bytes) else body or ""
    try:
        return str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        return said[:200]
