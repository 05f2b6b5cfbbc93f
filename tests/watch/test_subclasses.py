"""Classes of the user's own: watching calls none of their code, and a script that counts sees no more."""

import pytest

from tests.watch.forked import run_forked

LOOP = """
import hashlib
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.data import DataLoader

torch.manual_seed(0)
calls = []

def train(make, parameters=None, prepare=lambda model: None, num_steps=5):
    model = nn.Linear(4, 2)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = [torch.randn(4) for _ in range(4 * num_steps)]
    loader = DataLoader(rows, 4, collate_fn=lambda rows: make(torch.stack(rows)))
    for x in loader:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.detach().item()
    drawn, state = torch.rand(1).item(), b""
    for item in model.parameters():
        if type(item) in (torch.Tensor, nn.Parameter):
            state += item.detach().numpy().tobytes()
    print(len(calls), drawn, hashlib.sha256(state).hexdigest())
"""

CASES = {
    "function_is_counted": """
class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})
train(lambda x: x.as_subclass(Counting))
""",
    "function_draws": """
class Noisy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        torch.rand(1)
        return super().__torch_function__(func, types, args, kwargs or {})
train(lambda x: x.as_subclass(Noisy))
""",
    "dispatch_is_counted": """
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        calls.append(str(func))
        unwrap = lambda item: item.inner if isinstance(item, Wrapped) else item
        wrap = lambda item: Wrapped(item) if isinstance(item, torch.Tensor) else item
        args, kwargs = torch.utils._pytree.tree_map(unwrap, (args, kwargs or {}))
        return torch.utils._pytree.tree_map(wrap, func(*args, **kwargs))
    def __tensor_flatten__(self): return ["inner"], None
    __tensor_unflatten__ = staticmethod(lambda inner, *_: Wrapped(inner["inner"]))
train(lambda x: Wrapped(x))
""",
    "properties_are_counted": """
class Shaped(torch.Tensor):
    @property
    def shape(self):
        calls.append("shape")
        return super().shape
    @property
    def grad_fn(self):
        calls.append("grad_fn")
        return super().grad_fn
    def size(self, *args):
        calls.append("size")
        return super().size(*args)
train(lambda x: x.as_subclass(Shaped))
""",
    "modes_are_counted": """
class Function(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        calls.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        calls.append(str(func))
        return func(*args, **(kwargs or {}))
with Function():
    train(lambda x: x)
with Dispatch():
    train(lambda x: x)
""",
    "parameters_are_counted": """
class Weight(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})
def prepare(model):
    model.weight = Weight(model.weight.detach().clone())
train(lambda x: x, prepare=prepare)
""",
    "objects_are_counted": """
class Odd:
    def __init__(self, x): self.x = x
    def __len__(self): calls.append("len"); return 4
    def __bool__(self): calls.append("bool"); return True
    def __repr__(self): calls.append("repr"); return "odd"
    def __eq__(self, other): calls.append("eq"); return self is other
    def __hash__(self): calls.append("hash"); return 1
    def __iter__(self): calls.append("iter"); return iter([self.x])
    def __getattr__(self, name): calls.append(name); raise AttributeError(name)
class Model(nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.odd = Odd(1)
    def forward(self, odd): return super().forward(odd.x)
nn.Linear = Model
train(Odd)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_watching_calls_no_code_of_the_users_own_classes(case: str) -> None:
    text = LOOP + CASES[case]
    bare, watched = run_forked(text), run_forked(text, is_watched=True)
    assert not bare.code, bare.output
    if bare.output != watched.output:
        told = "import collections; print(*sorted(collections.Counter(calls).items()), sep='\\n')"
        bare, watched = run_forked(text + told), run_forked(text + told, is_watched=True)
    assert bare.output == watched.output
    assert watched.process is not None
    assert watched.process.num_steps in (5, 10)
    assert not watched.process.switched_off
