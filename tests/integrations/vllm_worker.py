"""Run by test_vllm.py: models in vLLM, what came out as one file.

    python vllm_worker.py OUT.pt how FOLDER:DTYPE ...

``how`` is "eager": in this process, so that hooks see every layer; or "spawned": vLLM's defaults, which compile the
model and run it in a process of its own that finds mxgemm by its entry point alone.
"""

from __future__ import annotations

import os
import sys

out, how, *wanted = sys.argv[1:] if __name__ == "__main__" else ("", "spawned")  # a worker imports this too
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB; the default takes a share of the machine
os.environ["HF_HUB_OFFLINE"] = os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
if how == "eager":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # vLLM's sampler would be compiled all the same

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import mxgemm  # noqa: E402
from tests.integrations.served import A_FORMATS, PROMPTS, WORDS  # noqa: E402

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def stored_weight(state: dict[str, torch.Tensor], prefix: str) -> mxgemm.MXTensor:
    """The bytes of a layer of vLLM's, read from the file by hand."""
    parent, name = prefix.rsplit(".", 1)
    stems = [f"{parent}.{part}" for part in FUSED.get(name, (name,))]
    data = torch.cat([state.get(f"{stem}.weight_packed", state.get(f"{stem}.weight")) for stem in stems])
    return mxgemm.MXTensor.wrap(data, torch.cat([state[f"{stem}.weight_scale"] for stem in stems]))


def watch(model: torch.nn.Module, state: dict[str, torch.Tensor], a_format: str, seen: list) -> None:
    def hook(layer, args, result):
        got, bias = result if isinstance(result, tuple) else (result, None)
        bias = layer.bias if bias is None else None  # else it is added later
        weight = stored_weight(state, layer.prefix)
        want = mxgemm.gemm(args[0], weight, bias=bias, a_format=a_format, out_dtype=got.dtype)
        seen.append((layer.prefix, tuple(args[0].shape), torch.equal(got, want)))

    for layer in model.modules():
        if "mxgemm" in vars(layer):
            layer.register_forward_hook(hook)


def run(folder: str, dtype: str) -> dict:
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        folder, skip_tokenizer_init=True, dtype=dtype, enforce_eager=how == "eager", max_model_len=128, max_num_seqs=4,
        max_logprobs=-1, seed=0, enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    seen: list = []
    if how == "eager":
        state = load_file(f"{folder}/model.safetensors")
        a_format = A_FORMATS[folder.rpartition("-")[2]]
        llm.apply_model(lambda model: watch(model, state, a_format, seen))
    asked = SamplingParams(
        temperature=0.0, max_tokens=4, prompt_logprobs=-1, logprobs=-1, ignore_eos=True, detokenize=False
    )
    answers = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], asked, use_tqdm=False)
    texts, rows = [], []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        texts.append(prompt + list(answer.outputs[0].token_ids)[:-1])
        rows += [row for row in answer.prompt_logprobs if row is not None] + list(answer.outputs[0].logprobs)
    table = torch.tensor([[row[token].logprob for token in range(WORDS)] for row in rows])
    del llm
    cleanup_dist_env_and_memory()
    return {"texts": texts, "logprobs": table, "layers": seen}


if __name__ == "__main__":
    results = {}
    for what in wanted:
        results[what.rpartition("/")[2]] = run(*what.split(":"))
        torch.save(results, out)
