"""Pictures of tensors: every cell has the colour of its place in memory, and nothing drawn is untrue."""

import itertools
import random

import numpy as np
import pytest
import torch

import truestep as ts
from truestep.errors import UsageError
from truestep.tensor.canvas import PALE, WARNING, Box, Canvas, Words
from truestep.tensor.cells import locate, shown_indices
from truestep.tensor.drawing import draw_broadcast, draw_memory, pieces_of
from truestep.tensor.grid import HEIGHT
from truestep.tensor.panels import _STRIP, draw_pieces
from truestep.tensor.stretching import Side, draw_sides


def memory_sheet(**tensors) -> Canvas:
    canvas = Canvas()
    draw_pieces(canvas, pieces_of(tensors))
    return canvas


def words_on(canvas: Canvas) -> list[str]:
    return [item.text for item in canvas.items if isinstance(item, Words)]


def fills(canvas: Canvas, *, height: float) -> list[str]:
    return [item.fill for item in canvas.items if isinstance(item, Box) and item.height == height]


@pytest.mark.practice("P07")
def test_p07_a_picture_shows_which_reshape_copied() -> None:
    """A reshape that views is drawn in the colours of the memory it shares; one that copies gets its own."""
    x = torch.arange(6).view(2, 3)
    viewed, copied = x.reshape(3, 2), x.T.reshape(-1)
    canvas = memory_sheet(x=x, viewed=viewed, copied=copied)
    cells = fills(canvas, height=HEIGHT)
    memory, of_x, of_viewed = cells[:6], cells[6:12], cells[12:18]
    assert memory == of_x == of_viewed
    assert set(memory).isdisjoint(cells[18:])
    assert cells[18:24] == cells[24:30]
    headings = [words for words in words_on(canvas) if words.startswith("memory")]
    assert [words[:10] for words in headings] == ["memory A: ", "memory B: "]
    assert all(words.endswith("int64 = 48 bytes") for words in headings)


@pytest.mark.practice("P08")
def test_p08_a_picture_shows_the_cells_that_a_view_walks() -> None:
    """A transposed, sliced view is drawn in the colours of the cells it walks; those it skips are grey."""
    x = torch.arange(10, 130, 10).view(3, 4)
    canvas = memory_sheet(x=x, y=x.T[::2])
    cells, strips = fills(canvas, height=HEIGHT), fills(canvas, height=_STRIP)
    memory, of_x, of_y = cells[:12], cells[12:24], cells[24:]
    assert memory == of_x and len(set(memory)) == 12
    assert of_y == [memory[cell] for cell in (0, 4, 8, 2, 6, 10)]
    assert strips[:12] == memory
    assert strips[12:] == [memory[cell] if cell % 2 == 0 else PALE for cell in range(12)]
    assert {"strides (2, 4), offset 0", "axis 0: +2", "axis 1: +4"} <= set(words_on(canvas))


