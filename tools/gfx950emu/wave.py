"""Code objects, lock-step wave groups, the scheduler and launch()."""

import os
import re
import time

import numpy as np

from . import decode, elf, ops, pend
from .mem import Memory, MemoryFault
from .ops import Unsupported

U32 = np.uint32


class EmuError(Exception):
    pass


class Kernel:
    def __init__(self, ko, name, kd, meta):
        self.ko, self.name, self.kd, self.meta = ko, name, kd, meta
        self.args = (meta or {}).get(".args", [])
        self.kernarg_size = kd.kernarg_size or (meta or {}).get(".kernarg_segment_size", 0)
        self.lds_bytes = kd.lds
        self.entry = kd.entry

    def __repr__(self):
        return "<kernel %s entry 0x%x lds %d kernarg %d>" % (self.name, self.entry, self.lds_bytes, self.kernarg_size)


class Block:
    __slots__ = ("fns", "insts", "kind", "target", "nxt", "cond", "inst", "start")


FALL, JUMP, COND, BARRIER, END, SETPC, SWAPPC = range(7)


class CodeObject:
    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            data = f.read()
        self.elf = elf.Elf(data)
        self.metadata = self.elf.metadata
        self.symbols = self.elf.symbols
        meta = {k.get(".symbol", k.get(".name", "") + ".kd")[:-3]: k for k in self.metadata.get("amdhsa.kernels", [])}
        self.kernels = {n: Kernel(self, n, kd, meta.get(n)) for n, kd in self.elf.kernels().items()}
        self.insts = decode.disassemble(path, data)
        self.index = {i.pc: k for k, i in enumerate(self.insts)}
        maxv = maxa = 0
        for i in self.insts:
            for t in i.ops:
                for m in re.finditer(r"\b([va])(?:\[(\d+):(\d+)\]|(\d+)\b)", t):
                    n = int(m.group(3) or m.group(4))
                    if m.group(1) == "v":
                        maxv = max(maxv, n)
                    else:
                        maxa = max(maxa, n + 1)
        self.abase = maxv + 8
        self.nregs = self.abase + maxa + 8
        self.blocks = {}
        self._targets = self._find_targets()
        self.unsupported = {}

    def _find_targets(self):
        t = set()
        for i in self.insts:
            if i.mn.startswith(("s_branch", "s_cbranch")):
                t.add(branch_target(i))
        return t

    def block(self, pc):
        b = self.blocks.get(pc)
        if b is None:
            b = self.blocks[pc] = self._build(pc)
        return b

    def _build(self, pc):
        b = Block()
        b.fns, b.insts, b.start, b.cond, b.target = [], [], pc, None, None
        k = self.index.get(pc)
        if k is None:
            raise EmuError("jump to 0x%x, which is not an instruction" % pc)
        n = len(self.insts)
        first = True
        while k < n:
            i = self.insts[k]
            if not first and i.pc in self._targets:
                b.kind, b.nxt, b.inst = FALL, i.pc, i
                return b
            first = False
            mn = i.mn
            nxt = i.pc + i.size
            if mn == "s_branch":
                b.kind, b.target, b.nxt, b.inst = JUMP, branch_target(i), nxt, i
                return b
            if mn.startswith("s_cbranch_"):
                b.kind, b.target, b.nxt, b.inst, b.cond = COND, branch_target(i), nxt, i, mn[10:]
                return b
            if mn == "s_barrier":
                b.kind, b.nxt, b.inst = BARRIER, nxt, i
                return b
            if mn in ("s_endpgm", "s_endpgm_saved"):
                b.kind, b.nxt, b.inst = END, nxt, i
                return b
            if mn in ("s_setpc_b64", "s_swappc_b64", "s_call_b64"):
                b.kind, b.nxt, b.inst = (SETPC if mn == "s_setpc_b64" else SWAPPC), nxt, i
                return b
            fn = self.closure(i)
            if fn is not None:
                b.fns.append(fn)
                b.insts.append(i)
            k += 1
        raise EmuError("ran off the end of the code")

    def closure(self, i):
        try:
            return ops.build(self, i)
        except Unsupported as e:
            msg = "unsupported instruction: %s (%s)" % (i.text, e)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as e:
            msg = "cannot build instruction: %s (%s: %s)" % (i.text, type(e).__name__, e)
        self.unsupported[i.mn] = msg

        def bad(g):
            raise EmuError(msg)

        return bad

    def check_all(self):
        """Build every instruction; returns {mnemonic: first message} of those unsupported."""
        for i in self.insts:
            if not i.mn.startswith(("s_branch", "s_cbranch", "s_barrier", "s_endpgm", "s_setpc", "s_swappc", "s_call")):
                self.closure(i)
        return self.unsupported


