"""What a model's server says of its failures, fit for a caller: no credentials, no names of machines, no end.

A caller needs the type of an error, its code and a short message. A server's message may hold more than it should:
the key that it was asked with, or its ends (``sk-ab***wxyz``), those of others, hosts and files behind it. What the
caller wrote itself is no secret from it.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from types import TracebackType

from gateway.errors import GatewayError

HIDDEN = "***"
MOST_CHARACTERS = 1000
"""Of a message. The longest honest one, a schema's refusal, has some 700."""
_READ = 4 * MOST_CHARACTERS
"""Characters that are looked at, before what is left is cut."""
_MOST_ASKED = 2**18
"""Bytes of a request searched for locations that its caller named itself."""
_PART = 8
"""Characters of our own key that are hidden wherever they stand; beside an ellipsis half as many are."""

# Each pattern is linear, as its repetitions are bounded or take what nothing after them takes.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'`<>]+|[^\s\"'`<>,;(){}\[\]|=]+")
"""A URL, or a run of characters that words, keys, hosts and paths consist of."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}", re.ASCII)
"""A code or a type; anything else in such a field is none."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")

_LOOK_BACK = 40
_CALLED_SECRET = re.compile(
    r"(?:key|token|secret|password|passwd|pwd|credentials?|authorization|signature|sig|cookie)[\"'`]?"
    r"(?: [a-z]{1,10}){0,2} ?[:=] ?(?:bearer |basic )?[\"'`(]{0,2}\Z"
    r"|\b(?:bearer|basic)[ :=]{1,2}[\"'`]?\Z|key [\"'`]\Z",
    re.IGNORECASE,
)
_CALLED_HOST = re.compile(r"(?:host|hostname|server|node|pod)[=:] ?[\"'`]?\Z", re.IGNORECASE)

_MASKED = re.compile(r"\*{3}|[•●]{3}|x{6}|X{6}")
_PAUSE = re.compile(r"\.{3,}|…")
_KEYS = re.compile(
    r"(?:sk|pk|rk|tg|gsk|xai|hf|pplx|r8|nvapi|glpat|npm|hvs|ntn|key|org|proj)[-_][\w-]{6,}"
    r"|(?:dapi|gh[oprsu]_|github_pat_|xox[abeoprs]-|xapp-|AKIA|ASIA|AIza|ya29\.|GOCSPX-|eyJ)[\w.-]{8,}",
    re.ASCII,
)
"""By what providers begin theirs with; accounts of ours among them (``org-…``)."""
_LONG = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}|(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9_+]{24,}", re.ASCII)
"""A key of any other kind. Names of models and most ids have dashes."""
_IDS = ("req_", "chatcmpl", "cmpl", "resp_", "msg_", "call_", "toolu_", "run_", "file")

_PUBLIC = re.compile(
    r"https://(?:[a-z0-9-]{1,63}\.){0,3}(?:openai\.com|anthropic\.com|claude\.com|microsoft\.com|aka\.ms|ai\.google\.dev"
    r"|mistral\.ai|groq\.com|x\.ai|openrouter\.ai|cohere\.com|deepseek\.com|huggingface\.co|vllm\.ai|pydantic\.dev)"
    r"(?:/[^?@]*)?",
    re.IGNORECASE,
)
"""Pages that explain an error to whoever reads it."""
_INSIDE = re.compile(
    r"(?:[\w-]{1,63}\.){1,8}(?:internal|local|localdomain|lan|corp|intranet|intra|private|svc|cluster|consul|compute"
    r"|amazonaws)(?:\.[\w-]{1,63}){0,4}",
    re.IGNORECASE,
)
_HOST = re.compile(r"localhost|[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|[\w]{1,40}-[\w-]{1,40}")
_FILE = re.compile(
    r"(?:/(?:home|root|usr|opt|var|etc|app|srv|mnt|data|tmp|workspace|Users|proc|run|sys|dev|models)/|[A-Za-z]:\\).+"
)


