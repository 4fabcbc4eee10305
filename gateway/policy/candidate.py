"""A policy that somebody proposes: what is wrong with it, said without what environment variables hold.

Who may propose one writes references wherever a message quotes what stands there, and messages quote in many ways: the
end cut off, escaped, in small letters. So nothing is taken out of messages that ought to be in them: the policy is
checked a second time with other values of the same form, and what is said of both is independent of either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.policy.files import PolicyFile
from gateway.policy.loader import policy_of
from gateway.policy.problems import PolicyError, Problem
from gateway.policy.redaction import without_values

UNTOLD = (
    "what is wrong here depends on what an environment variable holds, which is not told; 'tollgate check' on the "
    "gateway's machine says it"
)
_PLAIN = re.compile(r"true|false|\d+(?:ms|[smhd])", re.IGNORECASE)
"""Values that are no secret, and of which others would be refused where these are not."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}://")


def problems_of(files: Sequence[PolicyFile], env: Mapping[str, str]) -> tuple[bool, list[Problem]]:
    """Whether the policy would be accepted; what is wrong with it, or the warnings of one that is."""
    variables = _Variables(env)
    valid, found = _checked(files, variables)
    if not found or not variables.read:
        return valid, found
    held = {name: env[name] for name in variables.read}
    others = {name: stand_in(value) for name, value in held.items()}
    _, again = _checked(files, {**env, **others})
    same = {*_named(again, others)}
    return valid, [
        one if one in same else replace(one, message=UNTOLD) for one in dict.fromkeys(_named(found, held))
    ]


def stand_in(value: str) -> str:
    """Another value of the form of ``value``: a number for a number, a URL for a URL."""
    if _PLAIN.fullmatch(value):
        return value
    scheme = _SCHEME.match(value)
    start = scheme.end() if scheme else 0
    return value[:start] + "".join(map(_other, value[start:]))


def _other(char: str) -> str:
    if char.isdigit():
        return "1"
    return ("X" if char.isupper() else "x") if char.isalpha() else char


def _named(problems: Iterable[Problem], values: Mapping[str, str]) -> Iterator[Problem]:
    """With the names of variables where the whole of a value stands."""
    for one in problems:
        yield replace(one, message=without_values(one.message, values))


def _checked(files: Sequence[PolicyFile], env: Mapping[str, str]) -> tuple[bool, list[Problem]]:
    try:
        return True, list(policy_of(files, env).warnings)
    except PolicyError as error:
        return False, list(error.problems)


class _Variables(Mapping[str, str]):
    """Those of the environment, and which of them a policy read: YAML can write a reference in several ways."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        value = self._env[name]
        self.read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)
