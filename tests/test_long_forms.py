"""A long form of a script: larger numbers where its text says how many steps it makes, and nothing else."""

import pytest

from tests.long_forms import lengthened


@pytest.mark.parametrize(
    ("text", "long"),
    [
        ("for epoch in range(3):\n    opt.step()\n", "for epoch in range(12):\n    opt.step()\n"),
        ("A, N = 7, 3\nfor i in range(1, N + 1):\n    opt.step()\n", "A, N = 7, 12"),
        ("def fit(n, epochs=3):\n    for e in range(epochs):\n        opt.step()\n", "epochs=12"),
        ("def fit(n, epochs):\n    for e in range(epochs):\n        opt.step()\nfit(5, 3)\n", "fit(5, 12)"),
        ("p.add_argument('--steps', default=3)\nwhile step < args.steps:\n    opt.step()\n", "default=12"),
        (
            "def turn():\n    opt.step()\nfor e in range(3):\n    for i in range(5):\n        turn()\n",
            "range(5)",
        ),
        ("for i in range(len(x)):\n    opt.step()\n", "range((len(x)) * 4)"),
        (
            "def give(n):\n    for i in range(n):\n        yield i\nfor i in give(3):\n    opt.step()\n",
            "give(12)",
        ),
        ("trainer = Trainer(max_epochs=3)\n", "Trainer(max_epochs=12)"),
    ],
)
def test_the_numbers_that_bound_the_steps_become_larger(text: str, long: str) -> None:
    changed = lengthened(text, times=4) or ""
    assert long in changed
    assert len(changed.splitlines()) == len(text.splitlines())
    assert changed.count("12") + changed.count(" * 4") == 1


@pytest.mark.parametrize(
    "text",
    [
        "for x in stream:\n    opt.step()\n",
        "for i in range(3):\n    print(i)\n",
        "while True:\n    opt.step()\n    break\n",
    ],
)
def test_a_script_that_does_not_say_how_many_steps_it_makes_has_no_long_form(text: str) -> None:
    assert lengthened(text, times=4) is None
