"""The wild corpus: public training scripts, fetched at run time and set up with small data in a folder.

Owns the manifest (`wild/manifest.toml`) and how an entry becomes a folder in which the script runs unmodified
but for edits that the manifest lists (all keep line numbers). What runs there is left to the callers.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import preloaded

HERE = Path(__file__).parent / "wild"
MIRROR = "TRUESTEP_WILD_MIRROR"
"""The variable that names a folder of repositories, as owner+name/repo or owner+name.git."""
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TQDM_DISABLE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
MAX_S = 300.0
MAX_BYTES = 10_000_000
WORDS = [
    *("the", "a", "cat", "dog", "king", "queen", "river", "old", "new", "red", "sees", "finds", "takes"),
    *("loves", "and", "or", "but", "in", "on", "of", "to", "with"),
]


class CannotFetch(Exception):
    """A repository or a file of it is not to be had."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One entry of the manifest.

    `edits` replace text of the script, on one line each. `also` are further paths of the repository that it
    needs beside its own folder; `paths` are all that it needs, where the folder is too large. `write` makes
    data: path, kind, size. `folder` is where it runs (its own folder unless given).
    """

    name: str
    repository: str
    commit: str
    license: str
    path: str
    domain: str
    data: str = "none: made by the script"
    arguments: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    also: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    write: tuple[tuple[str, str, int], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    folder: str | None = None
    items: int = 256
    processes: int = 1
    blind: bool = False


def read_manifest(path: Path = HERE / "manifest.toml") -> list[Script]:
    """Return the scripts of the manifest."""
    content = tomllib.loads(path.read_text())
    sources = content["repositories"]
    return [_read_entry({**sources[entry["repository"]], **entry}) for entry in content["scripts"]]


def _read_entry(fields: dict[str, Any]) -> Script:
    for name in ("arguments", "also", "paths", "requires"):
        fields[name] = tuple(fields.get(name, ()))
    for name in ("edits", "write"):
        fields[name] = tuple(tuple(item) for item in fields.get(name, ()))
    return Script(**fields)


def choose(names: str | None, *, blind: str = "all") -> list[Script]:
    """Return the scripts whose names are listed, in that order, or all; `blind` is all, without or only."""
    scripts = read_manifest()
    if names:
        wanted = names.split(",")
        unknown = set(wanted) - {script.name for script in scripts}
        if unknown:
            raise SystemExit(f"not in the manifest: {', '.join(sorted(unknown))}")
        scripts = sorted(
            (script for script in scripts if script.name in wanted), key=lambda item: wanted.index(item.name)
        )
    return [script for script in scripts if blind == "all" or script.blind == (blind == "only")]


def git_folder(repository: str, mirror: Path) -> Path:
    """Return the git folder of a repository; clone it if it is not in the mirror."""
    name = repository.replace("/", "+")
    for path in (mirror / name / "repo" / ".git", mirror / name / "repo", mirror / f"{name}.git"):
        if (path / "objects").is_dir():
            return path
    target = mirror / f"{name}.git"
    command = ["git", "clone", "--quiet", "--bare", f"https://github.com/{repository}", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise CannotFetch(f"{repository} cannot be cloned: {done.stderr.strip()}. Put a copy into {target}")
    return target


def set_up(script: Script, folder: Path, *, mirror: Path) -> Path:
    """Put a script, what it needs and its data into a folder, and return its path there."""
    repository = folder / "repository"
    git = ["git", f"--git-dir={git_folder(script.repository, mirror)}"]
    own = str(Path(script.path).parent)
    wanted = script.paths or (own if own != "." else script.path, *script.also)
    _write_files(git, script.commit, [*wanted], repository)
    if not (repository / script.path).is_file():
        raise CannotFetch(f"{script.repository} has no {script.path} at {script.commit}")
    path = repository / script.path
    path.write_text(_edit(script, path.read_text()))
    # Transformers takes what it finds for the whole of torchvision.
    left_out = shutil.ignore_patterns(*(["torchvision"] if "transformers" in script.requires else []))
    # In a folder whose lines are not the user's.
    shutil.copytree(HERE / "standins", folder / "site-packages", ignore=left_out)
    for name, kind, size in script.write:
        target = working_folder(script, folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        MAKERS[kind](target, size)
    return path


def _write_files(git: list[str], commit: str, wanted: list[str], target: Path) -> None:
    """Write the files of a commit, without large ones and those that the copy of the repository lacks."""
    command = [*git, "ls-tree", "-r", "-z", commit, *wanted]
    listed = subprocess.run(command, capture_output=True, check=False, timeout=120)
    if listed.returncode:
        raise CannotFetch(listed.stderr.decode().strip())
    names = {}
    for line in listed.stdout.decode().split("\0")[:-1]:
        about, _, name = line.partition("\t")
        names[name] = about.split()[2]
    asked = "".join(f"{number}\n" for number in names.values()).encode()
    answer = subprocess.run(
        [*git, "cat-file", "--batch"], input=asked, capture_output=True, check=True
    ).stdout
    stream = io.BytesIO(answer)
    for name in names:
        head = stream.readline().split()
        if head[1] != b"blob":
            continue
        content = stream.read(int(head[2]) + 1)[:-1]
        if len(content) < MAX_BYTES:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)


def _edit(script: Script, text: str) -> str:
    num_lines = text.count("\n")
    for old, new in script.edits:
        if old not in text:
            raise CannotFetch(f"{script.name}: the manifest edits {old!r}, which is not in the script")
        text = text.replace(old, new)
    if text.count("\n") != num_lines:
        raise CannotFetch(f"{script.name}: an edit of the manifest changes line numbers")
    return text


def working_folder(script: Script, folder: Path) -> Path:
    """Return where the script is started."""
    return folder / "repository" / (Path(script.path).parent if script.folder is None else script.folder)


def environment_of(script: Script, folder: Path) -> dict[str, str]:
    """Return the variables that the script runs with."""
    paths = [str(folder / "site-packages"), str(folder / "repository"), os.environ.get("PYTHONPATH", "")]
    own = {"WILD_ITEMS": str(script.items), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if {"lightning", "accelerate", "transformers"} & set(script.requires):
        own["TRUESTEP_TESTS_SERVER"] = "frameworks"
    return {**os.environ, **SETTINGS, **own, "HOME": str(folder), **script.environment}


@contextmanager
def quick_starts() -> Iterator[None]:
    """Start Python as forks of one that has torch imported. Saves some seconds each time."""
    os.environ.update(SETTINGS)  # what Python and torch read as they start has to be the server's too
    with tempfile.TemporaryDirectory() as folder:
        preloaded.install(Path(folder))
        preloaded.use(Path(folder))
        try:
            yield
        finally:
            sys.executable = preloaded.REAL


def run(command: Sequence[str], script: Script, folder: Path) -> tuple[int | None, str, str]:
    """Run a command in the script's place; return its exit code (None: out of time) and what it printed."""
    process = subprocess.Popen(
        command,
        cwd=working_folder(script, folder),
        env=environment_of(script, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=MAX_S)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _end_others(folder)
        out, errors = process.communicate()
        code = None
    return code, out.decode(errors="replace"), errors.decode(errors="replace")


def _end_others(folder: Path) -> None:
    """End what a script's launcher has started in sessions of their own: they hold our pipes."""
    mark = f"HOME={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended, or is not ours


def start_bare(script: Script, path: Path) -> list[str]:
    """Return the command that runs the script alone."""
    if script.processes == 1:
        return [sys.executable, str(path), *script.arguments]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={script.processes}"]
    return [*launcher, "--standalone", str(path), *script.arguments]


def start_checked(script: Script, path: Path) -> list[str]:
    """Return the command that checks the script."""
    options = [] if script.processes == 1 else ["--processes", str(script.processes)]
    return [
        *(sys.executable, "-m", "truestep", "check", "-v", "--format", "json", *options),
        *(str(path), *script.arguments),
    ]


def _write_text(path: Path, size: int) -> None:
    draw = random.Random(size)
    lines = []
    while sum(map(len, lines)) < size:
        lines.append(" ".join(draw.choices(WORDS, k=draw.randint(3, 9))).capitalize() + ".\n")
    path.write_text("".join(lines))


def _write_names(path: Path, size: int) -> None:
    draw = random.Random(size)
    names = {"".join(draw.choice(("ka", "lo", "mi", "ne", "ru", "sa")) for _ in range(draw.randint(1, 4)))}
    while len(names) < size:
        names.add("".join(draw.choice("abdeiklmnorstu") for _ in range(draw.randint(3, 9))))
    path.write_text("\n".join(sorted(names)) + "\n")


def _write_table(path: Path, size: int) -> None:
    """Eight numbers and a label of 0 or 1 to a line."""
    draw = random.Random(size)
    rows = [[draw.uniform(-1, 1) for _ in range(8)] for _ in range(size)]
    path.write_text("".join(",".join(f"{x:.4f}" for x in [*row, float(sum(row) > 0)]) + "\n" for row in rows))


def _write_images(path: Path, size: int) -> None:
    from PIL import Image

    path.mkdir()
    for number in range(size):
        pixels = random.Random(f"{path.name}/{number}").randbytes(64 * 64 * 3)  # no two sets alike
        Image.frombytes("RGB", (64, 64), pixels).save(path / f"{number:03}.jpg")


def _write_graph(path: Path, size: int) -> None:
    """A citation graph in Cora's two files, into the folder of the path."""
    draw = random.Random(size)
    kinds = ["Theory", "Neural_Networks", "Rule_Learning", "Case_Based", "Genetic", "RL", "Probabilistic"]
    labels = [draw.randrange(7) for _ in range(size)]
    lines = []
    for number, label in enumerate(labels):
        features = [int(draw.random() < (0.6 if index % 7 == label else 0.05)) for index in range(70)]
        lines.append("\t".join(map(str, [number, *features, kinds[label]])))
    Path(f"{path}.content").write_text("\n".join(lines) + "\n")
    cites = [(draw.randrange(size), draw.randrange(size)) for _ in range(3 * size)]
    Path(f"{path}.cites").write_text("".join(f"{a}\t{b}\n" for a, b in cites if a != b))


def _write_packed_table(path: Path, size: int) -> None:
    plain = path.with_suffix("")
    _write_table(plain, size)
    path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))