def branch_target(i):
    d = i.w[0] & 0xFFFF
    if d & 0x8000:
        d -= 0x10000
    return i.pc + 4 + 4 * d


class Group:
    """Waves executing the same instruction. V [nregs, W, 64], S [128, W], scc [W], ex None or bool [W, 64]."""

    __slots__ = (
        "V",
        "S",
        "scc",
        "ex",
        "W",
        "wid",
        "ldsbase",
        "ver",
        "mcache",
        "run",
        "pc",
        "nmfma",
        "time",
        "vm",
        "lg",
        "lastact",
    )

    def wr(self, i, x):
        if self.ex is None:
            self.V[i] = x
        else:
            np.copyto(self.V[i], x, where=self.ex)
        self.ver[i] += 1

    def update_exec(self):
        lo, hi = self.S[126], self.S[127]
        if (lo == U32(0xFFFFFFFF)).all() and (hi == U32(0xFFFFFFFF)).all():
            self.ex = None
        else:
            self.ex = ops.unpack_mask(lo, hi)

    def exec_mask(self):
        return np.ones((self.W, 64), bool) if self.ex is None else self.ex

    def take(self, idx, pc):
        h = Group()
        h.V = np.take(self.V, idx, axis=1)  # take, not [:, idx]: must stay C-contiguous
        h.S = np.take(self.S, idx, axis=1)
        h.scc = self.scc[idx]
        h.wid, h.ldsbase = self.wid[idx], self.ldsbase[idx]
        h.W = len(idx)
        h.ver, h.mcache, h.run, h.pc, h.nmfma, h.time = list(self.ver), {}, self.run, pc, 0, self.time
        h.vm, h.lg = [p.take(idx) for p in self.vm], [p.take(idx) for p in self.lg]
        h.ex = None
        h.update_exec()
        return h


def merge(gs):
    h = Group()
    h.V = np.concatenate([g.V for g in gs], 1)
    h.S = np.concatenate([g.S for g in gs], 1)
    h.scc = np.concatenate([g.scc for g in gs])
    h.wid = np.concatenate([g.wid for g in gs])
    h.ldsbase = np.concatenate([g.ldsbase for g in gs])
    h.W = h.scc.size
    h.ver, h.mcache, h.run, h.pc = list(gs[0].ver), {}, gs[0].run, gs[0].pc
    h.nmfma, h.time = sum(g.nmfma for g in gs), max(g.time for g in gs)
    h.vm, h.lg = pend.concat([g.vm for g in gs]), pend.concat([g.lg for g in gs])
    h.ex = None
    h.update_exec()
    return h


class Run:
    """State of one launch shared by its groups."""


class Stats:
    def __init__(self):
        self.insts = self.wave_insts = self.mfma = self.splits = self.merges = self.barriers = 0
        self.seconds = 0.0
        self.waves = 0
        self.blocks = {}
        self.counts: dict[str, int] = {}

    def mnemonics(self, ko):
        """{mnemonic: executions summed over waves}, waits and nops left out."""
        out = {}
        for pc, n in self.blocks.items():
            b = ko.block(pc)
            for i in b.insts + ([b.inst] if b.kind != FALL else []):
                out[i.mn] = out.get(i.mn, 0) + n
        return dict(sorted(out.items(), key=lambda kv: -kv[1]))

    def __repr__(self):
        return (
            "Stats(%.2fs, %d waves, %d lock-step instructions, %d wave instructions, %d mfma, %d splits, %d merges)"
            % (self.seconds, self.waves, self.insts, self.wave_insts, self.mfma, self.splits, self.merges)
        )


