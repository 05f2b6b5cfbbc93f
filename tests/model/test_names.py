"""Which modules and parameters a pattern stands for."""

import pytest
from torch import nn

import truestep as ts
from tests.zoo import ZOO, bert, gpt2, resnet, t5
from truestep.errors import UsageError
from truestep.model.names import within


def test_a_pattern_runs_across_dots_and_keeps_the_order_of_the_model() -> None:
    model, _ = bert()
    found = ts.model.select(model, "*.LayerNorm")
    assert list(found) == [name for name, _ in model.named_modules() if name.endswith(".LayerNorm")]
    assert len(found) == 5
    assert all(module is model.get_submodule(name) for name, module in found.items())


@pytest.mark.parametrize("name", ZOO)
def test_a_star_stands_for_all_but_the_model_itself(name: str) -> None:
    model, _ = ZOO[name]()
    modules = list(ts.model.select(model, "*").values())
    assert [id(module) for module in modules] == [id(module) for module in model.modules()][1:]
    parameters = ts.model.select(model, "*", kind="parameters")
    assert {id(p) for p in parameters.values()} == {id(p) for p in model.parameters()}
    assert ts.model.select(model, "") == {"": model}


def test_a_module_stands_for_all_its_parameters_and_a_type_too() -> None:
    model, _ = resnet()
    by_name = ts.model.select(model, "layer1", kind="parameters")
    assert list(by_name) == [f"layer1.{name}" for name, _ in model.layer1.named_parameters()]
    by_type = ts.model.select(model, nn.BatchNorm2d, kind="parameters")
    assert {name.rpartition(".")[2] for name in by_type} == {"weight", "bias"} and len(by_type) == 30
    both = ts.model.select(model, ["fc.bias", nn.BatchNorm2d], kind="parameters")
    assert list(both) == [*by_type, "fc.bias"]


def test_what_is_tied_is_found_by_each_name_and_given_once() -> None:
    model, _ = t5()
    for name in ("shared.weight", "lm_head.weight", "decoder.embed_tokens.weight"):
        assert ts.model.select(model, name, kind="parameters") == {name: model.shared.weight}
    assert len(ts.model.select(model, ["lm_head", "shared"], kind="parameters")) == 1


def test_a_shared_module_is_found_by_each_name_and_given_once() -> None:
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)})
    assert ts.model.select(model, "b.0") == {"b.0": layer}
    assert ts.model.select(model, nn.Linear) == {"a": layer}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("layer5.*", r"no module of ResNet has a name like 'layer5\.\*'\. The nearest names are layer3, "),
        ("Layer1", "The nearest names are layer1, "),
        ("backbone", r"a name like 'backbone'\. At the top it has conv1, bn1, layer1"),
        (["fc", "typo"], "a name like 'typo'"),
        (nn.LSTM, r"no module of ResNet is of type LSTM\. It has modules of the types "),
        (3, r"3 is neither a name pattern nor a type of module\. Pass a string"),
        ([], "the list is empty"),
    ],
)
def test_what_matches_nothing_is_an_error_with_the_nearest(what: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ts.model.select(resnet()[0], what)  # type: ignore[call-overload]


def test_the_nearest_parameter_is_shown_for_a_slip_in_its_name() -> None:
    with pytest.raises(UsageError, match=r"no parameter of GPT2LMHeadModel .* transformer\.ln_f\.weight"):
        ts.model.select(gpt2()[0], "transformer.ln_f.wieght", kind="parameters")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="kind is 'buffers'"):
        ts.model.select(resnet()[0], "*", kind="buffers")  # type: ignore[call-overload]


def test_within_gives_what_is_inside_and_nothing_for_parameters() -> None:
    model, _ = resnet()
    assert list(within(model, "layer1.0"))[:2] == ["layer1.0", "layer1.0.conv1"]
    assert len(within(model, "layer1.0")) == 6
    assert within(model, "*.bias") == {}


@pytest.mark.practice("P36")
def test_p36_modules_are_walked_indexed_and_named() -> None:
    """Every module has a dotted name, the same in `select`, `get_submodule` and the state dict."""
    model, _ = gpt2()
    (name,) = ts.model.select(model, "transformer.h.1")
    assert model.get_submodule(name) is model.transformer.h[1]
    assert set(ts.model.select(model, "*", kind="parameters")) <= set(model.state_dict())
    assert list(ts.model.select(model, "transformer.h.*.attn")) == [
        "transformer.h.0.attn",
        "transformer.h.1.attn",
    ]
