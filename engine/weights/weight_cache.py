"""Converted weights on disk, so that a model is converted once, and then mapped.

Quantizing or repacking a checkpoint for kernels/native/linear.c takes seconds a gigabyte. The result lies beside the
model, in ``.tollgate``, or if that folder cannot be written in ``$XDG_CACHE_HOME/tollgate/weights``. Its name is a
digest of all that it is made from: the model's files, the options, the code and libraries that convert, the processor.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from engine.errors import ModelUnavailable
from engine.heap import return_freed
from engine.weights.cache_file import SUFFIX, CacheFile, CacheWriter, Damaged, remove_leftovers
from engine.weights.digest import file_digest, known_digest
from kernels.native.linear import PackedTensors

log = logging.getLogger("engine.weights")

AUTO, OFF = "auto", "off"
_SMALLEST = 64 * 2**20
"""Bytes of weights below which a conversion takes no longer than reading its result."""
_MOST = 32 * 2**30
"""Bytes of a cache folder beyond which what was used least recently is removed."""
_VERSIONS = 3
"""Results kept of one model: of other options, or older releases."""
_HELD = 2**25
"""Bytes of results after which what they were made from is returned to the system."""
_SPARE = 2**30
"""Bytes of the disk that stay free."""
_CODE = ("engine/weights", "engine/layers", "engine/models", "kernels/native")


class WeightCache:
    """What is in the cache, or what is being added to it. In a ``with`` block, which an error leaves without a
    trace."""

    def __init__(self, name: str, key: str, folders: Sequence[Path], size: int) -> None:
        """``name``: the model's, for people. ``size``: bytes that it may take."""
        self._file: CacheFile | None = None
        self._writer: CacheWriter | None = None
        self._folder = Path()
        self._held = 0
        """Bytes added since what they were made from was returned to the system."""
        path = Path(f"{name}-{key}{SUFFIX}")
        for folder in folders:
            if (found := _read(folder / path)) is not None:
                self._file = found
                return
        for folder in folders:
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                remove_leftovers(folder)
                _trim(folder, name, size)
                self._writer, self._folder = CacheWriter(folder / path), folder
                return
            except OSError as error:
                log.info("converted weights are not cached in %s: %s", folder, error)

    @property
    def complete(self) -> bool:
        """Whether the model was converted before: its checkpoint is whole, and fits."""
        return self._file is not None

    def get(self, name: str) -> list[PackedTensors] | None:
        return self._file.get(name) if self._file else None

    def put(self, name: str, parts: Sequence[PackedTensors]) -> Sequence[PackedTensors]:
        """The same, mapped from the cache if there is room."""
        if self._writer is None:
            return parts
        try:
            # What is packed may be larger than what it is made from.
            _need_room(self._folder, sum(tensor.nbytes for part in parts for tensor in part.tensors))
            mapped = self._writer.add(name, parts)
        except OSError as error:
            log.warning("converted weights are not cached: %s", error)
            self._discard()
            return parts
        self._held += sum(tensor.nbytes for part in parts for tensor in part.tensors)
        if self._held > _HELD:  # so that a conversion needs little more than its result
            self._held = 0
            return_freed()
        return mapped

    def __enter__(self) -> WeightCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        try:
            if error is None:
                self._writer.commit()
                self._writer = None
        except OSError as failure:
            log.warning("converted weights are not cached: %s", failure)
        self._discard()

    def _discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None


def weight_cache(
    choice: str, model: Path, files: Sequence[Path], options: Iterable[object], *, size: int
) -> WeightCache | None:
    """``choice``: ``auto``, ``off`` or a folder. ``options``: all that the conversion depends on beside the files.
    ``size``: bytes of the weights.

    ``None`` where nothing is to be cached.
    """
    if choice == OFF or (choice == AUTO and size < _SMALLEST):
        return None
    root = cache_home()
    try:
        digests = [known_digest(file, root / "digests") if root else file_digest(file) for file in files]
    except (OSError, ModelUnavailable) as error:
        log.info("converted weights are not cached: %s", error)
        return None
    names = [file.name for file in files]
    seen = repr((names, digests, *map(str, options), _environment())).encode()
    beside = (files[0].resolve().parent if files[0].suffix == ".gguf" else model) / ".tollgate"
    folders = [beside, *([root / "weights"] if root else [])]
    if choice != AUTO:
        folders = [Path(choice).expanduser()]
    # A folder's files are called alike in all folders.
    name = files[0].stem if files[0].suffix == ".gguf" else model.resolve().name
    return WeightCache(name, hashlib.sha256(seen).hexdigest()[:32], folders, size)


def cache_home() -> Path | None:
    """Of this user's caches; ``None`` for one without a home."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "tollgate"
    try:
        return Path.home() / ".cache" / "tollgate"
    except RuntimeError:
        return None


def _environment() -> tuple[str, ...]:
    """The code that converts, the libraries it uses, and what they do with this processor."""
    root = Path(__file__).parents[2]
    code = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((root / folder).iterdir()):
            if path.suffix in (".py", ".c", ".h"):
                code.update(path.read_bytes())
    return code.hexdigest(), torch.__version__, np.__version__, torch.backends.cpu.get_cpu_capability()


def _read(path: Path) -> CacheFile | None:
    try:
        found = CacheFile(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.info("%s is not used: %s", path, error)
        return None
    except Damaged as error:
        log.warning("%s is made anew: %s", path, error)
        return None
    with suppress(OSError):  # a folder that is only read
        os.utime(path)  # when it was used last, by which ``_trim`` goes
    return found


def _trim(folder: Path, name: str, size: int) -> None:
    """Makes room for ``size`` bytes. Raises ``OSError`` if the disk has too little left."""
    if size > _MOST:
        raise OSError(f"the model alone is larger than {_MOST / 2**30:.0f} GiB")
    kept, total = 1, size
    found = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        mine = path.name.removesuffix(SUFFIX).rpartition("-")[0] == name
        kept, total = kept + mine, total + path.stat().st_size
        if total > _MOST or (mine and kept > _VERSIONS):
            path.unlink(missing_ok=True)
    _need_room(folder, size)


def _need_room(folder: Path, size: int) -> None:
    """Raises ``OSError``."""
    if (left := shutil.disk_usage(folder).free) < size + _SPARE:
        raise OSError(f"the disk has {left / 2**30:.1f} GiB left")