def load_code_object(path):
    return CodeObject(path)


def pack_kernarg(kernel, values, grid=(1, 1, 1), block=(64, 1, 1), dynamic_lds=0):
    """Fill a kernarg segment from metadata. values: positional list (explicit args in order) or {name: value}."""
    size = max(kernel.kernarg_size, max([a[".offset"] + a[".size"] for a in kernel.args] + [0]))
    buf = bytearray(size)
    hidden = {
        "hidden_block_count_x": grid[0],
        "hidden_block_count_y": grid[1],
        "hidden_block_count_z": grid[2],
        "hidden_group_size_x": block[0],
        "hidden_group_size_y": block[1],
        "hidden_group_size_z": block[2],
        "hidden_grid_dims": 1 + (grid[1] > 1) + (grid[2] > 1),
        "hidden_dynamic_lds_size": dynamic_lds,
    }
    k = 0
    for a in kernel.args:
        vk, o, n = a[".value_kind"], a[".offset"], a[".size"]
        if vk.startswith("hidden_"):
            v = hidden.get(vk, 0)
        elif isinstance(values, dict):
            if a.get(".name") not in values:
                continue
            v = values[a[".name"]]
        else:
            if k >= len(values):
                continue
            v = values[k]
            k += 1
        if isinstance(v, float):
            v = int(np.array([v], np.float32 if n == 4 else np.float64).view(np.uint32 if n == 4 else np.uint64)[0])
        if isinstance(v, (bytes, bytearray)):
            buf[o : o + len(v)] = v
        else:
            buf[o : o + n] = (int(v) & ((1 << (8 * n)) - 1)).to_bytes(n, "little")
    return bytes(buf)


