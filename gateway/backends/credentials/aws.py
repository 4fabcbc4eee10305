"""Amazon's signatures, by botocore's signer and its ways to find who the gateway is.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html. botocore comes with the extra ``bedrock``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.backends.endpoint import Endpoint
from gateway.errors import UpstreamFailed
from gateway.policy.schema import AwsAuth

log = logging.getLogger(__name__)

SERVICE = "bedrock"
"""The name that signatures are for."""


class AwsSignature:
    """One backend's. Credentials are found when they are first needed; temporary ones are renewed by botocore."""

    def __init__(self, backend: str, auth: AwsAuth) -> None:
        self._backend = backend
        self._auth = auth
        self._found: Any = None

    async def headers(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        # It may read files and ask other servers, and hashes the body.
        return await asyncio.to_thread(self._signed, endpoint, headers, body)

    def refused(self) -> None:
        self._found = None

    async def aclose(self) -> None:
        """botocore keeps no connections of ours."""

    def _signed(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            found = self._found = self._found or self._find()
            frozen = found.get_frozen_credentials() if found is not None else None
        except BotoCoreError as error:
            log.error("backend '%s': its credentials cannot be had: %s", self._backend, error)
            raise self._failed() from error
        if frozen is None:
            log.error(
                "backend '%s': no credentials were found: name access_key_id or profile under 'aws', or api_key, or "
                "give the gateway a role",
                self._backend,
            )
            raise self._failed()
        told = {"content-type": headers["content-type"]} if "content-type" in headers else {}
        request = AWSRequest(method=endpoint.method, url=endpoint.url, data=body, headers=told)
        SigV4Auth(frozen, SERVICE, self._auth.region).add_auth(request)
        return {name.lower(): value for name, value in request.headers.items() if name.lower() not in told}

    def _find(self) -> Any:
        from botocore.credentials import Credentials
        from botocore.session import Session

        auth = self._auth
        if auth.access_key_id is not None and auth.secret_access_key is not None:
            token = auth.session_token.get_secret_value() or None if auth.session_token is not None else None
            return Credentials(auth.access_key_id, auth.secret_access_key.get_secret_value(), token)
        return Session(profile=auth.profile).get_credentials()

    def _failed(self) -> UpstreamFailed:
        return UpstreamFailed(
            f"Backend '{self._backend}' cannot be asked: the gateway has no credentials for it. The operator finds the "
            "reason in the log.",
            code="upstream_auth",
        )
