"""What the submission file is made of, besides the library's kernels: modules that are bundled, hence plain imports.

Nothing in the library imports them; ``mxgemm.submission`` reads their source text. Names are unique across them.
"""
