"""`truestep.checking()`: the same findings as the command, nothing left behind, no bit changed."""

import gc
import os
import subprocess
import sys
import threading
import types
import weakref

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import truestep
from truestep.errors import CheckFailed, UsageError


def make():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, *, is_zeroed=True, num_steps=3):
    for _ in range(num_steps):
        x = torch.randn(8, 4)
        if is_zeroed:
            optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()  # the line of the finding
        optimizer.step()


def codes(check):
    return [reported.rule.meta.code for reported in check.findings]


def entry_points():
    """All that modules and classes of torch and of Python hold, by identity."""
    found = {}
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in ("numpy", "os", "random", "threading", "torch", "multiprocessing"):
            for key, value in [*vars(module).items()] if isinstance(module, types.ModuleType) else ():
                found[name, key] = value
                if issubclass(type(value), type):
                    found |= {(name, key, inner): item for inner, item in [*vars(value).items()]}
    return found


def test_finds_what_the_command_finds():
    model, optimizer = make()
    with truestep.checking() as check:
        train(model, optimizer, is_zeroed=False)
    assert codes(check) == ["LOOP01"]
    finding = check.findings[0].finding
    assert finding.file == __file__
    assert check.has_mistakes
    text = str(check)
    assert "loss.backward()  # the line of the finding" in text
    assert "zero_grad() is missing" in text
    assert "1 error in 3 steps" in text
    with pytest.raises(CheckFailed, match="zero_grad"):
        check.raise_for_findings()


def test_correct_training_has_no_findings():
    model, optimizer = make()
    with truestep.checking() as check:
        train(model, optimizer)
    assert check.findings == []
    assert check.inconclusive is None
    assert check.num_steps == 3
    assert str(check).startswith("nothing found in 3 steps")
    check.raise_for_findings()


def test_everything_is_undone():
    model, optimizer = make()
    with truestep.checking():  # whatever is imported on the way is imported now
        train(model, optimizer)
    before = (entry_points(), [*sys.meta_path], threading.active_count())
    with truestep.checking():
        train(model, optimizer)
    after = (entry_points(), [*sys.meta_path], threading.active_count())
    changed = {
        key for key in before[0].keys() | after[0].keys() if before[0].get(key) is not after[0].get(key)
    }
    assert {key for key in changed if key[-1] != "next_id"} == set()  # torch counts its handles
    assert before[1:] == after[1:]
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.slow
def test_first_block_leaves_nothing_either():
    """In a process where nothing was imported before it."""
    code = (
        "import torch, sys\n"
        "before = {n: v for n, v in vars(torch.nn.Module).items()}, dict(vars(torch))\n"
        "import truestep\n"
        "with truestep.checking():\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "    import torch._dynamo.utils\n"
        "assert all(vars(torch.nn.Module)[n] is v for n, v in before[0].items())\n"
        "assert all(vars(torch)[n] is v for n, v in before[1].items())\n"
        "assert torch._dynamo.utils.unpatched_nn_module_call is torch.nn.Module.__call__\n"
        "assert not sys.modules['torch.optim.optimizer']._global_optimizer_post_hooks\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_bits_are_the_same_with_and_without():
    plain, optimizer = make()
    train(plain, optimizer, num_steps=12)
    state = torch.random.get_rng_state()
    checked, optimizer = make()
    with truestep.checking():
        train(checked, optimizer, num_steps=12)
    assert truestep.digest_state(plain.state_dict()) == truestep.digest_state(checked.state_dict())
    assert torch.equal(state, torch.random.get_rng_state())


def test_optimizer_with_a_scheduler_made_before_is_observed():
    model, optimizer = make()
    scheduler = StepLR(optimizer, step_size=1)
    with truestep.checking() as check:
        train(model, optimizer, is_zeroed=False)
        scheduler.step()
    assert check.num_steps == 3
    assert codes(check) == ["LOOP01"]


def test_scheduler_made_inside_keeps_no_hook():
    with truestep.checking():
        model, optimizer = make()
        StepLR(optimizer, step_size=1)
        train(model, optimizer)
    cells = [cell.cell_contents for cell in optimizer.step.__closure__]
    assert not any("truestep" in str(getattr(item, "__code__", "")) for item in cells)


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
def test_function_imported_by_name_before_the_block_is_observed(monkeypatch):
    from torch.nn.utils import clip_grad_norm_

    module = types.ModuleType("user_code")
    module.clip = clip_grad_norm_
    monkeypatch.setitem(sys.modules, "user_code", module)
    model, optimizer = make()
    with truestep.checking() as check:
        for _ in range(3):
            parameters = model.parameters()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            list(parameters)
            module.clip(parameters, 1.0)
            optimizer.step()
    assert "LOOP08" in codes(check)
    assert module.clip is clip_grad_norm_


def test_module_imported_inside_holds_no_hook(tmp_path, monkeypatch):
    (tmp_path / "imported_inside.py").write_text("from torch.nn.utils import clip_grad_norm_\n")
    monkeypatch.syspath_prepend(tmp_path)
    with truestep.checking():
        import imported_inside
    assert imported_inside.clip_grad_norm_ is torch.nn.utils.clip_grad_norm_
    sys.modules.pop("imported_inside")


def test_what_others_put_around_a_hook_stays(monkeypatch):
    model, optimizer = make()
    original = nn.Module.__call__
    called = []
    with truestep.checking():
        observed = nn.Module.__call__

        def traced(self, *args, **kwargs):
            called.append(self)
            return observed(self, *args, **kwargs)

        nn.Module.__call__ = traced
        train(model, optimizer)
    try:
        assert nn.Module.__call__ is traced
        num = len(called)
        train(model, optimizer)
        assert len(called) == num + 3
    finally:
        nn.Module.__call__ = original


def test_seeds_and_loads_before_the_block_are_not_judged():
    """Whether a generator was seeded, and weights were loaded, is not known."""
    with truestep.checking() as check:
        model = nn.Linear(4, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.01))
    assert codes(check) == []
    assert "REPRO01" in [rule.meta.code for rule in check.result.evaluation.not_observed]


