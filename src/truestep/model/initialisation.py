"""Initialisation by scheme: every layer type in the way that suits it, and a list of what was left alone.

Owns which scheme means what for which layer. Whether the signal then gets through is up to `signal`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor, nn

from truestep.errors import UsageError
from truestep.model.freezing import has_statistics, is_held
from truestep.model.groups import is_normalisation
from truestep.model.names import aliases, select
from truestep.model.tables import left_alone, printed, shortened, table

if TYPE_CHECKING:
    from rich.table import Table

SchemeName: TypeAlias = Literal["kaiming", "xavier", "orthogonal", "normal"]
Draw: TypeAlias = Callable[[Tensor], object]
"""Fills a tensor in place, as the functions of `torch.nn.init` do."""
Scheme: TypeAlias = SchemeName | Mapping[str | type[nn.Module], SchemeName | Draw]

_SCHEMES = ("kaiming", "xavier", "orthogonal", "normal")
_NORMAL_STD = 0.02
"""What BERT and GPT-2 use, for widths near a thousand. On a narrow model it is small: see `check_signal`."""
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear, nn.MultiheadAttention)
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class _Plan(NamedTuple):
    """How one parameter is filled, in words and as a function."""

    how: str
    fill: Draw


@dataclass(frozen=True, kw_only=True, repr=False)
class Initialised:
    """What `initialise` filled, and what it did not change."""

    changed: tuple[tuple[str, str], ...]
    """Each parameter that has new values, and how they were made."""
    left: tuple[tuple[str, str], ...]
    """Each parameter that was left alone, and why."""

    def __rich__(self) -> "Table":
        kinds: dict[str, list[str]] = {}
        for name, how in self.changed:
            kinds.setdefault(how, []).append(name)
        rows = [(how, str(len(names)), shortened(names, most=1)) for how, names in kinds.items()]
        return table(("values", " parameters", "which"), rows)

    def __str__(self) -> str:
        lines = [printed(self.__rich__())]
        return "\n".join([*lines, *left_alone(self.left)])

    __repr__ = __str__  # for notebooks


def initialise(model: nn.Module, scheme: Scheme, *, generator: Generator | None = None) -> Initialised:
    """Fill the parameters of a model with new values, each kind of layer in the way that suits it.

    "kaiming" (for ReLU), "xavier" (for tanh and linear), "orthogonal" and "normal" (standard deviation 0.02)
    are for the weights of linear, convolution, attention and recurrent layers. Whatever the scheme, biases
    become 0 (the forget gate of an LSTM 1), normalization becomes neutral with fresh statistics, and an
    embedding is drawn with standard deviation 1/sqrt(width), its padding row 0: it is a table without fans.
    Frozen parameters and those of unknown layers are unchanged, and reported. A tied weight is filled once.

    A mapping fills only what it names: `{nn.Conv2d: "kaiming", "head.weight": nn.init.zeros_}`. A function is
    given each parameter that a name pattern stands for, and the weights (two dimensions or more) of a type.
    Where two entries name the same parameter, the later one counts.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    >>> initialise(model, "xavier", generator=torch.Generator().manual_seed(0)).changed[:2]
    (('0.weight', 'xavier'), ('0.bias', '0'))
    >>> initialise(model, {"2.weight": nn.init.zeros_}).changed
    (('2.weight', 'zeros_'),)
    """
    wanted = _wanted(model, scheme)
    plans = {id(parameter): plan for parameter, plan in _plans(model, wanted, generator)}
    changed: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            plan = plans.get(id(parameter))
            if id(parameter) not in wanted:
                continue
            if not parameter.requires_grad:
                left.append((name, "frozen"))
            elif plan is None:
                left.append((name, "a layer this does not know"))
            else:
                plan.fill(parameter)
                changed.append((name, plan.how))
        for name, module in model.named_modules():
            _restart_statistics(name, module, dict(changed), is_whole=isinstance(scheme, str))
    return Initialised(changed=tuple(changed), left=tuple(left))


def _wanted(model: nn.Module, scheme: Scheme) -> dict[int, SchemeName | Draw]:
    """Return the scheme or function for each parameter that is to be filled, by `id`."""
    if isinstance(scheme, str):
        _refuse_unknown(scheme)
        return dict.fromkeys(aliases(model, kind="parameters"), scheme)
    wanted: dict[int, SchemeName | Draw] = {}
    for what, how in scheme.items():
        if isinstance(how, str):
            _refuse_unknown(how)
        for parameter in select(model, what, kind="parameters").values():
            if isinstance(how, str) or isinstance(what, str) or parameter.ndim >= 2:
                wanted[id(parameter)] = how
    return wanted


def _refuse_unknown(scheme: str) -> None:
    if scheme not in _SCHEMES:
        raise UsageError(
            f"scheme is {scheme!r}. Pass one of {', '.join(_SCHEMES)}, "
            "or a mapping from name patterns or types to these or to functions."
        )


def _plans(
    model: nn.Module, wanted: dict[int, SchemeName | Draw], generator: Generator | None
) -> Iterator[tuple[nn.Parameter, _Plan]]:
    # Embeddings last, so that a weight that is tied to one is filled as an embedding: later plans count.
    modules = sorted(model.modules(), key=lambda module: isinstance(module, nn.Embedding | nn.EmbeddingBag))
    for module in modules:
        for key, parameter in module.named_parameters(recurse=False):
            how = wanted.get(id(parameter))
            if callable(how):
                yield parameter, _Plan(getattr(how, "__name__", "a function"), how)
            elif how is not None:
                plan = _plan(module, key, parameter, scheme=how, generator=generator)
                if plan is not None:
                    yield parameter, plan


def _plan(
    module: nn.Module, key: str, parameter: nn.Parameter, *, scheme: SchemeName, generator: Generator | None
) -> _Plan | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return _embedding(module, generator)
    if is_normalisation(module):
        return _normalisation(module, key)
    if isinstance(module, nn.RNNBase):
        return _recurrent(module, key, parameter, scheme=scheme, generator=generator)
    is_transposed = (
        type(module).__name__ == "Conv1D"
    )  # transformers' linear layer, stored as (inputs, outputs)
    if not (is_transposed or isinstance(module, _WEIGHTED)):
        return None
    if parameter.ndim < 2 or key.startswith("bias"):
        return _Plan("0", nn.init.zeros_)
    num_parts = 3 if key == "in_proj_weight" else 1  # of attention: queries, keys and values in one
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        is_transposed, num_parts = True, module.groups  # along the inputs: each group sees only its own

    def weights(tensor: Tensor) -> None:
        for part in tensor.chunk(num_parts):
            _draw(part.transpose(0, 1) if is_transposed else part, scheme, generator)

    return _Plan(scheme, weights)


def _draw(tensor: Tensor, scheme: SchemeName, generator: Generator | None) -> None:
    if scheme == "kaiming":
        nn.init.kaiming_normal_(tensor, nonlinearity="relu", generator=generator)
    elif scheme == "xavier":
        nn.init.xavier_normal_(tensor, generator=generator)
    elif scheme == "orthogonal":
        # Through a copy: torch's writes through a flat view, which a transposed weight does not have.
        tensor.copy_(
            nn.init.orthogonal_(torch.empty(tensor.shape, device=tensor.device), generator=generator)
        )
    else:
        nn.init.normal_(tensor, std=_NORMAL_STD, generator=generator)


def _embedding(module: nn.Embedding | nn.EmbeddingBag, generator: Generator | None) -> _Plan:
    std = 1 / math.sqrt(module.embedding_dim)

    def fill(tensor: Tensor) -> None:
        nn.init.normal_(tensor, std=std, generator=generator)
        if module.padding_idx is not None:
            tensor[module.padding_idx].zero_()

    return _Plan("normal, 1/sqrt(width)", fill)


def _normalisation(module: nn.Module, key: str) -> _Plan | None:
    if key == "bias":
        return _Plan("0", nn.init.zeros_)
    neutral = _neutral_weight(module)
    if neutral is None:
        return None
    return _Plan(f"{neutral:g}", lambda tensor: nn.init.constant_(tensor, neutral))


def _neutral_weight(module: nn.Module) -> float | None:
    """Return the weight with which a layer only normalises: 1, or 0 where 1 + weight is multiplied."""
    if type(module).__module__.startswith("torch.nn."):
        return 1.0
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 1 or any(True for _ in module.buffers()):
        return None
    values = torch.linspace(-2.0, 2.0, weight.numel() + 1, device=weight.device)[1:].to(weight.dtype)
    for neutral in (1.0, 0.0):
        weights = {"weight": torch.full_like(weight, neutral)}
        try:
            output = torch.func.functional_call(module, weights, (values,))
            power = float(output.float().square().mean())
        except Exception:  # noqa: BLE001 - somebody else's forward, on an input it may not be made for
            return None
        if 0.5 < power < 2.0:
            return neutral
    return None


def _recurrent(
    module: nn.RNNBase, key: str, parameter: nn.Parameter, *, scheme: SchemeName, generator: Generator | None
) -> _Plan:
    num_gates = _GATES[module.mode.partition("_")[0]]
    # What is fed back is orthogonal: it is applied at every step, and must neither grow nor shrink.
    is_fed_back = key.startswith("weight_hh") and scheme != "normal"

    def weights(tensor: Tensor) -> None:
        # What projects the state of an LSTM (`proj_size`) has no gates.
        for gate in tensor.chunk(1 if key.startswith("weight_hr") else num_gates):
            _draw(gate, "orthogonal" if is_fed_back else scheme, generator)

    def biases(tensor: Tensor) -> None:
        tensor.zero_()
        if num_gates == 4 and key.startswith("bias_ih"):
            tensor.chunk(4)[1].fill_(1.0)

    if parameter.ndim < 2:
        return _Plan("0, forget gate 1" if num_gates == 4 else "0", biases)
    return _Plan("orthogonal, fed back" if is_fed_back else scheme, weights)


def _restart_statistics(name: str, module: nn.Module, changed: dict[str, str], *, is_whole: bool) -> None:
    if not isinstance(module, nn.modules.batchnorm._NormBase) or not has_statistics(module):
        return
    # Without weights it has no part in a mapping, which names parameters.
    is_meant = is_whole and not is_held(module)
    if module.affine:
        is_meant = f"{name}.weight".removeprefix(".") in changed
    if is_meant:
        module.reset_running_stats()
