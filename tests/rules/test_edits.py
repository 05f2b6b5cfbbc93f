"""Where a statement may be put in, and which edits are provably local. The scripts are only read."""

import ast

import pytest

from truestep.rules import Finding, find_rules
from truestep.rules.evidence import Source
from truestep.rules.kit.bindings import is_bound
from truestep.rules.kit.edits import (
    Edit,
    apply,
    call_at,
    decorate,
    drop_statement,
    insert_after,
    insert_before,
    is_local,
    put_under,
    replace_node,
    statement_of,
)

LOOP = """\
import torch
a = b = make()
for i in range(9):
    loss = model(i)
    loss.backward()
    for o in (a, b):
        o.step()
"""


def call(source: Source, name: str) -> ast.Call:
    found = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return next(node for node in found if ast.unparse(node.func) == name)


def test_a_name_that_only_a_later_loop_binds_is_not_used_before_it() -> None:
    source = Source("t.py", LOOP)
    backward = statement_of(source, call(source, "loss.backward"))
    assert insert_before(source, backward, "o.zero_grad()") == []
    edits = insert_after(source, statement_of(source, call(source, "o.step")), "o.zero_grad()")
    assert apply(source, edits) == LOOP + "        o.zero_grad()\n"
    assert insert_before(source, backward, "a.zero_grad()") != []


@pytest.mark.parametrize(
    ("text", "is_sure"),
    [
        ("if c:\n    o = 1\nhere()", False),
        ("if c:\n    o = 1\nelse:\n    o = 2\nhere()", True),
        ("if c:\n    o = 1\nelse:\n    raise KeyError\nhere()", True),
        ("for o in things:\n    here()", True),
        ("for o in things:\n    pass\nhere()", False),
        ("while c:\n    o = 1\nhere()", False),
        ("try:\n    o = 1\nexcept KeyError:\n    pass\nhere()", False),
        ("try:\n    o = 1\nexcept KeyError:\n    o = 2\nhere()", True),
        ("with opened() as o:\n    pass\nhere()", True),
        ("o = 1\ndel o\nhere()", False),
        ("o = 1\nfor i in range(3):\n    here()\n    o = 2", False),
        ("def run(o):\n    here()", True),
        ("def run(o):\n    here()\n    o = o.inner", False),
        ("def run():\n    here()\n    o = 1", False),
        ("o = 1\ndef run():\n    here()", True),
        ("def run():\n    here()", False),
        ("import x.y as o\nhere()", True),
    ],
)
def test_names_are_bound_on_every_path(text: str, is_sure: bool) -> None:
    source = Source("t.py", text + "\n")
    statement = statement_of(source, call(source, "here"))
    assert statement is not None
    assert is_bound(source.tree, statement, names={"o"}) is is_sure


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (
            "for i in r: l.backward(); o.step()  # x",
            "for i in r: o.zero_grad(); l.backward(); o.step()  # x",
            "for i in r: l.backward(); o.step(); o.zero_grad()  # x",
        ),
        (
            "a(); l.backward()\nb(); o.step(); c()",
            "a(); o.zero_grad(); l.backward()\nb(); o.step(); c()",
            "a(); l.backward()\nb(); o.step(); o.zero_grad(); c()",
        ),
        (
            "if x:\n    l.backward(\n    )\n    o.step(\n    )",
            "if x:\n    o.zero_grad()\n    l.backward(\n    )\n    o.step(\n    )",
            "if x:\n    l.backward(\n    )\n    o.step(\n    )\n    o.zero_grad()",
        ),
    ],
)
def test_a_statement_stays_in_the_block_of_its_neighbour(text: str, before: str, after: str) -> None:
    source = Source("t.py", "import o\n" + text + "\n")
    backward, step = (statement_of(source, call(source, name)) for name in ("l.backward", "o.step"))
    assert apply(source, insert_before(source, backward, "o.zero_grad()")) == f"import o\n{before}\n"
    assert apply(source, insert_after(source, step, "o.zero_grad()")) == f"import o\n{after}\n"


