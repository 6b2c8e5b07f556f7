"""Programmatic dependent launch on NVIDIA GPUs: a launch that begins before earlier ones of its stream have ended."""

import triton
import triton.language as tl


@triton.jit
def wait_for_earlier(OVERLAP: tl.constexpr):
    """Wait until earlier launches have ended and what they wrote can be seen, if this one may begin before.

    Goes before every access to memory: earlier launches may be anybody's, and write the weight as well as scratch.
    """
    if OVERLAP:
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
