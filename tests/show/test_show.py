"""`truestep show`: values stand at their lines, facts are true, and the script notices nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from truestep.show import Listing, ShowOptions, find_other, show_both, show_script
from truestep.show.page import render_page
from truestep.show.text import Selection, compared_words, render
from truestep.show.why import explain_line
from truestep.watch import Script

TRAIN = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
X = torch.rand(128, 4) * 255
y = (X.mean(1) > 128).float()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        h = F.relu(x)
        return self.fc(h)


def augment(x, seed=0):
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=g)
    return x + 0.1 * noise


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=1e-6)
for epoch in range(10):
    for i in range(0, 128, 32):
        xb, yb = augment(X[i : i + 32]), y[i : i + 32]
        pred = net(xb)
        loss = F.binary_cross_entropy_with_logits(pred, yb[:, None])
        err = pred - yb
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        acc = ((net(X).squeeze(1) > 0) == (y > 0.5)).float().mean()
print(f"{loss.item():.10f} {torch.rand(1).item():.10f}")
"""


def listed(folder: Path, source: str = TRAIN, **options: Any) -> Listing:
    path = folder / "train.py"
    path.write_text(source)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return show_script(Script(path=str(path)), options=ShowOptions(**quiet, **options))


def value_at(listing: Listing, text: str, name: str) -> Any:
    row = next(row for row in listing.files[0].rows if text in row.source)
    return next(value for value in row.values if value.label == name)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Listing:
    return listed(tmp_path_factory.mktemp("show"))


def test_values_stand_at_the_lines_that_named_them(shown: Listing) -> None:
    assert value_at(shown, "xb, yb", "xb").kind == "f32 32\u00d74"
    assert value_at(shown, "yb = aug", "yb").kind == "f32 32"
    assert value_at(shown, "def forward", "x").kind == "f32 32\u00d74"
    assert value_at(shown, "return self.fc", "returns").kind == "f32 32\u00d71 grad"
    assert value_at(shown, "err = pred", "err").kind == "f32 32\u00d732 grad"
    assert value_at(shown, "net = Net()", "net").first == "5 parameters, train mode"
    assert value_at(shown, "for epoch", "epoch").first == "0"
    assert value_at(shown, "opt.step()", "lr").first == "1e-06"
    assert float(value_at(shown, "loss.backward()", "‖grad‖ fc").first) > 0
    assert value_at(shown, "acc =", "acc").kind == "f32 scalar"


def test_a_draw_that_never_varies_is_named_and_one_that_varies_is_not(shown: Listing, tmp_path: Path) -> None:
    assert "the same at each call" in value_at(shown, "noise =", "noise").facts
    other = listed(tmp_path, TRAIN.replace(".manual_seed(seed)", ""))
    assert (
        "the same at each call" in value_at(other, "noise =", "noise").facts
    )  # a new generator has one seed
    fixed = listed(tmp_path, TRAIN.replace(", generator=g", ""))
    assert "the same at each call" not in value_at(fixed, "noise =", "noise").facts


def test_only_a_value_that_no_loss_uses_never_reaches_one(shown: Listing, tmp_path: Path) -> None:
    assert "never reaches a loss" in value_at(shown, "err =", "err").facts
    assert "never reaches a loss" not in value_at(shown, "pred = ", "pred").facts
    used = listed(
        tmp_path,
        TRAIN.replace(
            "        opt.zero_grad()", "        loss = loss + 0 * err.mean()\n        opt.zero_grad()"
        ),
    )
    assert "never reaches a loss" not in value_at(used, "err = pred", "err").facts


def test_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    listing = listed(tmp_path, TRAIN.replace("h = F.relu(x)", "h = x / 0"))
    assert "not finite" in value_at(listing, "h = x / 0", "h").facts


