"""Which keys have been taken out of a policy folder that cannot be loaded as a whole.

The last good policy then stays in force, but a revoked key must not: what is no longer written anywhere is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.policy import yaml_tree
from gateway.policy.environment import substitute
from gateway.policy.folder import find, read_folder
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Key
from gateway.policy.yaml_tree import Map


def revoked(
    directory: Path, env: Mapping[str, str], keys: Iterable[Key], sources: Iterable[Path]
) -> frozenset[str] | None:
    """The ids of those ``keys`` whose hash stands in no file of the folder; None where the folder cannot tell.

    ``sources`` are the files that the keys' policy was read from. While one of them is missing, empty or cannot be
    read, or no file has ``keys`` any more, that is a mishap and not a revocation, nor does it bring a key back. In a
    file that is no valid YAML the hash may stand anywhere, in a comment too.
    """
    texts: list[str] = []
    try:
        folder = read_folder(directory, env)
        for source in sources:
            if not (directory / source.name).stat().st_size:
                return None
        if not folder.complete:
            broken = {problem.file for problem in folder.problems}
            texts = [_substituted(file.read_text("utf-8", "replace"), env).lower() for file in broken]
    except (PolicyError, OSError):
        return None
    written = set(_hashes(folder.root))
    # Whoever revokes the last key leaves an empty list behind.
    if find(folder.root, ("keys",)) is None and not any("keys:" in text for text in texts):
        return None
    return frozenset(
        key.id for key in keys if key.sha256 not in written and not any(key.sha256 in text for text in texts)
    )


def _hashes(root: Map) -> Iterable[str]:
    for path, _, scalar in yaml_tree.scalars(root):
        if len(path) == 3 and path[0] == "keys" and path[2] == "sha256":
            yield scalar.text.lower()


def _substituted(text: str, env: Mapping[str, str]) -> str:
    try:
        return substitute(text, env).text
    except ValueError:
        return text
