"""Some of the corpus on an accelerator, with the findings of the CPU. All: benchmarks/on_accelerator.py."""

from pathlib import Path

import pytest

from tests.accelerator import environment
from tests.accelerator.swapping import make_there, swap
from tests.gathering import expected, judged
from tests.patches import repaired

HERE = Path(__file__).parent
NAMES = (
    *("loss01_digit_mlp", "loop02_document_tagger", "probe02_small_gpt"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("loss03_rent_regression", "loss05_fraud_detector", "mode04_wine_regressor"),
            *("par05_sensor_finetune", "loop09_digit_reader"),
            *("par12_churn_model", "data04_grain_sorter", "repro01_heartbeat_cnn"),
        )
    ),
)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_repaired", [False, True], ids=["buggy", "repaired"])
def test_a_script_on_an_accelerator_has_the_findings_of_the_cpu(
    tmp_path: Path, is_repaired: bool, name: str
) -> None:
    source = HERE / "buggy" / f"{name}.py"
    text = repaired(source) if is_repaired else source.read_text()
    swapped = swap(text) or make_there(text)
    assert swapped is not None
    script = tmp_path / source.name
    script.write_text(swapped)
    found, told = judged(script, steps=None if name == "par12_churn_model" else 40)
    assert found.code == 0, found.output
    assert told.failed == [] and found.evidence.first.troubles == []
    wanted = {(code, line) for code, lines in expected(swapped).items() for line in lines}
    hits = {(item.rule.meta.code, item.finding.line) for item in told.findings if item.severity != "info"}
    assert {code for code, _ in hits} == {code for code, _ in wanted}
    assert not wanted or hits & wanted, hits
