"""Draw what bench/hopper.py measured: time against torch.mm bf16, per weight and M.

python bench/plot_hopper.py bench/results/hopper_h200.json     writes .png and .svg beside it
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from mxgemm import files
from mxgemm.measure.plots import style


def main() -> None:
    """Draw two panels: the weight folded beforehand, and the compact form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what bench/hopper.py wrote; the pictures go beside it")
    parser.add_argument("--force", action="store_true", help="replace pictures that mxgemm did not draw")
    arguments = parser.parse_args()
    path: Path = arguments.results
    document = files.read_json(path)
    weights = sorted({(row["n"], row["k"]) for row in document["rows"]}, key=lambda size: size[0] * size[1])
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for panel, variant in zip(panels, ("fold fast", "fold compact"), strict=True):
        for n, k in weights:
            rows = [row for row in document["rows"] if (row["n"], row["k"]) == (n, k) and variant in row]
            panel.plot(
                [row["m"] for row in rows], [row[variant]["ratio"] for row in rows], marker="o", label=f"N {n}, K {k}"
            )
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_yticks([0.5, 0.7, 1.0, 1.4, 2.0], ["0.5", "0.7", "1", "1.4", "2"])
        panel.set_xlabel("M")
        panel.set_title(f"MXFP4 x MXFP4 by {variant.replace('fold', 'fp8_fold,')} weights")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("time / torch.mm bf16 (below 1 is faster)")
    panels[0].legend(fontsize=8)
    figure.suptitle(f"{document['device']}, {document['date'][:10]}, A quantised inside", fontsize=10)
    figure.tight_layout()
    for drawn in style.save(figure, path.parent, path.stem, force=arguments.force, dpi=130):
        print(drawn)


if __name__ == "__main__":
    main()
