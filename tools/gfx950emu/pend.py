"""Strict mode: memory results stay pending until the s_waitcnt that covers them.

Until then a load's destination holds POISON, an LDS-DMA load or ds_write has not reached LDS, and at the wait a ds_read is
re-read and must still give the value it gave at issue (else the wave raced with a write). Counters follow gfx9: vmcnt is one
in-order queue of loads and stores; lgkmcnt is LDS (in order) plus SMEM (done only at lgkmcnt(0))."""

import numpy as np

U32 = np.uint32
POISON = U32(0x7FD0DEAD)


class RaceError(Exception):
    pass


class Pend:
    __slots__ = ("kind", "pc", "meta", "arrs", "done")

    def __init__(self, kind, pc, meta=None, arrs=()):
        self.kind, self.pc, self.meta, self.arrs, self.done = kind, pc, meta, list(arrs), False

    def take(self, idx):
        p = Pend(self.kind, self.pc, self.meta, [a[idx] for a in self.arrs])
        p.done = self.done
        return p


def signature(g):
    return tuple((p.kind, p.pc, p.done) for p in g.vm), tuple((p.kind, p.pc, p.done) for p in g.lg)


def concat(qs):
    out = []
    for ps in zip(*qs):
        p = Pend(ps[0].kind, ps[0].pc, ps[0].meta, [np.concatenate(a) for a in zip(*[q.arrs for q in ps])])
        p.done = ps[0].done
        out.append(p)
    return out


def full_mask(g):
    return np.ones((g.W, 64), bool) if g.ex is None else g.ex.copy()


def push(g, queue, p):
    """Append; a full counter (63 / 15) stalls the issue until the oldest entry is done."""
    q = getattr(g, queue)
    if queue == "vm":
        while len(q) >= 63:
            apply(g, q.pop(0), _ops())
    else:
        while len(q) >= 15 and all(e.kind != "s" for e in q):
            apply(g, q.pop(0), _ops())
    q.append(p)


def _ops():
    from . import ops

    return ops


def push_vgpr(g, queue, pc, regs, vals, keeps, mask, rd=None):
    """regs: list; vals [W,64,n] uint32; keeps: bits of the old register that survive."""
    for j, r in enumerate(regs):
        x = (g.V[r] & U32(keeps)) | (POISON & ~U32(keeps))
        np.copyto(g.V[r], x, where=mask)
        g.ver[r] += 1
    arrs = [vals, mask]
    meta = (tuple(regs), keeps, None)
    if rd is not None:
        la, nb, raw = rd
        arrs += [la, raw]
        meta = (tuple(regs), keeps, nb)
    push(g, queue, Pend("v", pc, meta, arrs))


def apply(g, p, ops):
    if p.done and p.kind != "v":
        return
    if p.kind == "v":
        regs, keeps, nb = p.meta
        vals, mask = p.arrs[0], p.arrs[1]
        if nb is not None and not p.done:
            validate(g, p, ops)
        for j, r in enumerate(regs):
            np.copyto(g.V[r], (g.V[r] & U32(keeps)) | vals[:, :, j], where=mask)
            g.ver[r] += 1
    elif p.kind == "s":
        for j in range(p.arrs[0].shape[1]):
            g.S[p.meta + j] = p.arrs[0][:, j]
        g.update_exec()
    elif p.kind == "L":
        la, v, mask = p.arrs
        act = np.nonzero(mask.reshape(-1))[0]
        ops.lds_store_now(g, la.reshape(-1), v.reshape(-1, v.shape[2]), p.meta, p.pc, act)
    p.done = True


def validate(g, p, ops):
    la, raw, mask = p.arrs[2], p.arrs[3], p.arrs[1]
    act = np.nonzero(mask.reshape(-1))[0]
    p.done = True  # before the re-read, which flushes pending entries itself
    keep, g.lg = g.lg, []
    now = ops.lds_load(g, la.reshape(-1), p.meta[2], p.pc, act)
    g.lg = keep
    if not np.array_equal(now, raw.reshape(-1, raw.shape[2])[act]):
        raise RaceError("LDS data read at pc 0x%x changed before the wave waited for it (write-after-read race)" % p.pc)


def flush_lds(g, ops):
    """Own LDS operations are in order: before an LDS read, carry out this wave's earlier ds_writes."""
    for p in g.lg:
        if p.done:
            continue
        if p.kind == "L":
            apply(g, p, ops)
        elif p.kind == "v" and p.meta[2] is not None:
            validate(g, p, ops)


def wait(g, vm, lgkm, ops):
    if vm is not None:
        n = len(g.vm) - vm
        if n > 0:
            for p in g.vm[:n]:
                apply(g, p, ops)
            g.vm = g.vm[n:]
    if lgkm is not None and g.lg:
        if lgkm == 0:
            for p in g.lg:
                apply(g, p, ops)
            g.lg = []
        else:
            isl = [p.kind != "s" for p in g.lg]
            left = sum(isl)
            keep = []
            for p, l in zip(g.lg, isl):
                if l and left > lgkm:
                    apply(g, p, ops)
                else:
                    keep.append(p)
                left -= l
            g.lg = keep
