"""Microsoft Entra ID: how a token for Azure is asked for, by a secret, by a workload's identity, or by the machine's.

https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow
https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token
https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from gateway.backends.credentials.bearer_token import TokenRequest
from gateway.backends.endpoint import Endpoint
from gateway.policy.schema import EntraAuth

MACHINE = "http://169.254.169.254/metadata/identity/oauth2/token"
"""Where Azure's virtual machines ask; App Service and Container Apps name another address in the environment."""
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def token_request(auth: EntraAuth, environment: Mapping[str, str]) -> Callable[[], TokenRequest]:
    """What makes the request for a token; the file of a workload's identity is read anew each time, as it changes."""
    if auth.client_secret is None and auth.token_file is None:
        return lambda: _machines(auth, environment)
    url = f"{auth.authority}/{auth.tenant_id}/oauth2/v2.0/token"
    fields = {
        "grant_type": "client_credentials",
        "client_id": auth.client_id or "",
        "scope": auth.scope,
    }
    if auth.client_secret is not None:
        secret = auth.client_secret.get_secret_value()
        return lambda: TokenRequest.form(url, {**fields, "client_secret": secret})
    file = Path(auth.token_file or "")
    return lambda: TokenRequest.form(
        url,
        {**fields, "client_assertion_type": _ASSERTION, "client_assertion": file.read_text().strip()},
    )


def _machines(auth: EntraAuth, environment: Mapping[str, str]) -> TokenRequest:
    query = {"resource": auth.scope.removesuffix("/.default")}
    if auth.client_id:
        query["client_id"] = auth.client_id
    address, header = environment.get("IDENTITY_ENDPOINT"), environment.get("IDENTITY_HEADER")
    if address and header:
        url, headers = (
            f"{address}?{urlencode({'api-version': '2019-08-01', **query})}",
            {"x-identity-header": header},
        )
    else:
        url, headers = f"{MACHINE}?{urlencode({'api-version': '2018-02-01', **query})}", {"metadata": "true"}
    return TokenRequest(Endpoint("GET", url), headers)
