"""All dropout of a model, set at once."""

import pytest
import torch
from torch import Tensor, nn

import truestep as ts
from tests.zoo import ZOO, bert, lstm, resnet, t5
from truestep.errors import UsageError


def outputs(model: nn.Module, inputs: dict[str, Tensor], seed: int) -> Tensor:
    torch.manual_seed(seed)
    output = model(**inputs)
    return output if isinstance(output, Tensor) else output.logits


@pytest.mark.practice("P31")
@pytest.mark.parametrize("name", [name for name in ZOO if name != "resnet"])
def test_p31_dropout_zero_makes_training_mode_deterministic(name: str) -> None:
    """With `set_dropout(model, 0.0)` train mode gives the same bits for every seed, as eval mode does."""
    model, inputs = ZOO[name]()
    assert not torch.equal(outputs(model, inputs, 1), outputs(model, inputs, 2))
    ts.model.set_dropout(model, 0.0)
    plain = outputs(model, inputs, 1)
    assert torch.equal(plain, outputs(model, inputs, 2))
    assert torch.equal(plain, outputs(model.eval(), inputs, 3))


@pytest.mark.practice("P31")
@pytest.mark.parametrize("build", [lstm, t5])
def test_p31_setting_only_dropout_layers_misses_some(build: object) -> None:
    """Setting `p` of every `nn.Dropout`, as is widely copied, misses dropout that layers hold as a number."""
    model, inputs = build()  # type: ignore[operator]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert not torch.equal(outputs(model, inputs, 1), outputs(model, inputs, 2))
    left = ts.model.set_dropout(model, 0.0)
    assert {was for name, was in left.changed if name.endswith(".dropout") and was} == {0.1}
    assert torch.equal(outputs(model, inputs, 1), outputs(model, inputs, 2))


def test_attention_and_recurrent_layers_of_torch_are_set() -> None:
    model = nn.ModuleDict(
        {
            "encoder": nn.TransformerEncoderLayer(8, 2, dropout=0.1),
            "gru": nn.GRU(4, 4, num_layers=2, dropout=0.2),
            "alpha": nn.AlphaDropout(0.3),
            "two": nn.Dropout2d(0.4),
        }
    )
    done = ts.model.set_dropout(model, 0.5)
    names = [name for name, _ in done.changed]
    assert "encoder.self_attn.dropout" in names and "gru.dropout" in names and "alpha" in names
    assert model["encoder"].self_attn.dropout == model["gru"].dropout == model["two"].p == 0.5
    assert done.left == ()


@pytest.mark.parametrize("name", ZOO)
def test_a_block_gives_everything_back_also_after_an_error(name: str) -> None:
    model, _ = ZOO[name]()
    before = repr(model)
    done = ts.model.set_dropout(model, 0.9)
    assert all(was != 0.9 for _, was in done.changed) and (repr(model) != before) == bool(done.changed)
    with pytest.raises(KeyError), done:
        raise KeyError
    assert repr(model) == before
    assert all(p != 0.9 for _, p in ts.model.set_dropout(model, 0.9).changed)


def test_only_the_named_part_is_set() -> None:
    model, _ = bert()
    done = ts.model.set_dropout(model, 0.3, what="bert.encoder.layer.1")
    assert len(done.changed) == 3 and all(name.startswith("bert.encoder.layer.1") for name, _ in done.changed)
    assert model.dropout.p == 0.1
    with pytest.raises(UsageError, match="a name like 'encoder'"):
        ts.model.set_dropout(model, 0.3, what="encoder")


def test_what_only_looks_like_dropout_is_left_and_told() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop_path_rate = 0.1
            self.layerdrop = 0.2
            self.drop_last = True
            self.rnn = nn.RNN(2, 2)

    model = Deep()
    done = ts.model.set_dropout(model, 0.5)
    assert done.changed == ()
    assert [name for name, _ in done.left] == ["drop_path_rate", "layerdrop", "rnn.dropout"]
    assert (model.drop_path_rate, model.layerdrop, model.rnn.dropout) == (0.1, 0.2, 0.0)
    assert "no dropout was found" in str(done) and "unchanged (may drop more" in str(done)
    assert ("config.hidden_dropout_prob" in dict(ts.model.set_dropout(bert()[0], 0.2).left)) is True


@pytest.mark.parametrize("config", [{"hidden_dropout": 0.1, 3: 0.2}, "base", ("a", 0.1)])
def test_a_configuration_may_be_a_mapping_or_anything_else(config: object) -> None:
    model = nn.Sequential(nn.Dropout(0.1))
    model.config = config
    done = ts.model.set_dropout(model, 0.2)
    assert done.changed == (("0", 0.1),)
    assert [name for name, _ in done.left] == (["config.hidden_dropout"] if isinstance(config, dict) else [])


def test_patterns_may_come_from_an_iterator() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.1))
    assert ts.model.set_dropout(model, 0.2, what=iter(["1"])).changed == (("1", 0.1),)


def test_the_table_tells_kinds_numbers_and_values() -> None:
    text = str(ts.model.set_dropout(t5()[0], 0.25))
    assert [line.split()[:4] for line in text.splitlines()[2:4]] == [
        ["T5Attention.dropout", "6", "0.1", "0.25"],
        ["Dropout", "16", "0.1", "0.25"],
    ]


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(UsageError, match=f"p is a probability, got p={p}"):
        ts.model.set_dropout(resnet()[0], p)
