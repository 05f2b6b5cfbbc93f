"""What `explain` says about tensors and expressions, and that it changes nothing."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import truestep as ts
from truestep.errors import UsageError
from truestep.tensor import Explanation
from truestep.tensor.facts import Operation

SHARED = torch.zeros(3)


def last(code: str, **named: Any) -> Operation:
    return ts.explain(code, **named).operations[-1]


def notes(code: str, **named: Any) -> str:
    return " | ".join(note for step in ts.explain(code, **named).operations for note in step.notes)


def shared(told: Explanation) -> dict[tuple[str, str], bool]:
    return {(item.first, item.second): item.is_overlapping for item in told.sharings}


# Views and copies


@pytest.mark.practice("P07")
def test_p07_view_never_copies_reshape_may_and_contiguous_only_when_needed() -> None:
    """`view` gives a view or fails, `reshape` copies where no view can do it, `contiguous` where it must."""
    x = torch.randn(3, 5, 7, 9)
    z = x[:, ::2]
    assert last("x.view(-1)", x=x).verdict == "view"
    assert last("x.reshape(-1)", x=x).verdict == "view"
    assert last("z.reshape(-1)", z=z).verdict == "copy"
    assert last("z.reshape(9, 63)", z=z).verdict == "copy"
    assert last("z.reshape(3, 3, 63)", z=z).verdict == "view"
    assert "would be a copy" not in notes("x.view_as(y)", x=x, y=torch.ones(45, 21))
    assert last("x.contiguous()", x=x).verdict == "same"
    assert last("z.contiguous()", z=z).verdict == "copy"
    with pytest.raises(UsageError, match=r"joins axes 0 and 1, .* axis 0 moves on by 315, but 3 times"):
        ts.explain("z.view(-1)", z=z)


@pytest.mark.practice("P07")
def test_p07_strides_are_those_of_torch_and_not_those_of_a_widely_copied_note() -> None:
    """A contiguous (3, 5, 7, 9) tensor has strides (315, 63, 9, 1), not (315, 126, 9, 1)."""
    x = torch.randn(3, 5, 7, 9)
    told = ts.explain(x=x, z=x[:, ::2])
    assert [facts.stride for facts in told.tensors] == [(315, 63, 9, 1), (315, 126, 9, 1)]
    assert [facts.is_contiguous for facts in told.tensors] == [True, False]


@pytest.mark.practice("P07")
def test_p07_the_identity_of_data_proves_no_sharing_but_storages_do() -> None:
    """`id(x.data) == id(y.data)` also holds for tensors that share nothing; `explain` compares memory."""
    x, unrelated = torch.zeros(4), torch.ones(4)
    is_proof = id(x.data) == id(unrelated.data)  # each object is gone before the next is made
    assert is_proof
    assert shared(ts.explain(x=x, y=unrelated)) == {}
    assert shared(ts.explain(x=x, y=x.view(2, 2))) == {("x", "y"): True}


@pytest.mark.practice("P08")
@pytest.mark.parametrize(
    "code",
    ["x.view(4, 3)", "x.transpose(0, 1)", "x.squeeze()", "x.expand(2, 3, 4)", "x[1:]", "x[:, ::2]", "x.T"],
)
def test_p08_writing_to_a_view_changes_what_it_views(code: str) -> None:
    """Views, transposes, squeezes, expansions and slices share memory: writing to one changes the other."""
    x = torch.arange(12.0).view(3, 4)
    told = ts.explain(f"y = {code}", x=x)
    assert told.operations[-1].verdict == "view" and shared(told) == {("x", "y"): True}
    y = eval(code)
    y.select(0, 0).fill_(-1.0)
    assert (x == -1).any()


@pytest.mark.practice("P08")
def test_p08_two_halves_share_memory_but_no_element() -> None:
    """Two halves of one tensor share a storage, but writing to one does not change the other."""
    x = torch.arange(10)
    told = ts.explain(low=x[:5], high=x[5:], even=x[::2], odd=x[1::2])
    assert shared(told) == {
        ("low", "high"): False,
        ("low", "even"): True,
        ("low", "odd"): True,
        ("high", "even"): True,
        ("high", "odd"): True,
        ("even", "odd"): False,
    }
    assert "share no element: writing to one leaves the other" in str(told)


def test_overlap_is_exact_for_large_tensors() -> None:
    big = torch.empty(3000, 3000)
    told = ts.explain(even=big[:, ::2], odd=big[:, 1::2], all=big)
    assert shared(told) == {("even", "odd"): False, ("even", "all"): True, ("odd", "all"): True}


@pytest.mark.practice("P09")
def test_p09_an_assignment_is_no_copy_and_clone_is() -> None:
    """`b = a` does not copy, `clone()` copies with gradients, `detach().clone()` copies without them."""
    a = torch.ones(3, requires_grad=True)
    told = ts.explain("b = a; c = a.clone(); d = a.detach().clone()", a=a)
    assert [step.verdict for step in told.operations] == ["same", "copy", "view", "copy"]
    by_name = {facts.name: facts for facts in told.tensors}
    assert (by_name["c"].autograd, by_name["d"].autograd) == ("CloneBackward0", "-")
    b = a
    assert "a and b are one tensor under two names" in str(ts.explain(a=a, b=b))


@pytest.mark.practice("P10")
def test_p10_arrays_and_tensors_made_from_each_other_are_one_memory() -> None:
    """`from_numpy`, `as_tensor` and `numpy()` share memory with what they come from, even at an offset."""
    a = np.arange(6.0)
    t = torch.from_numpy(a[2:])
    told = ts.explain(t=t, a=a, back=t.numpy(), same=torch.as_tensor(a))
    assert {facts.memory for facts in told.tensors} == {"A"}
    assert all(item.is_overlapping for item in told.sharings)
    assert len(told.sharings) == 6
    whole = torch.arange(10)
    assert shared(ts.explain(low=whole[:5].numpy(), high=whole[5:].numpy())) == {("low", "high"): False}
    told = ts.explain("t = torch.from_numpy(a); t.add_(1)", a=a)
    assert told.operations[0].verdict == "view"
    assert told.operations[1].notes == ("this also changes a: elements are shared",)
    assert a.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.practice("P16")
def test_p16_torch_tensor_copies_and_legacy_constructors_leave_memory_uninitialised() -> None:
    """`torch.tensor` copies an array, `as_tensor` shares it, and `torch.Tensor(2, 3)` is not initialized."""
    a = np.arange(3)
    assert last("torch.tensor(a)", a=a).verdict in {"copy", "new"}
    assert shared(ts.explain("t = torch.tensor(a)", a=a)) == {}
    assert shared(ts.explain("t = torch.as_tensor(a)", a=a)) == {("a", "t"): True}
    for code in ("torch.Tensor(2, 3)", "torch.FloatTensor(2, 3)", "torch.empty(2, 3)", "x.new_empty(2)"):
        assert "not initialized" in notes(code, x=torch.ones(1))
    assert "not initialized" not in notes("torch.zeros(2, 3)")


# Reductions


@pytest.mark.practice("P11")
def test_p11_a_reduction_names_the_axis_that_goes_and_what_keepdim_keeps() -> None:
    """`mean(1)` removes axis 1, one mean for each row; `keepdim` keeps that axis with size 1."""
    a = torch.randn(4, 5)
    step = last("torch.mean(a, 1)", a=a)
    assert step.notes == ("axis 1 goes away: each result is the mean of a[i, :]",)
    kept = last("torch.mean(a, 1, True)", a=a)
    assert kept.outputs[0].shape == (4, 1) and "axis 1 stays with size 1" in kept.notes[0]
    assert last("a.sum(axis=0, keepdims=True)", a=a).outputs[0].shape == (1, 5)
    assert notes("a.sum()", a=a) == "all 20 elements become one"


# Broadcasting


@pytest.mark.practice("P12")
def test_p12_broadcasting_aligns_shapes_at_the_right() -> None:
    """Shapes are aligned at the right, axes of size 1 or missing ones are repeated; `where` does the same."""
    step = last("a + b", a=torch.ones(3, 1), b=torch.ones(4))
    assert step.broadcast is not None and not step.warnings
    assert step.broadcast.shape == (3, 4)
    assert str(step.broadcast).splitlines() == [
        "a       3  1*   * repeated",
        "b        * 4   * repeated",
        "result  3  4",
    ]
    step = last(
        "torch.where(c, x, y)", c=torch.ones(3, 1, dtype=torch.bool), x=torch.ones(3, 4), y=torch.ones(4)
    )
    assert step.broadcast is not None and step.broadcast.shape == step.outputs[0].shape == (3, 4)
    assert last("x + x", x=torch.ones(2)).broadcast is None


@pytest.mark.practice("P12")
@pytest.mark.parametrize("code", ["p - t", "F.mse_loss(p, t)", "F.l1_loss(t, p)", "(p - t) ** 2"])
def test_p12_the_silent_broadcast_of_a_loss_is_told(code: str) -> None:
    """(N, 1) with (N,) silently gives (N, N), also in a loss, where the mean makes it invisible."""
    told = ts.explain(code, p=torch.randn(4, 1), t=torch.randn(4))
    words = " ".join(text for step in told.operations for text in step.warnings)
    assert "give (4, 4): every element meets every other" in words and "careful: " in str(told)


@pytest.mark.parametrize(
    ("one", "two"), [((3, 1), (4,)), ((4, 1), (1, 4)), ((4, 4), (4,)), ((2, 4, 1), (4, 1)), ((4,), ())]
)
def test_a_broadcast_that_is_written_out_or_cannot_be_pairs_is_no_warning(
    one: tuple[int, ...], two: tuple[int, ...]
) -> None:
    assert not last("a * b", a=torch.ones(one), b=torch.ones(two)).warnings


# Shapes in, shapes out


@pytest.mark.practice("P13")
@pytest.mark.parametrize(
    ("code", "shape", "verdict"),
    [
        ("torch.stack((a, a), dim=-1)", (3, 4, 2), "copy"),
        ("torch.vstack([a, a[0]])", (4, 4), "copy"),
        ("torch.cat([a, a, a], dim=1)", (3, 12), "copy"),
        ("torch.repeat_interleave(a, 2)", (24,), "copy"),
        ("a.unsqueeze(1)", (3, 1, 4), "view"),
        ("a.T", (4, 3), "view"),
        ("a.chunk(2, dim=1)", (3, 2), "view"),
        ("torch.cdist(a, a[:2])", (3, 2), "new"),
    ],
)
def test_p13_shape_in_and_shape_out(code: str, shape: tuple[int, ...], verdict: str) -> None:
    """Joining, repeating, transposing, distances: each step shows shape in, shape out, view or copy."""
    step = last(code, a=torch.randn(3, 4))
    assert step.inputs[0].shape == (3, 4) and step.outputs[0].shape == shape and step.verdict == verdict


@pytest.mark.practice("P13")
def test_p13_min_of_an_axis_gives_values_and_indices_and_len_is_axis_0() -> None:
    """`min(0)` reduces each column and returns two tensors; `len(x)` is the size of axis 0."""
    a = torch.randn(3, 4)
    step = last("a.min(0)", a=a)
    assert [facts.shape for facts in step.outputs] == [(4,), (4,)]
    assert step.notes == ("axis 0 goes away: each result is the min of a[:, j]",)
    assert ts.explain("len(a)", a=a).result == "3"
    assert last("torch.max(a, a)", a=a).notes == ()


# Autograd


@pytest.mark.practice("P20")
def test_p20_a_change_through_data_is_not_noticed_by_backward() -> None:
    """`explain` warns that backward does not notice what is changed through `.data`, and it does not."""
    w = torch.ones(3, requires_grad=True)
    by_data = ts.explain("y = w.exp(); y.data.zero_(); y.sum()", w=w)
    assert "backward does NOT notice" in by_data.operations[1].notes[0]
    assert by_data.operations[2].notes == ("this also changes y: elements are shared",)
    assert "backward raises" in notes("y.detach()", y=w.exp())
    y, z = w.exp(), w.exp()
    y.data.zero_()
    z.detach().zero_()
    assert torch.autograd.grad(y.sum(), w)[0].tolist() == [0, 0, 0]  # and not e, without a word
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


# Nothing that is given is changed


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_given_is_changed_and_nothing_global(fails: bool) -> None:
    x = torch.arange(6.0).view(2, 3)
    row, a = x[0], np.zeros((2, 3))
    w = torch.ones(2, requires_grad=True)
    (w * 2).sum().backward()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    state = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    code = """
