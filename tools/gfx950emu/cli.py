"""python3 -m gfx950emu info FILE [KERNEL] | check FILE... | dis FILE"""

import sys

from .wave import load_code_object


def info(path, only=None):
    ko = load_code_object(path)
    for n, k in ko.kernels.items():
        if only and n != only:
            continue
        d = k.kd
        print(n)
        print(
            "  entry 0x%x  LDS %d  scratch %d  kernarg %d  accum_offset %d  rsrc1 0x%x rsrc2 0x%x props 0x%x"
            % (k.entry, k.lds_bytes, d.scratch, k.kernarg_size, d.accum_offset, d.rsrc1, d.rsrc2, d.props)
        )
        at = d.user_sgprs
        ids = []
        for i, c in enumerate("xyz"):
            if d.wg_id[i]:
                ids.append("s%d=wg_id_%s" % (at, c))
                at += 1
        print(
            "  user SGPRs:",
            ", ".join("s[%d:%d]=%s" % (p, p + w - 1, nm) for nm, p, w in d.user_layout()),
            "|",
            ", ".join(ids),
        )
        if d.preload_len:
            print("  kernarg preload: %d dwords from byte %d; entry + 256 is used" % (d.preload_len, 4 * d.preload_off))
        for a in k.args:
            if a.get(".name") != "pad":
                print("  arg @%-4d %2d bytes  %s %s" % (a[".offset"], a[".size"], a[".value_kind"], a.get(".name", "")))


def check(paths):
    for p in paths:
        ko = load_code_object(p)
        bad = ko.check_all()
        print(
            "%s: %d instructions, %d kernels, unsupported: %s"
            % (p, len(ko.insts), len(ko.kernels), sorted(bad) or "none")
        )


def main(argv=None):
    a = sys.argv[1:] if argv is None else argv
    if len(a) >= 2 and a[0] == "info":
        info(*a[1:3])
    elif len(a) >= 2 and a[0] == "check":
        check(a[1:])
    elif len(a) == 2 and a[0] == "dis":
        for i in load_code_object(a[1]).insts:
            print(i)
    else:
        print(__doc__)
        return 2
    return 0
