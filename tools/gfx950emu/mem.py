"""Device memory: numpy buffers at fake 64-bit addresses, every access bounds-checked."""

import numpy as np

SLOT = 36
BASE = 1 << 44
LEAD = 1 << 20  # a buffer starts this far into its slot, so small negative offsets are named too


class MemoryFault(Exception):
    index = None  # position among the lanes of the access


def _fault(msg, index):
    e = MemoryFault(msg)
    e.index = index
    return e


class Buffer:
    def __init__(self, name, addr, size, writable):
        self.name, self.addr, self.size, self.writable = name, addr, size, writable
        self.raw = np.zeros((size + 31) // 16 * 16, np.uint8)
        self.u32 = self.raw.view(np.uint32)
        self.u16 = self.raw.view(np.uint16)
        self.data = self.raw[:size]
        self.written = None


class Memory:
    """mem = Memory(); a = mem.add("A", array); mem.alloc("C", nbytes); mem.get("C", np.uint16, (M, N))"""

    def __init__(self, track_writes=False):
        self.bufs = []
        self.by_name = {}
        self.track_writes = track_writes

    def alloc(self, name, nbytes, fill=0, writable=True):
        n = len(self.bufs)
        b = Buffer(name, BASE + (n << SLOT) + LEAD, int(nbytes), writable)
        b.raw[:] = fill
        if self.track_writes:
            b.written = np.zeros(b.raw.size, bool)
        self.bufs.append(b)
        self.by_name[name] = b
        return b.addr

    def add(self, name, arr, writable=True):
        arr = np.ascontiguousarray(arr)
        a = self.alloc(name, arr.nbytes, writable=writable)
        self.by_name[name].data[:] = arr.reshape(-1).view(np.uint8)
        return a

    def get(self, name, dtype=np.uint8, shape=None):
        d = self.by_name[name].data.view(dtype)
        return d if shape is None else d.reshape(shape)

    def _find(self, addr, n, what, pc, mask_all):
        """addr: uint64 array [k] of active lanes. Returns [(buffer, selector, offsets)]."""
        slot = (addr - np.uint64(BASE)) >> np.uint64(SLOT)
        lo, hi = int(slot.min()), int(slot.max())
        out = []
        for s in [lo] if lo == hi else np.unique(slot).tolist():
            s = int(s)
            sel = None if lo == hi else np.nonzero(slot == np.uint64(s))[0]
            aa = addr if sel is None else addr[sel]
            if s >= len(self.bufs):
                raise _fault(
                    "%s at unmapped address 0x%x (pc 0x%x)" % (what, int(aa[0]), pc), 0 if sel is None else int(sel[0])
                )
            b = self.bufs[s]
            off = (aa - np.uint64(b.addr)).view(np.int64)
            if int(off.min()) < 0 or int(off.max()) + n > b.size:
                bad = int(np.nonzero((off < 0) | (off + n > b.size))[0][0])
                raise _fault(
                    "%s of %d bytes out of bounds: buffer %r size %d offset %d (pc 0x%x)"
                    % (what, n, b.name, b.size, int(off[bad]), pc),
                    bad if sel is None else int(sel[bad]),
                )
            out.append((b, sel, off))
        return out

    def load(self, addr, nbytes, pc=0, what="load"):
        """addr uint64 [k] -> uint32 [k, ceil(nbytes/4)] (b8/b16 zero-extended)."""
        k = addr.size
        nd = (nbytes + 3) // 4
        res = None
        if k == 0:
            return np.zeros((0, nd), np.uint32)
        for b, sel, off in self._find(addr, nbytes, what, pc, True):
            v = _gather(b, off, nbytes)
            if sel is None:
                return v
            if res is None:
                res = np.zeros((k, nd), np.uint32)
            res[sel] = v
        return res

    def store(self, addr, vals, nbytes, pc=0, what="store"):
        """vals uint32 [k, nd]."""
        if addr.size == 0:
            return
        for b, sel, off in self._find(addr, nbytes, what, pc, True):
            if not b.writable:
                raise _fault("store to read-only buffer %r (pc 0x%x)" % (b.name, pc), 0 if sel is None else int(sel[0]))
            _scatter(b, off, vals if sel is None else vals[sel], nbytes)
            if b.written is not None:
                for j in range(nbytes):
                    b.written[off + j] = True


def _gather(b, off, nbytes):
    if nbytes >= 4:
        nd = nbytes // 4
        if not (off & 3).any():
            i = off >> 2
            if nd == 1:
                return b.u32[i][:, None]
            if nd in (2, 4) and not (i & (nd - 1)).any():
                return np.take(b.u32[: b.u32.size // nd * nd].reshape(-1, nd), i >> (1 if nd == 2 else 2), axis=0)
            return b.u32[i[:, None] + np.arange(nd)]
        by = b.raw[off[:, None] + np.arange(nbytes)]
        return np.ascontiguousarray(by).view(np.uint32)
    if nbytes == 1:
        return b.raw[off].astype(np.uint32)[:, None]
    lo = b.raw[off].astype(np.uint32)
    return (lo | (b.raw[off + 1].astype(np.uint32) << np.uint32(8)))[:, None]


def _scatter(b, off, vals, nbytes):
    if nbytes >= 4:
        nd = nbytes // 4
        if not (off & 3).any():
            i = off >> 2
            for j in range(nd):
                b.u32[i + j] = vals[:, j]
            return
        by = np.ascontiguousarray(vals[:, :nd]).view(np.uint8)
        for j in range(nbytes):
            b.raw[off + j] = by[:, j]
        return
    v = vals[:, 0]
    for j in range(nbytes):
        b.raw[off + j] = (v >> np.uint32(8 * j)).astype(np.uint8)
