"""Generated programs: killed at any moment, on any number of processes and workers, they have one digest."""

from hypothesis import given, settings

from tests.run.train.generated import Trial, explain, problems, trials


@settings(max_examples=12)
@given(trials())
def test_a_program_ends_with_one_digest_however_it_is_run(trial: Trial) -> None:
    wrong = problems(trial)
    assert not wrong, explain(trial, wrong)
