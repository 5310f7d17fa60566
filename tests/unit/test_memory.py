"""Settings of torch's allocator: they are made before torch is loaded, and never override the user's."""

import os
import subprocess
import sys

import pytest

OPTION = "MIMALLOC_PURGE_DELAY"
ASKED = f"""
import os, sys, regard.cli.main
assert "torch" not in sys.modules
print(os.environ["{OPTION}"])
"""


@pytest.mark.parametrize(("own", "expected"), [({}, "60000"), ({OPTION: "10"}, "10")])
def test_freed_memory_is_kept_for_a_minute_unless_the_user_says_otherwise(own: dict[str, str], expected: str):
    others = {name: value for name, value in os.environ.items() if name != OPTION}
    said = subprocess.run([sys.executable, "-c", ASKED], env=others | own, check=True, capture_output=True, text=True)
    assert said.stdout.strip() == expected