def test_loader_made_before_the_block_is_observed():
    x = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    model, optimizer = make()
    with truestep.checking() as check:
        for batch, target in loader:
            (model(batch) - target).square().mean().backward()
            optimizer.step()
    assert codes(check) == ["LOOP01"]


def test_block_inside_of_a_block_is_refused_and_the_outer_goes_on():
    model, optimizer = make()
    with truestep.checking() as check:
        with pytest.raises(UsageError, match="already observed"), truestep.checking():
            pass
        train(model, optimizer)
    assert check.num_steps == 3


def test_check_is_used_once():
    check = truestep.checking()
    with pytest.raises(UsageError, match="nothing was checked yet"):
        _ = check.findings
    with check:
        pass
    with pytest.raises(UsageError, match="used before"), check:
        pass


def test_error_in_the_block_is_raised_and_ends_the_observation():
    model, optimizer = make()
    check = truestep.checking()

    def fail():
        with check:
            train(model, optimizer, is_zeroed=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert codes(check) == ["LOOP01"]
    assert "ZeroDivisionError" in check.inconclusive
    with truestep.checking() as again:
        train(model, optimizer)
    assert again.num_steps == 3


@pytest.mark.verdict("No optimizer step ran in the block, so nothing was checked.")
def test_step_that_raises_does_not_stop_the_observation():
    model, optimizer = make()

    def fail():
        raise ValueError("closure")

    with truestep.checking() as check:
        with pytest.raises(ValueError, match="closure"):
            optimizer.step(fail)
        train(model, optimizer)
    assert check.num_steps == 3
    assert check.inconclusive is None


def test_block_without_a_step_is_inconclusive():
    with truestep.checking() as check:
        torch.ones(2).sum()
    assert "No optimizer step ran in the block" in check.inconclusive
    with pytest.raises(CheckFailed, match="inconclusive"):
        check.raise_for_findings()


def test_findings_so_far_are_known_inside_of_the_block():
    model, optimizer = make()
    with truestep.checking() as check:
        train(model, optimizer)
        assert codes(check) == []
        train(model, optimizer, is_zeroed=False)
        assert codes(check) == ["LOOP01"]
    assert codes(check) == ["LOOP01"]


def test_rules_are_selected_ignored_and_suppressed_by_comments():
    model, optimizer = make()
    with truestep.checking(ignore=["LOOP01"]) as check:
        train(model, optimizer, is_zeroed=False)
    assert codes(check) == []
    with truestep.checking(select=["LOSS"]) as check:
        train(model, optimizer, is_zeroed=False)
    assert codes(check) == []
    with truestep.checking() as check:
        for _ in range(3):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()  # truestep: ignore[stale-gradients] on purpose
            optimizer.step()
    assert codes(check) == []
    assert check.result.num_hidden == 1
    with pytest.raises(UsageError, match="unknown rule"):
        truestep.checking(select=["NOPE"])
    with pytest.raises(UsageError, match="list of rules"):
        truestep.checking(ignore="LOOP01")


def test_model_and_tape_are_released():
    model, optimizer = make()
    with truestep.checking() as check:
        train(model, optimizer)
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None
    assert check.num_steps == 3


def test_code_typed_into_ipython_is_the_users_own(monkeypatch):
    import linecache

    name = "<ipython-input-3-abc>"
    lines = "for _ in range(3):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
    monkeypatch.setitem(linecache.cache, name, (len(lines), None, lines.splitlines(True), name))
    model, optimizer = make()
    with truestep.checking() as check:
        exec(compile(lines, name, "exec"), {"torch": torch, "model": model, "optimizer": optimizer})
    assert codes(check)[0] == "LOOP01"
    assert (check.findings[0].finding.file, check.findings[0].finding.line) == (name, 2)
    assert "sum().backward()" in str(check)


def test_forked_child_observes_nothing():
    model, optimizer = make()
    with truestep.checking() as check:
        train(model, optimizer)
        pid = os.fork()
        if not pid:
            train(model, optimizer, is_zeroed=False)
            os._exit(0)
        os.waitpid(pid, 0)
    assert codes(check) == []
    assert check.num_steps == 3