OVERRIDDEN = """
import torch
from torch import nn

class Counted(torch.Tensor):
    count = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counted.count += 1
        return super().__torch_function__(func, types, args, kwargs or {})

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        h = self.layer(x)
        if h.sum().item() > 1e9:
            print("never")
        return h

torch.manual_seed(0)
net, x = Net(), torch.randn(64, 8)
compiled = torch.compile(net, backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    batch = x[: 32 if step % 2 else 17]
    kept = (batch.as_subclass(Counted) * 2).sum()
    loss = compiled(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item().hex(), Counted.count, torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.parametrize(("source", "steps"), [(TRAIN, 40), (OVERRIDDEN, 6)], ids=["loop", "overridden"])
def test_output_bits_draws_and_compiled_graphs_are_those_of_the_bare_script(
    tmp_path: Path, source: str, steps: int
) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    bare = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-m", "truestep", "show", "--format", "json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bare in done.stderr
    assert json.loads(done.stdout)["steps"] == steps


def test_the_time_of_a_step_is_that_of_steps_whose_lines_are_not_followed(tmp_path: Path) -> None:
    loop = (
        "import torch\nnet = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    )
    loop += "for step in range({}):\n    for _ in range(200):\n        a = _\n"
    loop += "    loss = net(torch.randn(8, 4)).square().mean()\n    optimizer.zero_grad()\n"
    loop += "    loss.backward()\n    optimizer.step()\n"
    assert listed(tmp_path, loop.format(16)).phases == {}
    assert listed(tmp_path, loop.format(100)).phases["other"] < 0.5


def test_later_epochs_and_evaluations_are_seen(shown: Listing) -> None:
    assert value_at(shown, "for epoch", "epoch").last not in ("0", "3")
    assert next(row for row in shown.files[0].rows if "acc =" in row.source).count >= 4


def test_tracing_ends_with_the_windows(tmp_path: Path) -> None:
    ending = TRAIN + "import sys\nprint(sys.gettrace(), file=open('traced', 'w'))\n"
    path = tmp_path / "train.py"
    path.write_text(ending.replace("'traced'", repr(str(tmp_path / "traced"))))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    listing = show_script(Script(path=str(path)), options=ShowOptions(**quiet))
    assert listing.num_steps == 40
    assert (tmp_path / "traced").read_text().strip() == "None"


def test_a_script_that_fails_is_listed_up_to_its_error(tmp_path: Path) -> None:
    listing = listed(tmp_path, TRAIN.replace("err = pred - yb", "err = pred - nothing"))
    assert listing.ended == "raised"
    assert "nothing" in str(listing.error)
    assert value_at(listing, "pred = net", "pred").kind == "f32 32\u00d71 grad"
    assert "The script failed: NameError" in render_page(listing, title="train.py")


@pytest.mark.cold
def test_a_script_without_torch_is_inconclusive(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("print(1)\n")
    command = [sys.executable, "-m", "truestep", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "inconclusive: no line was followed" in done.stdout


def test_the_step_is_printed_within_the_width(shown: Listing) -> None:
    lines = [
        "".join(part if isinstance(part, str) else part[0] for part in parts)
        for parts in render(shown, selection=Selection(), width=100)
    ]
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 100
    assert "loss.backward()" in text and "def forward" in text
    assert "import torch" not in text


def test_why_names_the_lines_that_lead_to_a_value(shown: Listing) -> None:
    number = next(row.number for row in shown.files[0].rows if "err = pred" in row.source)
    text = "\n".join(str(parts) for parts in explain_line(shown, number, width=100))
    before, _, after = text.partition("goes to")
    assert "pred = net(xb)" in before and "xb, yb = augment" in before and "y = (X.mean" in before
    assert "loss = F" not in text and "opt.step" not in after


def test_nothing_of_the_script_can_run_in_the_page(tmp_path: Path) -> None:
    listing = listed(
        tmp_path,
        TRAIN.replace("torch.manual_seed(0)", "torch.manual_seed(0)\nnote = '<script>alert(1)</script>'"),
    )
    page = render_page(listing, title="<b>")
    assert page.count("<script>") == 1
    assert "<title>&lt;b&gt;" in page


def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, *, now: str, before: str = TRAIN) -> Listing:
    monkeypatch.chdir(folder)
    (folder / "before.py").write_text(before)
    (folder / "train.py").write_text(now)
    script = Script(path="train.py")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options = ShowOptions(steps=10, **quiet)
    return show_both(script, find_other(script, word="before.py"), options=options)


def test_the_first_value_that_differs_from_another_script_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = TRAIN.replace("        h = F.relu(x)", "        h = F.relu(x)\n        h = h * 2")
    listing = compared(tmp_path, monkeypatch, now=changed.replace("lr=1e-6", "lr=1e-3"))
    found = listing.first_difference
    assert found is not None
    assert (
        found.value.label == "returns"
        and listing.files[0].row(found.line).source.strip() == "return self.fc(h)"
    )
    assert not value_at(listing, "xb, yb =", "xb").differs
    assert next(row for row in listing.files[0].rows if "h = h * 2" in row.source).is_new
    assert "lr=1e-6" in next(row for row in listing.files[0].rows if "lr=1e-3" in row.source).gone[0].source
    words = compared_words(listing)
    assert "first difference: " in words and "train.py:18 returns: f32 32" in words and "before.py" in words
    assert {path.name for path in tmp_path.iterdir()} == {"before.py", "train.py"}


@pytest.mark.parametrize(("changed", "differs"), [(False, False), (True, True)])
def test_a_script_that_computes_the_same_has_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool, differs: bool
) -> None:
    now = TRAIN.replace("opt.zero_grad()", "opt.zero_grad(set_to_none=False)") if changed else TRAIN
    listing = compared(tmp_path, monkeypatch, now=now)
    assert listing.first_difference is None
    start = "lines differ from" if differs else "no line and no recorded value differs from"
    assert compared_words(listing).startswith(start)
    assert any(row.differs for row in listing.files[0].rows) is differs


def test_a_commit_is_compared_with_the_working_tree(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "train.py").write_text(TRAIN)
    git = ["git", "-c", "user.email=a@example.com", "-c", "user.name=a"]
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "one"]):
        assert run(*git, *words).returncode == 0
    (tmp_path / "train.py").write_text(TRAIN.replace("lr=1e-6", "lr=1e-3"))
    command = [sys.executable, "-m", "truestep", "show", "--against", "HEAD", "--steps", "10"]
    done = run(*command, "--format", "json", "train.py")
    answer = json.loads(done.stdout)
    assert answer["first_difference"]["name"] == "update/weight", done.stderr
    assert answer["first_difference"]["file"] == str(tmp_path / "train.py")
    refused = run(*command, "train.py", "--against")
    assert refused.returncode == 0  # an argument of the script's
    assert "neither a file nor a commit" in run(*command[:-3], "nothing", "train.py").stderr


def test_findings_of_check_stand_at_their_lines_in_the_page_of_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("        opt.zero_grad()\n", ""))
    command = [sys.executable, "-m", "truestep", "check", "-q", "--show", "page.html", "--format", "json"]
    done = subprocess.run([*command, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = next(item for item in json.loads(done.stdout)["findings"] if item["code"] == "LOOP01")
    page = (tmp_path / "page.html").read_text()
    row = page.partition(f'id="L{found["line"]}">')[2].partition("</tr>")[0]
    assert "zero_grad() is missing" in row and "LOOP01" in row and "\u2016grad\u2016" in row
    assert page.count("LOOP01") == 1
    refused = subprocess.run(
        [*command, "--fix", "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2 and "--show is for one run" in refused.stderr
