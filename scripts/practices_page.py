"""The page of practices on the site: every practice, and the tests that show it.

A test shows a practice by `@pytest.mark.practice("P25")`; the sentence in its docstring is what it shows.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
INTRODUCTION = """\
# Practices

People who train with PyTorch keep notes of the same
practices and copy them from project to project. This page lists each with the tests that show that truestep
follows it, finds violations of it, or explains it. "Not shown yet" means that no test covers it.
"""
FAMILIES = {
    "Environment": {
        "P01": "Know the versions of torch, CUDA, driver, cuDNN and devices, and whether they match",
        "P02": "Distinguish the CUDA version of the driver, of the toolkit and of torch's build",
        "P03": "Quantization packages that match the CUDA build",
        "P04": "`CUDA_VISIBLE_DEVICES` set before CUDA starts",
        "P05": "One device, chosen once by what is available",
        "P06": "Companion packages that are installed and match",
    },
    "Tensors": {
        "P07": "`view` never copies, `reshape` may, `contiguous` copies only when needed",
        "P08": "A view shares memory: writing to one changes the other",
        "P09": "`b = a` does not copy; `clone()` does",
        "P10": "NumPy arrays and tensors made from each other share memory",
        "P11": "Which axis a reduction removes, and what `keepdim` keeps",
        "P12": "Broadcasting, and where it happens silently",
        "P13": "Joining, repeating, transposing, distances: shape in, shape out",
        "P14": "NaN: masks, means without them, and where the first came from",
        "P15": "Tensors made on their device, in their dtype",
        "P16": "Which constructors copy, share, or leave memory uninitialized",
    },
    "Autograd": {
        "P17": "Gradients add up until they are zeroed",
        "P18": "No graph where nothing is learned",
        "P19": "A stored loss keeps its graph, and memory grows",
        "P20": "`detach()`, not `.data`",
        "P21": "A custom backward agrees with finite differences",
        "P22": "Gradients of values inside the model, without editing it",
        "P23": "Vector-Jacobian products: outputs that are not scalars need a gradient",
    },
    "Models": {
        "P24": "Modules and parameters registered, other state in buffers",
        "P25": "Freezing by name, out of the optimizer, statistics of BatchNorm too",
        "P26": "Replacing a layer by name, without losing what `forward` does",
        "P27": "Counting parameters, all and trainable",
        "P28": "Initializing by scheme, and activations that neither vanish nor explode",
        "P29": "Tied weights that stay tied",
        "P30": "Train and eval mode where they belong",
        "P31": "Changing dropout across a model",
        "P32": "Reading activations and gradients, leaving no hook behind",
        "P33": "Pictures of what layers respond to",
        "P34": "Averaging over augmented copies at test time",
        "P35": "Partial and renamed checkpoints: what was loaded, skipped, left at random",
        "P36": "Walking, indexing and naming modules; what a call does",
    },
    "Data": {
        "P37": "Map-style and iterable datasets, transforms composed",
        "P38": "A split made once, reproducible, with no sample in two parts",
        "P39": "A new order each epoch, decided by the seed alone",
        "P40": "The number of workers, measured",
        "P41": "Separate seeds for every worker",
        "P42": "Pinned memory, prefetching, copies that do not block",
        "P43": "Padding: to the batch's longest, masked in the loss",
        "P44": "Batches of any structure, moved whole",
        "P45": "The largest batch that fits, found rather than guessed",
    },
    "Loss and optimization": {
        "P46": "Losses with the inputs they expect: logits, log-probabilities, labels",
        "P47": "Means over uneven parts, with the right weights",
        "P48": "Accumulated gradients equal those of the large batch",
        "P49": "Clipping after unscaling and before the step",
        "P50": "No weight decay on biases and normalization weights",
        "P51": "An optimizer that holds the model's parameters, all and once",
        "P52": "`zero_grad`, `backward`, `step`, `scheduler.step` in order",
        "P53": "Losses from inside or outside the model, and no error swallowed",
    },
    "Checkpoints": {
        "P54": "Everything training needs in one checkpoint",
        "P55": "Loading onto another device",
        "P56": "No pickled modules",
    },
    "Reproducibility": {
        "P57": "One seed for every generator",
        "P58": "Deterministic algorithms, all of the switches",
        "P59": "Generator states saved and restored",
        "P60": "Reproducibility proved, and the first difference named",
        "P61": "Generators of other libraries",
        "P62": "Kernels that are not deterministic",
    },
    "Speed and scale": {
        "P63": "One process per device instead of `DataParallel`",
        "P64": "The same script on several devices or hosts",
        "P65": "No waiting for the device in the hot loop",
        "P66": "`cudnn.benchmark` where shapes are fixed",
        "P67": "Less memory traffic: in place, fused, compiled",
        "P68": "Activations recomputed instead of stored",
        "P69": "Mixed precision, with loss scaling where it is needed",
        "P70": "Where a step's time goes",
        "P71": "What holds memory",
        "P72": "Quantization for inference, and what it costs in accuracy",
    },
    "Evaluation and observation": {
        "P73": "Metrics over a whole epoch and all processes, no sample twice",
        "P74": "Progress, losses and curves",
    },
    "Language models": {
        "P75": "A sequence-to-sequence model trains and resumes like any other",
        "P76": "Editing single answers of a trained model with a codebook",
    },
}
TITLES = {number: title for family in FAMILIES.values() for number, title in family.items()}


class Shown(NamedTuple):
    """One test that shows a practice."""

    practice: str
    path: Path
    line: int
    name: str
    sentence: str


def _marked(decorator: ast.expr) -> str | None:
    """Return the practice of `@pytest.mark.practice("P25")`."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.practice":
        (argument,) = decorator.args
        return str(ast.literal_eval(argument))
    return None


def _listed(node: ast.AST, path: Path) -> Iterator[Shown]:
    """Yield the practices in a table `SHOWN`, of a sentence and names of rules for each."""
    if (
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "SHOWN"
        and isinstance(node.value, ast.Dict)
    ):
        for practice, (sentence, rules) in ast.literal_eval(node.value).items():
            yield Shown(practice, path, node.lineno, rules.replace(" ", ", "), sentence)


def find_shown(root: Path) -> Iterator[Shown]:
    """Yield the tests below `root` that carry a marker, by file and line."""
    for path in sorted(root.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.practice" not in text and "\nSHOWN = {" not in text:
            continue
        for node in ast.walk(ast.parse(text, filename=str(path))):
            yield from _listed(node, path)
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            sentence = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            for decorator in node.decorator_list:
                practice = _marked(decorator)
                if practice is not None:
                    yield Shown(practice, path, node.lineno, node.name, sentence)


def build(shown: list[Shown]) -> Iterator[str]:
    """Yield the page's lines."""
    yield INTRODUCTION
    num_shown = len(TITLES.keys() & {test.practice for test in shown})
    yield f"{num_shown} of {len(TITLES)} are shown."
    for family, practices in FAMILIES.items():
        yield f"\n## {family}\n"
        for number, title in practices.items():
            tests = [test for test in shown if test.practice == number]
            yield f"- **{number}** {title}" + ("" if tests else ": *not shown yet*")
            for test in tests:
                path = test.path.relative_to(ROOT).as_posix()
                yield f"  - {test.sentence} [{test.name}](../{path})"


def build_pages() -> dict[str, tuple[str, str]]:
    """Return the page: its path on the site, the file that it is built from, and its text."""
    text = "\n".join(build(list(find_shown(ROOT / "tests")))) + "\n"
    return {"practices.md": ("tests/test_practices.py", text)}
