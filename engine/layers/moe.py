"""The mixture of experts: each token goes through a few of many MLPs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.nn import functional

from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.product import Product
from engine.layers.row_parallel import RowParallelLinear
from kernels.geglu import geglu
from kernels.launch import on_triton
from kernels.moe import mixture
from kernels.route import group, route

Choice = Callable[[Tensor, int, bool], tuple[Tensor, Tensor]]
_LANES = 32


class MixtureMLP:
    """``x`` [tokens, hidden] → [tokens, hidden]. ``router`` [experts, hidden], ``router_bias`` [experts].

    Each expert in use runs once, over its tokens. A token's experts are summed in the order of their ids, so its result
    does not depend on the rest of the batch.

    ``scaled_inputs``: experts' weights are factors on what they read, not on what they write.

    ``choose``: from scores, number and ``normalise`` to experts and their weights, if not ``route``.

    ``at_once``: on a GPU experts with plain weights that ``route`` chooses are computed all at once. Their weights are
    moved into one tensor one by one, so that at most one expert's weights are held twice.
    """

    def __init__(
        self,
        router: Tensor,
        experts: Iterable[GatedMLP],
        top_k: int,
        normalise: bool,
        *,
        choose: Choice = route,
        router_bias: Tensor | None = None,
        scaled_inputs: bool = False,
        invariant: bool = False,
        at_once: bool = True,
    ) -> None:
        # MKL's results do not depend on a row's position if the number of outputs is a multiple of 8.
        missing = -len(router) % 8
        bias = None if router_bias is None else functional.pad(router_bias, (0, missing))
        self._router = Linear(functional.pad(router, (0, 0, 0, missing)), bias, invariant=invariant)
        self._stacks: list[Tensor] | None = None
        self._count = len(router)
        at_once = at_once and on_triton(router) and choose is route
        self._experts = self._stacked(experts, len(router)) if at_once else list(experts)
        self._dtype = router.dtype
        self._choose = choose
        self._top_k = top_k
        self._normalise = normalise
        self._scaled_inputs = scaled_inputs

    def __call__(self, x: Tensor) -> Tensor:
        scores = self._scores(x)
        if self._stacks is not None:
            one = self._experts[0]
            activation = "geglu" if one.activation is geglu else "swiglu"
            out = mixture(x, scores, *self._stacks, self._top_k, self._normalise, activation)
            return one.down.tp.all_reduce(out) if isinstance(one.down, RowParallelLinear) else out
        chosen, weights = self._choose(scores, self._top_k, self._normalise)
        weights = weights.to(x.dtype)
        out = x.new_zeros(x.shape)
        if len(x) == 1:
            for expert, weight in sorted(
                zip(chosen[0].tolist(), weights[0].unbind(), strict=True), key=_first
            ):
                out.add_(self._weighted(expert, x, weight))
            return out
        for expert, rows, ranks in group(chosen):
            out.index_add_(0, rows, self._weighted(expert, x[rows], weights[rows, ranks, None]))
        return out

    def _scores(self, x: Tensor) -> Tensor:
        """[tokens, experts]"""
        return self._router(x.to(self._dtype))[:, : self._count]

    def _weighted(self, expert: int, x: Tensor, weight: Tensor) -> Tensor:
        run = self._experts[expert]
        return run(x * weight) if self._scaled_inputs else run(x).mul_(weight)

    def _stacked(self, experts: Iterable[GatedMLP], count: int) -> list[GatedMLP]:
        """The experts, with their weights in ``_stacks`` if all are plain."""
        done: list[GatedMLP] = []
        for expert in experts:
            layers = [layer for layer in map(_plain, (expert.gate_up, expert.down)) if layer is not None]
            if len(layers) < 2:
                self._stacks = None
            elif not done:
                self._stacks = [layer.weight.new_empty(count, *layer.weight.shape) for layer in layers]
            for stack, layer in zip(self._stacks or (), layers, strict=False):
                layer.move(stack[len(done)])
            done.append(expert)
        return done


class SharedMixture:
    """A mixture, and an MLP that every token goes through: the sum of both.

    ``gate`` [1, hidden]: the latter's output is multiplied by ``sigmoid(gate · x)``.
    """

    def __init__(
        self, mixture: Product, shared: Product, gate: Tensor | None, *, invariant: bool = False
    ) -> None:
        self._mixture = mixture
        self._shared = shared
        self._gate: Linear | None = None
        if gate is not None:
            # As many outputs as torch's sigmoid takes at a time: its results do not depend on a row's position then.
            self._gate = Linear(functional.pad(gate, (0, 0, 0, _LANES - 1)), invariant=invariant)

    def __call__(self, x: Tensor) -> Tensor:
        shared = self._shared(x)
        if self._gate is not None:
            shared = shared * self._gate(x).sigmoid()[:, :1]
        return self._mixture(x) + shared


def _plain(layer: Product) -> Linear | None:
    """The layer if it is a plain ``Linear``, else ``None``."""
    layer = layer.part if isinstance(layer, RowParallelLinear) else layer
    return layer if isinstance(layer, Linear) and layer.is_plain else None


def _first(pair: tuple[int, Tensor]) -> int:
    return pair[0]
