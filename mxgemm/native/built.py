"""What a launch of a kernel somebody else compiled for AMD is: its code object says where arguments go.

HIP's driver does not tell a kernel's parameters, so a captured launch cannot be read back as CUDA's is
(``mxgemm.native.captured``). The code object's own notes have each argument's offset and size.
"""

from __future__ import annotations

from collections.abc import Sequence

from mxgemm.hip.code_object import CodeObjectError, inspect
from mxgemm.native.program import KernelStep, Place

_POINTER_BYTES = 8


def code_object_launch(
    image: bytes,
    name: str,
    function: int,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    places: Sequence[Place],
    integers: Sequence[tuple[int, int]],
) -> KernelStep | None:
    """Return the launch of a kernel whose arguments are pointers, then integers, then pointers that it does not use.

    Args:
        image: the code object.
        name: of the kernel.
        function: the driver's handle.
        grid: workgroups along x, y, z.
        threads: of a workgroup.
        shared_bytes: LDS beyond what the kernel declares.
        places: of the pointers.
        integers: of each its value and its size in bytes.

    Returns:
        None where the kernel has other arguments than these.
    """
    try:
        info = inspect(image).kernels.get(name)
    except CodeObjectError:
        return None
    if info is None or not 0 < threads <= (info.max_threads or threads):
        return None
    count = len(places)
    pointers, numbers = info.arguments[:count], info.arguments[count : count + len(integers)]
    unused = info.arguments[count + len(integers) :]
    alike = (
        len(pointers) == count
        and [number.size for number in numbers] == [size for _, size in integers]
        and not any(number.is_pointer for number in numbers)
        and all(pointer.is_pointer and pointer.size == _POINTER_BYTES for pointer in (*pointers, *unused))
    )
    if not alike:
        return None
    block = bytearray(info.kernarg_bytes)
    for number, (value, size) in zip(numbers, integers, strict=True):
        block[number.offset : number.offset + size] = value.to_bytes(size, "little", signed=True)
    changing = tuple((pointer.offset, place) for pointer, place in zip(pointers, places, strict=True))
    return KernelStep(function, grid, (threads, 1, 1), shared_bytes, bytes(block), changing)
