"""Layers replaced by name, in models that keep their own forward."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import truestep as ts
from tests.gathering import run_text
from tests.zoo import ZOO, bert, gpt2, loss_of, resnet, t5
from truestep.check import evaluate_rules
from truestep.errors import UsageError
from truestep.rules import find_rules

HEADS = {"resnet": "fc", "lstm": "fc", "bert": "classifier", "gpt2": "lm_head", "t5": "lm_head"}


def linear(num_outputs: int) -> Any:
    return lambda old: nn.Linear(old.in_features, num_outputs)


@pytest.mark.practice("P26")
@pytest.mark.parametrize("name", ZOO)
def test_p26_a_new_last_layer_gets_what_the_old_one_got(name: str) -> None:
    """`replace` puts a new last layer into the model; all layers before it compute the same bits."""
    model, inputs = ZOO[name]()
    model.eval()
    inputs.pop("labels", None)
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    before: list[Tensor] = []
    old = model.get_submodule(HEADS[name])
    old.register_forward_pre_hook(lambda _module, given: before.append(given[0]))
    model(**inputs)
    (features,) = before
    done = ts.model.replace(model, HEADS[name], by=linear(7), ties="break")
    assert [entry[0] for entry in done.changed] == [HEADS[name]]
    output = model(**inputs)
    logits = output if isinstance(output, Tensor) else output.logits
    assert logits.shape[-1] == 7
    assert torch.equal(logits, model.get_submodule(HEADS[name])(features))
    assert not model.get_submodule(HEADS[name]).training, "it takes over the mode"


@pytest.mark.practice("P26")
def test_p26_a_sequential_of_the_children_is_another_model() -> None:
    """`Sequential(*children()[:-1])` loses what `forward` does between layers; `replace` keeps it."""
    model, inputs = resnet()
    model.eval()
    copied = nn.Sequential(*list(model.children())[:-1])
    theirs = copied(inputs["images"])
    true: list[Tensor] = []
    model.fc.register_forward_pre_hook(lambda _module, given: true.append(given[0]))
    model(**inputs)
    ts.model.replace(model, "fc", by=nn.Identity())
    ours = model(**inputs)
    assert torch.equal(ours, true[0]) and ours.shape == (4, 32)
    assert theirs.shape == (4, 32, 4, 4), "pooling and flattening are gone"
    # Pooled by hand, it is still wrong: the ReLU behind the first BatchNorm is gone too.
    pooled = F.adaptive_avg_pool2d(theirs, 1).flatten(1)
    with torch.no_grad():
        assert (pooled - ours).abs().max() > 0.05 * ours.abs().max()


@pytest.mark.practice("P26")
def test_p26_a_sequential_of_the_children_of_bert_fails_or_is_wrong() -> None:
    """On a BERT the widely copied recipe fails, or runs without the mask and gives other numbers."""
    model, inputs = bert()
    model.eval()
    with pytest.raises(TypeError, match="must be Tensor"):
        nn.Sequential(*list(model.children())[:-1])(inputs["input_ids"])
    inputs.pop("labels")
    true = model.bert(**inputs).last_hidden_state
    theirs = nn.Sequential(*list(model.bert.children())[:-1])(inputs["input_ids"]).last_hidden_state
    ts.model.replace(model, "bert.pooler", by=nn.Identity())
    assert torch.equal(model.bert(**inputs).pooler_output, true)
    # The padded sample comes out different, in the positions that are not padding.
    assert not torch.equal(theirs[0, :7], true[0, :7])


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_of_a_type_is_replaced_and_the_model_trains(name: str) -> None:
    model, inputs = ZOO[name]()
    kind = nn.LayerNorm if name in ("bert", "gpt2") else nn.Linear
    if name == "t5":  # its linear layers are looked into by its own forward; the activations are not
        kind = nn.ReLU

    class Wrapped(nn.Module):
        def __init__(self, old: nn.Module) -> None:
            super().__init__()
            self.old = old

        def forward(self, x: Tensor) -> Tensor:
            return self.old(x) * 1.0

    torch.manual_seed(3)
    before = loss_of(model(**inputs))
    num = sum(isinstance(module, kind) for module in model.modules())
    done = ts.model.replace(model, kind, by=Wrapped)
    assert len({name for name, _, _ in done.changed}) >= num and done.untied == ()
    torch.manual_seed(3)
    after = loss_of(model(**inputs))
    assert torch.equal(before, after)
    after.backward()


def test_mode_device_and_dtype_are_taken_over() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).to(torch.bfloat16).eval()
    ts.model.replace(model, "2", by=nn.Sequential(nn.Linear(3, 5), nn.Dropout()))
    ts.model.replace(model, "1", by=nn.PReLU())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(module.training for module in model.modules())
    on_meta = nn.Sequential(nn.Linear(2, 3, device="meta"))
    ts.model.replace(on_meta, "0", by=nn.Linear(2, 4, device="meta"))
    assert on_meta[0].weight.device.type == "meta"


def test_a_wrapped_old_module_keeps_its_own_modes() -> None:
    model, _ = resnet()
    model.train()
    model.layer1[0].bn1.eval()
    ts.model.replace(model, "layer1", by=lambda old: nn.Sequential(old, nn.Dropout()))
    assert not model.layer1[0][0].bn1.training and model.layer1[1].training


def test_a_shared_module_is_replaced_under_every_name() -> None:
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)})
    done = ts.model.replace(model, "b.0", by=nn.Linear(2, 2))
    assert model["a"] is model["b"][0] is not layer
    assert [name for name, _, _ in done.changed] == ["a", "b.0"]


@pytest.mark.parametrize(("build", "name"), [(gpt2, "lm_head"), (gpt2, "transformer.wte"), (t5, "shared")])
def test_a_tied_weight_is_refused_or_untied_on_request(build: Any, name: str) -> None:
    model, _ = build()
    old = model.get_submodule(name)
    new = nn.Embedding(60, 32)
    with pytest.raises(UsageError, match=rf"{name}\.weight is tied: it is the same weight as .*ties='break'"):
        ts.model.replace(model, name, by=new)
    assert model.get_submodule(name) is old
    done = ts.model.replace(model, name, by=new, ties="break")
    assert all(pair[0] == f"{name}.weight" for pair in done.untied) and done.untied
    assert "no longer tied" in str(done)
    for _, other in done.untied:
        assert model.get_parameter(other) is old.weight


def test_all_names_of_a_tie_replaced_apart_are_refused_too() -> None:
    model, _ = gpt2()
    with pytest.raises(UsageError, match="is tied"):
        ts.model.replace(model, ["lm_head", "transformer.wte"], by=lambda old: type(old)(*old.weight.shape))


def test_numbers_that_still_say_the_old_size_are_told() -> None:
    model, _ = bert()
    done = ts.model.replace(model, "classifier", by=linear(5))
    assert done.sizes == (("num_labels", 3), ("config.num_labels", 3))
    assert "still the old number of outputs: num_labels = 3" in str(done)


def test_hooks_that_go_with_the_old_module_are_told() -> None:
    model, _ = resnet()
    model.fc.register_forward_hook(lambda *_: None)
    assert ts.model.replace(model, "fc", by=linear(2)).hooks == ("fc",)


def test_a_plain_list_that_holds_the_old_module_is_refused() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.stack = [self.fc]

    with pytest.raises(UsageError, match=r"fc is also in stack, a plain list.*nn\.ModuleList"):
        ts.model.replace(Listed(), "fc", by=nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("what", "by", "message"),
    [
        ("layer1*", linear(3), "layer1 and layer1.0, which is inside it, were both chosen"),
        (nn.BatchNorm2d, nn.Identity(), r"one module was given for 15 places: bn1, .* by=lambda old"),
        ("", nn.Identity(), "the whole model was chosen"),
        ("fc", lambda old: 3, "by returned int for fc"),
        ("head", nn.Identity(), "no module of ResNet has a name like 'head'"),
    ],
)
def test_what_is_unclear_is_refused_and_nothing_changed(what: Any, by: Any, message: str) -> None:
    model, _ = resnet()
    before = [id(module) for module in model.modules()]
    with pytest.raises(UsageError, match=message):
        ts.model.replace(model, what, by=by)
    assert [id(module) for module in model.modules()] == before


UNTIED = """
import torch
from torch import nn

torch.manual_seed(0)
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(20, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.wte(x))))

model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
UNTYING
for step in range(6):
    x = torch.randint(0, 20, (4, 5))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.practice("P29")
def test_p29_an_untied_copy_is_found_by_check() -> None:
    """`truestep check` finds a tied weight that was replaced by a copy: it is in no optimizer (PAR04)."""
    copied = "model.head.weight = nn.Parameter(model.wte.weight.detach().clone())"
    told = {
        text: {
            item.rule.meta.code
            for item in evaluate_rules(
                find_rules(), run_text(UNTIED.replace("UNTYING", text)).evidence
            ).findings
        }
        for text in (copied, "")
    }
    assert "PAR04" in told[copied]
    assert "PAR04" not in told[""]
