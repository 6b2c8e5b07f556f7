"""The last resort: the three launches of AITER that the task itself describes."""

import torch

from mxgemm.submission.parts.form import Form, NotHere


def aiter_tiles(m: int, n: int, k: int, arch: str) -> dict[str, None]:
    """Return the one there is: AITER chooses its kernel itself.

    Raises:
        NotHere: there is no AITER.
    """
    del m, n, k, arch
    try:
        import aiter
    except ImportError as error:
        raise NotHere(f"AITER cannot be imported ({error})") from error
    del aiter
    return {"": None}


def aiter_form(m: int, n: int, k: int, device: torch.device, tile: None) -> Form:
    """Return a function that quantises A, shuffles its scales and multiplies, each by AITER."""
    del m, n, k, device, tile
    import aiter
    from aiter import dtypes
    from aiter.ops.triton.quant import dynamic_mxfp4_quant
    from aiter.utility.fp4_utils import e8m0_shuffle

    def multiply(a: torch.Tensor, b_shuffle: torch.Tensor, b_scale_sh: torch.Tensor) -> torch.Tensor:
        codes, scales = dynamic_mxfp4_quant(a)
        shuffled = e8m0_shuffle(scales)
        result: torch.Tensor = aiter.gemm_a4w4(
            codes.view(dtypes.fp4x2), b_shuffle.view(dtypes.fp4x2), shuffled.view(dtypes.fp8_e8m0),
            b_scale_sh.view(dtypes.fp8_e8m0), dtype=dtypes.bf16, bpreshuffle=True,
        )  # fmt: skip
        return result

    return multiply