@pytest.mark.practice("P12")
@pytest.mark.parametrize(
    "shapes", [((4,), (4, 1)), ((4, 1), (4,)), ((2, 3), (2, 3, 1, 1)), ((3,), (2, 3, 1))]
)
def test_p12_silent_broadcasting_is_marked(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """A picture of (N,) with (N, 1) warns that every element meets every other."""
    assert WARNING in draw_broadcast(*shapes)._repr_svg_()


@pytest.mark.parametrize(
    "shapes", [((3, 1), (4,)), ((4,), (4,)), ((1, 4), (4,)), ((), (2, 2)), ((1,), (1, 1)), ((1, 4), (4, 1))]
)
def test_broadcasting_that_is_meant_is_not_marked(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert WARNING not in draw_broadcast(*shapes)._repr_svg_()


def test_broadcast_cells_are_those_of_torch() -> None:
    a, b = torch.tensor([[[10], [20]], [[30], [40]]]), torch.tensor([[1, 2, 3]])
    expected_a, expected_b = torch.broadcast_tensors(a, b)
    for tensor, expected in ((a, expected_a), (b, expected_b)):
        side = Side(name="a", shape=tuple(tensor.shape), values=tuple(tensor.reshape(-1).tolist()))
        indices = list(itertools.product(*map(range, expected.shape)))
        assert [side.words(index) for index in indices] == [str(expected[index].item()) for index in indices]
        assert sum(side.is_original(index) for index in indices) == tensor.numel()


def test_the_result_shows_the_values_torch_computes() -> None:
    svg = draw_broadcast(torch.tensor([[100], [200]]), torch.tensor([1.5, 2.5]))._repr_svg_()
    assert all(f">{value}<" in svg for value in ("102", "202", "1.5", "2.5"))


def test_a_broadcast_of_many_elements_is_drawn_without_computing_it() -> None:
    svg = draw_broadcast(torch.zeros(10**6), torch.zeros(10**6, 1))._repr_svg_()  # the sum has 4 TB
    assert ">a₀ b₀<" in svg and WARNING in svg


def test_elements_in_memory_agree_with_torch() -> None:
    """Strides of every sign and kind; the reference looks at every index."""
    draw = random.Random(7)
    for _ in range(300):
        num_axes = draw.randint(0, 4)
        shape = [draw.randint(1, 4) for _ in range(num_axes)]
        stride = [draw.randint(-9, 9) for _ in range(num_axes)]
        reached = {
            sum(at * step for at, step in zip(index, stride, strict=True)): index
            for index in itertools.product(*map(range, shape))
        }
        for distance in range(-60, 61):
            found = locate(distance, shape, stride=stride)
            assert (found is not None) == (distance in reached)
            if found is not None:
                assert sum(at * step for at, step in zip(found, stride, strict=True)) == distance
                assert all(0 <= at < size for at, size in zip(found, shape, strict=True))


def test_a_large_tensor_is_cut_and_no_cell_of_it_called_skipped() -> None:
    x = torch.arange(10_000.0).view(100, 100)
    canvas = memory_sheet(x=x, row=x[50, 10:13])
    words = words_on(canvas)
    assert words.count("…") > 0 and len(words) < 400
    (piece,) = pieces_of({"x": x, "row": x[50, 10:13]})
    for cell in piece.shown():
        if cell is not None:
            assert piece.elements_in(piece.tensors[0], cell) == [cell]
            assert piece.elements_in(piece.tensors[1], cell) == ([cell - 5010] if 5010 <= cell < 5013 else [])


@pytest.mark.parametrize("shape", [(64,), (8, 8), (4, 4, 4), (2, 4, 4, 2), (3, 1, 5), (), (1,)])
def test_sixty_four_elements_are_drawn_in_full(shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    assert len(list(shown_indices(shape))) == count
    assert len(fills(memory_sheet(x=torch.zeros(shape)), height=HEIGHT)) == 2 * count


def test_arrays_and_tensors_of_one_buffer_are_one_memory() -> None:
    array = np.arange(6, dtype=np.float32)
    pieces = pieces_of({"array": array, "backward": array[::-1], "tensor": torch.from_numpy(array)[2:]})
    (piece,) = pieces
    backward, tensor = piece.tensors[1:]
    assert [piece.elements_in(backward, cell) for cell in range(6)] == [[5], [4], [3], [2], [1], [0]]
    assert [piece.elements_in(tensor, cell) for cell in range(6)] == [[], [], [0], [1], [2], [3]]


def test_a_complex_number_takes_two_cells_of_its_real_part() -> None:
    c = torch.tensor([1 + 2j, 3 + 4j])
    (piece,) = pieces_of({"c": c, "imag": c.imag})
    assert piece.values() == {0: "1", 1: "2", 2: "3", 3: "4"}
    assert [piece.elements_in(piece.tensors[0], cell) for cell in range(4)] == [[0], [0], [1], [1]]
    assert [piece.elements_in(piece.tensors[1], cell) for cell in range(4)] == [[], [0], [], [1]]


def test_an_expanded_element_is_one_cell_drawn_often() -> None:
    x = torch.tensor([[1], [2]])
    canvas = memory_sheet(x=x.expand(2, 3))
    memory, grid = fills(canvas, height=HEIGHT)[:2], fills(canvas, height=HEIGHT)[2:]
    assert grid == [memory[0]] * 3 + [memory[1]] * 3
    assert "0 1 2" in words_on(canvas)


def test_what_cannot_be_drawn_is_said_in_its_place() -> None:
    words = words_on(
        memory_sheet(
            empty=torch.empty(0, 3), deep=torch.zeros(1, 1, 2, 1, 1), nowhere=torch.empty(2, 2, device="meta")
        )
    )
    assert words.count("no elements in memory") == 2
    assert "5 dimensions: too many to draw" in words


def test_drawing_changes_nothing(tmp_path) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = (x * 2).T
    before = x._version, y._version, torch.get_rng_state()
    for picture in (draw_memory(x=x, y=y), draw_broadcast(x, y.detach()[:, :1].T[:, :1])):
        picture.save(tmp_path / "p.svg")
        first = (tmp_path / "p.svg").read_bytes()
        assert picture.save(tmp_path / "p.svg").read_bytes() == first
        assert picture.save(tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert before[:2] == (x._version, y._version) and torch.equal(before[2], torch.get_rng_state())
    assert x.grad is None and y.requires_grad


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(UsageError, match="x is a list; tensors and NumPy arrays"):
        draw_memory(x=[1, 2])
    with pytest.raises(UsageError, match=r"Draw x.to_dense\(\)"):
        draw_memory(x=torch.eye(2).to_sparse())
    with pytest.raises(UsageError, match="Give each by a name"):
        draw_memory()
    with pytest.raises(UsageError, match=r"shapes \(3,\) and \(4,\) do not fit"):
        draw_broadcast((3,), (4,))


def test_three_operands_are_drawn_as_where_takes_them() -> None:
    sides = [Side(name=name, shape=shape) for name, shape in (("c", (2, 1)), ("x", (3,)), ("y", ()))]
    canvas = Canvas()
    draw_sides(canvas, sides, result=Side(name="result", shape=(2, 3)), is_warned=False)
    assert "c₁ x₂ y₀" in words_on(canvas)


def test_an_explained_expression_is_drawn_with_its_broadcast() -> None:
    p = torch.tensor([1.0, 2.0, 3.0])
    svg = ts.explain("((p - t) ** 2).mean()", p=p, t=p[:, None]).picture()._repr_svg_()
    assert WARNING in svg and ">p - t<" in svg and ">-<" in svg
    assert all(f">{value}<" in svg for value in ("-2", "1.33"))
    plain = ts.explain("p * 2 + p", p=p).picture()._repr_svg_()
    assert WARNING not in plain and ">p * 2<" not in plain and "memory B" in plain


def test_an_explanation_is_drawn_whatever_its_tensors_are() -> None:
    explanation = ts.explain(
        deep=torch.zeros(1, 2, 1, 2, 1),
        empty=torch.empty(0, 3),
        large=torch.zeros(300, 300).T[::2],
        array=np.arange(4)[::-1],
        truth=torch.tensor(True),
        bits=torch.tensor([1.0]).view(torch.uint8),
    )
    assert "too many to draw" in explanation.picture()._repr_svg_()
