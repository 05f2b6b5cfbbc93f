"""Claim: `truestep verify --compile` names a miscompiled module and operation, and is quiet otherwise.

Runs it on every script of benchmarks/compiled unmodified, and on copies whose first lines break torch's
compiler: a decomposition, a lowering or a pass over the graph. Right is: exactly this module and operation.
`--keep FILE` writes each row to a file, and continues from it.
Exit code: 0 every miscompilation is found with its place and no unmodified script is reported, 1 not so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent / "compiled"
MAX_S = 900
ABOVE = """\
import torch
from torch._inductor import config, decomposition, lowering

aten, decompositions, lowerings = torch.ops.aten, decomposition.decompositions, lowering.lowerings
"""


class Miscompilation(NamedTuple):
    """Lines that break the compiler, and what has to be named."""

    script: str
    module: str
    operation: str
    lines: str


MISCOMPILATIONS = {
    "gelu_by_tanh": Miscompilation(
        "perceptron",
        "1 (GELU)",
        "aten.gelu.default",
        "gelu = decompositions[aten.gelu.default]\n"
        "decompositions[aten.gelu.default] = lambda x, approximate='none': gelu(x, approximate='tanh')\n",
    ),
    "biased_running_variance": Miscompilation(
        "convnet",
        "norm1 (BatchNorm2d)",
        "aten._native_batch_norm_legit_functional.default",
        "def batch_norm(x, w, b, mean, var, training, momentum, eps):\n"
        "    out, m, s, new_mean, new_var = normal(x, w, b, mean, var, training, momentum, eps)\n"
        "    n = x.numel() / x.shape[1]\n"
        "    kept = var * (1 - momentum)\n"
        "    return out, m, s, new_mean, kept + (new_var - kept) * (n - 1) / n\n"
        "normal = decompositions[aten._native_batch_norm_legit_functional.default]\n"
        "decompositions[aten._native_batch_norm_legit_functional.default] = batch_norm\n",
    ),
    "softmax_sum": Miscompilation(
        "language_model",
        "blocks.0.attention (Attention)",
        "aten._softmax.default",
        "def softmax(x, dim, half_to_float):\n"
        "    e = torch.exp(x - torch.amax(x, dim, keepdim=True))\n"
        "    return e / (e.sum(dim, keepdim=True) + 0.01)\n"
        "decompositions[aten._softmax.default] = softmax\n",
    ),
    "sigmoid_slope": Miscompilation(
        "gated_cell",
        "cell (GatedCell)",
        "aten.sigmoid.default",
        "sigmoid = lowerings[aten.sigmoid.default]\n"
        "lowerings[aten.sigmoid.default] = lambda x: sigmoid(lowerings[aten.mul.Tensor](x, 1.004))\n",
    ),
    "leaky_relu_gradient": Miscompilation(
        "adversarial",
        "1 (LeakyReLU)",
        "aten.leaky_relu_backward.default",
        "def backward(grad, x, slope, is_result):\n"
        "    return torch.where(x > 0, grad, grad * slope * 0.95)\n"
        "decompositions[aten.leaky_relu_backward.default] = backward\n",
    ),
    "std_of_discriminator": Miscompilation(
        "adversarial",
        "spread (Spread)",
        "aten.std.correction",
        "std = decompositions[aten.std.correction]\n"
        "decompositions[aten.std.correction] = lambda x, dim=None, *, correction=1, keepdim=False: (\n"
        "    std(x, dim, correction=0, keepdim=keepdim)\n"
        ")\n",
    ),
    "bias_of_addmm": Miscompilation(
        "autoencoder",
        "encoder.0 (Linear)",
        "aten.addmm.default",
        "def addmm(bias, a, b, *, beta=1, alpha=1, **kwargs):\n"
        "    return lowerings[aten.add.Tensor](\n"
        "        lowerings[aten.mm.default](a, b), lowerings[aten.mul.Tensor](bias, 0.99)\n"
        "    )\n"
        "lowerings[aten.addmm.default] = addmm\n",
    ),
    "scale_of_dropout": Miscompilation(
        "word_bag",
        "drop (Dropout)",
        "aten.native_dropout.default",
        "def dropout(x, p, train):\n"
        "    keep = aten.bernoulli.p(x, 1 - p)\n"
        "    return keep * x * (1 + p), keep.bool()\n"
        "decompositions[aten.native_dropout.default] = dropout\n",
    ),
    "dropped_duplicates": Miscompilation(
        "recommender",
        "users (Embedding)",
        "aten.embedding_dense_backward.default",
        "def backward(grad, ids, num, padding, by_frequency):\n"
        "    grad = torch.where((ids == padding)[..., None], 0.0, grad)\n"
        "    made = grad.new_zeros(num, grad.shape[-1])\n"
        "    return torch.ops.aten.index_put(made, [ids], grad, False)\n"
        "decompositions[aten.embedding_dense_backward.default] = backward\n",
    ),
    "epsilon_of_layer_norm": Miscompilation(
        "encoder",
        "layer.norm1 (LayerNorm)",
        "aten.native_layer_norm.default",
        "def norm(x, shape, w, b, eps):\n"
        "    var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)\n"
        "    scale = 1 / (var.sqrt() + eps)\n"
        "    return (x - mean) * scale * w + b, mean, scale\n"
        "decompositions[aten.native_layer_norm.default] = norm\n",
    ),
    "padding_of_average": Miscompilation(
        "denoiser",
        "down (AvgPool2d)",
        "aten.avg_pool2d.default",
        "pool = lowerings[aten.avg_pool2d.default]\n"
        "def average(x, size, stride=(), padding=0, ceil=False, include=True, divisor=None):\n"
        "    return pool(x, size, stride, padding, ceil, True, divisor)\n"
        "lowerings[aten.avg_pool2d.default] = average\n",
    ),
    "gradient_of_gate": Miscompilation(
        "experts",
        "gate (Gate)",
        "aten._softmax_backward_data.default",
        "def backward(grad, out, dim, dtype):\n"
        "    return out * (grad - 0.98 * (grad * out).sum(dim, keepdim=True))\n"
        "decompositions[aten._softmax_backward_data.default] = backward\n",
    ),
    "dropped_epsilon": Miscompilation(
        "checkpointed",
        "blocks.0.norm (RootMeanSquare)",
        "aten.rsqrt.default",
        "def drop(graph):\n"
        "    for node in graph.nodes:\n"
        "        source = node.args[0] if node.target is aten.rsqrt.default else None\n"
        "        if source is not None and source.target is aten.add.Tensor and source.args[1] == 1e-5:\n"
        "            node.args = (source.args[0],)\n"
        "config.post_grad_custom_pre_pass = drop\n",
    ),
    "mask_of_clamp": Miscompilation(
        "flow",
        "couplings.0 (Coupling)",
        "aten.where.self",
        "def drop(graph):\n"
        "    for node in graph.find_nodes(op='call_function', target=aten.where.self):\n"
        "        other = getattr(node.args[2], 'target', None)\n"
        "        if other in (aten.full.default, aten.scalar_tensor.default):\n"
        "            node.replace_all_uses_with(node.args[1])\n"
        "config.joint_custom_post_pass = drop\n",
    ),
}


def verify(text: str) -> dict[str, Any]:
    """Run the command on a script; return what it says, and how long it took."""
    words = ["-m", "truestep", "verify", "--compile", "--runs", "1", "--format", "json", "train.py"]
    begun = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        (work / "train.py").write_text(text)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=work,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"},
            capture_output=True,
            text=True,
            check=False,
            timeout=MAX_S,
        )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"same": None, "first_difference": None, "reason": done.stderr[-2000:]}
    return {**said, "exit": done.returncode, "seconds": round(perf_counter() - begun, 1)}


def judge(name: str) -> dict[str, Any]:
    """Verify a script, broken or not, and hold the answer against what is known."""
    broken = MISCOMPILATIONS.get(name)
    text = (FOLDER / f"{broken.script if broken else name}.py").read_text()
    said = verify(f"{ABOVE}{broken.lines}{text}" if broken else text)
    found = said["first_difference"] or {}
    named = [found.get("module"), found.get("operation")]
    is_named = broken is not None and named == [broken.module, broken.operation]
    answer = {True: "same", False: "different"}.get(said["same"], "inconclusive")
    is_right = found.get("name") == "miscompiled" and is_named if broken else answer == "same"
    print(f"{name}: {'right' if is_right else 'WRONG'}, {answer} {named}", file=sys.stderr, flush=True)
    return {
        "name": name,
        "is_broken": broken is not None,
        "expected": [broken.module, broken.operation] if broken else None,
        "answer": answer,
        "named": named,
        "right": is_right,
        "evidence": found.get("evidence"),
        "stages": (said.get("compiled") or {}).get("stages"),
        "reason": said.get("reason"),
        "seconds": said["seconds"],
    }


def render(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table."""
    table = Table(title="miscompiled and unmodified scripts", title_justify="left")
    for name in ("script", "expected", "answer", "module", "operation", "s"):
        table.add_column(name)
    for row in rows:
        module, operation = (str(item or "") for item in row["named"])
        expected = ", ".join(row["expected"] or ("same",))
        answer = row["answer"] if row["right"] else f"[red]{row['answer']}[/]"
        table.add_row(row["name"], expected, answer, module, operation, str(row["seconds"]))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="miscompilations and scripts, with commas between them")
    parser.add_argument("--keep", type=Path, help="a file of rows that are done: written, and read again")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    known = [*MISCOMPILATIONS, *sorted(path.stem for path in FOLDER.glob("*.py"))]
    names = args.only.split(",") if args.only else known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such script: {', '.join(unknown)}. Choose from {', '.join(known)}")
    lines = args.keep.read_text().splitlines() if args.keep and args.keep.exists() else []
    done = {row["name"]: row for row in map(json.loads, lines)}
    for name in names:
        if name not in done:
            done[name] = judge(name)
            if args.keep:
                with args.keep.open("a") as file:
                    file.write(json.dumps(done[name]) + "\n")
    rows = [done[name] for name in names]
    broken, clean = [row for row in rows if row["is_broken"]], [row for row in rows if not row["is_broken"]]
    told = {
        "miscompilations": len(broken),
        "different": sum(row["answer"] == "different" for row in broken),
        "named_right": sum(row["right"] for row in broken),
        "unmodified": len(clean),
        "flagged": sum(row["answer"] == "different" for row in clean),
        "inconclusive": sum(row["answer"] == "inconclusive" for row in rows),
    }
    holds = all(row["right"] for row in rows)
    if args.json:
        print(json.dumps({**told, "holds": holds, "rows": rows}))
    else:
        Console().print(render(rows))
        print(", ".join(f"{name} {value}" for name, value in told.items()))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
