"""Instruction semantics. build(inst, prog) returns a Python closure f(g) over a wave group g (see wave.Group)."""

import re

import numpy as np

from . import mfma as MM
from . import pend as PD
from .mem import MemoryFault

U32 = np.uint32
U64 = np.uint64
I32 = np.int32
I64 = np.int64
F32 = np.float32
F64 = np.float64
LANE = np.arange(64, dtype=np.uint32)
BITS32 = np.uint32(1) << np.arange(32, dtype=np.uint32)

SPECIAL = {
    "vcc": 106,
    "vcc_lo": 106,
    "vcc_hi": 107,
    "exec": 126,
    "exec_lo": 126,
    "exec_hi": 127,
    "m0": 124,
    "flat_scratch": 102,
    "flat_scratch_lo": 102,
    "flat_scratch_hi": 103,
    "xnack_mask": 104,
    "xnack_mask_lo": 104,
    "xnack_mask_hi": 105,
    "null": 125,
}


class Unsupported(Exception):
    pass


# ---------------------------------------------------------------- operands
class Opnd:
    __slots__ = ("kind", "idx", "n", "val", "neg", "abs", "sext", "isfloat", "text", "ishex")


_REG = re.compile(r"^(s|v|a|ttmp)(\d+)$")
_RANGE = re.compile(r"^(s|v|a|ttmp)\[(\d+):(\d+)\]$")


def parse_opnd(t):
    o = Opnd()
    o.text, o.neg, o.abs, o.sext, o.isfloat, o.ishex, o.n, o.val, o.idx = (
        t,
        False,
        False,
        False,
        False,
        False,
        1,
        None,
        None,
    )
    while True:
        if t.startswith("sext(") and t.endswith(")"):
            o.sext, t = True, t[5:-1]
        elif t.startswith("neg(") and t.endswith(")"):
            o.neg, t = True, t[4:-1]
        elif t.startswith("abs(") and t.endswith(")"):
            o.abs, t = True, t[4:-1]
        elif t.startswith("|") and t.endswith("|"):
            o.abs, t = True, t[1:-1]
        elif t.startswith("-") and len(t) > 1 and not t[1].isdigit() and not t[1] == ".":
            o.neg, t = True, t[1:]
        else:
            break
    m = _REG.match(t)
    if m:
        o.kind, o.idx = m.group(1), int(m.group(2))
    else:
        m = _RANGE.match(t)
        if m:
            o.kind, o.idx = m.group(1), int(m.group(2))
            o.n = int(m.group(3)) - o.idx + 1
        elif t in SPECIAL:
            o.kind, o.idx = "s", SPECIAL[t]
            o.n = 2 if t in ("vcc", "exec", "flat_scratch", "xnack_mask") else 1
        elif t in (
            "off",
            "src_scc",
            "scc",
            "src_vccz",
            "src_execz",
            "lds",
            "src_shared_base",
            "src_private_base",
            "src_shared_limit",
            "src_private_limit",
            "src_lds_direct",
            "vccz",
            "execz",
        ):
            o.kind = t
        else:
            o.kind = "c"
            if re.match(r"^-?\d+$", t):
                o.val = int(t)
            elif t.startswith(("0x", "-0x")):
                o.val, o.ishex = int(t, 16), True
            else:
                try:
                    o.val, o.isfloat = float(t), True
                except ValueError:
                    o.kind = "sym"
    if o.kind == "ttmp":
        o.kind, o.idx = "s", 108 + o.idx
    return o


def const_bits(o, ty):
    w = TYPES[ty][0]
    if o.isfloat:
        if w == 16:
            if ty == "bf16":
                return int(np.array([o.val], F32).view(U32)[0] >> 16)
            return int(np.array([o.val], np.float16).view(np.uint16)[0])
        if w == 64:
            if ty == "f64":
                return int(np.array([o.val], F64).view(U64)[0])
            return int(np.array([o.val], F32).view(U32)[0])
        return int(np.array([o.val], F32).view(U32)[0])
    v = o.val
    if w == 64 and ty == "f64" and o.ishex:
        return (v & 0xFFFFFFFF) << 32
    return v & ((1 << w) - 1)


# type -> (width, numpy dtype)
TYPES = {
    "u32": (32, U32),
    "b32": (32, U32),
    "i32": (32, I32),
    "f32": (32, F32),
    "u64": (64, U64),
    "b64": (64, U64),
    "i64": (64, I64),
    "f64": (64, F64),
    "u16": (16, np.uint16),
    "b16": (16, np.uint16),
    "i16": (16, np.int16),
    "f16": (16, np.float16),
    "bf16": (16, np.uint16),
}


def is_vec(o):
    return o.kind in ("v", "a")


def vidx(prog, o, j=0):
    return o.idx + j + (prog.abase if o.kind == "a" else 0)


def raw_getter(prog, o, j=0, vec=True, gpr_idx=False):
    """f(g) -> uint32 array of dword j of the operand: [W,64] / [W,1] / [1,1] (vec) or [W] / [1] (scalar)."""
    k = o.kind
    if k in ("v", "a"):
        i = vidx(prog, o, j)
        if gpr_idx:

            def get(g):
                m = g.S[124] & U32(0xFF)
                lo = int(m.min())
                if lo == int(m.max()):
                    return g.V[i + lo]
                return g.V[i + m.astype(np.int64), np.arange(g.W)]

            return get
        return lambda g: g.V[i]
    if k == "s":
        i = o.idx + j
        if vec:
            return lambda g: g.S[i][:, None]
        return lambda g: g.S[i]
    if k == "c":
        raise AssertionError
    if k in ("src_scc", "scc"):
        if vec:
            return lambda g: g.scc.astype(U32)[:, None]
        return lambda g: g.scc.astype(U32)
    if k in ("src_shared_base", "src_private_base"):
        hi = 0x00010000 if k == "src_shared_base" else 0x00020000
        c = np.full((1, 1) if vec else (1,), hi if j else 0, U32)
        return lambda g: c
    raise Unsupported("operand " + o.text)


def src(prog, o, ty, vec=True, gpr_idx=False, half=0):
    """Typed getter with neg/abs applied."""
    w, dt = TYPES[ty]
    shape = (1, 1) if vec else (1,)
    if o.kind == "c":
        b = const_bits(o, ty)
        c = np.full(shape, b, U64).astype({16: np.uint16, 32: U32, 64: U64}[w]).view(dt)
        if ty == "bf16":
            c = (c.astype(U32) << U32(16)).view(F32)
        c = _mod(c, ty, o)
        c.setflags(write=False)
        return lambda g: c
    g0 = raw_getter(prog, o, 0, vec, gpr_idx)
    if w == 32:
        if ty in ("u32", "b32"):
            f = g0
        else:
            f = lambda g: g0(g).view(dt)
    elif w == 64:
        if o.n == 1 and o.kind == "s" and o.text not in ("vcc", "exec"):
            g1 = lambda g: np.zeros(1, U32)
        else:
            g1 = raw_getter(prog, o, 1, vec, gpr_idx)

        def f(g):
            x = g1(g).astype(U64)
            x <<= U64(32)
            x |= g0(g)
            return x.view(dt)
    else:
        if half:
            h = lambda g: (g0(g) >> U32(16)).astype(np.uint16)
        else:
            h = lambda g: g0(g).astype(np.uint16)
        if ty == "bf16":
            f = lambda g: (h(g).astype(U32) << U32(16)).view(F32)
        elif dt is np.uint16:
            f = h
        else:
            f = lambda g: h(g).view(dt)
    if o.neg or o.abs:
        f1 = f
        return lambda g: _mod(f1(g), ty, o)
    return f


def _mod(x, ty, o):
    if o.abs:
        x = np.abs(x)
    if o.neg:
        x = -x
    return x


def to_raw(x, ty):
    w, dt = TYPES[ty]
    if w == 32:
        if x.dtype == U32:
            return x
        if x.dtype in (F32, I32):
            return x.view(U32)
        return np.asarray(x).astype(dt).view(U32)
    if ty == "bf16":
        return f32_to_bf16(x)
    if w == 16:
        return np.asarray(x).astype(dt).view(np.uint16).astype(U32)
    return np.asarray(x).astype(dt).view(U64)


def vwrite(prog, o, ty, half=None, preserve=False):
    """Setter f(g, value) for a VGPR destination honouring EXEC."""
    w, dt = TYPES[ty]
    i = vidx(prog, o)
    if w == 64:

        def st(g, x):
            x = to_raw(x, ty)
            g.wr(i, x.astype(U32))
            g.wr(i + 1, (x >> U64(32)).astype(U32))

        return st
    if w == 16 and (half or preserve):

        def st(g, x):
            x = to_raw(x, ty)
            if half:
                g.wr(i, (g.V[i] & U32(0xFFFF)) | (x << U32(16)))
            else:
                g.wr(i, (g.V[i] & U32(0xFFFF0000)) | x)

        return st
    if ty in ("u32", "b32"):
        return lambda g, x: g.wr(i, x)
    return lambda g, x: g.wr(i, to_raw(x, ty))


def swrite(o, ty):
    w, dt = TYPES[ty]
    i = o.idx
    ex = i in (126, 127) or (w == 64 and i == 126)
    if w == 64:

        def st(g, x):
            x = to_raw(x, ty)
            g.S[i] = x.astype(U32)
            g.S[i + 1] = (x >> U64(32)).astype(U32)
            if ex:
                g.update_exec()

        return st

    def st(g, x):
        g.S[i] = to_raw(x, ty)
        if ex:
            g.update_exec()

    return st


def mask_read(o):
    """SGPR-pair lane mask -> f(g) bool [W,64]."""
    i = o.idx
    if o.kind == "c":
        v = o.val & 0xFFFFFFFFFFFFFFFF
        c = np.array([[(v >> l) & 1 for l in range(64)]], bool)
        return lambda g: c
    if i == 126:
        return lambda g: g.exec_mask()
    return lambda g: unpack_mask(g.S[i], g.S[i + 1])


def unpack_mask(lo, hi):
    W = lo.shape[0]
    b = np.empty((W, 2), U32)
    b[:, 0] = lo
    b[:, 1] = hi
    return np.unpackbits(b.view(np.uint8), axis=1, bitorder="little").view(bool)


def pack_mask(b):
    p = np.packbits(b, axis=1, bitorder="little").view(U32)
    return p[:, 0], p[:, 1]


def mask_write(o):
    i = o.idx

    def st(g, b):
        if b.shape != (g.W, 64):
            b = np.broadcast_to(b, (g.W, 64))
        if g.ex is not None:
            b = b & g.ex
        lo, hi = pack_mask(np.ascontiguousarray(b))
        g.S[i] = lo
        g.S[i + 1] = hi
        if i == 126:
            g.update_exec()

    return st


# ---------------------------------------------------------------- numeric helpers
def f32_to_bf16(x):
    u = np.ascontiguousarray(np.asarray(x, F32)).view(U32)
    r = (u + U32(0x7FFF) + ((u >> U32(16)) & U32(1))) >> U32(16)
    n = np.isnan(x)
    if n.any():
        r = np.where(n, (u >> U32(16)) | U32(0x40), r)
    return r.astype(U32)


def quant_table(tab, bits):
    """Positive finite values sorted with their codes (for RNE search)."""
    half = tab[: 1 << (bits - 1)]
    ok = np.isfinite(half)
    return half[ok]


_Q = {}


def to_small_float(x, kind):
    """float64/32 array -> codes (uint32), round to nearest even, saturating."""
    if kind not in _Q:
        tab, bits = {
            "fp4": (MM.FP4, 4),
            "fp6": (MM.FP6, 6),
            "bf6": (MM.BF6, 6),
            "fp8": (MM.FP8, 8),
            "bf8": (MM.BF8, 8),
        }[kind]
        v = quant_table(tab, bits)
        _Q[kind] = (v, (v[1:] + v[:-1]) / 2, bits)
    v, mid, bits = _Q[kind]
    a = np.abs(np.asarray(x, F64))
    c = np.searchsorted(mid, a, side="left")
    tie = c < mid.size
    cc = np.minimum(c, mid.size - 1)
    tie &= mid[cc] == a
    c = np.where(tie & (c & 1 == 1), c + 1, c)
    c = c.astype(U32)
    if bits == 8:
        nan = np.isnan(x)
        if nan.any():
            c = np.where(nan, U32(0x7F), c)
    return c | (np.signbit(x).astype(U32) << U32(bits - 1))


def scale_of(s):
    """f32 scale operand of v_cvt_scalef32_*: its exponent only."""
    e = (s.view(U32) >> U32(23)) & U32(255)
    return MM.E8M0[e]


def sh(x, n):
    return x & U32(n)


def fma(a, b, c):
    return (a.astype(F64) * b.astype(F64) + c.astype(F64)).astype(F32)


def clz32(x):
    x = x.astype(U64)
    r = np.full(np.shape(x), 32, I64)
    n = np.nonzero(x) if np.ndim(x) else None
    f = np.frexp(x.astype(F64))[1]
    r = 32 - f
    return np.where(x == 0, -1, r)


def ctz(x, bits):
    x = x.astype(U64)
    low = x & (~x + U64(1))
    f = np.frexp(low.astype(F64))[1] - 1
    return np.where(x == 0, -1, f)


def popc(x):
    x = x.astype(U64)
    x = x - ((x >> U64(1)) & U64(0x5555555555555555))
    x = (x & U64(0x3333333333333333)) + ((x >> U64(2)) & U64(0x3333333333333333))
    x = (x + (x >> U64(4))) & U64(0x0F0F0F0F0F0F0F0F)
    return (x * U64(0x0101010101010101)) >> U64(56)


def bitrev32(x):
    b = np.ascontiguousarray(x).view(np.uint8).reshape(x.shape + (4,))
    t = np.array([int("{:08b}".format(i)[::-1], 2) for i in range(256)], np.uint8)
    return np.ascontiguousarray(t[b][..., ::-1]).view(U32)[..., 0]


