"""ELF64 reader for AMDGPU code objects: kernel descriptors, symbols, msgpack metadata."""

import struct


class Section:
    __slots__ = ("name", "type", "addr", "off", "size", "link", "entsize")


def unpack_msgpack(buf, pos=0):
    """Minimal msgpack decoder (the subset AMDGPU metadata uses). Returns (value, next_pos)."""
    b = buf[pos]
    pos += 1
    if b < 0x80:
        return b, pos
    if b >= 0xE0:
        return b - 256, pos
    if 0x80 <= b <= 0x8F:
        return _map(buf, pos, b & 15)
    if 0x90 <= b <= 0x9F:
        return _arr(buf, pos, b & 15)
    if 0xA0 <= b <= 0xBF:
        n = b & 31
        return buf[pos : pos + n].decode("utf8", "replace"), pos + n
    if b == 0xC0:
        return None, pos
    if b in (0xC2, 0xC3):
        return b == 0xC3, pos
    if b in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
        w = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}[b]
        n = int.from_bytes(buf[pos : pos + w], "big")
        pos += w
        raw = buf[pos : pos + n]
        return (raw.decode("utf8", "replace") if b >= 0xD9 else bytes(raw)), pos + n
    if b == 0xCA:
        return struct.unpack(">f", buf[pos : pos + 4])[0], pos + 4
    if b == 0xCB:
        return struct.unpack(">d", buf[pos : pos + 8])[0], pos + 8
    if 0xCC <= b <= 0xCF:
        w = 1 << (b - 0xCC)
        return int.from_bytes(buf[pos : pos + w], "big"), pos + w
    if 0xD0 <= b <= 0xD3:
        w = 1 << (b - 0xD0)
        return int.from_bytes(buf[pos : pos + w], "big", signed=True), pos + w
    if b in (0xDC, 0xDD):
        w = 2 if b == 0xDC else 4
        n = int.from_bytes(buf[pos : pos + w], "big")
        return _arr(buf, pos + w, n)
    if b in (0xDE, 0xDF):
        w = 2 if b == 0xDE else 4
        n = int.from_bytes(buf[pos : pos + w], "big")
        return _map(buf, pos + w, n)
    raise ValueError("msgpack byte 0x%02x" % b)


def _map(buf, pos, n):
    out = {}
    for _ in range(n):
        k, pos = unpack_msgpack(buf, pos)
        v, pos = unpack_msgpack(buf, pos)
        out[k] = v
    return out, pos


def _arr(buf, pos, n):
    out = []
    for _ in range(n):
        v, pos = unpack_msgpack(buf, pos)
        out.append(v)
    return out, pos


class KernelDescriptor:
    def __init__(self, raw, addr):
        (self.lds, self.scratch, self.kernarg_size) = struct.unpack_from("<III", raw, 0)
        (self.entry_off,) = struct.unpack_from("<q", raw, 16)
        (self.rsrc3, self.rsrc1, self.rsrc2) = struct.unpack_from("<III", raw, 44)
        (self.props, self.preload) = struct.unpack_from("<HH", raw, 56)
        self.addr = addr
        self.entry = addr + self.entry_off
        self.user_sgprs = (self.rsrc2 >> 1) & 31
        self.wg_id = [(self.rsrc2 >> (7 + i)) & 1 for i in range(3)]
        self.wg_info = (self.rsrc2 >> 10) & 1
        self.workitem_dims = ((self.rsrc2 >> 11) & 3) + 1
        self.accum_offset = ((self.rsrc3 & 63) + 1) * 4
        self.vgprs = ((self.rsrc1 & 63) + 1) * 8
        self.preload_len = self.preload & 127
        self.preload_off = self.preload >> 7

    def user_layout(self):
        """[(name, first sgpr, n)] of the user SGPRs, in hardware order."""
        names = [
            ("private_segment_buffer", 4),
            ("dispatch_ptr", 2),
            ("queue_ptr", 2),
            ("kernarg_ptr", 2),
            ("dispatch_id", 2),
            ("flat_scratch_init", 2),
            ("private_segment_size", 1),
        ]
        at, out = 0, []
        for bit, (n, w) in enumerate(names):
            if self.props >> bit & 1:
                out.append((n, at, w))
                at += w
        if self.preload_len:
            out.append(("preload", at, self.preload_len))
            at += self.preload_len
        return out


class Elf:
    def __init__(self, data):
        if data[:4] != b"\x7fELF":
            raise ValueError("not an ELF file")
        self.data = data
        (shoff,) = struct.unpack_from("<Q", data, 0x28)
        shentsize, shnum, shstr = struct.unpack_from("<HHH", data, 0x3A)
        self.mach_flags = struct.unpack_from("<I", data, 0x30)[0]
        secs = []
        for i in range(shnum):
            o = shoff + i * shentsize
            s = Section()
            nm, s.type, _f, s.addr, s.off, s.size, s.link, _i, _a, s.entsize = struct.unpack_from(
                "<IIQQQQIIQQ", data, o
            )
            s.name = nm
            secs.append(s)
        st = secs[shstr]
        for s in secs:
            s.name = self._str(st.off + s.name)
        self.sections = secs
        self.symbols = {}
        for s in secs:
            if s.type in (2, 11):
                strs = secs[s.link]
                for o in range(s.off, s.off + s.size, 24):
                    nm, info, other, shndx, val, size = struct.unpack_from("<IBBHQQ", data, o)
                    name = self._str(strs.off + nm)
                    if name and shndx:
                        self.symbols.setdefault(name, (val, size, info & 15))
        self.metadata = {}
        for s in secs:
            if s.type == 7:
                o, end = s.off, s.off + s.size
                while o + 12 <= end:
                    nsz, dsz, typ = struct.unpack_from("<III", data, o)
                    o += 12
                    name = data[o : o + nsz].rstrip(b"\0")
                    o += (nsz + 3) & ~3
                    if name == b"AMDGPU" and typ == 32:
                        self.metadata = unpack_msgpack(data[o : o + dsz])[0]
                    o += (dsz + 3) & ~3

    def _str(self, o):
        return self.data[o : self.data.index(b"\0", o)].decode("utf8", "replace")

    def read(self, addr, n):
        for s in self.sections:
            if s.type != 8 and s.addr and s.addr <= addr < s.addr + s.size:
                o = s.off + addr - s.addr
                return self.data[o : o + n]
        raise ValueError("address 0x%x is in no section" % addr)

    def kernels(self):
        out = {}
        for name, (val, _size, _t) in self.symbols.items():
            if name.endswith(".kd"):
                out[name[:-3]] = KernelDescriptor(self.read(val, 64), val)
        return out
