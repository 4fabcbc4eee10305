"""Signatures are those of Standard Webhooks: its test vector, and its own library."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.observe.signing import signed_headers

VECTOR = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
OTHER = bytes(range(32))


def test_the_published_vector() -> None:
    headers = signed_headers([VECTOR], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_keys_are_changed_either_verifies_and_no_other() -> None:
    body = '{"type":"budget.reached","data":{"key":"für"}}'.encode()
    headers = signed_headers([OTHER, VECTOR], "msg_1", int(time.time()), body)
    for key in (VECTOR, OTHER):
        secret = f"whsec_{base64.b64encode(key).decode()}"
        assert Webhook(secret).verify(body, headers)["type"] == "budget.reached"
    for wrong, sent in ((b"x" * 32, body), (OTHER, body + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(wrong).verify(sent, headers)
