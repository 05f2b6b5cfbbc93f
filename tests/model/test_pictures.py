"""Pictures show what they say: the right panels, labels, scales and marks."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from scripts.pages import as_script, python_blocks, run_script
from tests.zoo import ZOO, loss_of
from truestep.errors import UsageError
from truestep.model.pictures import activation_grid, filters, gradient_flow, histograms
from truestep.model.taps import Taps, tap
from truestep.picture import Picture


def texts(picture: Picture) -> list[str]:
    """Return all that is written in a picture."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture._repr_svg_(), flags=re.DOTALL)


def drawn(picture: Picture) -> list[torch.Tensor]:
    """Return the numbers behind each panel, in order."""
    (axes, *_) = picture._figure.axes
    return [torch.tensor(image.get_array().data) for image in axes.images]


def read(name: str, **options: object) -> Taps:
    model, inputs = ZOO[name]()
    with tap(model, values=True, **options) as taps:  # type: ignore[arg-type]
        loss_of(model(**inputs)).backward()
    return taps


@pytest.mark.practice("P33")
def test_p33_each_channel_of_a_layer_is_a_panel_on_one_scale() -> None:
    """The channels that a layer gives for one image are drawn side by side on one colour scale."""
    taps = read("resnet")
    reading = taps.output("layer1.0.conv1")
    picture = activation_grid(reading, sample=2)
    panels = drawn(picture)
    assert len(panels) == reading.shape[1] == 8
    assert all(torch.equal(panel, channel) for panel, channel in zip(panels, reading.value[2], strict=True))
    (axes, *_) = picture._figure.axes
    bound = reading.value[2].abs().max().item()
    assert {image.get_clim() for image in axes.images} == {(-bound, bound)}
    assert "output of layer1.0.conv1, sample 2" in texts(picture)


def test_what_is_never_negative_has_a_scale_from_zero_and_dead_channels_say_so() -> None:
    maps = torch.rand(1, 3, 4, 4)
    maps[0, 1] = 0
    picture = activation_grid(maps, image=torch.rand(1, 1, 4, 4))
    (axes, *_) = picture._figure.axes
    assert axes.images[1].get_clim() == (0, pytest.approx(maps.max().item()))
    assert texts(picture)[:4] == ["input", "0", "1  zero", "2"]


def test_many_channels_are_cut_and_told() -> None:
    picture = activation_grid(torch.rand(100, 2, 2), max_channels=10)
    assert len(drawn(picture)) == 10
    assert "channels, sample 0, 10 of 100 channels" in texts(picture)


@pytest.mark.practice("P33")
def test_p33_filters_are_drawn_as_they_are() -> None:
    """Filters of a convolution are drawn with one scale for all, zero in its middle."""
    one, three, more = nn.Conv2d(1, 5, 3), nn.Conv2d(3, 6, 5), nn.Conv2d(4, 7, 3)
    assert torch.equal(torch.stack(drawn(filters(one))), one.weight[:, 0].detach())
    coloured = torch.stack(drawn(filters(three)))
    bound = three.weight.abs().max()
    # Colours are from 0 to 1: half a unit of rounding in float32.
    assert torch.allclose((coloured - 0.5) * 2 * bound, three.weight.permute(0, 2, 3, 1), atol=1e-6)
    assert len(drawn(filters(more))) == 4 * 7
    assert "6,3" in texts(filters(more))
    picture = filters(more, max_filters=2, max_inputs=3)
    assert len(drawn(picture)) == 6
    assert any("2 of 7 filters, 3 of 4 inputs" in text for text in texts(picture))


@pytest.mark.practice("P33")
@pytest.mark.parametrize("kind", ["output", "gradient", "input"])
def test_p33_histograms_stand_in_the_order_of_depth(kind: str) -> None:
    """The spread of each layer's values is drawn as a ridge, in the order of the forward pass."""
    taps = read("bert", inputs=True, parameters=True)
    picture = histograms(taps, kind=kind)  # type: ignore[arg-type]
    (axes,) = picture._figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    own = [reading.label for reading in taps if reading.kind == kind]
    order = [reading.label for reading in taps if reading.kind == ("input" if kind == "input" else "output")]
    assert labels == [label for label in order if label in own]
    assert sum(text.startswith("std ") for text in texts(picture)) == len(labels) > 10


def test_zeros_and_what_is_not_finite_are_told_beside_the_ridge() -> None:
    tensors = {
        "half": torch.cat([torch.zeros(50), torch.rand(50)]),
        "broken": torch.tensor([1.0, 2.0, math.nan, math.inf]),
        "dead": torch.zeros(9),
        "constant": torch.ones(9),
    }
    found = texts(histograms(tensors))
    assert any(re.fullmatch(r"std 0.\d+, 50% zero", text) for text in found)
    assert "std 0.5, 50.0% not finite" in found
    assert "std 0, 100% zero" in found
    assert histograms(tensors, log=True)._repr_svg_()