class ErrorScrubber:
    """One backend's: its ``api_key`` and its ``host`` never leave, in whole or in part; its ``name`` may be."""

    def __init__(self, name: str, api_key: str | None = None, host: str | None = None) -> None:
        self._name = name
        self._key = api_key or ""
        self._host = (host or "").lower()
        parts = (self._key[at : at + _PART] for at in range(len(self._key) - _PART + 1))
        # Those of small letters alone are words, as in a key that somebody made up.
        self._parts = {part for part in parts if not (part.isalpha() and part.islower())}

    def about(self, asked: bytes) -> _About:
        """``with`` it: what is raised inside is scrubbed. ``asked`` is the body of the request."""
        return _About(self, asked)

    def error(self, error: GatewayError, asked: bytes = b"") -> GatewayError:
        """``error`` itself, its message scrubbed. ``asked`` is the body of the request that it is about."""
        error.message = self.text(error.message, asked)
        error.args = (error.message,)
        if error.code is not None and not self._is_name(error.code):
            error.code = type(error).code
        if not self._is_name(error.type):
            error.type = "invalid_request_error" if 400 <= error.status < 500 else "server_error"
        if error.param is not None and (
            len(error.param) > 200 or self.text(error.param, asked) != error.param
        ):
            error.param = None
        return error

    def text(self, text: str, asked: bytes = b"") -> str:
        """``text`` without credentials and locations, and no longer than ``MOST_CHARACTERS``."""
        if len(text) > _READ:
            # A word that is cut through could no longer be recognised.
            text = text[:_READ].rpartition(" ")[0]
        text = _CONTROL.sub(" ", text)
        if self._key:
            text = text.replace(self._key, HIDDEN)
        theirs = asked[:_MOST_ASKED].decode("utf-8", "replace")

        def replacement(match: re.Match[str]) -> str:
            word = match[0].rstrip(".:!?,;)")
            before = text[max(0, match.start() - _LOOK_BACK) : match.start()]
            if word != self._name and (
                self._is_credential(word, before)
                or (self._is_location(word, before) and not (len(word) > 3 and word in theirs))
            ):
                return HIDDEN + match[0][len(word) :]
            return match[0]

        text = _WORD.sub(replacement, text)
        return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS].rstrip() + " …"

    def _is_name(self, text: str) -> bool:
        return text.isdecimal() or (bool(_NAME.fullmatch(text)) and self.text(text) == text)

    def _is_credential(self, word: str, before: str) -> bool:
        if self._parts and any(word[at : at + _PART] in self._parts for at in range(len(word) - _PART + 1)):
            return True
        if _MASKED.search(word) or (_PAUSE.search(word) and self._is_shortened(word)):
            return True
        if "://" in word:
            return False
        if _KEYS.search(word) and (word.startswith(("sk-", "org-", "proj-")) or _is_mixed(word)):
            return True
        if _LONG.fullmatch(word.rpartition(":")[2]) and not word.startswith(_IDS):
            return True
        return len(word) >= 6 and _is_mixed(word) and bool(_CALLED_SECRET.search(before))

    def _is_shortened(self, word: str) -> bool:
        """``sk-…wxyz``, and not a pause after a word."""
        ends = [end for end in _PAUSE.split(word) if end]
        own = any(len(end) >= _PART // 2 and end in self._key for end in ends)
        return own or (bool(ends) and _is_mixed("".join(ends)) and not ends[0].isdecimal())

    def _is_location(self, word: str, before: str) -> bool:
        if "://" in word:
            return not _PUBLIC.fullmatch(word)
        if _FILE.match(word) or _CALLED_HOST.search(before) or _is_address(word):
            return True
        host, _, port = word.rpartition(":") if word.count(":") == 1 else (word, "", "")
        if _INSIDE.fullmatch(host) or _is_address(host):
            return True
        # A service may be called as any other word is.
        if host.lower() == self._host and (port or not host.isalpha()):
            return True
        return port.isdecimal() and 2 <= len(port) <= 5 and bool(_HOST.fullmatch(host))


class _About:
    """A class, as every request enters it and a generator would cost three times as much."""

    __slots__ = ("_asked", "_scrubber")

    def __init__(self, scrubber: ErrorScrubber, asked: bytes) -> None:
        self._scrubber = scrubber
        self._asked = asked

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GatewayError):
            self._scrubber.error(error, self._asked)


def _is_mixed(word: str) -> bool:
    """Letters with digits or signs in them, or in both cases other than as a name has them."""
    if word.isdecimal():
        return False
    return (
        any(map(str.isdigit, word))
        or "-" in word
        or "_" in word
        or not (word[1:].islower() or word.isupper())
    )


def _is_address(word: str) -> bool:
    if word.count(".") != 3 and word.count(":") < 2:
        return False
    try:
        ip_address(word.partition("%")[0])
    except ValueError:
        return False
    return True
