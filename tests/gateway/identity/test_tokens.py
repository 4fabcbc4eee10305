"""Which tokens are taken, for whom they stand, and why others are refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import AuthUnavailable, Unauthenticated
from gateway.identity import jwt as module
from gateway.identity.api_keys import digest_of, hash_key
from gateway.identity.authenticator import Authenticator
from gateway.identity.jwt import read
from gateway.types import Principal
from tests.fakes import policy
from tests.gateway.identity import issuer
from tests.gateway.identity.conftest import Authenticate, at_once, scope
from tests.gateway.identity.issuer import claims, entry, token

pytestmark = pytest.mark.anyio


async def refused(made: Any, text: str) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        await made.principal(scope(text))
    assert text not in caught.value.message
    return caught.value


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
@pytest.mark.parametrize("kid", ["", None])
async def test_a_sound_token_stands_for_its_subject(
    authenticator: Authenticate, algorithm: str, kid: str | None
) -> None:
    principal = await authenticator().principal(scope(token(algorithm, kid=kid)))
    assert principal == Principal("jwt:alice", "acme", ("*",), "default")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"tier": "pro"}, Principal("jwt:alice", "acme", ("*",), "pro")),
        ({"tier": "default"}, Principal("jwt:alice", "acme", ("*",), "default")),
        ({"tenant": "big"}, Principal("jwt:alice", "big", ("*",), "pro")),
        ({"models": ["a", "b-*"]}, Principal("jwt:alice", "acme", ("a", "b-*"), "default")),
        ({"models": "a b-*"}, Principal("jwt:alice", "acme", ("a", "b-*"), "default")),
        ({"models": " a, b-*,"}, Principal("jwt:alice", "acme", ("a", "b-*"), "default")),
        ({"models": []}, Principal("jwt:alice", "acme", (), "default")),
        ({"aud": ["x", issuer.AUDIENCE]}, Principal("jwt:alice", "acme", ("*",), "default")),
        ({"sub": "auth0|5 é/ü"}, Principal("jwt:auth0|5%20%C3%A9/%C3%BC", "acme", ("*",), "default")),
    ],
)
async def test_claims(authenticator: Authenticate, more: dict[str, Any], expected: Principal) -> None:
    made = authenticator(tiers={"pro": {}}, tenants={"big": {"tier": "pro"}})
    assert await made.principal(scope(token(**more))) == expected


async def test_claims_by_other_names_and_models_by_the_policy(authenticator: Authenticate) -> None:
    made = authenticator(
        jwt=[
            entry(
                "keys.json", tenant_claim="https://x/org", tier_claim="plan", models_claim="m", models=["a"]
            )
        ],
        tiers={"pro": {}},
    )
    more: dict[str, Any] = {"https://x/org": "acme", "plan": "pro", "tier": "no", "models": ["no"]}
    text = token(tenant=None, **more)
    assert await made.principal(scope(text)) == Principal("jwt:alice", "acme", ("a",), "pro")


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ({"exp": int(time.time()) - 60}, "expired_token", "This token has expired. Get a new one."),
        ({"exp": None}, "invalid_token", "it has no claim 'exp'"),
        ({"exp": "soon"}, "invalid_token", "malformed"),
        ({"exp": 10**400}, "invalid_token", "malformed"),
        ({"exp": [1]}, "invalid_token", "malformed"),
        ({"nbf": int(time.time()) + 3600}, "invalid_token", "not valid yet"),
        ({"iat": int(time.time()) + 3600}, "invalid_token", "not valid yet"),
        ({"aud": "somebody-else"}, "invalid_token", "another audience"),
        ({"aud": None}, "invalid_token", "it has no claim 'aud'"),
        ({"iss": "https://evil.example"}, "invalid_token", "its issuer is not one"),
        ({"iss": None}, "invalid_token", "its issuer is not one"),
        ({"sub": None}, "invalid_token", "it has no claim 'sub'"),
        ({"sub": ""}, "invalid_token", "its subject (sub) should have 1 to 255 characters"),
        ({"sub": "x" * 256}, "invalid_token", "its subject (sub) should have 1 to 255 characters"),
        ({"tenant": None}, "invalid_token", "it has no claim 'tenant'"),
        ({"tenant": "a b"}, "invalid_token", "its claim 'tenant' should be a name"),
        ({"tenant": ["acme"]}, "invalid_token", "its claim 'tenant' should be a name"),
        ({"tier": "gold"}, "invalid_token", "names the tier 'gold', which does not exist here"),
        ({"tier": 3}, "invalid_token", "its claim 'tier' should be a name"),
        ({"models": 3}, "invalid_token", "its claim 'models' should be a list"),
        ({"models": [3]}, "invalid_token", "its claim 'models' should be a list"),
        ({"models": "a " * 300}, "invalid_token", "its claim 'models' should be a list"),
        ({"sub": "mallory"}, "invalid_token", "it has been revoked"),
        ({"jti": "stolen"}, "invalid_token", "it has been revoked"),
        ({"pad": "x" * 20_000}, "invalid_token", "longer than 16384 bytes"),
    ],
)
async def test_claims_that_are_refused(
    authenticator: Authenticate, more: dict[str, Any], code: str, message: str
) -> None:
    made = authenticator(jwt=[entry("keys.json", revoked=["mallory", "stolen"])])
    error = await refused(made, token(**more))
    assert (error.code, error.status) == (code, 401) and message in error.message


async def test_clocks_may_differ_by_the_leeway(authenticator: Authenticate) -> None:
    now = int(time.time())
    made = authenticator(jwt=[entry("keys.json", leeway="90s")])
    await made.principal(scope(token(exp=now - 60)))
    await made.principal(scope(token(nbf=now + 60, iat=now + 60)))
    assert (await refused(made, token(exp=now - 120))).code == "expired_token"


def unsigned(header: dict[str, Any], body: bytes | None = None, signature: str = "") -> str:
    parts = (json.dumps(header).encode(), body or json.dumps(claims()).encode())
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), signature])


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed_with_public_key() -> str:
    """The classic confusion: the public key as the secret of an HMAC."""
    head = unsigned({"alg": "HS256", "kid": "RS256", "typ": "JWT"}).removesuffix(".")
    mac = hmac.new(pem(issuer.RSA), head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


ACCEPTED = "its algorithm is not accepted here; RS256, ES256, EdDSA can be used"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (unsigned({"alg": "none"}), ACCEPTED),
        (unsigned({"alg": "None"}), ACCEPTED),
        (unsigned({"alg": ["RS256"]}), ACCEPTED),
        (unsigned({}), ACCEPTED),
        (signed_with_public_key(), ACCEPTED),
        (jwt.encode(claims(), "s" * 32, "HS256"), ACCEPTED),
        (token("RS256", header={"alg": "RS512"}), ACCEPTED),
        (jwt.encode(claims(), issuer.RSA, "RS512", headers={"kid": "RS256"}), ACCEPTED),
        (jwt.encode(claims(), issuer.RSA, "PS256", headers={"kid": "RS256"}), ACCEPTED),
        (token("RS256", issuer.OTHER_RSA), "its signature does not fit"),
        (token("RS256", kid="ES256"), "its key (kid) is unknown"),
        (token("ES256", kid="RS256"), "its key (kid) is unknown"),
        (token("RS256", kid="nobody"), "its key (kid) is unknown"),
        (unsigned({"alg": "RS256", "kid": 3}), "its key id (kid) is not text"),
        (unsigned({"alg": "RS256", "kid": "RS256"}), "its signature does not fit"),
        (unsigned({"alg": "ES256", "kid": "ES256"}, signature="AAAA"), "its signature does not fit"),
        (unsigned({"alg": "EdDSA", "kid": "EdDSA"}, signature="AAAA"), "its signature does not fit"),
        (token(header={"crv": "x", "crit": ["crv"]}), "extensions (crit)"),
        (unsigned({"alg": "RS256", "b64": False, "crit": ["b64"]}), "extensions (crit)"),
        (unsigned({"alg": "RS256"}, json.dumps({"iss": [issuer.ISSUER]}).encode()), "its issuer is not one"),
        (unsigned({"alg": "RS256"}, b"[1]"), "malformed"),
        (unsigned({"alg": "RS256"}, b"{" * 5000), "malformed"),
        (unsigned({"alg": "RS256"}, b'{"a":' * 900 + b"1" + b"}" * 900), "its issuer is not one"),
        ("a.b.c", "malformed"),
        ("..", "malformed"),
        (token() + "x", "malformed"),
        (token()[:-4] + "AAAA", "its signature does not fit"),
        (token().rpartition(".")[0] + ".", "its signature does not fit"),
        ("é.é.é", "malformed"),
    ],
)  # fmt: skip
async def test_tokens_that_prove_nothing(authenticator: Authenticate, text: str, message: str) -> None:
    error = await refused(authenticator(), text)
    assert error.code == "invalid_token" and message in error.message


async def test_a_signature_over_other_claims(authenticator: Authenticate) -> None:
    head, _, signature = token().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(tenant="other")).encode()).decode().rstrip("=")
    error = await refused(authenticator(), f"{head}.{body}.{signature}")
    assert "its signature does not fit" in error.message


async def test_only_the_algorithms_of_the_policy(authenticator: Authenticate) -> None:
    made = authenticator(jwt=[entry("keys.json", algorithms=["ES256"])])
    await made.principal(scope(token("ES256")))
    assert "ES256 can be used" in (await refused(made, token("RS256"))).message


async def test_each_issuer_has_its_own_keys(authenticator: Authenticate, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(issuer.jwks(RS256=issuer.OTHER_RSA))
    made = authenticator(jwt=[entry("keys.json"), {**entry("other.json"), "issuer": "other"}])
    await made.principal(scope(token(iss="other", key=issuer.OTHER_RSA)))
    await made.principal(scope(token()))
    assert "its signature does not fit" in (await refused(made, token(iss="other"))).message
    assert "its signature does not fit" in (await refused(made, token(key=issuer.OTHER_RSA))).message


async def test_several_keys_that_could_be_meant(authenticator: Authenticate, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(issuer.jwks(a=issuer.RSA, b=issuer.OTHER_RSA))
    made = authenticator()
    await made.principal(scope(token(kid="a")))
    assert "it names no key (kid)" in (await refused(made, token(kid=None))).message


async def test_curves_and_keys_that_are_too_weak(authenticator: Authenticate, tmp_path: Path) -> None:
    weak, curve = rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP384R1())
    keys = [issuer.jwk(weak, "weak"), issuer.jwk(curve, "curve"), issuer.jwk(issuer.EC, "good")]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    made = authenticator()
    await made.principal(scope(token("ES256", kid="good")))
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        text = token("RS256", weak, kid="weak")
    assert "its key (kid) is unknown" in (await refused(made, text)).message


async def test_a_text_with_two_dots_may_be_a_key(authenticator: Authenticate) -> None:
    made = authenticator(keys=[{"id": "dotted", "sha256": hash_key("a.b.c")}])
    assert (await made.principal(scope("a.b.c"))).key_id == "dotted"


async def test_without_issuers_a_token_is_an_unknown_key(authenticator: Authenticate) -> None:
    error = await refused(authenticator(jwt=[]), token())
    assert error.code == "invalid_api_key"


async def test_a_token_is_verified_once(authenticator: Authenticate, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    made = authenticator(clock=lambda: now)
    text, short = token(), token(sub="bob", exp=int(now) + 20)
    first = await made.principal(scope(text))
    await made.principal(scope(short))
    decoded = jwt.decode
    calls = []
    monkeypatch.setattr(jwt, "decode", lambda *a, **k: calls.append(1) or decoded(*a, **k))  # type: ignore[func-returns-value]
    assert at_once(made.principal(scope(text))) is first
    now += 30
    at_once(made.principal(scope(text)))
    assert calls == []
    await made.principal(scope(short))  # past its time, by this clock, though not by the verifier's
    await made.principal(scope(short))
    assert len(calls) == 2
    now += 31
    await made.principal(scope(text))
    assert len(calls) == 3


async def test_the_cache_is_bounded(authenticator: Authenticate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED", 2)
    made = authenticator()
    texts = [token("ES256", sub=name) for name in "abc"]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        await made.principal(scope(text))
    known = [made._tokens.known(digest_of(text)) is not None for text in texts]
    assert known == [True, False, True]  # the one not used for longest is gone


KEY_SET = issuer.jwks()

base64ish = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.é\x00")
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = ("iss", "aud", "sub", "exp", "nbf", "iat", "jti", "tenant", "tier", "models")


@given(base64ish)
def test_garbage_is_refused_and_no_more(text: str) -> None:
    with pytest.raises(Unauthenticated):
        read(text + "..")


@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=4))
def test_any_claims_give_a_principal_or_a_refusal(changed: dict[str, Any]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "k").write_bytes(KEY_SET)
            made = Authenticator(policy(jwt=[entry("k")]), Path(folder), None)  # type: ignore[arg-type]
            try:
                body = json.dumps({**claims(), **changed}).encode()
                text = jwt.PyJWS().encode(body, issuer.EC, "ES256", headers={"kid": "ES256"})
                principal = await made.principal(scope(text))
            except Unauthenticated as error:
                assert error.code in ("invalid_token", "expired_token")
            except AuthUnavailable:
                pass  # a machine that is busy enough does not get to read the file in time
            else:
                assert principal.key_id.startswith("jwt:") and principal.key_id.isascii()
            finally:
                await made.aclose()

    asyncio.run(run())