def test_an_insertion_is_local_in_the_same_turn_of_the_same_loop() -> None:
    source = Source("t.py", LOOP)
    inside = Edit(first=5, last=4, lines=("    a.zero_grad()",))
    assert is_local(source, [inside], line=5)
    assert not is_local(source, [inside], line=7), "the other loop's turns are others"
    for wrong in ("    c.zero_grad()", "    o.zero_grad()", "    a.eval()", "    a = None"):
        assert not is_local(source, [Edit(first=5, last=4, lines=(wrong,))], line=5), wrong
    assert not is_local(source, [Edit(first=3, last=2, lines=("a.zero_grad()",))], line=5)


def test_a_new_expression_is_local_in_the_statement_of_the_finding() -> None:
    source = Source("t.py", LOOP)
    edits = replace_node(source, call(source, "model"), text="model(i).mean()")
    assert is_local(source, edits, line=4)
    assert not is_local(source, edits, line=5)
    assert not is_local(source, replace_node(source, call(source, "model"), text="model.eval()(i)"), line=4)
    assert not is_local(source, replace_node(source, call(source, "model"), text="model(unknown)"), line=4)
    named = Source("t.py", LOOP.replace("= model(i)", "= f(p := model(i))"))
    assert not is_local(named, replace_node(named, call(named, "model"), text="model(i).mean()"), line=4)
    copied = [
        Edit(first=1, last=0, lines=("import copy",)),
        *replace_node(source, call(source, "model"), text="copy.deepcopy(model(i))"),
    ]
    assert is_local(source, copied, line=4)
    shadowed = Source("t.py", LOOP + "copy = 1\n")
    assert not is_local(shadowed, copied, line=4)


def test_what_goes_away_moves_or_is_wrapped_is_not_local() -> None:
    source = Source("t.py", LOOP + "@x\ndef f():\n    pass\n")
    backward = statement_of(source, call(source, "loss.backward"))
    function = source.tree.body[-1]
    assert backward is not None and isinstance(function, ast.FunctionDef)
    assert not is_local(source, drop_statement(source, backward), line=5)
    assert not is_local(source, decorate(source, function, text="@no_grad()"), line=10)
    assert not is_local(source, [Edit(first=5, last=5, lines=("    (",))], line=5)
    assert not is_local(source, [], line=5)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a()\no.step()  # twice\nb()", "a()\nb()"),
        ("a(); o.step()", "a()"),
        ("a(); o.step(); b()  # c", "a(); b()  # c"),
        ("o.step(\n); b()", "b()"),
        ("if x: o.step()", "if x: pass"),
        ("if x:\n    o.step()  # c\nb()", "if x:\n    pass  # c\nb()"),
        ("match x:\n    case 1: o.step(); b()", "match x:\n    case 1: b()"),
    ],
)
def test_only_the_statement_itself_goes_away(text: str, left: str) -> None:
    source = Source("t.py", text + "\n")
    statement = statement_of(source, call(source, "o.step"))
    assert statement is not None
    assert apply(source, drop_statement(source, statement)) == left + "\n"


def test_a_call_is_found_unless_another_could_be_meant() -> None:
    source = Source("t.py", "schedule.step(); o.step()\no.step(); o.step()\nmodel(\n    o.step(),\n)\n")
    assert call_at(source, 1, name="step") is None
    second = call_at(source, 2, name="step")
    assert second is not None and second.col_offset > 0
    assert call_at(source, 4, name="step") is not None


def test_nothing_is_put_in_for_a_call_that_runs_elsewhere() -> None:
    source = Source("t.py", "o = 1\nrun = lambda: l.backward()\nruns = [l.backward() for l in r]\n")
    lambdas, comprehension = (node for node in ast.walk(source.tree) if ast.unparse(node) == "l.backward()")
    assert statement_of(source, lambdas) is None
    assert isinstance(statement_of(source, comprehension), ast.Assign)


def test_edits_that_exclude_each_other_are_not_made_both() -> None:
    source = Source("t.py", LOOP)
    whole = Edit(first=3, last=5, lines=("loop()",))
    inside = Edit(first=5, last=4, lines=("    a.zero_grad()",))
    assert apply(source, [whole, inside]) == apply(source, [inside])
    above = Edit(first=3, last=2, lines=("begin()",))
    assert "begin()\nloop()\n    for" in apply(source, [whole, above])


