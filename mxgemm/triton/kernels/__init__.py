"""Device code only: ``@triton.jit`` functions without torch. The host side is in ``mxgemm.routes``.

Importing this package imports triton; the rest of ``mxgemm`` does so only when a route is about to use it.
"""