@pytest.mark.practice("P33")
@pytest.mark.parametrize("name", ZOO)
def test_p33_gradient_flow_shows_the_sizes_that_were_read(name: str) -> None:
    """The size of the gradient is drawn for each layer, in depth order, from taps or from `grad` itself."""
    model, inputs = ZOO[name]()
    with tap(model) as taps:
        loss_of(model(**inputs)).backward()
    (axes,) = gradient_flow(taps)._figure.axes
    gradients = {item.label: item.statistics for item in taps if item.kind == "gradient"}
    (largest,) = [line for line in axes.lines if line.get_label() == "largest"]
    shown = dict(
        zip([label.get_text() for label in axes.get_yticklabels()], largest.get_xdata(), strict=True)
    )
    assert shown.keys() == gradients.keys()
    assert all(
        size == gradients[label].absmax or (math.isnan(size) and gradients[label].absmax == 0)
        for label, size in shown.items()
    )
    picture = gradient_flow(model)
    named = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert [label.get_text() for label in picture._figure.axes[0].get_yticklabels()] == named


def test_dead_missing_and_broken_gradients_are_marked() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    model(torch.ones(1, 2)).sum().backward()
    model[0].weight.grad.zero_()
    model[1].weight.grad = None
    model[2].weight.grad[0, 0] = math.nan
    found = texts(gradient_flow(model, "*.weight"))
    assert [text for text in found if "✕" in text] == ["✕ zero", "✕ no gradient", "✕ 25% not finite"]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert "✕ zero" in texts(gradient_flow(model))


def test_layers_that_no_gradient_reached_are_counted_in_the_title() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    with tap(nn.ModuleList([first, second])) as taps:
        second(first(torch.ones(1, 2)).detach()).sum().backward()
    assert "gradients of outputs, 1 of 2 layers, from the input (top) to the loss" in texts(
        gradient_flow(taps)
    )


def test_errors_say_what_to_do() -> None:
    model, inputs = ZOO["resnet"]()
    with tap(model) as taps, torch.no_grad():
        model(**inputs)
    with pytest.raises(UsageError, match=r"values of 'conv1' were not kept. Tap with values=True"):
        activation_grid(taps.output("conv1"))
    with pytest.raises(UsageError, match=r"got \[4, 10\]\. Tap a convolutional layer"):
        activation_grid(torch.ones(4, 10))
    with pytest.raises(UsageError, match="there are 2 samples, got sample=2"):
        activation_grid(torch.ones(2, 1, 3, 3), sample=2)
    with pytest.raises(UsageError, match=r"got Dropout\. Pass a two-dimensional convolution"):
        filters(nn.Dropout())
    with pytest.raises(
        UsageError, match=r"no gradient was read\. Tap with gradients=True and do the backward"
    ):
        gradient_flow(taps)
    with pytest.raises(UsageError, match=r"no input was read\. Tap with inputs=True"):
        histograms(taps, kind="input")
    with pytest.raises(UsageError, match=r"no parameter has a gradient\. Call loss.backward"):
        gradient_flow(model)
    with pytest.raises(UsageError, match="no tensor to draw"):
        histograms({})


def test_a_picture_is_the_same_file_every_time(tmp_path: Path) -> None:
    maps = torch.arange(32.0).reshape(2, 4, 4)
    first, second = (activation_grid(maps).save(tmp_path / name).read_bytes() for name in ("1.svg", "2.svg"))
    assert first == second
    assert activation_grid(maps).save(tmp_path / "1.png").stat().st_size > 1000


ROOT = Path(__file__).parents[2]


def named(svg: str) -> list[str]:
    """Return the labels that do not depend on rounding: names and numbers of panels, not ticks."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.DOTALL)
    return [text for text in found if re.fullmatch(r"[a-z]\w*|\d+\.weight|✕ \w+|root mean square", text)]


@pytest.mark.slow
def test_the_pictures_of_the_page_are_those_its_code_makes(tmp_path: Path) -> None:
    blocks = python_blocks((ROOT / "docs" / "taps.md").read_text())
    script = tmp_path / "page.py"
    script.write_text(as_script([block for block in blocks if block.not_run is None]))
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = sorted((ROOT / "docs" / "images").glob("taps-*.svg"))
    assert [path.name for path in shown] == sorted(path.name for path in tmp_path.glob("*.svg"))
    for path in shown:
        old, new = path.read_text(), (tmp_path / path.name).read_text()
        assert named(old) == named(new), path.name
        assert old.count("<image") == new.count("<image"), path.name