x.add_(1); a += 1; row[0] = 9
(w * 5).sum().backward(); w.requires_grad_(False)
torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64)
torch.rand(3); np.random.rand(3); torch.manual_seed(0)
sizes.append(3)
"""
    sizes = [1, 2]
    if fails:
        with pytest.raises(UsageError, match="fails: ZeroDivisionError"):
            ts.explain(code + "1 / 0", x=x, row=row, a=a, w=w, sizes=sizes)
    else:
        told = ts.explain(code, x=x, row=row, a=a, w=w, sizes=sizes)
        assert "ran on copies: what was given is unchanged" in told.notes
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and x._version == 0 and a[0, 0] == 0
    assert w.requires_grad and w.grad is not None and w.grad.tolist() == [2.0, 2.0]
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == state
    assert torch.overrides._get_current_function_mode() is None
    assert sizes == [1, 2]


def test_copies_share_memory_as_the_originals_do() -> None:
    x = torch.arange(6.0)
    told = ts.explain("row.zero_(); x.sum()", x=x, row=x.view(2, 3)[1])
    assert told.operations[0].notes == ("this also changes x: elements are shared",)
    assert told.tensors[1].offset == 3


def test_a_computed_tensor_may_be_written_to_as_in_the_users_program() -> None:
    h = torch.ones(2, requires_grad=True) * 2
    told = ts.explain("h += 1", h=h)
    assert told.operations[0].verdict == "in place" and told.tensors[0].autograd == "AddBackward0"
    assert ts.explain(h=h).tensors[0].autograd == "MulBackward0"
    with pytest.raises(UsageError, match="a leaf Variable that requires grad"):
        ts.explain("w.add_(1)", w=torch.ones(2, requires_grad=True))


def test_a_layer_that_is_given_is_copied_too() -> None:
    layer = nn.Linear(4, 2)
    told = ts.explain("layer.weight.data.zero_(); layer(x)", layer=layer, x=torch.ones(3, 4))
    assert told.operations[-1].name == "linear" and told.tensors[-1].shape == (3, 2)
    assert layer.weight.abs().sum() > 0


# What may be given, and names


@pytest.mark.parametrize(
    ("things", "named", "message"),
    [
        ((), {}, "needs something to explain"),
        ((torch.ones(2),), {}, "Give tensors by name"),
        ((), {"n": 3}, "n is of type int; explain takes strided tensors and NumPy arrays"),
        ((), {"m": nn.Linear(1, 1)}, "m is of type Linear; explain takes"),
        ((), {"s": torch.eye(2).to_sparse()}, "s is of type Tensor torch.sparse_coo; .*x.to_dense"),
        ((), {"o": np.array([None])}, "o is of type ndarray object; "),
        (("x",), {"x": SHARED, "a": SHARED.numpy()}, "a is an array that shares memory with x"),
        (("x +",), {}, "fails: SyntaxError: invalid syntax"),
        (("y + 1",), {}, "NameError: name 'y' is not defined"),
    ],
)
def test_what_cannot_be_explained_is_said(things: Any, named: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ts.explain(*things, **named)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("torch.ones(3, 4) + torch.ones(3)", r"size of tensor a \(4\) must match"),
        ("torch.ones(3, 4) @ torch.ones(3, 4)", r"3x4 and 3x4"),
        ("torch.zeros(3).view(torch.float64)", "fails: RuntimeError"),
        ("torch.ones(2, 3).view(4, 2)", "is invalid for input of size 6"),
    ],
)
def test_a_failing_expression_ends_with_torchs_message_in_one_line(code: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        ts.explain(code)
    assert "Why:" not in str(caught.value) and "\n" not in str(caught.value)


def test_steps_are_numbered_without_gaps_and_named_as_written() -> None:
    told = ts.explain("x = torch.arange(12.).view(3, 4); y = x.view(x.shape[0], -1).T; (y * 2).sum()")
    assert [step.number for step in told.operations] == [1, 2, 3, 4, 5, 6]
    assert [step.code for step in told.operations] == [
        "torch.arange(12.)",
        "torch.arange(12.).view(3, 4)",
        "x.view(x.shape[0], -1)",
        "x.view(x.shape[0], -1).T",
        "y * 2",
        "(y * 2).sum()",
    ]
    assert [step.of for step in told.operations] == ["", "step 1", "x", "step 3", "", ""]


@pytest.mark.parametrize("code", ["  x.T.sum()", "\n  y = x.T\n  y.sum()\n"])
def test_white_space_before_the_code_changes_nothing(code: str) -> None:
    steps = ts.explain(code, x=torch.ones(2, 3)).operations
    assert [step.code for step in steps] in (["x.T", "x.T.sum()"], ["x.T", "y.sum()"])


def test_a_name_used_again_is_told_from_the_earlier_one() -> None:
    told = ts.explain("x = x.view(-1); x.add_(1)", x=torch.zeros(2, 2))
    assert [facts.name for facts in told.tensors] == ["the earlier x", "x"]
    assert told.operations[1].notes == ("this also changes the earlier x: elements are shared",)


def test_loops_functions_and_comprehensions_are_followed() -> None:
    code = """
def double(t):
    return t * 2
parts = [double(row) for row in x]
torch.stack(parts)
"""
    told = ts.explain(code, x=torch.ones(2, 3))
    assert [step.name for step in told.operations] == ["unbind", "mul", "mul", "stack"]


# How it shows itself


def test_it_prints_one_screen_for_a_simple_expression() -> None:
    told = ts.explain("torch.arange(12).view(3, 4).T[:, ::2]")
    lines = str(told).splitlines()
    assert len(lines) < 24 and max(map(len, lines)) <= 100
    assert lines[0].split("  ")[1] == "torch.arange(12)" and "view of step 3" in str(told)


def test_every_part_prints_in_words() -> None:
    x = torch.arange(6).view(2, 3)
    told = ts.explain("x.T.reshape(-1)", x=x)
    assert str(told.operations[1]).splitlines()[0] == "2  x.T.reshape(-1)  (3, 2) -> (6,)  copy of step 1"
    assert (
        str(ts.explain(x=x, y=x[0]).sharings[0]) == "x and y share elements: writing to one changes the other"
    )
    assert ts.explain(x=x, y=x.clone()).sharings == ()
