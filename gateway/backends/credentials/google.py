"""Google Cloud: how a token is asked for, by a key file or by the machine's own service account.

https://developers.google.com/identity/protocols/oauth2/service-account#httprest
https://cloud.google.com/compute/docs/access/authenticate-workloads#applications
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt

from gateway.backends.credentials.bearer_token import TokenRequest
from gateway.backends.endpoint import Endpoint

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ISSUER = "https://oauth2.googleapis.com/token"
LIFE = 3600
"""Seconds, the most that Google gives."""
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_MACHINES = "/computeMetadata/v1/instance/service-accounts/default/token"


def token_request(file: str | None, environment: Mapping[str, str]) -> Callable[[], TokenRequest]:
    """What makes the request for a token, by the key in ``file``, else the one that GOOGLE_APPLICATION_CREDENTIALS
    names, else as the machine."""
    path = file or environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if path:
        return lambda: _by_key(Path(path))
    host = environment.get("GCE_METADATA_HOST") or "metadata.google.internal"
    request = TokenRequest(Endpoint("GET", f"http://{host}{_MACHINES}"), {"metadata-flavor": "Google"})
    return lambda: request


def _by_key(file: Path) -> TokenRequest:
    """Read anew each time, as keys are replaced. Raises ``OSError``, ``ValueError``."""
    key = json.loads(file.read_text("utf-8"))
    try:
        match key:
            case {"type": "service_account"}:
                return TokenRequest.form(key.get("token_uri", ISSUER), _service_account(key))
            case {"type": "authorized_user"}:
                fields = {name: str(key[name]) for name in ("client_id", "client_secret", "refresh_token")}
                return TokenRequest.form(ISSUER, {"grant_type": "refresh_token", **fields})
    except (KeyError, jwt.PyJWTError, TypeError) as error:
        raise ValueError(f"{file} is no whole key: {error}") from error
    raise ValueError(f"{file} should hold a key of type service_account or authorized_user")


def _service_account(key: Mapping[str, Any]) -> dict[str, str]:
    now = int(time.time())
    claims = {
        "iss": key["client_email"],
        "scope": SCOPE,
        "aud": key.get("token_uri", ISSUER),
        "iat": now,
        "exp": now + LIFE,
    }
    headers = {"kid": key["private_key_id"]} if key.get("private_key_id") else None
    return {
        "grant_type": _GRANT,
        "assertion": jwt.encode(claims, key["private_key"], algorithm="RS256", headers=headers),
    }
