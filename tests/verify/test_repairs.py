"""What is printed to repair a resume: lines that run, and that are measured against the other tools."""

import inspect
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.verify.asking import ask
from truestep.verify import lines, repairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOOPS = {"bare": "bare_repaired", "lightning": "lightning", "accelerate": "accelerate"}
TRAIN = """\
from pathlib import Path
import torch
from torch.utils.data import DataLoader

SEED, BATCH, step = 3, 4, 0
torch.set_num_threads(1)
torch.manual_seed(SEED)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((4,), float(index)) + torch.randn(4)


dataset = Rows()
loader = DataLoader(dataset, shuffle=True, batch_size=BATCH)
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
if Path("last.pt").exists():
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    step = state["step"]
    pass  # RESUME
while step < 18:
    for rows in loader:
        pass  # STEP
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            torch.save({"model": model.state_dict(), "step": step}, "SAVED")
            RENAME
"""
IN_PLACE = TRAIN.replace("SAVED", "last.pt").replace("            RENAME\n", "")
ATOMIC = TRAIN.replace("SAVED", "new.pt").replace("RENAME", 'Path("new.pt").replace("last.pt")')


def repaired(text: str, lines: list[str]) -> str:
    """Apply printed lines as they say: three kinds of places, by what a line says of itself."""
    skip = next(line for line in lines if line.startswith("order.skip"))
    seed = next(line for line in lines if line.startswith("torch.manual_seed"))
    loader = "\n".join(line for line in lines if line not in (skip, seed))
    text = text.replace("loader = DataLoader(dataset, shuffle=True, batch_size=BATCH)", loader)
    return text.replace("pass  # RESUME", skip).replace("pass  # STEP", seed)


@pytest.mark.slow
def test_the_printed_lines_make_a_resume_exact_and_a_torn_save_is_told(tmp_path: Path) -> None:
    said = ask(tmp_path, IN_PLACE, "--kill")
    assert said["same"] is False, said
    lines = said["first_difference"]["repair"]
    assert any("the dataset draws" in text for text in said["first_difference"]["evidence"])
    after = ask(tmp_path, repaired(IN_PLACE, lines), "--kill")
    assert after["same"] is True, after
    assert after["resume"]["after_step"] == 8
    assert after["resume"]["seconds"] > 0
    torn = after["resume"]["torn_save"]
    assert torn["file"] == str(tmp_path / "train.py")
    assert (torn["path"], torn["how"].startswith("fails: ")) == ("last.pt", True), torn
    assert ask(tmp_path, repaired(ATOMIC, lines), "--kill")["resume"]["torn_save"] is None


@pytest.mark.parametrize("framework", get_args(repairs.Framework))
def test_every_word_of_a_repair_is_in_the_loop_that_is_measured(framework: repairs.Framework) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import peers_loops
    finally:
        sys.path.remove(str(BENCHMARKS))
    source = inspect.getsource(getattr(peers_loops, LOOPS.get(framework, "hf_trainer")))
    lines = repairs.data_lines(framework, ("order", "samples", "step"))
    code = " ".join(line.partition("  #")[0] for line in lines if not line.startswith("from "))
    # What it is called in the loop, and how the loop gives options.
    words = {*re.findall(r"\w+", code)} - {"step", "num_skipped", "config", "dataloader_config", "True"}
    assert words - {*re.findall(r"\w+", source)} <= {"dataset"}


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import lightning as L\nL.Trainer()", "lightning"),
        ("from lightning.fabric import Fabric", "bare"),
        ("from pytorch_lightning import Trainer", "lightning"),
        ("from transformers import AutoModel", "bare"),
        ("from transformers import (\n    AutoModel,\n    Trainer,\n)", "transformers"),
        ("from accelerate import Accelerator", "accelerate"),
        ("import torch", "bare"),
    ],
)
def test_the_framework_is_the_one_whose_loop_is_used(tmp_path: Path, text: str, framework: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert repairs.framework_of([str(tmp_path / "missing.py"), str(tmp_path / "train.py")]) == framework


def test_state_is_saved_and_loaded_in_the_words_of_the_framework() -> None:
    saving, loading = repairs.state_lines("bare", "kept-state-not-saved", names=["ema.weight", "ema.bias"])
    assert saving.startswith('state["ema"] = ema.state_dict()')
    assert loading.startswith('ema.load_state_dict(state["ema"])')
    assert repairs.state_lines("bare", "optimizer-not-saved")[0].startswith('state["optimizer"]')
    (line,) = repairs.state_lines("accelerate", "kept-state-not-saved", names=["teacher.0.weight"])
    assert line.startswith("accelerator.register_for_checkpointing(teacher)")
    assert repairs.state_lines("bare", "state-not-saved") == ()


def test_a_generator_is_saved_in_the_words_of_the_script() -> None:
    names = ["generator random", "rng", "scaler", "best"]
    kinds = {"generator random": "Random", "rng": "numpy Generator", "scaler": "scaler", "best": "variable"}
    found = repairs.state_lines(
        "bare", "generator-not-saved", names=names, kinds=kinds, saved="c", loaded="d"
    )
    assert [line.partition("  #")[0] for line in found] == [
        'c["random"] = random.getstate()',
        'random.setstate(d["random"])',
        'c["rng"] = rng.bit_generator.state',
        'rng.bit_generator.state = d["rng"]',
        'c["scaler"] = scaler.state_dict()',
        'scaler.load_state_dict(d["scaler"])',
        'c["best"] = best',
        'best = d["best"]',
    ]


def test_the_checkpoint_is_called_as_in_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("blob = torch.load(FILE)\nif done:\n    torch.save(kept, FILE)\ntorch.save({}, FILE)\n")
    assert lines.loaded_name(str(path), 1) == "blob" and lines.loaded_name(str(path), 3) is None
    assert lines.saved_name(str(path), 3) == "kept" and lines.saved_name(str(path), 4) is None


LOADERS = """\
pl.seed_everything(args.seed)
rows = Rows()
held_out = DataLoader(dataset=other, batch_size=64)
train_rows = DataLoader(rows, args.size, shuffle=True)
for batch in train_rows:
    pass
for batch in both:
    pass
"""


def test_a_repair_has_the_names_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOADERS)
    words = lines.loader_words(str(path), 5)
    assert words == {"SEED": "args.seed", "BATCH": "args.size", "dataset": "rows", "loader": "train_rows"}
    assert lines.loader_words(str(path), 7) == {"SEED": "args.seed"}, "which of the two is not known"
    told = repairs.data_lines("bare", ["order"], words=words)
    assert [line.partition("  #")[0] for line in told[1:5]] == [
        "order = SeededOrder(len(rows), seed=args.seed)",
        "samples = SeededSamples(rows, seed=args.seed)",
        "train_rows = DataLoader(samples, sampler=order, batch_size=args.size)",
        "order.skip(batches=step, batch_size=args.size)",
    ]
    path.write_text("loader = DataLoader(Rows(16), batch_size=4)\nfor rows in loader:\n    pass\n")
    assert lines.loader_words(str(path), 2) == {"BATCH": "4", "loader": "loader"}
