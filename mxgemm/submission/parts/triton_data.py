"""The Triton launches of the published shapes; a submission carries what this reads as literals."""

from mxgemm.submission.parts.kernel_launch import KernelLaunch
from mxgemm.submission.parts.shapes import PUBLISHED
from mxgemm.submission.triton_text import ARCH, kernel_calls

TRITON_ARCH: str = ARCH
TRITON_LAUNCHES: dict[tuple[int, int, int], list[list[KernelLaunch]]] = {
    shape: [
        [KernelLaunch(call.kernel, call.grid, call.scalars, dict(call.constants), dict(call.options)) for call in calls]
        for calls in kernel_calls(*shape)
    ]
    for shape in PUBLISHED
}