def test_a_block_is_indented_as_its_file_is() -> None:
    source = Source("t.py", "if x:\n\tfor i in r:\n\t\tf(i)\n")
    loop = next(node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    text = apply(source, put_under(source, loop, header="with g():"))
    assert text == "if x:\n\twith g():\n\t\tfor i in r:\n\t\t\tf(i)\n"


def edited(code: str, text: str, line: int, **details: object) -> str:
    """Return the first line that a rule would write for a finding at a line of a script; nothing if none."""
    rule = next(rule for rule in find_rules() if rule.meta.code == code)
    assert rule.make_edits is not None
    source = Source("t.py", text)
    edits = rule.make_edits(source, Finding(message="", file="t.py", line=line, details=dict(details)))
    return edits[0].lines[0] if edits else ""


@pytest.mark.parametrize(
    ("written", "scores"),
    [
        ("F.softmax(m(x), dim=1)", "m(x)"),
        ("torch.nn.functional.softmax(m(x), 1)", "m(x)"),
        ("nn.functional.softmax(input=m(x), dim=1)", "m(x)"),
        ("fn.softmax(m(x), 1)", "m(x)"),
        ("self.softmax(m(x))", "m(x)"),
        ("m(x).softmax(1)", "m(x)"),
        ("self.scores.softmax(dim)", "self.scores"),
    ],
)
def test_softmax_is_taken_from_around_the_scores(written: str, scores: str) -> None:
    imports = "import torch, torch.nn.functional as F, torch.nn.functional as fn\nfrom torch import nn\n"
    assert edited("LOSS01", f"{imports}loss({written}, y)\n", 3, softmax_line=3) == f"loss({scores}, y)"


def test_only_the_remainder_that_decides_on_a_step_is_a_number_of_passes() -> None:
    text = "for i in r:\n    loss.backward()\n    if i % {}: {}\n    if i % 50: print(i)\n"
    assert edited("LOOP03", text.format(4, "o.step()"), 2) == "    (loss / 4).backward()"
    assert edited("LOOP03", text.format(4, "save()"), 2) == ""


def test_a_plain_class_has_no_mode_to_pass_on() -> None:
    text = "class Net({}):\n    def forward(self, x):\n        return F.dropout(x, 0.5)\n"
    assert "training=self.training" in edited("MODE04", text.format("Module"), 3)
    assert edited("MODE04", text.format(""), 3) == ""


def test_gradients_are_zeroed_for_the_optimizer_that_steps() -> None:
    text = "for i in r:\n    loss.backward(); {}\n"
    assert (
        edited("LOOP01", text.format("schedule.step(); o.step()"), 2, step_lines=[2], accumulates=False) == ""
    )
    one = edited("LOOP01", "o = 1\n" + text.format("o.step()"), 3, step_lines=[3], accumulates=False)
    assert one == "    o.zero_grad()"
    both = text.format("o.step(); p.step()")
    assert edited("LOOP01", "o = p = 1\n" + both, 3, step_lines=[3], accumulates=False) == ""


def test_the_second_of_two_steps_goes_away() -> None:
    assert edited("LOOP17", "a(); o.step(); o.step()  # twice\n", 1) == "a(); o.step()  # twice"
    assert edited("LOOP17", "o.step(); p.step()\n", 1) == ""
    assert edited("LOOP17", "loss = o.step(f)\n", 1) == ""


def test_sorting_is_local_if_all_of_it_can_be_compared() -> None:
    source = Source(
        "t.py", "import os\nlabels = {'a', None}\nids = [f(x) for x in (labels, os.listdir(p))]\n"
    )
    listing = call(source, "os.listdir")
    assert is_local(source, replace_node(source, listing, text="sorted(os.listdir(p))"), line=3)
    labels = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Tuple)).elts[0]
    for written in ("labels", "set(labels)", "{1, 2}"):
        assert not is_local(source, replace_node(source, labels, text=f"sorted({written})"), line=3)
