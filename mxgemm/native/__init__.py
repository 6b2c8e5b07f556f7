"""A steady call in C: built at first use, with ``mxgemm.steady`` as its definition and as the way without it."""
