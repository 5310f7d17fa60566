"""What a run says of itself where there is no terminal: its first steps soon, and when it will end."""

import pytest

from regard.training.reporter import QUIET, SOON, Reporter


def test_the_first_steps_are_said_soon_and_a_quiet_run_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("regard.training.reporter.time.monotonic", lambda: now[0])
    reporter = Reporter(1000)

    def said(step: int, seconds: float) -> str:
        now[0] = 100 + seconds
        reporter.step(step)
        return capsys.readouterr().err

    assert said(10, 0) == ""  # a resumed run begins here
    assert said(11, SOON - 1) == ""
    assert said(13, 6) == "step 13/1000  32:54 left\n"  # 3 steps in 6 seconds
    assert said(14, 8) == "" and said(20, 6 + QUIET - 1) == ""
    assert said(25, 60) == "step 25/1000  1:05:00 left\n"
    reporter.train(30, {"loss": 1.0, "tokens_per_second": 5.0, "lr": 0.1}, 60)
    assert "step 30/1000  loss 1.000" in capsys.readouterr().err
    assert said(31, 60 + QUIET - 1) == ""  # a line was said since
