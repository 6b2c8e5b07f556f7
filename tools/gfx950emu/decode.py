"""Disassemble with llvm-objdump and parse its text into Inst records (cached on disk)."""

import hashlib
import os
import pickle
import re
import shutil
import subprocess
import tempfile

VERSION = 5


class Inst:
    __slots__ = ("pc", "size", "mn", "ops", "mods", "w", "text", "gpr_idx")

    def __repr__(self):
        return "%06x: %s" % (self.pc, self.text)


def find_objdump():
    env = os.environ.get("GFX950EMU_OBJDUMP")
    for c in ([env] if env else []) + ["llvm-objdump-22", "llvm-objdump-21", "llvm-objdump-20", "llvm-objdump"]:
        p = shutil.which(c)
        if p:
            return p
    raise RuntimeError("no llvm-objdump found; set GFX950EMU_OBJDUMP")


_LINE = re.compile(r"^\t(.*?)\s*// ([0-9A-F]{8,}): ((?:[0-9A-F]{8}\s*)+)(?:<.*>)?\s*$")


def split_top(s, sep):
    out, depth, cur = [], 0, ""
    for ch in s:
        if ch in "[(":
            depth += 1
        elif ch in "])":
            depth -= 1
        if depth == 0 and (ch == sep):
            out.append(cur)
            cur = ""
        else:
            cur += ch
    out.append(cur)
    return [x.strip() for x in out]


def parse_line(text, pc, words):
    i = Inst()
    i.pc, i.w, i.size, i.text, i.gpr_idx = pc, words, 4 * len(words), text, 0
    mn, _, rest = text.partition(" ")
    i.mn, i.ops, i.mods = mn, [], {}
    if mn.startswith(("s_waitcnt", "s_nop", "s_sleep", "s_setprio", "s_sendmsg", "s_endpgm")):
        i.mods["raw"] = rest.strip()
        return i
    rest = rest.strip()
    if not rest:
        return i
    for piece in split_top(rest, ","):
        toks = [t for t in split_top(piece, " ") if t]
        for n, t in enumerate(toks):
            if n == 0 and ":" not in t.split("[")[0] and not t.startswith("op_sel"):
                i.ops.append(t)
            else:
                k, _, v = t.partition(":")
                if v.startswith("["):
                    v = [int(x) for x in v[1:-1].split(",")]
                elif v == "":
                    v = True
                else:
                    try:
                        v = int(v, 0)
                    except ValueError:
                        pass
                i.mods[k] = v
    return i


def disassemble(path, data, cache=True):
    h = hashlib.sha256(data).hexdigest()[:24]
    cdir = os.path.join(tempfile.gettempdir(), "gfx950emu_cache_%d" % os.getuid())
    cfile = os.path.join(cdir, "%s.v%d.pkl" % (h, VERSION))
    if cache and os.path.exists(cfile):
        try:
            with open(cfile, "rb") as f:
                return [_thaw(r) for r in pickle.load(f)]
        except Exception:
            pass
    txt = subprocess.run(
        [find_objdump(), "-d", "--mcpu=gfx950", path], capture_output=True, text=True, check=True
    ).stdout
    insts = []
    for line in txt.splitlines():
        m = _LINE.match(line)
        if m:
            insts.append(parse_line(m.group(1), int(m.group(2), 16), [int(x, 16) for x in m.group(3).split()]))
        elif line.startswith("\t") and "//" in line:
            raise ValueError("cannot parse disassembly line: " + line)
    idx = 0
    for i in insts:
        if i.mn == "s_set_gpr_idx_on":
            idx = (i.w[0] >> 8) & 15
        elif i.mn == "s_set_gpr_idx_off":
            idx = 0
        else:
            i.gpr_idx = idx
    if cache:
        os.makedirs(cdir, exist_ok=True)
        tmp = cfile + ".%d" % os.getpid()
        with open(tmp, "wb") as f:
            pickle.dump([(i.pc, i.size, i.mn, i.ops, i.mods, i.w, i.text, i.gpr_idx) for i in insts], f)
        os.replace(tmp, cfile)
    return insts


def _thaw(r):
    i = Inst()
    i.pc, i.size, i.mn, i.ops, i.mods, i.w, i.text, i.gpr_idx = r
    return i
