"""Matrix instructions. Sums are float64, rounded once per instruction to f32 (hardware rounding order is not public)."""

import re

import numpy as np

F64 = np.float64


def _fp_table(bits, ebits, mbits, bias, kind):
    n = 1 << bits
    out = np.zeros(n, F64)
    for c in range(n):
        s = -1.0 if c >> (bits - 1) else 1.0
        e = (c >> mbits) & ((1 << ebits) - 1)
        m = c & ((1 << mbits) - 1)
        v = s * (m / (1 << mbits)) * 2.0 ** (1 - bias) if e == 0 else s * (1 + m / (1 << mbits)) * 2.0 ** (e - bias)
        if kind == "e4m3" and (c & 0x7F) == 0x7F:
            v = np.nan
        if kind == "e5m2" and e == 31:
            v = np.nan if m else s * np.inf
        out[c] = v
    return out


FP8 = _fp_table(8, 4, 3, 7, "e4m3")
BF8 = _fp_table(8, 5, 2, 15, "e5m2")
FP6 = _fp_table(6, 2, 3, 1, "")  # e2m3
BF6 = _fp_table(6, 3, 2, 3, "")  # e3m2
FP4 = _fp_table(4, 2, 1, 1, "")  # e2m1
E8M0 = np.concatenate([2.0 ** (np.arange(255) - 127.0), [np.nan]])
FP4x4 = np.stack([FP4[(np.arange(65536) >> (4 * i)) & 15] for i in range(4)], -1)
FORMATS = {0: ("fp8", FP8, 8), 1: ("bf8", BF8, 8), 2: ("fp6", FP6, 6), 3: ("bf6", BF6, 6), 4: ("fp4", FP4, 4)}

# fp8/bf8 f8f6f4 operands: a lane's 32 bytes are two runs of 16 k, half of K apart (False, what Triton's kernels need),
# not 32 consecutive k (True). fp6/bf6/fp4 operands are 32 consecutive k. Scales always belong to 32 consecutive k.
FP8_CONTIGUOUS = False


def decode_f8f6f4(raw, fmt):
    """raw uint32 [W,64,nd] -> float64 [W,64,32], in register order."""
    W = raw.shape[0]
    name, tab, bits = FORMATS[fmt]
    if bits == 4:
        return FP4x4[np.ascontiguousarray(raw[:, :, :4]).view(np.uint16)].reshape(W, 64, 32)
    by = np.ascontiguousarray(raw).view(np.uint8)
    if bits == 8:
        return tab[by[:, :, :32]]
    b = by[:, :, :24].astype(np.uint32).reshape(W, 64, 8, 3)
    w = b[..., 0] | b[..., 1] << np.uint32(8) | b[..., 2] << np.uint32(16)
    c = np.stack([(w >> np.uint32(6 * i)) & np.uint32(63) for i in range(4)], -1)
    return tab[c].reshape(W, 64, 32)


def lanes_to_matrix(x, rows):
    """[W,64,e] -> [W,rows,K]: lane l holds row l%rows, k = (l//rows)*e ..."""
    W, _, e = x.shape
    q = 64 // rows
    return np.ascontiguousarray(x.reshape(W, q, rows, e).transpose(0, 2, 1, 3)).reshape(W, rows, q * e)


def scale_operand(x, fmt, rows, sc):
    """x [W,64,32] register-order values; sc uint8 [W,64] or None -> matrix [W,rows,K] with scales applied.
    Lane l's scale byte covers row l%rows, k-block (l//rows) of 32."""
    W = x.shape[0]
    q = 64 // rows
    m = x.reshape(W, q, rows, 32)
    if FORMATS[fmt][2] == 8 and not FP8_CONTIGUOUS:
        m = m.reshape(W, q, rows, 2, 16).transpose(0, 3, 1, 2, 4)  # k = half*(16q) + 16*group + e
        m = m.reshape(W, 2 * q, rows, 16).transpose(0, 2, 1, 3).reshape(W, rows, q, 32)
    else:
        m = m.transpose(0, 2, 1, 3)
    if sc is not None:
        m = m * E8M0[sc].reshape(W, q, rows).transpose(0, 2, 1)[..., None]
    return np.ascontiguousarray(m).reshape(W, rows, q * 32)


def acc_read(V, r, rows):
    """f32 accumulators V[r:r+n] as float64 [n, W, ...] in the layout of mm_to_acc."""
    n = rows * rows // 64
    return V[r : r + n].view(np.float32)


def mm_to_acc(D, rows):
    """D [W,rows,rows] -> [n,W,64]: reg r, lane l: row = 8*(r//4)+4*(l//32)+r%4 (32) or 4*(l//16)+r (16), col = l%rows."""
    W = D.shape[0]
    if rows == 16:
        return D.reshape(W, 4, 4, 16).transpose(2, 0, 1, 3).reshape(4, W, 64)
    return D.reshape(W, 4, 2, 4, 32).transpose(1, 3, 0, 2, 4).reshape(16, W, 64)


def bf16_to_f64(u16):
    return (u16.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(F64)


_NAME = re.compile(r"^v_mfma_(?:scale_)?(f32|i32|f64)_(\d+)x(\d+)x(\d+)_?(?:(\d)b_)?(\w+?)(?:_1k)?$")


def parse_name(mn):
    mn = mn.replace("_e64", "")
    m = _NAME.match(mn)
    if not m:
        return None
    out, r, c, k, blocks, typ = m.groups()
    return out, int(r), int(c), int(k), int(blocks or 1), typ
