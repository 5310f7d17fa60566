"""The route of the Workbench tab."""

import pytest

from regard.claims.steps import attention_steps, lecture_example


@pytest.mark.parametrize("step", [1, 5, 8])
def test_the_numbers_are_the_cores(served, step):
    layer = served.client.get(f"/api/workbench/examples/{step}").json()
    told = served.client.post("/api/workbench", json=layer).json()
    steps = attention_steps(lecture_example(step)).steps
    assert [each["name"] for each in told["steps"]] == [each.name for each in steps]
    for mine, theirs in zip(told["steps"], steps, strict=True):
        expected = [
            [[None if x == -float("inf") else x for x in row] for row in one] for one in theirs.matrices.tolist()
        ]
        assert mine["matrices"] == expected
    assert (told["fused_difference"] is None) == (step == 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": [[1, 2], [3]]}, "rows of inputs"),
        ({"inputs": [[1, 2]]}, "X has 2 columns, but W_Q has 3 rows"),
        ({"inputs": [[None]]}, "inputs"),
        ({"inputs": [[1.0] * 13]}, "inputs"),
        ({"heads": 0}, "heads"),
        ({"wide": 3}, "wide"),
    ],
)
def test_bad_numbers_are_refused_in_words(served, change, words):
    layer = served.client.get("/api/workbench/examples/7").json()
    answer = served.client.post("/api/workbench", json=layer | change)
    assert answer.status_code in (400, 422) and words in answer.json()["error"]


def test_there_are_eight_steps(served):
    assert served.client.get("/api/workbench/examples/9").status_code == 400
