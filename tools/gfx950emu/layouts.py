"""MXFP4 helpers: dequantised references and the two device layouts AITER's gfx950 f4gemm kernels want."""

import numpy as np

from .mfma import E8M0, FP4


def dequant(q, s):
    """q uint8 [R, K/2] (low nibble first), s uint8 E8M0 [R, K/32] -> float64 [R, K]."""
    v = np.stack([FP4[q & 15], FP4[q >> 4]], -1).reshape(q.shape[0], -1)
    return v * np.repeat(E8M0[s], 32, axis=1)


def preshuffle_weight(q):
    """[N, K/2] bytes -> 16x16 tiles: out[n//16][kb//32][(kb//16)%2][n%16][kb%16], kb = byte column."""
    n, kb = q.shape
    return np.ascontiguousarray(q.reshape(n // 16, 16, kb // 32, 2, 16).transpose(0, 2, 3, 1, 4)).reshape(n, kb)


def shuffle_scale(s, fill=0x7F, pad_rows=256):
    """[R, K/32] -> rows padded to pad_rows, columns to 8; out[r//32][c//8][c%4][r%16][(c//4)%2][(r//16)%2]."""
    r, c = s.shape
    rp, cp = -(-r // pad_rows) * pad_rows, -(-c // 8) * 8
    p = np.full((rp, cp), fill, np.uint8)
    p[:r, :c] = s
    return np.ascontiguousarray(p.reshape(rp // 32, 2, 16, cp // 8, 2, 4).transpose(0, 3, 5, 2, 4, 1)).reshape(rp, cp)


def bf16_to_f32(u):
    return (u.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x):
    from .ops import f32_to_bf16 as f

    return f(np.asarray(x, np.float32)).astype(np.uint16)
