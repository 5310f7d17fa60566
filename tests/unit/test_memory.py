"""What Regard asks of torch's allocator before torch is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Pages asked for by the second of two uses of the same memory, 50 ms apart.
AGAIN = """
import regard, resource, time, torch
def used():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
used()
time.sleep(0.05)
torch.ones(1)
print(used())
"""


def test_memory_that_was_just_freed_is_still_there():
    library = next(Path(torch.__file__).parent.glob("lib/libc10.*"))
    if b"mimalloc" not in library.read_bytes():
        pytest.skip("this torch allocates otherwise")
    asked = subprocess.run([sys.executable, "-c", AGAIN], check=True, capture_output=True, text=True).stdout
    assert int(asked) < 100  # of 16,384 pages
