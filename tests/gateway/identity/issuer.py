"""An issuer of tokens: its keys, its JWKS, and tokens sound and unsound."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "tollgate"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, PrivateKey] = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def jwk(key: PrivateKey, kid: str | None = None, **more: Any) -> dict[str, Any]:
    """The public key as a JWKS lists it."""
    match key:
        case rsa.RSAPrivateKey():
            public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case ec.EllipticCurvePrivateKey():
            public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case ed25519.Ed25519PrivateKey():
            public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    public.pop("key_ops", None)
    return {**public, **({} if kid is None else {"kid": kid}), **more}


def jwks(**keys: PrivateKey) -> bytes:
    """Keys by their ids; without any, one of each kind, named by its algorithm."""
    return json.dumps({"keys": [jwk(key, kid) for kid, key in (keys or KEYS).items()]}).encode()


def claims(**more: Any) -> dict[str, Any]:
    """Those of a sound token; None takes one out."""
    now = int(time.time())
    whole = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "tenant": "acme",
        "iat": now,
        "exp": now + 600,
        **more,
    }
    return {name: value for name, value in whole.items() if value is not None}


def token(
    algorithm: str = "RS256",
    key: Any = None,
    *,
    kid: str | None = "",
    header: dict[str, Any] | None = None,
    **more: Any,
) -> str:
    """A signed token; ``kid`` is the algorithm's name unless given, and left out when None."""
    headers = {**({} if kid is None else {"kid": kid or algorithm}), **(header or {})}
    return jwt.encode(claims(**more), key or KEYS[algorithm], algorithm, headers=headers)


def entry(source: str, **more: Any) -> dict[str, Any]:
    return {"issuer": ISSUER, "audience": AUDIENCE, "jwks": source, **more}
