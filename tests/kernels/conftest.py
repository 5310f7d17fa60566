"""Kernels of a GPU: run there, or on a processor by Triton's interpreter, which must be asked for (TRITON_INTERPRET=1)
before anything imports them. So `make test` gives them a process of their own."""

from regard.attention.short_rows import TRITON

collect_ignore_glob = [] if TRITON else ["test_*.py"]
