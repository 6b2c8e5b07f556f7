"""The projects' own code on our bytes and ours on theirs, where their packages are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm import checkpoints
from tests.checkpoints import made
from tests.checkpoints.made import weight

X = torch.randn(40, 160, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def project(name: str) -> None:
    reason = f"{name.partition('.')[0]} is not installed, or too old (mxgemm[test] has it)"
    pytest.importorskip(name, reason=reason, exc_type=ImportError)


def test_transformers_decodes_gpt_oss(tmp_path: Path) -> None:
    project("transformers")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    stack = mxgemm.quantize(X.view(2, 20, 160))
    state = checkpoints.FORMATS["gpt-oss"].encode("e.down_proj", stack)
    theirs = convert_moe_packed_tensors(state["e.down_proj_blocks"], state["e.down_proj_scales"])
    assert torch.equal(theirs, checkpoints.to_dense(stack))
    w = weight(2, 20, 160)
    path = made.folder(tmp_path / "m", made.gpt_oss({"e.down_proj": w}), made.GPT_OSS_CONFIG)
    read = checkpoints.open(path)["e.down_proj"]
    assert isinstance(read, mxgemm.MXTensor)
    arrays = [torch.from_numpy(array) for array in made.gpt_oss({"e.down_proj": w}).values()]
    assert torch.equal(convert_moe_packed_tensors(*arrays), checkpoints.to_dense(read))


def test_compressed_tensors_packs_and_unpacks(tmp_path: Path) -> None:
    project("compressed_tensors.compressors.mxfp4")
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import MXFP4A16

    scheme = QuantizationScheme(targets=["Linear"], **MXFP4A16)
    ours = mxgemm.quantize(X)
    powers = torch.exp2(ours.scales.float() - 127)
    theirs = MXFP4PackedCompressor.compress({"weight": X, "weight_scale": powers.to(X.dtype)}, scheme)
    assert torch.equal(theirs["weight_packed"], ours.data)
    assert torch.equal(theirs["weight_scale"], ours.scales)
    state = checkpoints.FORMATS["compressed-tensors"].encode("weight", ours)
    assert torch.equal(MXFP4PackedCompressor.decompress(dict(state), scheme)["weight"], ours.dequantize(torch.bfloat16))
    tensors = {f"l.{name}": tensor.numpy() for name, tensor in theirs.items()}
    path = made.folder(tmp_path / "m", tensors, made.compressed_tensors_config())
    read = checkpoints.open(path)["l.weight"]
    assert isinstance(read, mxgemm.MXTensor)
    assert torch.equal(read.dequantize(), ours.dequantize())


@pytest.mark.parametrize("swizzled", [False, True])
def test_torchao_flattens_and_unflattens(swizzled: bool, tmp_path: Path) -> None:
    project("torchao.prototype.safetensors.safetensors_support")
    from safetensors.torch import load_file, save_file
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict, unflatten_tensor_state_dict

    dtype, mode = torch.float4_e2m1fn_x2, ScaleCalculationMode.EVEN
    activations = QuantizeTensorToMXKwargs(elem_dtype=dtype, scaling_mode=mode)
    theirs = MXTensor.to_mx(X, dtype, 32, mode, act_quant_kwargs=activations, is_swizzled_scales=swizzled)
    flat, metadata = flatten_tensor_state_dict({"l.weight": theirs, "l.bias": torch.ones(40)})
    save_file(flat, tmp_path / "theirs.safetensors", metadata=metadata)
    checkpoint = checkpoints.open(tmp_path / "theirs.safetensors")
    read, ours = checkpoint["l.weight"], mxgemm.quantize(X)
    assert isinstance(read, mxgemm.MXTensor)
    assert (checkpoint.a_format, checkpoint.scale_rounding) == ("e2m1", "even")
    assert read.layout.scales == ("swizzled_32_4_4" if swizzled else "row_major")
    assert torch.equal(read.dequantize(torch.bfloat16), theirs.dequantize())
    assert torch.equal(read.row_major().data, ours.data)
    assert torch.equal(read.row_major().scales, ours.scales)

    format = checkpoints.FORMATS["torchao-swizzled" if swizzled else "torchao"]
    fields = format.metadata({"l.weight": checkpoint.entries["l.weight"].scheme}, ["l.bias"], "bfloat16")
    save_file(
        {**format.encode("l.weight", ours), "l.bias": torch.ones(40)}, tmp_path / "o.safetensors", metadata=fields
    )
    loaded, left = unflatten_tensor_state_dict(load_file(tmp_path / "o.safetensors"), fields)
    assert not left
    assert torch.equal(loaded["l.weight"].dequantize(), theirs.dequantize())
    assert loaded["l.weight"].act_quant_kwargs.scaling_mode is mode
    a = torch.randn(3, 160, dtype=torch.bfloat16)
    assert torch.equal(mxgemm.gemm(a, read), mxgemm.gemm(a, ours))


def test_gguf_writes_and_decodes(tmp_path: Path) -> None:
    project("gguf")
    import gguf

    w = weight(6, 96)
    path = made.gguf_of(tmp_path / "numpy.gguf", {"x": w})
    (tensor,) = gguf.GGUFReader(path).tensors
    assert np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64), w.values)

    blocks = gguf.quants.quantize(X.float().numpy(), gguf.GGMLQuantizationType.MXFP4)
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    writer.add_tensor("x", blocks, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = checkpoints.open(tmp_path / "theirs.gguf")["x"]
    assert isinstance(read, mxgemm.MXTensor)
    theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(read.dequantize().numpy(), theirs)
    ours = checkpoints.FORMATS["gguf"].encode("x", mxgemm.quantize(X))["x"].numpy()
    decoded = gguf.quants.dequantize(ours, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(decoded, mxgemm.quantize(X).dequantize().numpy())
