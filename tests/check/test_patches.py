"""A patch that is shown was tried or is provably local; all others are tested by `--fix`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = str(Path(sys.executable).with_name("truestep"))
HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
EVALUATED_IN_THE_EPOCH = """\
X = torch.randn(300, 6)
Y = (X[:, 0] > 0).long()
net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(.5), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), 1e-2)
XV = X[200:]
for epoch in range(6):
    for i in torch.randperm(200).split(25):
        opt.zero_grad()
        nn.functional.cross_entropy(net(X[i]), Y[i]).backward()
        opt.step()
    with torch.no_grad():
        acc = (net(XV).argmax(1) == Y[200:]).float().mean().item()
"""
ONE_LINE = """\
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), .01)
for i in range(10): x = torch.randn(8, 4); l = (m(x) - x.sum()).square().mean(); l.backward(); o.step()
"""
TWO_OPTIMIZERS = """\
a = nn.Linear(4, 4); b = nn.Linear(4, 1)
both = [torch.optim.SGD(net.parameters(), .01) for net in (a, b)]
class Trainer:
    def fit(self):
        for i in range(10):
            x = torch.randn(8, 4)
            loss = (b(a(x)) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            for o in both:
                o.step()
Trainer().fit()
"""
DRAWN_AGAIN = """\
X = torch.randn(400, 2)
Y = ((X[:, 0] * X[:, 1]) > 0).long()
pool = torch.arange(32, 300)
for rnd in range(4):
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(.3), nn.Linear(32, 2))
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    net.train()
    for ep in range(8):
        for i in torch.randperm(32).split(16):
            opt.zero_grad()
            nn.functional.cross_entropy(net(X[i]), Y[i]).backward()
            opt.step()
    net.eval()
    with torch.no_grad():
        acc = (net(X[300:]).argmax(1) == Y[300:]).float().mean().item()
    net.train()
    with torch.no_grad():
        p = torch.stack([net(X[pool]).softmax(1) for _ in range(8)]).mean(0)
    pool = pool[p.max(1).values.topk(len(pool) - 16, largest=False).indices]
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "check", "-q", *words, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)


def answer(folder: Path, text: str, *words: str) -> dict[str, Any]:
    (folder / "train.py").write_text(HEAD + text)
    fields: dict[str, Any] = json.loads(run(folder, "--format", "json", *words).stdout)
    return fields


def codes(fields: dict[str, Any]) -> list[str]:
    return [item["code"] for item in fields["findings"] if item["severity"] != "info"]


def test_monte_carlo_dropout_on_new_tensors_is_meant(tmp_path: Path) -> None:
    assert codes(answer(tmp_path, DRAWN_AGAIN)) == []
    each = DRAWN_AGAIN.replace("X[pool]).softmax(1) for _ in range(8)", "X[j]).softmax(0) for j in pool")
    assert codes(answer(tmp_path, each)) == ["MODE01"], "each input once: an evaluation"


def test_a_patch_that_switches_modes_is_not_shown_and_is_tested(tmp_path: Path) -> None:
    fields = answer(tmp_path, EVALUATED_IN_THE_EPOCH)
    assert codes(fields) == ["MODE01"] and fields["diff"] == ""
    done = run(tmp_path, "--format", "diff")
    assert done.stdout == ""
    assert "--fix has untested edits for MODE01 at train.py:14" in done.stderr
    assert run(tmp_path, "--fix").returncode == 0
    text = (tmp_path / "train.py").read_text()
    assert "        opt.step()\n    net.eval()\n    with torch.no_grad():\n" in text
    assert text.endswith("    net.train()\n")


def test_a_loop_of_one_line_gets_the_statement_inside_it(tmp_path: Path) -> None:
    fields = answer(tmp_path, ONE_LINE)
    assert codes(fields) == ["LOOP01"] and "o.zero_grad(); l.backward(); o.step()" in fields["diff"]
    assert run(tmp_path, "--fix").returncode == 0


def test_an_optimizer_without_a_name_before_the_pass_is_zeroed_after_its_step(tmp_path: Path) -> None:
    fields = answer(tmp_path, TWO_OPTIMIZERS)
    assert codes(fields) == ["LOOP01"] and fields["diff"] == ""
    assert run(tmp_path, "--fix").returncode == 0
    text = (tmp_path / "train.py").read_text()
    assert "                o.step()\n                o.zero_grad()\n" in text


def test_only_files_under_the_folder_of_the_script_are_edited(tmp_path: Path) -> None:
    inner, shared = tmp_path / "inner", tmp_path / "shared.py"
    inner.mkdir()
    body = "".join(f"    {line}\n" for line in (HEAD + ONE_LINE).splitlines())
    shared.write_text("def main():\n" + body)
    text = "import sys\nsys.path.insert(0, '..')\nfrom shared import main\nmain()\n"
    (inner / "train.py").write_text(text)
    fields = json.loads(run(inner, "--format", "json").stdout)
    assert codes(fields) == ["LOOP01"] and fields["diff"] == ""
    before = shared.read_text()
    assert run(inner, "--fix").returncode == 1
    assert shared.read_text() == before


ACCUMULATED = """\
a = nn.Linear(4, 4); b = nn.Linear(4, 4)
oa, ob = (torch.optim.SGD(net.parameters(), 1e-3) for net in (a, b))
for i in range(2400):
    x = torch.randn(8, 4)
    (b(a(x)) - x).square().mean().div(4).backward()
    if i % 4 == 3:
        oa.step()
        ob.step()
"""


def test_each_optimizer_is_zeroed_after_its_step_if_gradients_are_accumulated(tmp_path: Path) -> None:
    fields = answer(tmp_path, ACCUMULATED)
    assert codes(fields) == ["LOOP01"]
    added = [line for line in fields["diff"].splitlines() if line.startswith("+ ")]
    assert added == ["+        oa.zero_grad()", "+        ob.zero_grad()"], fields["diff"]
    assert run(tmp_path, "--fix").returncode == 0


@pytest.mark.parametrize("option", ["--fix", "--fix-all"])
def test_remarks_are_edited_only_on_request(tmp_path: Path, option: str) -> None:
    unsorted = "places = {word: at for at, word in enumerate(set('a b c'.split()))}\n"
    head = HEAD.replace("torch.manual_seed(0)\n", unsorted)
    text = head + ONE_LINE.replace("l.backward()", "o.zero_grad(); l.backward()")
    (tmp_path / "train.py").write_text(text)
    done = run(tmp_path, option)
    assert done.returncode == 0 and ("REPRO02" in done.stdout) is (option == "--fix"), done.stdout
    is_edited = (tmp_path / "train.py").read_text() != text
    assert is_edited is (option == "--fix-all"), done.stdout + done.stderr


TWO_CAUSES = """\
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
for epoch in range(4):
    for _ in range(8):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        scheduler.step()
        optimizer.step()
"""


def test_a_scheduler_in_the_wrong_loop_is_no_consequence_of_its_order(tmp_path: Path) -> None:
    """With the order fixed, the wrong loop is still reported."""
    assert codes(answer(tmp_path, TWO_CAUSES)) == ["LOOP10", "LOOP09"]
    swapped = "        optimizer.step()\n        scheduler.step()\n"
    fixed = TWO_CAUSES.replace("        scheduler.step()\n        optimizer.step()\n", swapped)
    assert codes(answer(tmp_path, fixed)) == ["LOOP09"]