def cvt_to_int(x, lo, hi, dt):
    x = np.asarray(x, F64)
    x = np.where(np.isnan(x), 0.0, np.trunc(x))
    return np.clip(x, lo, hi).astype(I64).astype(dt)


def mul24(a, signed):
    if signed:
        return (a.view(I32) << I32(8)) >> I32(8)
    return a & U32(0xFFFFFF)


def perm(a, b, s):
    """v_perm_b32: bytes of {a,b}: selector 0-3 -> b, 4-7 -> a."""
    x = (a.astype(U64) << U64(32)) | b.astype(U64)
    out = np.zeros(np.broadcast(x, s).shape, U32)
    for i in range(4):
        q = ((s >> U32(8 * i)) & U32(0xFF)).astype(U64)
        by = (x >> (U64(8) * np.minimum(q, U64(7)))) & U64(0xFF)
        sg = [(x >> U64(p)) & U64(1) for p in (15, 31, 47, 63)]
        for j in range(4):
            by = np.where(q == U64(8 + j), sg[j] * U64(0xFF), by)
        by = np.where(q == U64(12), U64(0), by)
        by = np.where(q > U64(12), U64(0xFF), by)
        out |= by.astype(U32) << U32(8 * i)
    return out


def bitop3(a, b, c, tt):
    r = 0
    dt = a.dtype.type
    full = dt(np.iinfo(a.dtype).max)
    out = np.zeros(np.broadcast(a, b, c).shape, a.dtype)
    for k in range(8):
        if tt >> k & 1:
            out |= (a if k & 4 else a ^ full) & (b if k & 2 else b ^ full) & (c if k & 1 else c ^ full)
    return out


def med3(a, b, c):
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def u64mul(a, b):
    return a.astype(U64) * b.astype(U64)


def i64mul(a, b):
    return a.astype(I64) * b.astype(I64)


def sad_u8(a, b, c):
    r = c.copy() if c.shape else c
    for i in range(4):
        x = ((a >> U32(8 * i)) & U32(255)).astype(I32)
        y = ((b >> U32(8 * i)) & U32(255)).astype(I32)
        r = r + np.abs(x - y).astype(U32)
    return r


def cvt_f32_ub(n):
    return lambda a: ((a >> U32(8 * n)) & U32(255)).astype(F32)


def lowp(tab):
    t = tab.astype(F32)
    return lambda a: t[a & U32(255)]


# ---------------------------------------------------------------- VALU table: name -> (dst type, src types, fn)
V = {}


def d(names, dst, srcs, fn):
    for n in names.split():
        V[n] = (dst, srcs.split(), fn)


