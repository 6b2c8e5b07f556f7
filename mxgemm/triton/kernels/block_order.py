"""Which tile a program takes."""

import triton
import triton.language as tl


@triton.jit
def contiguous_on_xcd(pid, PROGRAMS, XCDS: tl.constexpr):
    """Renumber programs so that neighbours run on one XCD.

    The hardware deals workgroups to the XCDs in turn, each with an L2 of its own. Giving XCD ``x`` a contiguous run of
    numbers lets tiles that share a weight share that L2. A bijection of ``range(PROGRAMS)`` for every ``PROGRAMS``.
    """
    if XCDS == 1:
        return pid
    xcd = pid % XCDS
    run = PROGRAMS // XCDS
    longer = PROGRAMS % XCDS  # the first XCDs get one more
    return xcd * run + tl.minimum(xcd, longer) + pid // XCDS
