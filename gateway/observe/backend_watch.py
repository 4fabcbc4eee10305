"""What becomes of backends: each change of state is one line in the log, and a gauge."""

from __future__ import annotations

import logging

from gateway.observe.callbacks import Callbacks
from gateway.observe.events import log_event
from gateway.observe.metrics import Metrics

log = logging.getLogger("gateway.backends")


class BackendWatch:
    """Called by ``gateway.fallback.health``. Each worker has its own view of backends, and a watch of its own."""

    def __init__(self, metrics: Metrics, callbacks: Callbacks | None = None) -> None:
        self._metrics = metrics
        self._callbacks = callbacks

    def breaker_opened(
        self,
        backend: str,
        model: str,
        tenant: str | None,
        key_id: str | None,
        failures: int,
        cooldown: float,
    ) -> None:
        self._metrics.breaker_open.labels(backend).inc()
        message = (
            f"backend '{backend}' failed {failures} times of late (asked for '{model}') and is left alone "
            f"by {_who(tenant, key_id)} for {cooldown:g} s"
        )
        facts = (backend, model, tenant, key_id, failures, cooldown)
        log_event(log, logging.WARNING, "breaker_opened", message, *facts)
        if self._callbacks is not None:
            self._callbacks.breaker_changed(
                True, backend, model, tenant, key_id, failures=failures, cooldown=cooldown
            )

    def breaker_closed(self, backend: str, model: str, tenant: str | None, key_id: str | None) -> None:
        self._metrics.breaker_open.labels(backend).dec()
        message = f"backend '{backend}' is asked for '{model}' again by {_who(tenant, key_id)}"
        log_event(log, logging.INFO, "breaker_closed", message, backend, model, tenant, key_id)
        if self._callbacks is not None:
            self._callbacks.breaker_changed(False, backend, model, tenant, key_id)

    def credentials_refused(self, backend: str, model: str, error: str) -> None:
        self._metrics.credentials_refused.labels(backend).inc()
        what = "wants to be paid" if error == "upstream_billing" else "refuses the gateway's credentials"
        message = f"backend '{backend}' {what} (asked for '{model}'): its api_key needs care"
        log_event(log, logging.ERROR, "credentials_refused", message, backend, model, error)

    def credentials_accepted(self, backend: str) -> None:
        self._metrics.credentials_refused.labels(backend).dec()
        message = f"backend '{backend}' takes the gateway's credentials again, or has others"
        log_event(log, logging.INFO, "credentials_accepted", message, backend)


def _who(tenant: str | None, key_id: str | None) -> str:
    if tenant is None:
        return "everybody"
    return f"tenant '{tenant}'" if key_id is None else f"key '{key_id}' of tenant '{tenant}'"