d(
    "v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32 v_accvgpr_read v_accvgpr_write",
    "u32",
    "u32",
    lambda a: a,
)
d("v_mov_b64", "u64", "u64", lambda a: a)
d("v_add_u32", "u32", "u32 u32", lambda a, b: a + b)
d("v_add_i32 v_add_nc_u32", "u32", "u32 u32", lambda a, b: a + b)
d("v_sub_u32 v_sub_i32", "u32", "u32 u32", lambda a, b: a - b)
d("v_subrev_u32", "u32", "u32 u32", lambda a, b: b - a)
d("v_mul_lo_u32 v_mul_lo_i32", "u32", "u32 u32", lambda a, b: a * b)
d("v_mul_hi_u32", "u32", "u32 u32", lambda a, b: (u64mul(a, b) >> U64(32)).astype(U32))
d("v_mul_hi_i32", "i32", "i32 i32", lambda a, b: (i64mul(a, b) >> I64(32)).astype(I32))
d("v_mul_u32_u24", "u32", "u32 u32", lambda a, b: mul24(a, 0) * mul24(b, 0))
d("v_mul_hi_u32_u24", "u32", "u32 u32", lambda a, b: (u64mul(mul24(a, 0), mul24(b, 0)) >> U64(32)).astype(U32))
d("v_mul_i32_i24", "u32", "u32 u32", lambda a, b: mul24(a, 1).view(U32) * mul24(b, 1).view(U32))
d("v_mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: mul24(a, 0) * mul24(b, 0) + c)
d("v_mad_i32_i24", "u32", "u32 u32 u32", lambda a, b, c: mul24(a, 1).view(U32) * mul24(b, 1).view(U32) + c)
d("v_lshl_add_u32", "u32", "u32 u32 u32", lambda a, b, c: (a << sh(b, 31)) + c)
d("v_lshl_add_u64", "u64", "u64 u32 u64", lambda a, b, c: (a << (b & U32(63)).astype(U64)) + c)
d("v_add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, c: (a + b) << sh(c, 31))
d("v_lshl_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a << sh(b, 31)) | c)
d("v_and_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | c)
d("v_or3_b32", "u32", "u32 u32 u32", lambda a, b, c: a | b | c)
d("v_xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)
d("v_add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c)
d("v_and_b32", "u32", "u32 u32", lambda a, b: a & b)
d("v_or_b32", "u32", "u32 u32", lambda a, b: a | b)
d("v_xor_b32", "u32", "u32 u32", lambda a, b: a ^ b)
d("v_xnor_b32", "u32", "u32 u32", lambda a, b: ~(a ^ b))
d("v_not_b32", "u32", "u32", lambda a: ~a)
d("v_lshlrev_b32", "u32", "u32 u32", lambda a, b: b << sh(a, 31))
d("v_lshrrev_b32", "u32", "u32 u32", lambda a, b: b >> sh(a, 31))
d("v_ashrrev_i32", "i32", "u32 i32", lambda a, b: b >> sh(a, 31).view(I32))
d("v_lshlrev_b64", "u64", "u32 u64", lambda a, b: b << (a & U32(63)).astype(U64))
d("v_lshrrev_b64", "u64", "u32 u64", lambda a, b: b >> (a & U32(63)).astype(U64))
d("v_ashrrev_i64", "i64", "u32 i64", lambda a, b: b >> (a & U32(63)).astype(I64))
d("v_bfe_u32", "u32", "u32 u32 u32", lambda a, b, c: (a >> sh(b, 31)) & ((U32(1) << sh(c, 31)) - U32(1)))
d("v_bfe_i32", "i32", "u32 u32 u32", lambda a, b, c: bfe_i(a, sh(b, 31), sh(c, 31)))
d("v_bfi_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | (~a & c))
d("v_bfm_b32", "u32", "u32 u32", lambda a, b: ((U32(1) << sh(a, 31)) - U32(1)) << sh(b, 31))
d("v_bfrev_b32", "u32", "u32", bitrev32)
d("v_bcnt_u32_b32", "u32", "u32 u32", lambda a, b: popc(a).astype(U32) + b)
d("v_ffbh_u32", "u32", "u32", lambda a: clz32(a).astype(I32).view(U32))
d("v_ffbh_i32", "u32", "u32", lambda a: clz32(np.where(a >> U32(31), ~a, a)).astype(I32).view(U32))
d("v_ffbl_b32", "u32", "u32", lambda a: ctz(a, 32).astype(I32).view(U32))
d(
    "v_alignbit_b32",
    "u32",
    "u32 u32 u32",
    lambda a, b, c: (((a.astype(U64) << U64(32)) | b.astype(U64)) >> (c & U32(31)).astype(U64)).astype(U32),
)
d(
    "v_alignbyte_b32",
    "u32",
    "u32 u32 u32",
    lambda a, b, c: (((a.astype(U64) << U64(32)) | b.astype(U64)) >> ((c & U32(3)) * U32(8)).astype(U64)).astype(U32),
)
d("v_perm_b32", "u32", "u32 u32 u32", perm)
d("v_sad_u8", "u32", "u32 u32 u32", sad_u8)
d("v_min_u32", "u32", "u32 u32", np.minimum)
d("v_max_u32", "u32", "u32 u32", np.maximum)
d("v_min_i32", "i32", "i32 i32", np.minimum)
d("v_max_i32", "i32", "i32 i32", np.maximum)
for _t in ("u32", "i32", "f32", "f16", "i16", "u16"):
    mn_, mx_ = (np.fmin, np.fmax) if _t[0] == "f" else (np.minimum, np.maximum)
    d("v_min3_" + _t, _t, " ".join([_t] * 3), lambda a, b, c, f=mn_: f(f(a, b), c))
    d("v_max3_" + _t, _t, " ".join([_t] * 3), lambda a, b, c, f=mx_: f(f(a, b), c))
    d("v_med3_" + _t, _t, " ".join([_t] * 3), med3)
d("v_minimum3_f32", "f32", "f32 f32 f32", lambda a, b, c: np.minimum(np.minimum(a, b), c))
d("v_maximum3_f32", "f32", "f32 f32 f32", lambda a, b, c: np.maximum(np.maximum(a, b), c))
# f32
d("v_add_f32", "f32", "f32 f32", lambda a, b: a + b)
d("v_sub_f32", "f32", "f32 f32", lambda a, b: a - b)
d("v_subrev_f32", "f32", "f32 f32", lambda a, b: b - a)
d("v_mul_f32", "f32", "f32 f32", lambda a, b: a * b)
d("v_mul_legacy_f32", "f32", "f32 f32", lambda a, b: np.where((a == 0) | (b == 0), F32(0), a * b))
d("v_fma_f32", "f32", "f32 f32 f32", fma)
d("v_mad_f32", "f32", "f32 f32 f32", fma)
d("v_min_f32", "f32", "f32 f32", np.fmin)
d("v_max_f32", "f32", "f32 f32", np.fmax)
d("v_ldexp_f32", "f32", "f32 i32", lambda a, b: np.ldexp(a.astype(F64), np.clip(b, -400, 400)).astype(F32))
d("v_rcp_f32 v_rcp_iflag_f32", "f32", "f32", lambda a: F32(1) / a)
d("v_rsq_f32", "f32", "f32", lambda a: (1 / np.sqrt(a.astype(F64))).astype(F32))
d("v_sqrt_f32", "f32", "f32", np.sqrt)
d("v_exp_f32", "f32", "f32", lambda a: np.exp2(a.astype(F64)).astype(F32))
d("v_log_f32", "f32", "f32", lambda a: np.log2(a.astype(F64)).astype(F32))
d("v_sin_f32", "f32", "f32", lambda a: np.sin(a.astype(F64) * 2 * np.pi).astype(F32))
d("v_cos_f32", "f32", "f32", lambda a: np.cos(a.astype(F64) * 2 * np.pi).astype(F32))
d("v_fract_f32", "f32", "f32", lambda a: np.minimum(a - np.floor(a), F32(0.99999994)))
d("v_trunc_f32", "f32", "f32", np.trunc)
d("v_ceil_f32", "f32", "f32", np.ceil)
d("v_floor_f32", "f32", "f32", np.floor)
d("v_rndne_f32", "f32", "f32", np.rint)
d("v_frexp_exp_i32_f32", "i32", "f32", lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32))
d("v_frexp_mant_f32", "f32", "f32", lambda a: np.where(np.isfinite(a), np.frexp(a)[0], a))
d("v_div_fixup_f32", "f32", "f32 f32 f32", lambda q, b, c: c / b)
d("v_cvt_f32_u32", "f32", "u32", lambda a: a.astype(F32))
d("v_cvt_f32_i32", "f32", "i32", lambda a: a.astype(F32))
d("v_cvt_u32_f32", "u32", "f32", lambda a: cvt_to_int(a, 0, 4294967295, U32))
d("v_cvt_i32_f32", "i32", "f32", lambda a: cvt_to_int(a, -2147483648, 2147483647, I32))
d("v_cvt_rpi_i32_f32", "i32", "f32", lambda a: cvt_to_int(np.floor(a.astype(F64) + 0.5), -2147483648, 2147483647, I32))
d("v_cvt_flr_i32_f32", "i32", "f32", lambda a: cvt_to_int(np.floor(a), -2147483648, 2147483647, I32))
for _i in range(4):
    d("v_cvt_f32_ubyte%d" % _i, "f32", "u32", cvt_f32_ub(_i))
d("v_cvt_f32_f16", "f32", "f16", lambda a: a.astype(F32))
d("v_cvt_f16_f32", "f16", "f32", lambda a: a.astype(np.float16))
d("v_cvt_f32_bf16", "f32", "bf16", lambda a: a)
d("v_cvt_f64_f32", "f64", "f32", lambda a: a.astype(F64))
d("v_cvt_f32_f64", "f32", "f64", lambda a: a.astype(F32))
d("v_cvt_f64_i32", "f64", "i32", lambda a: a.astype(F64))
d("v_cvt_f64_u32", "f64", "u32", lambda a: a.astype(F64))
d("v_cvt_i32_f64", "i32", "f64", lambda a: cvt_to_int(a, -2147483648, 2147483647, I32))
d("v_cvt_u32_f64", "u32", "f64", lambda a: cvt_to_int(a, 0, 4294967295, U32))
d("v_cvt_pk_bf16_f32", "u32", "f32 f32", lambda a, b: f32_to_bf16(a) | (f32_to_bf16(b) << U32(16)))
d("v_cvt_pkrtz_f16_f32", "u32", "f32 f32", lambda a, b: f16_rtz(a) | (f16_rtz(b) << U32(16)))
d("v_cvt_pk_f16_f32", "u32", "f32 f32", lambda a, b: to_raw(a, "f16") | (to_raw(b, "f16") << U32(16)))
d(
    "v_cvt_pk_u8_f32",
    "u32",
    "f32 u32 u32",
    lambda a, b, c: (
        (c & ~(U32(255) << ((b & U32(3)) * U32(8)))) | (cvt_to_int(np.rint(a), 0, 255, U32) << ((b & U32(3)) * U32(8)))
    ),
)
d("v_pack_b32_f16", "u32", "b16 b16", lambda a, b: a.astype(U32) | (b.astype(U32) << U32(16)))
d("v_cvt_f32_fp8", "f32", "u32", lowp(MM.FP8))
d("v_cvt_f32_bf8", "f32", "u32", lowp(MM.BF8))
# f64
d("v_add_f64", "f64", "f64 f64", lambda a, b: a + b)
d("v_mul_f64", "f64", "f64 f64", lambda a, b: a * b)
d("v_fma_f64 v_fmac_f64x", "f64", "f64 f64 f64", lambda a, b, c: a * b + c)
d("v_min_f64", "f64", "f64 f64", np.fmin)
d("v_max_f64", "f64", "f64 f64", np.fmax)
d("v_rcp_f64", "f64", "f64", lambda a: 1 / a)
d("v_div_fixup_f64", "f64", "f64 f64 f64", lambda q, b, c: c / b)
# 16 bit
d("v_add_u16", "u16", "u16 u16", lambda a, b: a + b)
d("v_sub_u16", "u16", "u16 u16", lambda a, b: a - b)
d("v_subrev_u16", "u16", "u16 u16", lambda a, b: b - a)
d("v_mul_lo_u16", "u16", "u16 u16", lambda a, b: a * b)
d("v_mad_u16 v_mad_legacy_u16", "u16", "u16 u16 u16", lambda a, b, c: a * b + c)
d("v_lshlrev_b16", "u16", "u16 u16", lambda a, b: b << (a & np.uint16(15)))
d("v_lshrrev_b16", "u16", "u16 u16", lambda a, b: b >> (a & np.uint16(15)))
d("v_ashrrev_i16", "i16", "u16 i16", lambda a, b: b >> (a & np.uint16(15)).view(np.int16))
d("v_min_u16", "u16", "u16 u16", np.minimum)
d("v_max_u16", "u16", "u16 u16", np.maximum)
d("v_min_i16", "i16", "i16 i16", np.minimum)
d("v_max_i16", "i16", "i16 i16", np.maximum)
d("v_add_f16", "f16", "f16 f16", lambda a, b: a + b)
d("v_sub_f16", "f16", "f16 f16", lambda a, b: a - b)
d("v_mul_f16", "f16", "f16 f16", lambda a, b: a * b)
d("v_fma_f16", "f16", "f16 f16 f16", lambda a, b, c: (a.astype(F64) * b.astype(F64) + c).astype(np.float16))
d("v_max_f16", "f16", "f16 f16", np.fmax)
d("v_min_f16", "f16", "f16 f16", np.fmin)
d("v_rcp_f16", "f16", "f16", lambda a: (1 / a.astype(F64)).astype(np.float16))
d("v_cvt_f16_u16", "f16", "u16", lambda a: a.astype(np.float16))
d("v_cvt_f16_i16", "f16", "i16", lambda a: a.astype(np.float16))
d("v_cvt_u16_f16", "u16", "f16", lambda a: cvt_to_int(a, 0, 65535, np.uint16))
d("v_cvt_i16_f16", "i16", "f16", lambda a: cvt_to_int(a, -32768, 32767, np.int16))
V16_PRESERVE = {"v_mad_u16", "v_fma_f16", "v_mad_i16", "v_div_fixup_f16", "v_mad_f16"}


def bfe_i(a, off, w):
    x = a >> off
    s = (U32(32) - w) & U32(31)
    r = (x << s).view(I32) >> s.view(I32)
    return np.where(w == 0, I32(0), r)


def f16_rtz(x):
    h = x.astype(np.float16)
    over = np.abs(h.astype(F64)) > np.abs(x.astype(F64))
    hb = h.view(np.uint16).astype(U32)
    return np.where(over & np.isfinite(x), hb - U32(1), hb)


CMP = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
}
_CMP = re.compile(r"^v_cmp(x?)_(\w+?)_([fiu](?:16|32|64)|b(?:16|32|64))$")


def base_name(mn):
    for suf in ("_e32", "_e64_dpp", "_e64", "_sdwa", "_dpp"):
        if mn.endswith(suf):
            return mn[: -len(suf)], suf
    return mn, ""


# ---------------------------------------------------------------- SDWA / DPP wrappers
def sdwa_src(getraw, sel, sext):
    if sel in (None, "DWORD"):
        return getraw
    k, n = sel.rsplit("_", 1)
    w = 8 if k == "BYTE" else 16
    s = U32(int(n) * w)
    m = U32((1 << w) - 1)
    if sext:
        up = I32(32 - w)
        return lambda g: ((((getraw(g) >> s) & m) << U32(32 - w)).view(I32) >> up).view(U32)
    return lambda g: (getraw(g) >> s) & m


def dpp_perm(mods):
    """(lane source index [64], valid [64]) for the classic DPP controls of gfx9."""
    l = np.arange(64)
    row, r = l // 16 * 16, l % 16
    ok = np.ones(64, bool)
    for k, v in mods.items():
        if k == "quad_perm":
            return l // 4 * 4 + np.array(v)[l % 4], ok
        if k == "row_shl":
            s = r + v
            return row + (s & 15), s < 16
        if k == "row_shr":
            s = r - v
            return row + (s & 15), s >= 0
        if k == "row_ror":
            return row + ((r - v) & 15), ok
        if k == "wave_shl":
            return (l + 1) & 63, l + 1 < 64
        if k == "wave_rol":
            return (l + 1) & 63, ok
        if k == "wave_shr":
            return (l - 1) & 63, l >= 1
        if k == "wave_ror":
            return (l - 1) & 63, ok
        if k == "row_mirror":
            return row + 15 - r, ok
        if k == "row_half_mirror":
            return l // 8 * 8 + 7 - l % 8, ok
        if k == "row_newbcast" or k == "row_share":
            return row + v, ok
        if k == "row_bcast":
            if v == 15:
                return np.maximum(l // 16 * 16 - 1, 0), l >= 16
            return np.maximum(l // 32 * 32 - 1, 0), l >= 32
    raise Unsupported("dpp control %r" % mods)


def build_valu(prog, inst, name, suf, opt):
    dst_ty, st, fn = V[name]
    ops = [parse_opnd(t) for t in inst.ops]
    mods = inst.mods
    nd = len(st)
    if len(ops) != nd + 1:
        raise Unsupported("operand count")
    op_sel = mods.get("op_sel", [])
    gi = inst.gpr_idx
    getters = []
    dpp = suf in ("_dpp", "_e64_dpp")
    sdwa = suf == "_sdwa"
    dst_half = 0
    if len(op_sel) == nd + 1:
        dst_half = op_sel[nd]
    bound = None
    for k, ty in enumerate(st):
        o = ops[k + 1]
        half = op_sel[k] if k < len(op_sel) else 0
        if sdwa and k < 2:
            sel = mods.get("src%d_sel" % k, "DWORD")
            if o.kind == "c":
                getters.append(src(prog, o, ty))
                continue
            if sel != "DWORD" or o.sext:
                raw = sdwa_src(raw_getter(prog, o), sel, o.sext)
                w, dt = TYPES[ty]
                if w == 32:
                    f = (lambda raw, dt: lambda g: raw(g).view(dt))(raw, dt)
                elif ty == "bf16":
                    f = (lambda raw: lambda g: (raw(g) << U32(16)).view(F32))(raw)
                else:
                    f = (lambda raw, dt: lambda g: raw(g).astype(np.uint16).view(dt))(raw, dt)
                if o.neg or o.abs:
                    f = (lambda f, ty, o: lambda g: _mod(f(g), ty, o))(f, ty, o)
                getters.append(f)
                continue
        f = src(prog, o, ty, True, bool(gi >> k & 1) and is_vec(o), half)
        if dpp and k == 0:
            perm_i, ok = dpp_perm(mods)
            bctrl = bool(mods.get("bound_ctrl"))
            rm, bm = mods.get("row_mask", 15), mods.get("bank_mask", 15)
            l = np.arange(64)
            en = ((rm >> (l // 16)) & 1 & (bm >> (l % 16 // 4)) & 1).astype(bool)
            f0 = f

            def f(g, f0=f0):
                x = np.broadcast_to(f0(g), (g.W, 64))[:, perm_i]
                valid = np.broadcast_to(ok, (g.W, 64))
                if g.ex is not None:
                    valid = valid & g.ex[:, perm_i]
                return np.where(valid, x, x.dtype.type(0))

            def bound(g):
                valid = np.broadcast_to(ok & en, (g.W, 64)) if not bctrl else np.broadcast_to(en, (g.W, 64))
                if g.ex is not None and not bctrl:
                    valid = valid & g.ex[:, perm_i]
                return valid

        getters.append(f)
    dsel = mods.get("dst_sel", "DWORD") if sdwa else "DWORD"
    clamp, omod = mods.get("clamp"), (mods.get("mul"), mods.get("div"))
    if isinstance(clamp, bool) and clamp or any(omod):
        fn0 = fn
        isf = dst_ty[0] == "f"

        def fn(*a):
            r = fn0(*a)
            if omod[0]:
                r = r * r.dtype.type(omod[0])
            if omod[1]:
                r = r / r.dtype.type(omod[1])
            if clamp:
                if isf:
                    r = np.clip(np.where(np.isnan(r), r.dtype.type(0), r), r.dtype.type(0), r.dtype.type(1))
                elif name in ("v_add_u32", "v_sub_u32", "v_subrev_u32"):
                    big = {
                        "v_add_u32": lambda x, y: x + y,
                        "v_sub_u32": lambda x, y: x - y,
                        "v_subrev_u32": lambda x, y: y - x,
                    }[name](a[0].astype(I64), a[1].astype(I64))
                    r = np.clip(big, 0, 0xFFFFFFFF).astype(U32)
                else:
                    raise Unsupported("clamp on " + name)
            return r

    do = ops[0]
    if do.kind == "s":  # e.g. v_readfirstlane handled elsewhere
        raise Unsupported("scalar destination")
    if dsel != "DWORD":
        k, n = dsel.rsplit("_", 1)
        w = 8 if k == "BYTE" else 16
        s, m = U32(int(n) * w), U32((1 << w) - 1)
        unused = mods.get("dst_unused", "UNUSED_PAD")
        i = vidx(prog, do)

        def store(g, x):
            x = to_raw(x, dst_ty) & m
            if unused == "UNUSED_PRESERVE":
                g.wr(i, (g.V[i] & ~(m << s)) | (x << s))
            elif unused == "UNUSED_SEXT":
                g.wr(i, ((x << U32(32 - w)).view(I32) >> I32(32 - w - int(n) * w)).view(U32))
            else:
                g.wr(i, x << s)
    else:
        store = vwrite(prog, do, dst_ty, dst_half, preserve=(name in V16_PRESERVE))
        if gi & 8:
            raise Unsupported("gpr_idx DST")
    if bound is not None:
        i = vidx(prog, do)
        st_prev = store

        def store(g, x):
            b = bound(g)
            if b.all():
                return st_prev(g, x)
            x = to_raw(np.broadcast_to(x, (g.W, 64)), dst_ty)
            g.wr(i, np.where(b, x, g.V[i]))

    if nd == 1:
        (a0,) = getters
        return lambda g: store(g, fn(a0(g)))
    if nd == 2:
        a0, a1 = getters
        return lambda g: store(g, fn(a0(g), a1(g)))
    a0, a1, a2 = getters
    return lambda g: store(g, fn(a0(g), a1(g), a2(g)))


# ---------------------------------------------------------------- special VALU
def build_special(prog, inst, name, suf):
    ops = [parse_opnd(t) for t in inst.ops]
    mods = inst.mods
    gs = lambda k, ty: src(
        prog, ops[k], ty, True, bool(inst.gpr_idx >> (k - 1) & 1) and is_vec(ops[k]) if k >= 1 else False
    )
    m = _CMP.match(name)
    if m:
        x, c, ty = m.groups()
        if c not in CMP and c != "class":
            raise Unsupported(name)
        ty = ty.replace("b", "u")
        od, k0 = ops[0], 1
        if suf == "_sdwa":

            def sg(k, o):
                sel = mods.get("src%d_sel" % k, "DWORD")
                if o.kind == "c" or (sel == "DWORD" and not o.sext):
                    return src(prog, o, ty)
                raw = sdwa_src(raw_getter(prog, o), sel, o.sext)
                w, dt = TYPES[ty]
                return (lambda g: raw(g).view(dt)) if w == 32 else (lambda g: raw(g).astype(np.uint16).view(dt))

            a, b = sg(0, ops[1]), sg(1, ops[2])
        elif c == "class":
            a, b = src(prog, ops[1], ty), src(prog, ops[2], "u32")
        else:
            sel = mods.get("op_sel", [0, 0])
            a = src(prog, ops[1], ty, half=sel[0] if TYPES[ty][0] == 16 else 0)
            b = src(prog, ops[2], ty, half=sel[1] if TYPES[ty][0] == 16 else 0)
        w = mask_write(od)
        if c == "class":

            def fn(x, mk):
                r = np.zeros(np.broadcast(x, mk).shape, bool)
                neg = np.signbit(x)
                tests = [
                    np.isnan(x),
                    np.isnan(x),
                    np.isinf(x) & neg,
                    np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny) & neg,
                    (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny) & neg,
                    (x == 0) & neg,
                    (x == 0) & ~neg,
                    (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny) & ~neg,
                    np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny) & ~neg,
                    np.isinf(x) & ~neg,
                ]
                for i, t in enumerate(tests):
                    r |= t & ((mk >> U32(i)) & U32(1)).astype(bool)
                return r
        else:
            fn = CMP[c]
        if x:
            i0 = od.idx

            def f(g):
                w(g, fn(a(g), b(g)))
                g.S[126], g.S[127] = g.S[i0].copy(), g.S[i0 + 1].copy()
                g.update_exec()

            return f
        return lambda g: w(g, fn(a(g), b(g)))
    if name == "v_cndmask_b32":
        if suf == "_sdwa":
            a = sdwa_src(
                raw_getter(prog, ops[1]) if ops[1].kind != "c" else src(prog, ops[1], "u32"),
                mods.get("src0_sel"),
                ops[1].sext,
            )
            b = sdwa_src(
                raw_getter(prog, ops[2]) if ops[2].kind != "c" else src(prog, ops[2], "u32"),
                mods.get("src1_sel"),
                ops[2].sext,
            )
            if mods.get("dst_sel", "DWORD") != "DWORD":
                raise Unsupported("cndmask dst_sel")
        else:
            ty = "f32" if (ops[1].neg or ops[2].neg or ops[1].abs or ops[2].abs) else "u32"
            a, b = gs(1, ty), gs(2, ty)
        mk = mask_read(ops[3])
        w = vwrite(prog, ops[0], "u32")
        return lambda g: w(g, np.where(mk(g), to_raw(b(g), "u32"), to_raw(a(g), "u32")))
    if name in (
        "v_add_co_u32",
        "v_sub_co_u32",
        "v_subrev_co_u32",
        "v_addc_co_u32",
        "v_subb_co_u32",
        "v_subbrev_co_u32",
    ):
        a, b = gs(2, "u32"), gs(3, "u32")
        w, wm = vwrite(prog, ops[0], "u32"), mask_write(ops[1])
        cin = mask_read(ops[4]) if len(ops) > 4 else None
        rev = "rev" in name
        add = name.startswith("v_add")

        def f(g):
            x, y = a(g).astype(I64), b(g).astype(I64)
            if rev:
                x, y = y, x
            r = x + y if add else x - y
            if cin is not None:
                c = cin(g)
                r = r + c if add else r - c
            co = (r > 0xFFFFFFFF) | (r < 0)
            w(g, r.astype(U32))
            wm(g, co)

        return f
    if name in ("v_mad_u64_u32", "v_mad_i64_i32"):
        s = name[-3] == "u"
        a, b = (gs(2, "u32"), gs(3, "u32")) if s else (gs(2, "i32"), gs(3, "i32"))
        c = gs(4, "u64")
        w, wm = vwrite(prog, ops[0], "u64"), mask_write(ops[1])

        def f(g):
            p = u64mul(a(g), b(g)) if s else i64mul(a(g), b(g)).view(U64)
            z = c(g)
            r = p + z
            wm(g, r < z)
            w(g, r)

        return f
    if name in ("v_fmac_f32", "v_mac_f32", "v_fmac_f64"):
        ty = "f64" if name.endswith("64") else "f32"
        if suf == "_dpp":
            raise Unsupported("fmac dpp")
        a, b, c = gs(1, ty), gs(2, ty), src(prog, ops[0], ty)
        w = vwrite(prog, ops[0], ty)
        if ty == "f64":
            return lambda g: w(g, a(g) * b(g) + c(g))
        return lambda g: w(g, fma(a(g), b(g), c(g)))
    if name in ("v_fmamk_f32", "v_madmk_f32"):
        a, k, b = gs(1, "f32"), gs(2, "f32"), gs(3, "f32")
        w = vwrite(prog, ops[0], "f32")
        return lambda g: w(g, fma(a(g), k(g), b(g)))
    if name in ("v_fmaak_f32", "v_madak_f32"):
        a, b, k = gs(1, "f32"), gs(2, "f32"), gs(3, "f32")
        w = vwrite(prog, ops[0], "f32")
        return lambda g: w(g, fma(a(g), b(g), k(g)))
    if name in ("v_div_scale_f32", "v_div_scale_f64"):
        ty = name[-3:]
        a = gs(2, ty)
        w, wm = vwrite(prog, ops[0], ty), mask_write(ops[1])
        return lambda g: (w(g, a(g)), wm(g, np.zeros((g.W, 64), bool)))[0]
    if name in ("v_div_fmas_f32", "v_div_fmas_f64"):
        ty = name[-3:]
        a, b, c = gs(1, ty), gs(2, ty), gs(3, ty)
        w = vwrite(prog, ops[0], ty)
        return lambda g: w(g, (a(g).astype(F64) * b(g) + c(g)).astype(TYPES[ty][1]))
    if name == "v_readfirstlane_b32":
        a = gs(1, "u32")
        w = swrite(ops[0], "u32")

        def f(g):
            x = a(g)
            if x.shape[1] == 1:
                w(g, np.broadcast_to(x[:, 0], (g.W,)))
            elif g.ex is None:
                w(g, x[:, 0])
            else:
                w(g, x[np.arange(g.W), g.ex.argmax(1)])

        return f
    if name == "v_readlane_b32":
        a = gs(1, "u32")
        ln = src(prog, ops[2], "u32", vec=False)
        w = swrite(ops[0], "u32")
        return lambda g: w(
            g, np.broadcast_to(a(g), (g.W, 64))[np.arange(g.W), np.broadcast_to(ln(g) & U32(63), (g.W,))]
        )
    if name == "v_writelane_b32":
        a, ln = src(prog, ops[1], "u32", vec=False), src(prog, ops[2], "u32", vec=False)
        i = vidx(prog, ops[0])

        def f(g):
            g.V[i][np.arange(g.W), np.broadcast_to(ln(g) & U32(63), (g.W,))] = a(g)
            g.ver[i] += 1

        return f
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
        a, b = gs(1, "u32"), gs(2, "u32")
        l = np.arange(64)
        if "lo" in name:
            below = np.array([(1 << min(x, 32)) - 1 for x in l], U64).astype(U32)
        else:
            below = np.array([(1 << max(x - 32, 0)) - 1 for x in l], U64).astype(U32)
        w = vwrite(prog, ops[0], "u32")
        return lambda g: w(g, popc(a(g) & below).astype(U32) + b(g))
    if name in ("v_permlane16_swap_b32", "v_permlane32_swap_b32"):
        i, j = vidx(prog, ops[0]), vidx(prog, ops[1])
        h = 16 if "16" in name else 32

        def f(g):
            if g.ex is not None:
                raise Unsupported("permlane_swap with partial EXEC")
            a, b = g.V[i].reshape(g.W, -1, 2, h), g.V[j].reshape(g.W, -1, 2, h)
            t = a[:, :, 1].copy()
            a[:, :, 1] = b[:, :, 0]
            b[:, :, 0] = t
            g.ver[i] += 1
            g.ver[j] += 1

        return f
    if name == "v_swap_b32":
        i, j = vidx(prog, ops[0]), vidx(prog, ops[1])

        def f(g):
            t = g.V[i].copy()
            g.wr(i, g.V[j].copy())
            g.wr(j, t)

        return f
    if name in ("v_bitop3_b32", "v_bitop3_b16"):
        ty = "u32" if name.endswith("32") else "u16"
        tt = mods.get("bitop3", 0)
        sel = mods.get("op_sel", [0, 0, 0, 0])
        if ty == "u16":
            a, b, c = (src(prog, ops[k], ty, half=sel[k - 1]) for k in (1, 2, 3))
            w = vwrite(prog, ops[0], ty, half=sel[3] if len(sel) > 3 else 0, preserve=True)
        else:
            a, b, c = gs(1, ty), gs(2, ty), gs(3, ty)
            w = vwrite(prog, ops[0], ty)
        return lambda g: w(g, bitop3(a(g), b(g), c(g), tt))
    if name.startswith("v_pk_"):
        return build_pk(prog, inst, name, ops)
    if name.startswith("v_cvt_scalef32_") or name.startswith(
        ("v_cvt_pk_fp8", "v_cvt_pk_bf8", "v_cvt_pk_f32_fp8", "v_cvt_pk_f32_bf8")
    ):
        return build_cvt(prog, inst, name, ops)
    if name in ("v_dot2c_f32_bf16", "v_dot2_f32_bf16", "v_dot2_f32_f16", "v_dot2c_f32_f16"):
        ty = "bf16" if "bf16" in name else "f16"
        al, ah = src(prog, ops[1], ty), src(prog, ops[1], ty, half=1)
        bl, bh = src(prog, ops[2], ty), src(prog, ops[2], ty, half=1)
        c = src(prog, ops[0] if "2c" in name else ops[3], "f32")
        w = vwrite(prog, ops[0], "f32")
        return lambda g: w(g, (al(g).astype(F64) * bl(g) + ah(g).astype(F64) * bh(g) + c(g)).astype(F32))
    if name == "v_nop":
        return lambda g: None
    raise Unsupported(name)


def build_pk(prog, inst, name, ops):
    mods = inst.mods
    n = len(ops) - 1
    sel, selh = mods.get("op_sel", [0] * n), mods.get("op_sel_hi", [1] * n)
    nlo, nhi = mods.get("neg_lo", [0] * n), mods.get("neg_hi", [0] * n)
    core = name[5:]
    if core in ("add_f32", "mul_f32", "fma_f32", "mov_b32"):
        ty = "f32" if core != "mov_b32" else "u32"

        def half(k, hi, ng):
            o = ops[k]
            if o.kind == "c":
                f = src(prog, o, ty)
            else:
                raw = raw_getter(prog, o, hi if (o.n > 1 or is_vec(o)) else 0)
                f = raw if ty == "u32" else (lambda g: raw(g).view(F32))
            return (lambda g: -f(g)) if ng else f

        lo = [half(k + 1, sel[k], nlo[k]) for k in range(n)]
        hi = [half(k + 1, selh[k], nhi[k]) for k in range(n)]
        fn = {"add_f32": lambda a, b: a + b, "mul_f32": lambda a, b: a * b, "fma_f32": fma, "mov_b32": None}[core]
        i = vidx(prog, ops[0])

        def f(g):
            if core == "mov_b32":
                # lo result: src0 half op_sel[0]; hi result: src1 half op_sel[1]
                a, b = lo[0](g).copy(), half(2, sel[1], 0)(g).copy()
            else:
                a, b = to_raw(fn(*[x(g) for x in lo]), "f32"), to_raw(fn(*[x(g) for x in hi]), "f32")
            g.wr(i, a)
            g.wr(i + 1, b)

        return f
    m16 = {
        "add_f16": ("f16", lambda a, b: a + b),
        "mul_f16": ("f16", lambda a, b: a * b),
        "min_f16": ("f16", np.fmin),
        "max_f16": ("f16", np.fmax),
        "fma_f16": ("f16", lambda a, b, c: (a.astype(F64) * b + c).astype(np.float16)),
        "add_u16": ("u16", lambda a, b: a + b),
        "sub_u16": ("u16", lambda a, b: a - b),
        "sub_i16": ("u16", lambda a, b: a - b),
        "add_i16": ("u16", lambda a, b: a + b),
        "mul_lo_u16": ("u16", lambda a, b: a * b),
        "mad_u16": ("u16", lambda a, b, c: a * b + c),
        "lshlrev_b16": ("u16", lambda a, b: b << (a & np.uint16(15))),
        "lshrrev_b16": ("u16", lambda a, b: b >> (a & np.uint16(15))),
        "ashrrev_i16": ("i16", lambda a, b: b >> (a & np.int16(15))),
        "min_u16": ("u16", np.minimum),
        "max_u16": ("u16", np.maximum),
        "min_i16": ("i16", np.minimum),
        "max_i16": ("i16", np.maximum),
        "minimum3_f16": ("f16", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
        "maximum3_f16": ("f16", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    }
    if core not in m16:
        raise Unsupported(name)
    ty, fn = m16[core]

    def h(k, hi, ng):
        f = src(prog, ops[k], ty, half=hi if ops[k].kind != "c" else 0)
        return (lambda g: -f(g)) if ng else f

    lo = [h(k + 1, sel[k], nlo[k]) for k in range(n)]
    hi = [h(k + 1, selh[k], nhi[k]) for k in range(n)]
    w = vwrite(prog, ops[0], "u32")
    return lambda g: w(g, to_raw(fn(*[x(g) for x in lo]), ty) | (to_raw(fn(*[x(g) for x in hi]), ty) << U32(16)))


def build_cvt(prog, inst, name, ops):
    """packed fp4/fp6/fp8 conversions with and without scale."""
    mods = inst.mods
    sel = mods.get("op_sel", [0, 0, 0, 0])
    i = vidx(prog, ops[0])
    m = re.match(r"^v_cvt_scalef32_pk_(fp4|fp8|bf8)_(f32|f16|bf16)$", name)
    if m:
        dstk, sty = m.groups()
        if sty == "f32":
            a, b, s = src(prog, ops[1], "f32"), src(prog, ops[2], "f32"), src(prog, ops[3], "f32")
        else:
            a, b, s = src(prog, ops[1], sty), src(prog, ops[1], sty, half=1), src(prog, ops[2], "f32")
        # destination select: fp4: op_sel[3:2] picks a byte; fp8: op_sel[3] picks a half
        if dstk == "fp4":
            bits, pos, w = 4, (sel[-2] | sel[-1] << 1) * 8, 8
        else:
            bits, pos, w = 8, sel[-1] * 16, 16
        keep = U32(0xFFFFFFFF ^ (((1 << w) - 1) << pos))

        def f(g):
            sc = scale_of(s(g))
            x = to_small_float(a(g).astype(F64) / sc, dstk) | (to_small_float(b(g).astype(F64) / sc, dstk) << U32(bits))
            g.wr(i, (g.V[i] & keep) | (x << U32(pos)))

        return f
    m = re.match(r"^v_cvt_scalef32_pk_(f32|f16|bf16)_(fp4|fp8|bf8)$", name)
    if m:
        dty, sk = m.groups()
        a, s = src(prog, ops[1], "u32"), src(prog, ops[2], "f32")
        tab = {"fp4": MM.FP4, "fp8": MM.FP8, "bf8": MM.BF8}[sk]
        if sk == "fp4":
            bits, pos = 4, (sel[0] | sel[1] << 1) * 8
        else:
            bits, pos = 8, sel[0] * 16
        mk = U32((1 << bits) - 1)

        def f(g):
            x, sc = a(g) >> U32(pos), scale_of(s(g))
            lo, hi = (tab[x & mk] * sc).astype(F32), (tab[(x >> U32(bits)) & mk] * sc).astype(F32)
            if dty == "f32":
                g.wr(i, lo.view(U32))
                g.wr(i + 1, hi.view(U32))
            else:
                g.wr(i, to_raw(lo, dty) | (to_raw(hi, dty) << U32(16)))

        return f
    m = re.match(r"^v_cvt_pk_(fp8|bf8)_f32$", name)
    if m:
        a, b = src(prog, ops[1], "f32"), src(prog, ops[2], "f32")
        pos = (sel[-1] if sel else 0) * 16
        keep = U32(0xFFFFFFFF ^ (0xFFFF << pos))

        def f(g):
            x = to_small_float(a(g), m.group(1)) | (to_small_float(b(g), m.group(1)) << U32(8))
            g.wr(i, (g.V[i] & keep) | (x << U32(pos)))

        return f
    m = re.match(r"^v_cvt_pk_f32_(fp8|bf8)$", name)
    if m:
        tab = {"fp8": MM.FP8, "bf8": MM.BF8}[m.group(1)].astype(F32)
        hi = sel[0] if "op_sel" in mods else 0
        if mods.get("src0_sel") in ("WORD_1",):
            hi = 1
        a = src(prog, ops[1], "u32")

        def f(g):
            x = a(g) >> U32(16 * hi)
            g.wr(i, tab[x & U32(255)].view(U32))
            g.wr(i + 1, tab[(x >> U32(8)) & U32(255)].view(U32))

        return f
    raise Unsupported(name)


# ---------------------------------------------------------------- MFMA
def build_mfma(prog, inst):
    p = MM.parse_name(inst.mn)
    if p is None:
        raise Unsupported(inst.mn)
    out, rows, cols, K, blocks, typ = p
    ops = [parse_opnd(t) for t in inst.ops]
    mods = inst.mods
    if rows != cols or rows not in (16, 32) or blocks != 1 or out == "f64":
        raise Unsupported(inst.mn)
    nacc = rows * rows // 64
    di = vidx(prog, ops[0])
    ai, bi = vidx(prog, ops[1]), vidx(prog, ops[2])
    if ops[3].kind == "c":
        c0, ci = (F64(ops[3].val) if out == "f32" else ops[3].val), None
    else:
        c0, ci = None, vidx(prog, ops[3])
    scaled = inst.mn.startswith("v_mfma_scale")
    if typ == "f8f6f4":
        fa, fb = mods.get("cbsz", 0), mods.get("blgp", 0)
        sa = sb = None
        if scaled:
            sel, selh = mods.get("op_sel", [0, 0, 0]), mods.get("op_sel_hi", [1, 1, 1])
            sa = (ops[4], sel[0] | selh[0] << 1)
            sb = (ops[5], sel[1] | selh[1] << 1)
        kd = {8: 8, 6: 6, 4: 4}

        def operand(i, fmt, s):
            nd = kd[MM.FORMATS[fmt][2]]
            sget = src(prog, s[0], "u32") if s else None
            svec = is_vec(s[0]) if s else False
            si = vidx(prog, s[0]) if svec else -1
            key = (i, fmt, si, s[1] if s else 0)
            shift = U32(8 * s[1]) if s else None
            cache_ok = (s is None) or svec

            def get(g):
                ver = g.ver
                tag = tuple(ver[i : i + nd]) + ((ver[si],) if svec else ())
                if cache_ok:
                    hit = g.mcache.get(key)
                    if hit is not None and hit[0] == tag:
                        return hit[1]
                raw = g.V[i : i + nd].transpose(1, 2, 0)
                x = MM.decode_f8f6f4(raw, fmt)
                sc = None
                if s is not None:
                    sc = (np.broadcast_to(sget(g), (g.W, 64)) >> shift) & U32(255)
                mtx = MM.scale_operand(x, fmt, rows, sc)
                if cache_ok:
                    g.mcache[key] = (tag, mtx)
                return mtx

            return get

        A, B = operand(ai, fa, sa), operand(bi, fb, sb)
    else:
        per = rows * K // 64
        kinds = {
            "bf16": (16, lambda r: MM.bf16_to_f64(np.ascontiguousarray(r).view(np.uint16))),
            "f16": (16, lambda r: np.ascontiguousarray(r).view(np.float16).astype(F64)),
            "fp8": (8, lambda r: MM.FP8[np.ascontiguousarray(r).view(np.uint8)]),
            "bf8": (8, lambda r: MM.BF8[np.ascontiguousarray(r).view(np.uint8)]),
            "i8": (8, lambda r: np.ascontiguousarray(r).view(np.int8).astype(F64)),
            "f32": (32, lambda r: np.ascontiguousarray(r).view(F32).astype(F64)),
        }
        parts = typ.split("_") if typ.split("_")[0] in kinds else [typ]
        ta, tb = (parts[0], parts[-1])
        if ta not in kinds or tb not in kinds:
            raise Unsupported(inst.mn)

        def operand(i, t):
            bits, dec = kinds[t]
            nd = per * bits // 32
            key = (i, t)

            def get(g):
                tag = tuple(g.ver[i : i + nd])
                hit = g.mcache.get(key)
                if hit is not None and hit[0] == tag:
                    return hit[1]
                mtx = MM.lanes_to_matrix(dec(g.V[i : i + nd].transpose(1, 2, 0)), rows)
                g.mcache[key] = (tag, mtx)
                return mtx

            return get

        A, B = operand(ai, ta), operand(bi, tb)
        if out == "i32":

            def f(g):
                D = MM.mm_to_acc(np.matmul(A(g), B(g).transpose(0, 2, 1)), rows).astype(I64)
                c = c0 if ci is None else g.V[ci : ci + nacc].view(I32).astype(I64)
                g.V[di : di + nacc] = (D + c).astype(U32)
                for k in range(di, di + nacc):
                    g.ver[k] += 1

            return f

    rng = range(di, di + nacc)

    def f(g):
        D = MM.mm_to_acc(np.matmul(A(g), B(g).transpose(0, 2, 1)), rows)
        if ci is None:
            if c0 != 0:
                D = D + c0
        else:
            D = D + g.V[ci : ci + nacc].view(F32)
        g.V[di : di + nacc] = D.astype(F32).view(U32)
        ver = g.ver
        for k in rng:
            ver[k] += 1
        g.nmfma += g.W

    return f


# ---------------------------------------------------------------- SALU
S2 = {}
SCC_NZ = object()


def sd(names, dst, srcs, fn, scc=None):
    for n in names.split():
        S2[n] = (dst, srcs.split(), fn, scc)


sd("s_mov_b32", "u32", "u32", lambda a: a)
sd("s_mov_b64", "u64", "u64", lambda a: a)
sd("s_not_b32", "u32", "u32", lambda a: ~a, "nz")
sd("s_not_b64", "u64", "u64", lambda a: ~a, "nz")
sd("s_brev_b32", "u32", "u32", bitrev32)
sd("s_mul_i32", "u32", "u32 u32", lambda a, b: a * b)
sd("s_mul_hi_u32", "u32", "u32 u32", lambda a, b: (u64mul(a, b) >> U64(32)).astype(U32))
sd("s_mul_hi_i32", "i32", "i32 i32", lambda a, b: (i64mul(a, b) >> I64(32)).astype(I32))
for _b, _ty in (("32", "u32"), ("64", "u64")):
    sd("s_and_b" + _b, _ty, _ty + " " + _ty, lambda a, b: a & b, "nz")
    sd("s_or_b" + _b, _ty, _ty + " " + _ty, lambda a, b: a | b, "nz")
    sd("s_xor_b" + _b, _ty, _ty + " " + _ty, lambda a, b: a ^ b, "nz")
    sd("s_andn2_b" + _b, _ty, _ty + " " + _ty, lambda a, b: a & ~b, "nz")
    sd("s_orn2_b" + _b, _ty, _ty + " " + _ty, lambda a, b: a | ~b, "nz")
    sd("s_nand_b" + _b, _ty, _ty + " " + _ty, lambda a, b: ~(a & b), "nz")
    sd("s_nor_b" + _b, _ty, _ty + " " + _ty, lambda a, b: ~(a | b), "nz")
    sd("s_xnor_b" + _b, _ty, _ty + " " + _ty, lambda a, b: ~(a ^ b), "nz")
sd("s_lshl_b32", "u32", "u32 u32", lambda a, b: a << sh(b, 31), "nz")
sd("s_lshr_b32", "u32", "u32 u32", lambda a, b: a >> sh(b, 31), "nz")
sd("s_ashr_i32", "i32", "i32 u32", lambda a, b: a >> sh(b, 31).view(I32), "nz")
sd("s_lshl_b64", "u64", "u64 u32", lambda a, b: a << (b & U32(63)).astype(U64), "nz")
sd("s_lshr_b64", "u64", "u64 u32", lambda a, b: a >> (b & U32(63)).astype(U64), "nz")
sd("s_ashr_i64", "i64", "i64 u32", lambda a, b: a >> (b & U32(63)).astype(I64), "nz")
sd("s_bfm_b32", "u32", "u32 u32", lambda a, b: ((U32(1) << sh(a, 31)) - U32(1)) << sh(b, 31))
sd(
    "s_bfm_b64",
    "u64",
    "u32 u32",
    lambda a, b: ((U64(1) << (a & U32(63)).astype(U64)) - U64(1)) << (b & U32(63)).astype(U64),
)
sd("s_bfe_u32", "u32", "u32 u32", lambda a, b: s_bfe(a, b, False), "nz")
sd("s_bfe_i32", "i32", "u32 u32", lambda a, b: s_bfe(a, b, True), "nz")
sd(
    "s_bfe_u64",
    "u64",
    "u64 u32",
    lambda a, b: (a >> (b & U32(63)).astype(U64)) & ((U64(1) << ((b >> U32(16)) & U32(63)).astype(U64)) - U64(1)),
    "nz",
)
sd("s_bfe_i64", "i64", "u64 u32", lambda a, b: bfe_i64(a, b), "nz")
for _k in (1, 2, 3, 4):
    sd("s_lshl%d_add_u32" % _k, "u32", "u32 u32", lambda a, b, k=_k: (a << U32(k)) + b, ("carry", _k))
sd("s_pack_ll_b32_b16", "u32", "u32 u32", lambda a, b: (a & U32(0xFFFF)) | (b << U32(16)))
sd("s_pack_lh_b32_b16", "u32", "u32 u32", lambda a, b: (a & U32(0xFFFF)) | (b & U32(0xFFFF0000)))
sd("s_pack_hh_b32_b16", "u32", "u32 u32", lambda a, b: (a >> U32(16)) | (b & U32(0xFFFF0000)))
sd("s_sext_i32_i8", "i32", "u32", lambda a: (a << U32(24)).view(I32) >> I32(24))
sd("s_sext_i32_i16", "i32", "u32", lambda a: (a << U32(16)).view(I32) >> I32(16))
sd("s_bcnt1_i32_b32", "u32", "u32", lambda a: popc(a).astype(U32), "nz")
sd("s_bcnt1_i32_b64", "u32", "u64", lambda a: popc(a).astype(U32), "nz")
sd("s_ff1_i32_b32", "u32", "u32", lambda a: ctz(a, 32).astype(I32).view(U32))
sd("s_ff1_i32_b64", "u32", "u64", lambda a: ctz(a, 64).astype(I32).view(U32))
sd("s_flbit_i32_b32", "u32", "u32", lambda a: clz32(a).astype(I32).view(U32))
sd("s_abs_i32", "u32", "i32", lambda a: np.abs(a.astype(I64)).astype(U32), "nz")


def s_bfe(a, b, signed):
    off, w = b & U32(31), (b >> U32(16)) & U32(127)
    a, off, w = np.broadcast_arrays(a, off, w)
    x = a.astype(U64) >> off.astype(U64)
    x = x & ((U64(1) << np.minimum(w, U32(32)).astype(U64)) - U64(1))
    if signed:
        s = U64(64) - np.clip(w, 1, 32).astype(U64)
        x = (x << s).view(I64) >> s.view(I64)
        return np.where(w == 0, 0, x).astype(I32)
    return x.astype(U32)


def bfe_i64(a, b):
    off, w = (b & U32(63)).astype(U64), ((b >> U32(16)) & U32(127)).astype(U64)
    s = U64(64) - np.clip(w, 1, 64).astype(U64)
    return ((a >> off) << s).view(I64) >> s.view(I64)


_SCMP = re.compile(r"^s_cmp(k?)_(eq|lg|gt|ge|lt|le)_([iu](?:32|64))$")
SCMP = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def setscc(g, b):
    g.scc[:] = b


def build_salu(prog, inst):
    mn = inst.mn
    ops = [parse_opnd(t) for t in inst.ops]
    gs = lambda k, ty: src(prog, ops[k], ty, vec=False)
    m = _SCMP.match(mn)
    if m:
        k, c, ty = m.groups()
        if k:
            v = inst.w[0] & 0xFFFF
            if ty[0] == "i" and v & 0x8000:
                v -= 0x10000
            ops[1] = parse_opnd(str(v))
        a, b, fn = gs(0, ty), gs(1, ty), SCMP[c]
        return lambda g: setscc(g, fn(a(g), b(g)))
    if mn in ("s_bitcmp0_b32", "s_bitcmp1_b32"):
        a, b, one = gs(0, "u32"), gs(1, "u32"), mn[8] == "1"
        return lambda g: setscc(g, ((a(g) >> (b(g) & U32(31))) & U32(1)).astype(bool) == one)
    if mn in S2:
        dst, st, fn, scc = S2[mn]
        w = swrite(ops[0], dst)
        gets = [gs(k + 1, t) for k, t in enumerate(st)]
        if len(gets) == 1:
            (a0,) = gets
            call = lambda g: fn(a0(g))
        else:
            a0, a1 = gets
            call = lambda g: fn(a0(g), a1(g))
        if scc is None:
            return lambda g: w(g, call(g))
        if scc == "nz":

            def f(g):
                r = call(g)
                w(g, r)
                g.scc[:] = r != 0

            return f
        sft = scc[1]

        def f(g):
            x, y = a0(g), a1(g)
            big = (x.astype(U64) << U64(sft)) + y.astype(U64)
            w(g, big.astype(U32))
            g.scc[:] = big > U64(0xFFFFFFFF)

        return f
    if mn in ("s_add_u32", "s_sub_u32", "s_addc_u32", "s_subb_u32"):
        a, b = gs(1, "u32"), gs(2, "u32")
        w = swrite(ops[0], "u32")
        if mn == "s_add_u32":

            def f(g):
                x = a(g)
                r = x + b(g)
                g.scc[:] = r < x
                w(g, r)
        elif mn == "s_sub_u32":

            def f(g):
                x, y = a(g), b(g)
                c = x < y
                w(g, x - y)
                g.scc[:] = c
        elif mn == "s_addc_u32":

            def f(g):
                r = a(g).astype(U64) + b(g) + g.scc
                w(g, r.astype(U32))
                g.scc[:] = r > U64(0xFFFFFFFF)
        else:

            def f(g):
                r = a(g).astype(I64) - b(g).astype(I64) - g.scc
                w(g, r.astype(U32))
                g.scc[:] = r < 0

        return f
    if mn in ("s_add_i32", "s_sub_i32"):
        a, b = gs(1, "i32"), gs(2, "i32")
        w = swrite(ops[0], "u32")
        neg = mn == "s_sub_i32"

        def f(g):
            x, y = a(g).astype(I64), b(g).astype(I64)
            r = x - y if neg else x + y
            w(g, r.astype(U32))
            g.scc[:] = (r > 0x7FFFFFFF) | (r < -0x80000000)

        return f
    if mn in ("s_min_i32", "s_max_i32", "s_min_u32", "s_max_u32"):
        ty = mn[-3:]
        a, b, fn = gs(1, ty), gs(2, ty), (np.minimum if "min" in mn else np.maximum)
        w = swrite(ops[0], ty)

        def f(g):
            x, y = a(g), b(g)
            r = fn(x, y)
            w(g, r)
            g.scc[:] = (r == x) & (x != y) if False else (x < y if "min" in mn else x > y)

        return f
    if mn in ("s_cselect_b32", "s_cselect_b64"):
        ty = "u32" if mn.endswith("32") else "u64"
        a, b, w = gs(1, ty), gs(2, ty), swrite(ops[0], ty)
        return lambda g: w(g, np.where(g.scc, a(g), b(g)))
    if mn in ("s_cmov_b32", "s_cmov_b64"):
        ty = "u32" if mn.endswith("32") else "u64"
        a, o, w = gs(1, ty), gs(0, ty), swrite(ops[0], ty)
        return lambda g: w(g, np.where(g.scc, a(g), o(g)))
    if mn in ("s_movk_i32", "s_addk_i32", "s_mulk_i32", "s_cmovk_i32"):
        v = inst.w[0] & 0xFFFF
        v = v - 0x10000 if v & 0x8000 else v
        w = swrite(ops[0], "u32")
        o = gs(0, "i32")
        if mn == "s_movk_i32":
            c = np.array([v], I64).astype(U32)
            return lambda g: w(g, c)
        if mn == "s_addk_i32":

            def f(g):
                r = o(g).astype(I64) + v
                w(g, r.astype(U32))
                g.scc[:] = (r > 0x7FFFFFFF) | (r < -0x80000000)

            return f
        if mn == "s_mulk_i32":
            return lambda g: w(g, (o(g).astype(I64) * v).astype(U32))
        c = np.array([v], I64).astype(U32)
        return lambda g: w(g, np.where(g.scc, c, o(g).view(U32)))
    if mn in ("s_bitset0_b32", "s_bitset1_b32"):
        a, o, w = gs(1, "u32"), gs(0, "u32"), swrite(ops[0], "u32")
        if mn[8] == "1":
            return lambda g: w(g, o(g) | (U32(1) << (a(g) & U32(31))))
        return lambda g: w(g, o(g) & ~(U32(1) << (a(g) & U32(31))))
    m = re.match(r"^s_(and|or|xor|andn2|orn2|nand|nor|xnor|andn1|orn1)_(saveexec|wrexec)_b64$", mn)
    if m:
        k, kind = m.groups()
        a, w = gs(1, "u64"), swrite(ops[0], "u64")
        fn = {
            "and": lambda s, e: s & e,
            "or": lambda s, e: s | e,
            "xor": lambda s, e: s ^ e,
            "andn2": lambda s, e: s & ~e,
            "orn2": lambda s, e: s | ~e,
            "nand": lambda s, e: ~(s & e),
            "nor": lambda s, e: ~(s | e),
            "xnor": lambda s, e: ~(s ^ e),
            "andn1": lambda s, e: ~s & e,
            "orn1": lambda s, e: ~s | e,
        }[k]
        we = swrite(parse_opnd("exec"), "u64")
        ge = src(prog, parse_opnd("exec"), "u64", vec=False)

        def f(g):
            e, s = ge(g), a(g)
            r = fn(s, e)
            w(g, e if kind == "saveexec" else r)
            we(g, r)
            g.scc[:] = r != 0

        return f
    if mn == "s_getpc_b64":
        w, v = swrite(ops[0], "u64"), np.array([inst.pc + 4], U64)
        return lambda g: w(g, v)
    if mn == "s_set_gpr_idx_on":
        a = gs(0, "u32")
        hi = U32((inst.w[0] >> 8 & 15) << 12)

        def f(g):
            g.S[124] = (g.S[124] & U32(0xFFFF0F00)) | (a(g) & U32(0xFF)) | hi

        return f
    if mn == "s_setvskip" and ops[0].kind == "c" and not (ops[0].val >> (ops[1].val or 0)) & 1:
        return NOP
    if mn == "s_set_gpr_idx_idx":
        a = gs(0, "u32")

        def f(g):
            g.S[124] = (g.S[124] & U32(0xFFFFFF00)) | (a(g) & U32(0xFF))

        return f
    if mn in ("s_memtime", "s_memrealtime"):
        w = swrite(ops[0], "u64")

        def f(g):
            g.time += 64
            w(g, np.array([g.time], U64))

        return f
    if mn in ("s_getreg_b32",):
        w = swrite(ops[0], "u32")
        return lambda g: w(g, np.zeros(1, U32))
    if mn in (
        "s_setreg_b32",
        "s_setreg_imm32_b32",
        "s_set_gpr_idx_off",
        "s_nop",
        "s_sleep",
        "s_setprio",
        "s_waitcnt",
        "s_waitcnt_vscnt",
        "s_waitcnt_depctr",
        "s_icache_inv",
        "s_dcache_wb",
        "s_dcache_inv",
        "s_inst_prefetch",
        "s_sendmsg",
        "s_wakeup",
        "s_incperflevel",
        "s_decperflevel",
        "s_ttracedata",
        "s_code_end",
        "s_sethalt",
        "s_set_gpr_idx_mode",
    ):
        return NOP
    raise Unsupported(mn)


def build_waitcnt(inst):
    w = inst.w[0] & 0xFFFF
    vm, lgkm = (w & 15) | (w >> 14 & 3) << 4, w >> 8 & 15
    vm = None if vm == 63 else vm
    lgkm = None if lgkm == 15 else lgkm
    return lambda g: PD.wait(g, vm, lgkm, _SELF) if g.run.strict else None


NOP = None


# ---------------------------------------------------------------- memory
SIZES = {
    "ubyte": (1, 0),
    "sbyte": (1, 1),
    "ushort": (2, 0),
    "sshort": (2, 1),
    "short": (2, 0),
    "byte": (1, 0),
    "dword": (4, 0),
    "dwordx2": (8, 0),
    "dwordx3": (12, 0),
    "dwordx4": (16, 0),
    "short_d16": (2, 2),
    "short_d16_hi": (2, 3),
    "ubyte_d16": (1, 2),
    "ubyte_d16_hi": (1, 3),
    "sbyte_d16": (1, 4),
    "sbyte_d16_hi": (1, 5),
    "byte_d16_hi": (1, 3),
}


def finish_load(prog, i, v, nbytes, ext, g, act, q="vm", pc=0, rd=None):
    """Write loaded dwords v [k, nd] of active lanes act (None: all) into V[i..]. rd: (LDS addresses [W*64], nbytes) in strict mode."""
    nd = v.shape[1]
    W = g.W
    if g.run.strict:
        full = np.zeros((W * 64, nd), U32)
        full[slice(None) if act is None else act] = v
        if rd is not None:
            rd = (np.broadcast_to(rd[0], (W * 64,)).reshape(W, 64).copy(), rd[1], full.reshape(W, 64, nd).copy())
        if ext == 1:
            b = 32 - 8 * nbytes
            full = ((full << U32(b)).view(I32) >> I32(b)).view(U32)
        elif ext in (4, 5):
            full = ((full << U32(24)).view(I32) >> I32(24)).view(U32) & U32(0xFFFF)
        if ext in (3, 5):
            full = full << U32(16)
        PD.push_vgpr(
            g,
            q,
            pc,
            [i + j for j in range(nd)],
            full.reshape(W, 64, nd),
            0xFFFF0000 if ext in (2, 4) else 0xFFFF if ext in (3, 5) else 0,
            PD.full_mask(g),
            rd,
        )
        return
    for j in range(nd):
        x = v[:, j]
        if ext == 1:
            b = 32 - 8 * nbytes
            x = ((x << U32(b)).view(I32) >> I32(b)).view(U32)
        elif ext == 4 or ext == 5:
            x = ((x << U32(24)).view(I32) >> I32(24)).view(U32) & U32(0xFFFF)
        if ext in (2, 4):
            cur = g.V[i].reshape(-1) if act is None else g.V[i].reshape(-1)[act]
            x = (cur & U32(0xFFFF0000)) | x
        elif ext in (3, 5):
            cur = g.V[i].reshape(-1) if act is None else g.V[i].reshape(-1)[act]
            x = (cur & U32(0xFFFF)) | (x << U32(16))
        if act is None:
            g.V[i + j] = x.reshape(W, 64)
        else:
            g.V[i + j].reshape(-1)[act] = x
        g.ver[i + j] += 1


def store_vals(g, i, nd, act, ext):
    x = g.V[i : i + nd].reshape(nd, -1)
    if act is not None:
        x = x[:, act]
    if ext in (3, 5):
        x = x >> U32(16)
    return x.T


ATOM = {
    "add": lambda o, x: o + x,
    "sub": lambda o, x: o - x,
    "swap": lambda o, x: x,
    "umin": np.minimum,
    "umax": np.maximum,
    "and": lambda o, x: o & x,
    "or": lambda o, x: o | x,
    "xor": lambda o, x: o ^ x,
    "smin": lambda o, x: np.minimum(o.view(I32), x.view(I32)).view(U32),
    "smax": lambda o, x: np.maximum(o.view(I32), x.view(I32)).view(U32),
    "add_f32": lambda o, x: (o.view(F32) + x.view(F32)).view(U32),
    "pk_add_bf16": lambda o, x: pk_bf16(o, x),
    "pk_add_f16": lambda o, x: (o.view(np.float16) + x.view(np.float16)).view(U32),
}
ATOM64 = {
    "add_x2": lambda o, x: o + x,
    "swap_x2": lambda o, x: x,
    "or_x2": lambda o, x: o | x,
    "and_x2": lambda o, x: o & x,
    "add_f64": lambda o, x: (o.view(F64) + x.view(F64)).view(U64),
}


def pk_bf16(o, x):
    lo = f32_to_bf16((o << U32(16)).view(F32) + (x << U32(16)).view(F32))
    hi = f32_to_bf16((o & U32(0xFFFF0000)).view(F32) + (x & U32(0xFFFF0000)).view(F32))
    return lo | (hi << U32(16))


def do_atomic(mem, addr, vals, kind, pc, cmp=None):
    """Sequentially consistent over lanes with equal addresses. addr [k]; vals uint32 [k] or uint64 [k]; returns old values."""
    wide = kind in ATOM64 or kind == "cmpswap_x2"
    n = 8 if wide else 4
    old = np.zeros(addr.size, U64 if wide else U32)
    todo = np.arange(addr.size)
    while todo.size:
        _, first = np.unique(addr[todo], return_index=True)
        sel = todo[first]
        cur = mem.load(addr[sel], n, pc, "atomic")
        cur = np.ascontiguousarray(cur).view(U64)[:, 0] if wide else np.ascontiguousarray(cur[:, 0])
        old[sel] = cur
        if kind.startswith("cmpswap"):
            new = np.where(cur == cmp[sel], vals[sel], cur)
        else:
            new = (ATOM64 if wide else ATOM)[kind](cur, np.ascontiguousarray(vals[sel]))
        out = np.ascontiguousarray(new).view(U32).reshape(-1, 2 if wide else 1)
        mem.store(addr[sel], out, n, pc, "atomic")
        todo = np.setdiff1d(todo, sel, assume_unique=True)
    return old


def act_of(g, extra=None):
    """Flat indices of active lanes, or None for all."""
    g.lastact = None
    if g.ex is None and extra is None:
        return None
    m = g.ex if extra is None else (extra if g.ex is None else g.ex & extra)
    g.lastact = np.nonzero(m.reshape(-1))[0]
    return g.lastact


def flat_addr(prog, inst, ops, k):
    """global/flat/scratch addressing; ops[k] = vaddr, ops[k+1] = saddr/off."""
    off = inst.mods.get("offset", 0)
    off = I64(off)
    va = ops[k]
    sa = ops[k + 1] if k + 1 < len(ops) else None
    if sa is not None and sa.kind == "s" and sa.n == 2:
        b0, b1 = raw_getter(prog, sa, 0), raw_getter(prog, sa, 1)
        v = src(prog, va, "u32") if va.kind != "off" else (lambda g: np.zeros((1, 1), U32))

        def f(g):
            base = (b1(g).astype(U64) << U64(32)) | b0(g)
            return np.broadcast_to((base.view(I64) + v(g).astype(I64) + off).view(U64), (g.W, 64))

        return f
    v = src(prog, va, "i64")
    return lambda g: np.broadcast_to((v(g) + off).view(U64), (g.W, 64))


def build_global(prog, inst):
    mn = inst.mn
    ops = [parse_opnd(t) for t in inst.ops]
    pc = inst.pc
    seg, kind = mn.split("_", 1)
    if seg == "scratch":
        return build_scratch(prog, inst, ops, kind)
    if kind.startswith("load_lds"):
        nb, ext = SIZES[kind[len("load_lds_") :]]
        ad = flat_addr(prog, inst, ops, 0)
        off = inst.mods.get("offset", 0)
        return lds_dma(prog, inst, lambda g: (ad(g), None), nb, ext, off)
    if kind.startswith("load_"):
        nb, ext = SIZES[kind[5:]]
        ad = flat_addr(prog, inst, ops, 1)
        i = vidx(prog, ops[0])

        def f(g):
            a = ad(g).reshape(-1)
            act = act_of(g)
            if act is not None:
                a = a[act]
            finish_load(prog, i, g.run.mem.load(a, nb, pc), nb, ext, g, act, "vm", pc)

        return f
    if kind.startswith("store_"):
        nb, ext = SIZES[kind[6:]]
        ad = flat_addr(prog, inst, ops[:1] + ops[2:], 0)
        i = vidx(prog, ops[1])
        nd = (nb + 3) // 4

        def f(g):
            a = ad(g).reshape(-1)
            act = act_of(g)
            if act is not None:
                a = a[act]
            g.run.mem.store(a, store_vals(g, i, nd, act, ext), nb, pc)
            if g.run.strict:
                PD.push(g, "vm", PD.Pend("n", pc))

        return f
    if kind.startswith("atomic_"):
        k = kind[7:]
        ret = bool(inst.mods.get("sc0") or inst.mods.get("glc"))
        p = 1 if ret else 0
        ad = (
            flat_addr(prog, inst, ops[: p + 1] + ops[p + 2 :], p)
            if len(ops) > p + 2
            else flat_addr(prog, inst, ops[: p + 1], p)
        )
        di = vidx(prog, ops[0]) if ret else None
        return atomic_closure(prog, k, ad, None, vidx(prog, ops[p + 1]), di, pc)
    raise Unsupported(mn)


def atomic_closure(prog, k, ad, okf, vi, di, pc):
    base = k[:-3] if k.startswith("cmpswap_x2") else k
    wide = k in ATOM64 or k == "cmpswap_x2"
    if not (k in ATOM or wide or k == "cmpswap"):
        raise Unsupported("atomic " + k)

    def f(g):
        a = ad(g)
        act = act_of(g, okf(g) if okf else None)
        a = a.reshape(-1)
        pick = (lambda x: x.reshape(-1)) if act is None else (lambda x: x.reshape(-1)[act])
        a = pick(a)
        cmp = None
        if wide:
            vals = pick(g.V[vi]).astype(U64) | (pick(g.V[vi + 1]).astype(U64) << U64(32))
            if k == "cmpswap_x2":
                cmp = pick(g.V[vi + 2]).astype(U64) | (pick(g.V[vi + 3]).astype(U64) << U64(32))
        else:
            vals = pick(g.V[vi])
            if k == "cmpswap":
                cmp = pick(g.V[vi + 1])
        old = do_atomic(g.run.mem, a, vals, k, pc, cmp)
        if di is not None:
            v = np.ascontiguousarray(old).view(U32).reshape(old.size, -1)
            finish_load(prog, di, v, 8 if wide else 4, 0, g, act, "vm", pc)
        elif g.run.strict:
            PD.push(g, "vm", PD.Pend("n", pc))

    return f


def build_scratch(prog, inst, ops, kind):
    off = inst.mods.get("offset", 0)
    ld = kind.startswith("load_")
    nb, ext = SIZES[kind[5:] if ld else kind[6:]]
    k = 1 if ld else 0
    va = ops[k]
    data = ops[0] if ld else ops[1]
    sa = ops[2] if len(ops) > 2 else None
    v = src(prog, va, "u32") if va.kind != "off" else (lambda g: np.zeros((1, 1), U32))
    s = src(prog, sa, "u32") if sa is not None and sa.kind != "off" else (lambda g: np.zeros((1, 1), U32))
    i = vidx(prog, data)
    nd = (nb + 3) // 4
    pc = inst.pc

    def f(g):
        o = np.broadcast_to(v(g).astype(I64) + s(g).astype(I64) + off, (g.W, 64))
        sz = g.run.scratch_bytes
        if int(o.min()) < 0 or int(o.max()) + nb > sz:
            if act_of(g) is None:
                raise IndexError("scratch access at %d..%d of %d (pc 0x%x)" % (o.min(), o.max(), sz, pc))
        lane = (g.wid[:, None].astype(I64) * 64 + np.arange(64)) * sz
        a = (o + lane).reshape(-1)
        act = act_of(g)
        if act is not None:
            a = a[act]
        raw = g.run.scratch
        if ld:
            by = raw[a[:, None] + np.arange(max(nb, 4) if nb >= 4 else nb)]
            if nb < 4:
                t = np.zeros((a.size, 4), np.uint8)
                t[:, :nb] = by
                by = t
            finish_load(prog, i, np.ascontiguousarray(by).view(U32), nb, ext, g, act, "vm", pc)
        else:
            by = np.ascontiguousarray(store_vals(g, i, nd, act, ext)).view(np.uint8)
            raw[a[:, None] + np.arange(nb)] = by[:, :nb]
            if g.run.strict:
                PD.push(g, "vm", PD.Pend("n", pc))

    return f


def buf_addr(prog, inst, rs, so, va):
    """Raw/structured buffer: f(g) -> (address [W,64], byte offset for range check [W,64], num_records [W,1], stride)."""
    off = inst.mods.get("offset", 0)
    offen, idxen = inst.mods.get("offen"), inst.mods.get("idxen")
    s = src(prog, so, "u32")
    ri = rs.idx
    v = raw_getter(prog, va, 0) if va is not None and (offen or idxen) else None
    v1 = raw_getter(prog, va, 1) if va is not None and offen and idxen else None

    def f(g):
        R = g.S
        base = (((R[ri + 1] & U32(0xFFFF)).astype(U64) << U64(32)) | R[ri])[:, None]
        stride = (R[ri + 1] >> U32(16)) & U32(0x3FFF)
        nr = R[ri + 2][:, None].astype(I64)
        so_ = s(g).astype(I64)
        if R[ri + 1].max() >> 30:
            raise Unsupported("swizzled buffer")
        vo = np.zeros((1, 1), I64) + off
        vi = np.zeros((1, 1), I64)
        if idxen:
            vi = v(g).astype(I64)
            if offen:
                vo = v1(g).astype(I64) + off
        elif offen:
            vo = v(g).astype(I64) + off
        st = stride[:, None].astype(I64)
        if idxen:
            # structured check (index against num_records) only with IDXEN and a stride; otherwise plain bytes
            o = vi * st + vo
            struct = st > 0
            lim_ok = np.where(struct, (vi < nr) & ((vo < st) if offen else True), True)
            raw = ~struct
        else:
            o, lim_ok, raw = vo, None, None
        full = np.broadcast_to(o, (g.W, 64))
        addr = base.view(I64) + full + so_
        return addr, full, nr - so_, lim_ok, raw

    return f


def build_buffer(prog, inst):
    mn = inst.mn
    mods = inst.mods
    ops = [parse_opnd(t) for t in inst.ops]
    kind = mn[len("buffer_") :]
    pc = inst.pc
    if kind in ("wbinvl1", "wbl2", "inv", "gl0_inv", "gl1_inv", "wbinvl1_vol"):
        return NOP
    lds = bool(mods.get("lds"))
    if ops[-1].kind == "lds":
        ops.pop()
        lds = True
    ld, stt, at = kind.startswith("load_"), kind.startswith("store_"), kind.startswith("atomic_")
    if not (ld or stt or at):
        raise Unsupported(mn)
    data = None if (lds and ld) else ops[0]
    rest = ops if data is None else ops[1:]
    va = rest[0] if rest[0].kind != "off" else None
    ad = buf_addr(prog, inst, rest[1], rest[2], va)
    if at:
        k = kind[7:]
        wide = k.endswith("x2") or k.endswith("f64")
        n = 8 if wide else 4
        i = vidx(prog, data)
        box = {}

        def adf(g):
            a, o, lim, lk, raw = ad(g)
            ok = o + n <= lim
            if lk is not None:
                ok = np.where(raw, ok, True) & lk
            box["ok"] = np.broadcast_to(ok & (o >= 0), (g.W, 64))
            return a.view(U64)

        ret = i if (mods.get("sc0") or mods.get("glc")) else None
        inner = atomic_closure(prog, k, adf, lambda g: box["ok"], i, ret, pc)
        return inner
    size = kind[5:] if ld else kind[6:]
    if size not in SIZES:
        raise Unsupported(mn)
    nb, ext = SIZES[size]
    nd = (nb + 3) // 4
    step = min(nb, 4)

    def masks(g):
        """address, per-dword in-range masks [nd][W,64]"""
        a, o, lim, lk, raw = ad(g)
        oks = []
        for j in range(nd):
            ok = o + (4 * j + step) <= lim
            if lk is not None:
                ok = np.where(raw, ok, True) & lk
            oks.append(np.broadcast_to(ok, (g.W, 64)))
        return a.view(U64), oks

    def load(g, a, oks):
        """-> uint32 [W*64, nd] (zero where out of range or inactive)"""
        act = g.lastact = None
        if oks[-1].all() and g.ex is None:
            return g.run.mem.load(a.reshape(-1), nb, pc, "buffer load")
        out = np.zeros((g.W * 64, nd), U32)
        fullm = oks[-1] if g.ex is None else oks[-1] & g.ex
        act = g.lastact = np.nonzero(fullm.reshape(-1))[0]
        af = a.reshape(-1)
        if act.size:
            out[act] = g.run.mem.load(af[act], nb, pc, "buffer load")
        if nd > 1:
            for j in range(nd - 1):
                part = oks[j] & ~oks[-1]
                if g.ex is not None:
                    part = part & g.ex
                if part.any():
                    p = g.lastact = np.nonzero(part.reshape(-1))[0]
                    out[p, j] = g.run.mem.load(af[p] + U64(4 * j), 4, pc, "buffer load")[:, 0]
        return out

    if ld and lds:
        off = mods.get("offset", 0)

        def src_fn(g):
            a, oks = masks(g)
            return None, load(g, a, oks)

        return lds_dma(prog, inst, src_fn, nb, ext, off)
    i = vidx(prog, data)
    if ld:

        def f(g):
            a, oks = masks(g)
            v = load(g, a, oks)
            act = act_of(g)
            finish_load(prog, i, v if act is None else v[act], nb, ext, g, act, "vm", pc)

        return f

    def f(g):
        if g.run.strict:
            PD.push(g, "vm", PD.Pend("n", pc))
        a, oks = masks(g)
        af = a.reshape(-1)
        g.lastact = None
        if oks[-1].all() and g.ex is None:
            g.run.mem.store(af, store_vals(g, i, nd, None, ext), nb, pc, "buffer store")
            return
        fullm = oks[-1] if g.ex is None else oks[-1] & g.ex
        act = g.lastact = np.nonzero(fullm.reshape(-1))[0]
        if act.size:
            g.run.mem.store(af[act], store_vals(g, i, nd, act, ext), nb, pc, "buffer store")
        for j in range(nd - 1):
            part = oks[j] & ~oks[-1]
            if g.ex is not None:
                part = part & g.ex
            if part.any():
                p = g.lastact = np.nonzero(part.reshape(-1))[0]
                g.run.mem.store(af[p] + U64(4 * j), g.V[i + j].reshape(-1)[p][:, None], 4, pc, "buffer store")

    return f


def lds_dma(prog, inst, src_fn, nb, ext, inst_off):
    """Load straight to LDS: lane l writes nb bytes at M0 + inst offset + l*nb (dword lanes for b8/b16)."""
    pc = inst.pc
    nd = (nb + 3) // 4
    per = max(nb, 4)

    def f(g):
        a, v = src_fn(g)
        act = act_of(g)
        if v is None:
            af = a.reshape(-1)
            if act is None:
                v = g.run.mem.load(af, nb, pc, "load to lds")
            else:
                v = np.zeros((g.W * 64, nd), U32)
                v[act] = g.run.mem.load(af[act], nb, pc, "load to lds")
        if ext == 1:
            b = 32 - 8 * nb
            v = ((v << U32(b)).view(I32) >> I32(b)).view(U32)
        la = g.S[124].astype(I64)[:, None] + inst_off + np.arange(64) * per
        lds_store(g, la.reshape(-1), v, per, pc, act, "vm")

    return f


# ---------------------------------------------------------------- LDS
def lds_index(g, a, nb, pc, act):
    """a int64 [k] byte addresses of lanes (flat, all lanes) -> flat byte index into g.run.lds; selects act first."""
    wg = g.ldsbase
    a = a & 0xFFFFFFFF  # address + offset wraps at 32 bits
    if act is not None:
        w = wg[act // 64]
        a = a[act]
    else:
        w = np.repeat(wg, 64)
    if a.size and (int(a.min()) < 0 or int(a.max()) + nb > g.run.lds_bytes):
        bad = int(np.nonzero((a < 0) | (a + nb > g.run.lds_bytes))[0][0])
        g.lastact = act
        e = MemoryFault("LDS access of %d bytes at %d, LDS size %d (pc 0x%x)" % (nb, int(a[bad]), g.run.lds_bytes, pc))
        e.index = bad
        raise e
    return a + w


def lds_load(g, a, nb, pc, act):
    if g.lg:
        PD.flush_lds(g, _SELF)
    i = lds_index(g, a, nb, pc, act)
    if nb >= 4:
        nd = nb // 4
        if not (i & 3).any():
            j = i >> 2
            if nd == 1:
                return g.run.lds32[j][:, None]
            if nd in (2, 4) and not (j & (nd - 1)).any():
                return np.take(g.run.lds32.reshape(-1, nd), j >> (1 if nd == 2 else 2), axis=0)
            return g.run.lds32[j[:, None] + np.arange(nd)]
        return np.ascontiguousarray(g.run.lds[i[:, None] + np.arange(nb)]).view(U32)
    if nb == 1:
        return g.run.lds[i].astype(U32)[:, None]
    return (g.run.lds[i].astype(U32) | (g.run.lds[i + 1].astype(U32) << U32(8)))[:, None]


def lds_store(g, a, v, nb, pc, act, q="lg"):
    """v uint32 [all lanes, nd]"""
    if g.run.strict:
        mask = PD.full_mask(g)
        PD.push(
            g,
            q,
            PD.Pend(
                "L",
                pc,
                nb,
                [
                    np.broadcast_to(a, (g.W * 64,)).reshape(g.W, 64).copy(),
                    np.array(v, U32, order="C").reshape(g.W, 64, -1),
                    mask,
                ],
            ),
        )
        return
    lds_store_now(g, a, v, nb, pc, act)


def lds_store_now(g, a, v, nb, pc, act):
    if act is not None:
        v = v[act]
    i = lds_index(g, a, nb, pc, act)
    if nb >= 4 and not (i & 3).any():
        nd = nb // 4
        j = i >> 2
        if nd in (2, 4) and not (j & (nd - 1)).any():
            g.run.lds32.reshape(-1, nd)[j >> (1 if nd == 2 else 2)] = v
            return
        for k in range(nd):
            g.run.lds32[j + k] = v[:, k]
        return
    by = np.ascontiguousarray(v).view(np.uint8)
    for k in range(nb):
        g.run.lds[i + k] = by[:, k]


def lds_result(prog, i, pc):
    def w(g, x):
        if g.run.strict:
            PD.push_vgpr(g, "lg", pc, [i], np.array(np.broadcast_to(x, (g.W, 64)))[:, :, None], 0, PD.full_mask(g))
        else:
            g.wr(i, x)

    return w


DS_R = {
    "b32": (4, 0),
    "b64": (8, 0),
    "b96": (12, 0),
    "b128": (16, 0),
    "u8": (1, 0),
    "i8": (1, 1),
    "u16": (2, 0),
    "i16": (2, 1),
    "u8_d16": (1, 2),
    "u8_d16_hi": (1, 3),
    "i8_d16": (1, 4),
    "i8_d16_hi": (1, 5),
    "u16_d16": (2, 2),
    "u16_d16_hi": (2, 3),
}
DS_W = {
    "b8": (1, 0),
    "b16": (2, 0),
    "b32": (4, 0),
    "b64": (8, 0),
    "b96": (12, 0),
    "b128": (16, 0),
    "b8_d16_hi": (1, 3),
    "b16_d16_hi": (2, 3),
}


def build_ds(prog, inst):
    mn = inst.mn
    mods = inst.mods
    pc = inst.pc
    ops = [parse_opnd(t) for t in inst.ops]
    if mods.get("gds"):
        raise Unsupported("gds")
    off = mods.get("offset", 0)
    if mn in ("ds_nop",):
        return NOP
    if mn in ("ds_bpermute_b32", "ds_permute_b32"):
        i = vidx(prog, ops[0])
        a, v = src(prog, ops[1], "u32"), src(prog, ops[2], "u32")
        w = lds_result(prog, i, pc)
        if mn == "ds_bpermute_b32":

            def f(g):
                ix = ((np.broadcast_to(a(g), (g.W, 64)) + U32(off)) >> U32(2)) & U32(63)
                x = np.broadcast_to(v(g), (g.W, 64))
                if g.ex is not None:
                    x = np.where(g.ex, x, U32(0))
                w(g, np.take_along_axis(x, ix.astype(I64), axis=1))

            return f

        def f(g):
            ix = (((np.broadcast_to(a(g), (g.W, 64)) + U32(off)) >> U32(2)) & U32(63)).astype(I64)
            x = np.broadcast_to(v(g), (g.W, 64))
            r = np.zeros((g.W, 64), U32)
            e = g.exec_mask()
            for l in range(64):
                m = e[:, l]
                r[np.nonzero(m)[0], ix[m, l]] = x[m, l]
            w(g, r)

        return f
    if mn == "ds_swizzle_b32":
        v = src(prog, ops[1], "u32")
        w = lds_result(prog, vidx(prog, ops[0]), pc)
        sw = inst.w[0] & 0xFFFF
        l = np.arange(64)
        if sw & 0x8000:
            p = l // 4 * 4 + np.array([(sw >> (2 * k)) & 3 for k in range(4)])[l % 4]
        else:
            am, om, xm = sw & 31, (sw >> 5) & 31, (sw >> 10) & 31
            p = l // 32 * 32 + ((((l % 32) & am) | om) ^ xm)
        return lambda g: w(g, np.broadcast_to(v(g), (g.W, 64))[:, p])
    m = re.match(r"^ds_read(2?)(st64)?_(b32|b64)$", mn)
    if m and m.group(1):
        n = 4 if m.group(3) == "b32" else 8
        mul = n * (64 if m.group(2) else 1)
        o0, o1 = mods.get("offset0", 0) * mul, mods.get("offset1", 0) * mul
        a, i = src(prog, ops[1], "u32"), vidx(prog, ops[0])

        def f(g):
            act = act_of(g)
            ad = np.broadcast_to(a(g).astype(I64), (g.W, 64)).reshape(-1)
            x, y = lds_load(g, ad + o0, n, pc, act), lds_load(g, ad + o1, n, pc, act)
            finish_load(prog, i, np.concatenate([x, y], 1), 2 * n, 0, g, act, "lg", pc)

        return f
    m = re.match(r"^ds_write(2?)(st64)?_(b32|b64)$", mn)
    if m and m.group(1):
        n = 4 if m.group(3) == "b32" else 8
        mul = n * (64 if m.group(2) else 1)
        o0, o1 = mods.get("offset0", 0) * mul, mods.get("offset1", 0) * mul
        a, i0, i1 = src(prog, ops[0], "u32"), vidx(prog, ops[1]), vidx(prog, ops[2])

        def f(g):
            act = act_of(g)
            ad = np.broadcast_to(a(g).astype(I64), (g.W, 64)).reshape(-1)
            lds_store(g, ad + o0, g.V[i0 : i0 + n // 4].reshape(n // 4, -1).T, n, pc, act)
            lds_store(g, ad + o1, g.V[i1 : i1 + n // 4].reshape(n // 4, -1).T, n, pc, act)

        return f
    m = re.match(r"^ds_read_(b64_tr_b16|b64_tr_b8|b64_tr_b4|b96_tr_b6)$", mn)
    if m:
        a, i = src(prog, ops[1], "u32"), vidx(prog, ops[0])
        kind = m.group(1)
        nb, bits = (12, 6) if kind == "b96_tr_b6" else (8, int(kind[8:]))
        ne = nb * 8 // bits  # elements per lane
        rpl = 16 // ne  # lanes that make one row of 16 elements

        def f(g):
            if g.ex is not None:
                raise Unsupported("transposed LDS read with partial EXEC")
            ad = np.broadcast_to(a(g).astype(I64) + off, (g.W, 64)).reshape(-1)
            x = lds_load(g, ad, nb, pc, None)
            W = g.W
            if bits in (4, 6):
                e = unpack_bits(x, bits, ne).reshape(W * 4, 16, ne)
            else:
                e = np.ascontiguousarray(x).view(np.uint16 if bits == 16 else np.uint8).reshape(W * 4, 16, ne)
            # lane e*rpl + j//ne, element j%ne -> lane j, element e
            e = (
                e.reshape(W * 4, ne, rpl, ne).reshape(W * 4, ne, 16).transpose(0, 2, 1)
                if rpl > 1
                else e.transpose(0, 2, 1)
            )
            e = np.ascontiguousarray(e)
            if bits in (4, 6):
                v = pack_bits(e.reshape(W * 64, ne), bits)
            else:
                v = e.view(U32).reshape(W * 64, nb // 4)
            finish_load(prog, i, v, nb, 0, g, None, "lg", pc)

        return f
    if mn.startswith("ds_read_") and mn[8:] in DS_R:
        nb, ext = DS_R[mn[8:]]
        a, i = src(prog, ops[1], "u32"), vidx(prog, ops[0])

        def f(g):
            act = act_of(g)
            ad = a(g).astype(I64) + off
            ad = np.broadcast_to(ad, (g.W, 64)).reshape(-1)
            finish_load(prog, i, lds_load(g, ad, nb, pc, act), nb, ext, g, act, "lg", pc, (ad, nb))

        return f
    if mn.startswith("ds_write_") and mn[9:] in DS_W:
        nb, ext = DS_W[mn[9:]]
        nd = (nb + 3) // 4
        a, i = src(prog, ops[0], "u32"), vidx(prog, ops[1])

        def f(g):
            act = act_of(g)
            ad = np.broadcast_to(a(g).astype(I64) + off, (g.W, 64)).reshape(-1)
            v = g.V[i : i + nd].reshape(nd, -1).T
            if ext == 3:
                v = v >> U32(16)
            lds_store(g, ad, v, nb, pc, act)

        return f
    m = re.match(r"^ds_(add|sub|min|max|and|or|xor)(_rtn)?_(u32|i32|f32|b32)$", mn)
    if m:
        k, rtn, ty = m.groups()
        p = 1 if rtn else 0
        a, x = src(prog, ops[p], "u32"), src(prog, ops[p + 1], "u32")
        key = {
            "add": "add_f32" if ty == "f32" else "add",
            "min": "umin" if ty == "u32" else "smin",
            "max": "umax" if ty == "u32" else "smax",
        }.get(k, k)
        if ty == "f32" and k != "add":
            fn = {
                "min": lambda o, v: np.fmin(o.view(F32), v.view(F32)).view(U32),
                "max": lambda o, v: np.fmax(o.view(F32), v.view(F32)).view(U32),
            }[k]
        else:
            fn = ATOM[key]
        di = vidx(prog, ops[0]) if rtn else None

        def f(g):
            act = act_of(g)
            ad = lds_index(g, np.broadcast_to(a(g).astype(I64) + off, (g.W, 64)).reshape(-1), 4, pc, act) >> 2
            v = np.broadcast_to(x(g), (g.W, 64)).reshape(-1)
            if act is not None:
                v = v[act]
            old = np.zeros(ad.size, U32)
            todo = np.arange(ad.size)
            while todo.size:
                _, first = np.unique(ad[todo], return_index=True)
                s = todo[first]
                cur = g.run.lds32[ad[s]]
                old[s] = cur
                g.run.lds32[ad[s]] = fn(cur, np.ascontiguousarray(v[s]))
                todo = np.setdiff1d(todo, s, assume_unique=True)
            if di is not None:
                finish_load(prog, di, old[:, None], 4, 0, g, act, "lg", pc)
            elif g.run.strict:
                PD.push(g, "lg", PD.Pend("n", pc))

        return f
    raise Unsupported(mn)


def unpack_bits(x, bits, ne):
    b = np.unpackbits(np.ascontiguousarray(x).view(np.uint8), axis=1, bitorder="little").reshape(x.shape[0], ne, bits)
    return (b * (1 << np.arange(bits, dtype=np.uint8))).sum(-1).astype(np.uint8)


def pack_bits(e, bits):
    b = ((e[..., None] >> np.arange(bits, dtype=np.uint8)) & 1).astype(np.uint8).reshape(e.shape[0], -1)
    return np.packbits(b, axis=1, bitorder="little").view(U32)


# ---------------------------------------------------------------- SMEM
def build_smem(prog, inst):
    mn = inst.mn
    ops = [parse_opnd(t) for t in inst.ops]
    m = re.match(r"^s_(buffer_)?load_dword(?:x(\d+))?$", mn)
    if not m:
        raise Unsupported(mn)
    n = int(m.group(2) or 1)
    di, bi = ops[0].idx, ops[1].idx
    off = inst.mods.get("offset", 0)
    o = src(prog, ops[2], "u32", vec=False) if len(ops) > 2 else (lambda g: np.zeros(1, U32))
    buf = bool(m.group(1))
    pc = inst.pc

    def f(g):
        hi = g.S[bi + 1] & U32(0xFFFF)
        base = (hi.astype(U64) << U64(32)) | g.S[bi]
        a = (base + o(g).astype(U64) + U64(off)) & U64(0xFFFFFFFFFFFC)
        a = np.broadcast_to(a, (g.W,))
        if buf:
            lim = g.S[bi + 2].astype(I64)
            rel = (a - base).view(I64)
            v = np.zeros((g.W, n), U32)
            for j in range(n):
                ok = np.nonzero(rel + 4 * j + 4 <= lim)[0]
                if ok.size:
                    v[ok, j] = g.run.mem.load(a[ok] + U64(4 * j), 4, pc, "s_buffer_load")[:, 0]
        else:
            v = g.run.mem.load(a, 4 * n, pc, "s_load")
        if g.run.strict:
            PD.push(g, "lg", PD.Pend("s", pc, di, [v]))
            for j in range(n):
                g.S[di + j] = PD.POISON
            return
        for j in range(n):
            g.S[di + j] = v[:, j]
        if di + n > 126:
            g.update_exec()

    return f


# ---------------------------------------------------------------- dispatcher
def build(prog, inst):
    """-> closure or None (no-op). Branches, barriers and s_endpgm are handled by wave.py."""
    mn = inst.mn
    if mn == "s_waitcnt":
        return build_waitcnt(inst)
    if mn.startswith("v_mfma_"):
        return build_mfma(prog, inst)
    if mn.startswith("v_"):
        name, suf = base_name(mn)
        if name in V:
            return build_valu(prog, inst, name, suf, None)
        return build_special(prog, inst, name, suf)
    if mn.startswith(("s_load_", "s_buffer_load_")):
        return build_smem(prog, inst)
    if mn.startswith("s_"):
        return build_salu(prog, inst)
    if mn.startswith("ds_"):
        return build_ds(prog, inst)
    if mn.startswith("buffer_"):
        return build_buffer(prog, inst)
    if mn.startswith(("global_", "flat_", "scratch_")):
        return build_global(prog, inst)
    raise Unsupported(mn)


import sys as _sys

_SELF = _sys.modules[__name__]
