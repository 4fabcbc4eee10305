"""``jwt`` and ``admin``: who signs in by whom."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.policy.content import list_at
from gateway.policy.problems import Diagnostic, KeyPath
from gateway.policy.rules.backends import is_loopback
from gateway.policy.rules.subject import Draft, Findings, Valid


def issuer_given_twice(draft: Draft) -> Findings:
    seen: dict[str, KeyPath] = {}
    for index, entry in enumerate(list_at(draft.content, "jwt")):
        issuer = entry.get("issuer") if isinstance(entry, dict) else None
        path: KeyPath = ("jwt", index, "issuer")
        if isinstance(issuer, str) and (first := seen.setdefault(issuer, path)) != path:
            yield Diagnostic(path, "two entries have this issuer; each needs its own", first)


def unreadable_jwks(draft: Draft) -> Findings:
    for index, entry in enumerate(list_at(draft.content, "jwt")):
        jwks = entry.get("jwks") if isinstance(entry, dict) else None
        if isinstance(jwks, str) and "://" in jwks:
            if not _fetchable(jwks):
                yield Diagnostic(
                    ("jwt", index, "jwks"), "should be an http(s) URL, or a file beside the policy"
                )
        elif isinstance(jwks, str) and draft.folder is not None and not (draft.folder / jwks).is_file():
            yield Diagnostic(("jwt", index, "jwks"), f"there is no file '{draft.folder / jwks}'")


def _fetchable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def missing_jwks(valid: Valid) -> Findings:
    """At a start and a reload the file may yet come, so that it is no error then."""
    for index, entry in enumerate(valid.policy.jwt):
        if valid.folder is None or "://" in entry.jwks or (valid.folder / entry.jwks).is_file():
            continue
        file = valid.folder / entry.jwks
        message = f"there is no file '{file}': until there is, all tokens of this issuer are refused"
        yield Diagnostic(("jwt", index, "jwks"), message)


def sign_in_at_no_page(valid: Valid) -> Findings:
    """What opens ``/admin`` while there is none."""
    if valid.policy.admin.enabled:
        return
    if valid.policy.admin.oidc is not None:
        message = "has no effect while the page is off; write 'admin: {enabled: true}'"
        yield Diagnostic(("admin", "oidc"), message)
    for index, key in enumerate(valid.keys):
        if "admin" in key.scopes:
            message = "the scope 'admin' opens nothing while the page is off; write 'admin: {enabled: true}'"
            yield Diagnostic(("keys", index, "scopes"), message)


def page_of_nobody(valid: Valid) -> Findings:
    """Without keys there is the development key, which opens the page; with some there is not."""
    policy = valid.policy
    if not policy.admin.enabled or policy.admin.oidc is not None or not policy.keys:
        return
    if not any("admin" in key.scopes for key in policy.keys):
        message = (
            "nobody can open the page: no key has the scope 'admin', and there is no 'oidc'. Make one by "
            "'tollgate keys create --id NAME --scopes inference admin'"
        )
        yield Diagnostic(("admin", "enabled"), message)


def jwks_in_the_clear(valid: Valid) -> Findings:
    for index, entry in enumerate(valid.policy.jwt):
        url = urlsplit(entry.jwks)
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            message = (
                "is fetched without TLS: who answers in its place makes tokens for any tenant; write https://"
            )
            yield Diagnostic(("jwt", index, "jwks"), message)