def _write_tokens(path: Path, size: int) -> None:
    draw = random.Random(size)
    path.write_bytes(b"".join(draw.randrange(65).to_bytes(2, "little") for _ in range(size)))


def _write_waves(path: Path, size: int) -> None:
    import numpy as np
    import torch

    starts = np.random.default_rng(2).integers(-80, 80, (size, 1))
    torch.save(np.sin((np.arange(60) + starts) / 20), path)


def _write_labelled(path: Path, size: int) -> None:
    draw = random.Random(size)
    rows = [(" ".join(draw.choices(WORDS, k=8)), draw.randrange(2)) for _ in range(size)]
    path.write_text("sentence1,label\n" + "".join(f"{text},{label}\n" for text, label in rows))


def _write_bert(path: Path, size: int) -> None:
    """A tokenizer of whole words and a BERT of two layers, as Transformers saves them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, PreTrainedTokenizerFast

    special = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    words = [*special.values(), *WORDS, *(word.capitalize() for word in WORDS), "."]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, model_max_length=size).save_pretrained(
        path
    )
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=64, **shape)
    BertForSequenceClassification(config).save_pretrained(path)
    (path / "gpt2").mkdir()
    GPT2Config(vocab_size=len(words), n_embd=32, n_layer=2, n_head=2, n_positions=64).save_pretrained(
        path / "gpt2"
    )


def _make_folder(path: Path, _size: int) -> None:
    path.mkdir(exist_ok=True)


MAKERS = {
    "text": _write_text,
    "names": _write_names,
    "table": _write_table,
    "images": _write_images,
    "graph": _write_graph,
    "table.gz": _write_packed_table,
    "tokens": _write_tokens,
    "waves": _write_waves,
    "labelled": _write_labelled,
    "bert": _write_bert,
    "folder": _make_folder,
}