def launch(
    ko,
    kernel_name,
    grid,
    block,
    kernarg,
    memory,
    dynamic_lds=0,
    max_waves=256,
    max_blocks=50_000_000,
    hook=None,
    lds_fill=0xA5,
    reg_fill=0xDEADBEEF,
    strict=None,
):
    """Run a kernel. grid in workgroups. Returns Stats.
    strict=True models s_waitcnt (see pend.py): missing waits show as poison, stale LDS or a RaceError.
    hook(group, inst) is called before every instruction when given. LDS and registers start as garbage on purpose."""
    if strict is None:
        strict = os.environ.get("GFX950EMU_STRICT", "0") not in ("", "0")
    kern = ko.kernels[kernel_name]
    kd = kern.kd
    grid = tuple(grid) + (1,) * (3 - len(grid))
    block = tuple(block) + (1,) * (3 - len(block))
    nthr = block[0] * block[1] * block[2]
    wpw = (nthr + 63) // 64
    nwg = grid[0] * grid[1] * grid[2]
    ka = memory.by_name.get("__kernarg")
    kabytes = bytes(kernarg) + b"\0" * max(0, kern.kernarg_size - len(kernarg))
    if ka is None or ka.size < len(kabytes):
        memory.by_name.pop("__kernarg", None)
        memory.alloc("__kernarg", max(len(kabytes), 4096))
        ka = memory.by_name["__kernarg"]
    ka.raw[:] = 0
    ka.data[: len(kabytes)] = np.frombuffer(kabytes, np.uint8)
    stats = Stats()
    stats.waves = nwg * wpw
    t0 = time.time()
    per = max(1, max_waves // wpw)
    with np.errstate(all="ignore"):
        for first in range(0, nwg, per):
            _run_chunk(
                ko,
                kern,
                kd,
                grid,
                block,
                wpw,
                first,
                min(per, nwg - first),
                ka.addr,
                kabytes,
                memory,
                dynamic_lds,
                stats,
                max_blocks,
                hook,
                lds_fill,
                reg_fill,
                strict,
            )
    stats.seconds = time.time() - t0
    return stats


def _run_chunk(
    ko,
    kern,
    kd,
    grid,
    block,
    wpw,
    first,
    count,
    ka_addr,
    kabytes,
    memory,
    dynamic_lds,
    stats,
    max_blocks,
    hook,
    lds_fill,
    reg_fill,
    strict,
):
    W = count * wpw
    run = Run()
    run.mem = memory
    run.lds_bytes = (kern.lds_bytes + dynamic_lds + 15) // 16 * 16
    stride = max(run.lds_bytes, 16)
    run.lds = np.full(count * stride, lds_fill, np.uint8)
    run.lds32 = run.lds.view(U32)
    run.scratch_bytes = kd.scratch
    run.scratch = np.zeros(W * 64 * kd.scratch, np.uint8) if kd.scratch else None
    g = Group()
    g.run, g.W, g.time, g.nmfma = run, W, 0, 0
    g.vm, g.lg = [], []
    run.strict, run.grid, run.first, run.wpw = strict, grid, first, wpw
    g.V = np.full((ko.nregs, W, 64), reg_fill, U32)
    g.S = np.full((128, W), reg_fill, U32)
    g.scc = np.zeros(W, bool)
    g.wid = np.arange(W)
    g.ldsbase = (np.arange(W) // wpw * stride).astype(np.int64)
    g.ver, g.mcache = [0] * ko.nregs, {}
    wg = first + np.arange(W) // wpw
    ids = [wg % grid[0], wg // grid[0] % grid[1], wg // (grid[0] * grid[1])]
    g.S[124] = 0
    g.S[106] = g.S[107] = 0
    at = 0
    for name, pos, n in kd.user_layout():
        if name == "kernarg_ptr":
            g.S[pos], g.S[pos + 1] = U32(ka_addr & 0xFFFFFFFF), U32(ka_addr >> 32)
        elif name == "preload":
            words = (
                np.frombuffer(kabytes + b"\0" * (4 * (kd.preload_off + n)), np.uint8)[
                    4 * kd.preload_off : 4 * (kd.preload_off + n)
                ]
                .copy()
                .view(U32)
            )
            for j in range(n):
                g.S[pos + j] = words[j]
        elif name == "private_segment_size":
            g.S[pos] = kd.scratch
        else:
            for j in range(n):
                g.S[pos + j] = 0xBAD00000 + pos + j
    at = kd.user_sgprs
    for d in range(3):
        if kd.wg_id[d]:
            g.S[at] = ids[d].astype(U32)
            at += 1
    if kd.wg_info:
        g.S[at] = 0
    tid = (np.arange(W) % wpw)[:, None] * 64 + np.arange(64)[None, :]
    x, y, z = tid % block[0], tid // block[0] % block[1], tid // (block[0] * block[1])
    g.V[0] = (x | (y << 10 if kd.workitem_dims > 1 or True else 0) | (z << 20)).astype(U32)
    act = tid < block[0] * block[1] * block[2]
    g.V[0][~act] = 0
    lo, hi = ops.pack_mask(np.ascontiguousarray(act))
    g.S[126], g.S[127] = lo, hi
    g.ex = None
    g.update_exec()
    g.pc = kern.entry + (256 if kd.preload_len else 0)
    _schedule(ko, [g], stats, max_blocks, hook)


def _schedule(ko, ready, stats, max_blocks, hook):
    waiting = []
    nblocks = 0
    while ready or waiting:
        if not ready:
            # every live wave is at a barrier (or ended): release all
            by = {}
            for g in waiting:
                by.setdefault((g.pc, pend.signature(g)), []).append(g)
            for pc, gs in by.items():
                if len(gs) > 1:
                    stats.merges += len(gs) - 1
                ready.append(gs[0] if len(gs) == 1 else merge(gs))
            waiting = []
            stats.barriers += 1
        # lowest pc first; merge groups that meet there
        ready.sort(key=lambda g: g.pc)
        g = ready[0]
        same = [h for h in ready if h.pc == g.pc and (h is g or pend.signature(h) == pend.signature(g))]
        ready = [h for h in ready if h not in same]
        if len(same) > 1:
            stats.merges += len(same) - 1
            g = merge(same)
        alone = not ready
        while True:
            nblocks += 1
            if nblocks > max_blocks:
                raise EmuError("more than %d blocks executed; looping at pc 0x%x?" % (max_blocks, g.pc))
            b = ko.block(g.pc)
            k = 0
            try:
                if hook is None:
                    for k, fn in enumerate(b.fns):
                        fn(g)
                else:
                    for k, fn in enumerate(b.fns):
                        hook(g, b.insts[k])
                        fn(g)
            except EmuError:
                raise
            except Exception as e:
                i = b.insts[k]
                raise EmuError("at pc 0x%x `%s`: %s: %s%s" % (i.pc, i.text, type(e).__name__, e, where(g, e))) from e
            stats.blocks[b.start] = stats.blocks.get(b.start, 0) + g.W
            stats.insts += len(b.fns) + 1
            stats.wave_insts += (len(b.fns) + 1) * g.W
            kind = b.kind
            if kind == FALL:
                g.pc = b.nxt
            elif kind == JUMP:
                g.pc = b.target
            elif kind == COND:
                c = condition(g, b.cond)
                if c.all():
                    g.pc = b.target
                elif not c.any():
                    g.pc = b.nxt
                else:
                    stats.splits += 1
                    t, f = np.nonzero(c)[0], np.nonzero(~c)[0]
                    stats.mfma += g.nmfma
                    ready += [g.take(t, b.target), g.take(f, b.nxt)]
                    break
            elif kind == BARRIER:
                g.pc = b.nxt
                waiting.append(g)
                break
            elif kind == END:
                stats.mfma += g.nmfma
                break
            else:
                dst = set_pc(ko, g, b)
                vals = np.unique(dst)
                if vals.size == 1:
                    g.pc = int(vals[0])
                else:
                    stats.mfma += g.nmfma
                    ready += [g.take(np.nonzero(dst == v)[0], int(v)) for v in vals]
                    break
            if not alone:
                ready.append(g)
                break
    return


def where(g, e):
    """' in workgroup (x, y, z) wave w lane l' of a MemoryFault."""
    k = getattr(e, "index", None)
    if k is None:
        return ""
    act = getattr(g, "lastact", None)
    try:
        flat = int(act[k]) if act is not None else k
        if "s_load" in str(e):
            flat = k * 64
        w = int(g.wid[flat // 64])
    except IndexError:
        return ""
    gx, gy, _ = g.run.grid
    wg = g.run.first + w // g.run.wpw
    return " in workgroup (%d, %d, %d) wave %d lane %d" % (
        wg % gx,
        wg // gx % gy,
        wg // (gx * gy),
        w % g.run.wpw,
        flat % 64,
    )


def set_pc(ko, g, b):
    ops_ = [ops.parse_opnd(t) for t in b.inst.ops]
    if b.inst.mn == "s_call_b64":
        raise EmuError("s_call_b64 is not supported")
    o = ops_[-1]
    dst = g.S[o.idx].astype(np.uint64) | (g.S[o.idx + 1].astype(np.uint64) << np.uint64(32))
    if b.kind == SWAPPC:
        g.S[ops_[0].idx], g.S[ops_[0].idx + 1] = U32(b.nxt & 0xFFFFFFFF), U32(b.nxt >> 32)
    return dst


def condition(g, c):
    if c == "scc0":
        return ~g.scc
    if c == "scc1":
        return g.scc
    if c in ("vccz", "vccnz"):
        z = (g.S[106] | g.S[107]) == 0
        return z if c == "vccz" else ~z
    if c in ("execz", "execnz"):
        z = (g.S[126] | g.S[127]) == 0
        return z if c == "execz" else ~z
    raise EmuError("branch condition " + c)
