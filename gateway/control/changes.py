"""What can be changed in a gateway while it runs. Each change, made or refused, is entered in the audit log.

Requests and results are JSON objects. The running gateway makes changes for all who ask (``control_socket``); where
none runs, the command makes them itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.control.audit_log import Actor, AuditLog
from gateway.policy.file_changes import locked, replace_file
from gateway.policy.files import PolicyFile, policy_files, read_files
from gateway.policy.history import KEY_FILES, PolicyHistory
from gateway.policy.key_store import ISSUED, KeyStore, KeyStoreError, state_files
from gateway.policy.loader import Loaded, load_policy, policy_of
from gateway.policy.members import is_replica, written_beside
from gateway.policy.operations import Operations
from gateway.policy.problems import PolicyError, suggestion
from gateway.policy.schema import Key

Request = Mapping[str, Any]
Result = dict[str, Any]

REPLACED = "replaced"
"""A folder in the state folder: files of the policy as they were before a roll-back wrote over them."""


DrainForAll = Callable[[str, str, bool], bool]
"""Drains a backend, or no longer, for all gateways of a store: takes its URL, the backend and which of them. Whether
this changed anything."""


class ChangeRefused(Exception):
    """The change cannot be made; the message says why."""


REFUSALS = (KeyStoreError, PolicyError, ValidationError, ChangeRefused)
"""What says that a change cannot be made, and why."""


class Changes:
    """``state_dir`` None: it is not known, and what is kept there cannot be changed."""

    def __init__(
        self,
        policies: Path,
        state_dir: Path | None,
        env: Mapping[str, str],
        drain_for_all: DrainForAll | None = None,
    ) -> None:
        """``drain_for_all``: where the policy has a store that gateways share, what is drained is kept there."""
        self._policies = policies
        self._drain_for_all = drain_for_all
        self._state_dir = state_dir
        self._env = env
        self._keys = KeyStore(policies, state_dir / ISSUED if state_dir is not None else None, env)
        self._kinds: Mapping[str, tuple[str, Callable[[Request], Result]]] = {
            "create": ("key.create", self._create),
            "rotate": ("key.rotate", self._rotate),
            "change_key": ("key.change", self._change_key),
            "revoke": ("key.revoke", self._revoke),
            "drain": ("backend.drain", lambda request: self._drain(request, drained=True)),
            "undrain": ("backend.undrain", lambda request: self._drain(request, drained=False)),
            "flush": ("cache.flush", self._flush),
            "roll_back": ("policy.roll_back", self._roll_back),
        }

    def make(self, request: Request) -> Result:
        """Make the change ``request["do"]``, on the disk. Raises ``REFUSALS`` and ``OSError``."""
        kind = self._kinds.get(str(request.get("do")))
        if kind is None or not _NEEDED[str(request["do"])] <= request.keys():
            raise ChangeRefused("this gateway does not know that request; it is of another version")
        action, change = kind
        actor, target = Actor.of(request.get("by")), _target(request)
        try:
            result = change(request)
        except REFUSALS as error:
            self._record(actor, action, target, error=str(error))
            raise
        except OSError as error:
            self._record(
                actor, action, target, error=f"{error.filename or self._policies}: {error.strerror or error}"
            )
            raise
        facts = {name: result[name] for name in ("file", "until") if name in result}
        self._record(actor, action, target, **facts)
        return result

    def _record(self, actor: Actor, action: str, target: str, **facts: Any) -> None:
        if self._state_dir is not None:
            AuditLog(self._state_dir).add(actor, action, target, **facts)

    def _create(self, request: Request) -> Result:
        entry = dict(request["entry"])
        key = Key.model_validate(entry)
        return {"file": str(self._keys.add(entry)), "sha256": key.sha256}

    def _rotate(self, request: Request) -> Result:
        until = datetime.now(UTC) + timedelta(seconds=float(request["overlap"]))
        sha256 = str(request["sha256"])
        file = self._keys.rotate(str(request["id"]), sha256, until)
        return {"file": str(file), "sha256": sha256, "until": until.isoformat(timespec="seconds")}

    def _change_key(self, request: Request) -> Result:
        wanted = request.get("version")
        changed = self._keys.change(str(request["id"]), dict(request["fields"]), wanted)
        return {
            "file": str(changed.file),
            "version": changed.version,
            "fingerprint": self._loaded().fingerprint,
        }

    def _revoke(self, request: Request) -> Result:
        done = self._keys.revoke(str(request["id"]))
        return {"file": str(done.file), "left": done.left, "problems": done.problems, "sha256": done.sha256}

    def _drain(self, request: Request, *, drained: bool) -> Result:
        name = str(request["backend"])
        loaded = self._loaded()
        policy = loaded.policy
        if name not in policy.backends and not is_replica(name, policy):
            raise ChangeRefused(f"no backend is named '{name}'{suggestion(name, tuple(policy.backends))}")
        written = written_beside(name, policy)
        if drained and written and name not in written:  # used again is one, too, that the policy has no more
            raise ChangeRefused(f"no replica is named '{name}'{suggestion(name, written)}")
        if self._drain_for_all is not None and policy.store != "memory":
            changed = self._drain_for_all(policy.store, name, drained)
            if name not in policy.drained or drained:
                return {"changed": changed, "for_all": True}
        changed = Operations(self._state()).drain(name, drained=drained)
        if not drained and name in self._loaded().policy.drained:
            raise ChangeRefused(f"'{name}' is under 'drained' in the policy's own files; take it out there")
        return {"changed": changed}

    def _flush(self, request: Request) -> Result:
        tenant = str(request["tenant"])
        before = self._loaded().policy.cache_epochs.get(tenant, 0)
        Operations(self._state()).flush(tenant, before)
        loaded = self._loaded()
        if loaded.policy.cache_epochs.get(tenant) == before:
            raise ChangeRefused(
                f"'{tenant}' is under 'cache_epochs' in the policy's own files; change it there"
            )
        return {"fingerprint": loaded.fingerprint}

    def _roll_back(self, request: Request) -> Result:
        """Write the files of an earlier generation back into the policy folder.

        Keys that are not in force now are not brought back with them: they are revoked.
        """
        number = int(request["generation"])
        wanted = PolicyHistory(self._state(), self._policies).generation(number)
        if wanted is None:
            raise ChangeRefused(f"generation {number} is not in the history")
        with locked(self._policies):
            present = {path: path.read_bytes() for path in self._own_files()}
            kept = [
                file
                for file in read_files(self._policies, state_files(self._state()))
                if file.path not in present
            ]
            own = [PolicyFile(self._policies / name, content) for name, content in wanted.files.items()]
            then = policy_of([*own, *kept], self._env)
            back = {key.sha256 for key in then.policy.keys_in_force} - self._accepted()
            self._save(present)
            for path in present:
                if not os.access(path, os.W_OK) or not os.access(self._policies, os.W_OK):
                    raise ChangeRefused(
                        f"{path}: the policy folder cannot be written by the gateway; roll back where it comes from"
                    )
        self._keys.revoke_hashes(sorted(back))
        with locked(self._policies):
            for name, content in wanted.files.items():
                path = self._policies / name
                mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
                replace_file(path, content.decode("utf-8-sig"), mode)
            for path in present:
                if path.name not in wanted.files:
                    path.unlink()
        return {"generation": number, "revoked": len(back), "fingerprint": self._loaded().fingerprint}

    def _own_files(self) -> list[Path]:
        """The policy folder's files that a roll-back may replace."""
        found = policy_files(self._policies)
        return [path for path in found if path.name not in KEY_FILES and path.suffix != ".jsonl"]

    def _accepted(self) -> set[str]:
        try:
            return {key.sha256 for key in self._loaded().policy.keys_in_force}
        except PolicyError:
            newest = next(PolicyHistory(self._state(), self._policies).generations(), None)
            files = {} if newest is None else newest.files
            own = [PolicyFile(self._policies / name, content) for name, content in files.items()]
            kept = [
                file
                for file in read_files(self._policies, state_files(self._state()))
                if file.path.name in KEY_FILES or file.path.parent != self._policies
            ]
            return {key.sha256 for key in policy_of([*own, *kept], self._env).policy.keys_in_force}

    def _save(self, present: Mapping[Path, bytes]) -> None:
        folder = self._state() / REPLACED / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        folder.mkdir(mode=0o700, parents=True)
        for path, content in present.items():
            with open(
                folder / path.name, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as file:
                file.write(content)

    def _loaded(self) -> Loaded:
        also = state_files(self._state_dir) if self._state_dir is not None else ()
        return load_policy(self._policies, self._env, also=also)

    def _state(self) -> Path:
        if self._state_dir is None:
            raise ChangeRefused(
                "no gateway runs here, and its state folder is not known; name that by TOLLGATE_STATE_DIR"
            )
        return self._state_dir


def _target(request: Request) -> str:
    entry = request.get("entry")
    named = entry.get("id") if isinstance(entry, Mapping) else None
    return str(next((one for one in (named, *map(request.get, _TARGETS)) if one is not None), ""))


_NEEDED = {
    "create": {"entry"},
    "rotate": {"id", "sha256", "overlap"},
    "change_key": {"id", "fields"},
    "revoke": {"id"},
    "drain": {"backend"},
    "undrain": {"backend"},
    "flush": {"tenant"},
    "roll_back": {"generation"},
}
_TARGETS = ("id", "backend", "generation", "tenant")
