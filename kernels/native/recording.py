"""What a function did, recorded once and done again: calls in C one after another, without Python between them.

With the few rows of a decode step Python takes as long as small operations in C do. As in a CUDA graph everything has
the addresses that it had when it was recorded: inputs are written to where the function read them, and the result is
where it was. What is not a call in C, but an operation of torch, is done by torch each time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.native.calls import Function, listening
from kernels.native.library import load

_READS = frozenset(
    ("tolist", "item", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__")
)
"""Methods by which Python learns a tensor's numbers."""
_EMPTY = frozenset(("empty", "new_empty", "empty_like"))
_GIVEN = "lift_fresh"
"""What torch makes of numbers that Python has."""


class NotRecordable(Exception):
    """What is done depends on the numbers in a tensor."""


class _Call(ctypes.Structure):
    """As in replay.c."""

    _fields_ = (("run", ctypes.c_void_p), ("job", ctypes.c_void_p))


class _Job(ctypes.Structure):
    """As in replay.c."""

    _fields_ = (("calls", ctypes.c_void_p), ("count", ctypes.c_int64))


@cache
def _replay() -> Function | None:
    library = load("replay", "replay")
    return None if library is None else Function(library.replay)


def available() -> bool:
    return _replay() is not None


class Memory:
    """Of tensors that live within recordings: what one no longer needs is given to the next. Recordings may share it,
    as only one is replayed at a time."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)

    def like(self, tensor: Tensor) -> Tensor:
        """Contiguous, of the same shape and dtype."""
        free = self._free[tensor.nbytes]
        memory = free.pop() if free else torch.empty(tensor.nbytes, dtype=torch.uint8)
        lent = (ctypes.c_char * tensor.nbytes).from_buffer(memory.numpy())
        # The tensor's storage, and so each view of it, holds what was lent.
        weakref.finalize(lent, free.append, memory)
        return torch.frombuffer(lent, dtype=tensor.dtype).view(tensor.shape)


class Recording:
    """``run`` is called once. Raises ``NotRecordable``."""

    def __init__(self, run: Callable[[], Tensor], memory: Memory) -> None:
        recorder = _Recorder(memory)
        with listening(recorder), _NoReads(recorder), recorder:
            self.result = run()
        self._steps = recorder.steps()
        # The calls' jobs have their addresses.
        self._kept = memory, recorder.kept

    def __call__(self) -> None:
        for step in self._steps:
            step()


class _Recorder(TorchDispatchMode):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.paused = False
        self._memory = memory
        self._steps: list[Callable[[], object]] = []
        self._calls: list[tuple[Function, ctypes.Structure]] = []
        """Those since the last operation of torch."""
        self.kept: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch would import its compiler, which takes seconds."""
        return False

    def steps(self) -> Sequence[Callable[[], object]]:
        self._end_calls()
        return self._steps

    def called(self, function: Function, job: ctypes.Structure) -> None:
        self._calls.append((function, job))

    def looked_up(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self.paused = True
        try:
            found = function(x)
        finally:
            self.paused = False
        self._add(lambda: found.copy_(function(x)))
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.paused:
            return result
        if _depends_on_numbers(func, args):
            raise NotRecordable(str(func))
        if func._schema.is_mutable:
            self._add(partial(func, *args, **kwargs))
        elif (name := func._schema.name.removeprefix("aten::")) in _EMPTY or name == _GIVEN:
            if name != _GIVEN and result.is_contiguous() and result.nbytes:
                return self._memory.like(result)
            self.kept.append(result)
        elif not _shares(result, (args, kwargs)):
            self._add(partial(_again, func, args, kwargs, result))
        return result

    def _add(self, step: Callable[[], object]) -> None:
        self._end_calls()
        self._steps.append(step)

    def _end_calls(self) -> None:
        if self._calls:
            self._steps.append(_Calls(self._calls))
            self._calls = []


class _Calls:
    def __init__(self, calls: Sequence[tuple[Function, ctypes.Structure]]) -> None:
        replay = _replay()
        if replay is None:
            raise RuntimeError(
                "Calls in C cannot be made again here: see kernels.native.recording.available."
            )
        self._replay = replay
        self._jobs = [job for _, job in calls]
        addresses = ((function.address, ctypes.addressof(job)) for function, job in calls)
        self._array = (_Call * len(calls))(*addresses)
        self._job = _Job(ctypes.addressof(self._array), len(calls))

    def __call__(self) -> None:
        self._replay(self._job)


class _NoReads(TorchFunctionMode):
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS and not self._recorder.paused:
            raise NotRecordable(name)
        return func(*args, **(kwargs or {}))


def _depends_on_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    if func._schema.name == "aten::index":
        return any(one.dtype in (torch.bool, torch.uint8) for one in args[1] if one is not None)
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _has_storage(one: Any) -> bool:
    """Weights that a library has packed have none."""
    return isinstance(one, Tensor) and one.layout == torch.strided


def _shares(result: Any, inputs: Any) -> bool:
    """Whether it is a view of an input."""
    places = {one.untyped_storage().data_ptr() for one in tree_leaves(inputs) if _has_storage(one)}
    outputs = [one for one in tree_leaves(result) if _has_storage(one)]
    return all(one.untyped_storage().data_ptr() in places for one in outputs)


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
    found = func(*args, **kwargs)
    for into, one in zip(tree_leaves(results), tree_leaves(found), strict=True):
        if isinstance(into, Tensor):
            into.copy_(one)
