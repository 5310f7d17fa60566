"""GPU kernels: run on a GPU, or on a CPU by Triton's interpreter. TRITON_INTERPRET=1 must be set before anything
imports the kernels, so `make test` runs these tests in a separate process."""

from regard.attention.short_rows import TRITON

collect_ignore_glob = [] if TRITON else ["test_*.py"]
