"""MXExperts: the experts of a mixture with frozen MXFP4 weights, as one layer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mxgemm.arguments import as_int, check_type, shown
from mxgemm.experts import ExpertsExplanation, SwiGLU, explain_experts, moe
from mxgemm.experts.validation import check_bias, check_weight
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.nn.linear import DEFAULT_FORMAT
from mxgemm.nn.product import is_recorded, linear
from mxgemm.nn.weight import MXWeight
from mxgemm.problem import Options
from mxgemm.validation import check_names


class MXExperts(nn.Module):
    """The experts of a mixture: :func:`mxgemm.moe` with its weights as state.

    Called as transformers calls a model's experts: ``layer(x, topk_ids, topk_weights)``. The result has the dtype of
    ``x``. The weights are frozen; where gradients of ``x``, of the router's weights or of biases are recorded, the
    experts that are hit are multiplied one after the other, whose ids the host then reads, and the inner activations
    pass through the dtype of ``x``.

    State: ``gate_up_proj.weight`` uint8 ``[E, 2 I, H/2]`` and ``gate_up_proj.weight_scale`` ``[E, 2 I, H/32]``,
    ``down_proj.*`` ``[E, H', I/2]`` and ``[E, H', I/32]``, and with biases ``gate_up_proj_bias`` ``[E, 2 I]`` and
    ``down_proj_bias`` ``[E, H']``: gpt-oss's names. :func:`mxgemm.checkpoints.load_experts` makes one of a checkpoint.

    Args:
        w13: gate and up of all experts, as ``activation`` says, a row-major e2m1 :class:`mxgemm.MXTensor` (E, 2 I, H).
        w2: down, (E, H', I).
        activation: between the two.
        b13: ``[E, 2 I]`` or None.
        b2: ``[E, H']`` or None.
        a_format: what activations are rounded to: "bf16", "e4m3" or "e2m1".
        scale_rounding: rule for the block scales of activations.
        first_expert: the id of the first of these experts; pairs of others add nothing.

    Raises:
        TypeError: a part of a wrong type or dtype.
        ValueError: parts that do not belong together, or a name that is none of those.
    """

    gate_up_proj_bias: nn.Parameter | None
    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        w13: MXTensor,
        w2: MXTensor,
        *,
        activation: SwiGLU,
        b13: Tensor | None = None,
        b2: Tensor | None = None,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
        first_expert: int = 0,
    ) -> None:
        super().__init__()
        check_weight("w13", w13)
        check_weight("w2", w2)
        check_type("activation", activation, SwiGLU, "a mxgemm.SwiGLU")
        check_names(
            a_format=a_format, scale_rounding=scale_rounding, weight_layout="row_major", scale_layout="row_major",
            route=None,
        )  # fmt: skip
        experts, n, _ = w13.shape
        if n % 2 or w2.shape != (experts, w2.shape[1], n // 2):
            raise ValueError(f"w2: got shape {w2.shape}, want ({experts}, H, {n / 2:g}) beside w13 of {w13.shape}")
        for name, w in (("w13", w13), ("w2", w2)):
            if w.format.name != "e2m1":
                raise ValueError(f"{name}: got {w.format}, want e2m1")
        check_bias("b13", b13, (experts, n), w13.device)
        check_bias("b2", b2, (experts, w2.shape[1]), w2.device)
        self.activation, self.a_format, self.scale_rounding = activation, a_format, scale_rounding
        self.first_expert = as_int("first_expert", first_expert)
        self.gate_up_proj, self.down_proj = MXWeight(w13), MXWeight(w2)
        self.gate_up_proj_bias = None if b13 is None else _parameter(b13)
        self.down_proj_bias = None if b2 is None else _parameter(b2)

    @property
    def count(self) -> int:
        """Experts that this layer holds."""
        return self.gate_up_proj.shape[0]

    def forward(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts' results.

        Args:
            x: ``[..., H]``.
            topk_ids: int32 or int64 ``[..., top_k]``.
            topk_weights: ``[..., top_k]``.

        Raises:
            TypeError, ValueError, RuntimeError: as :func:`mxgemm.moe`.
        """
        b13, b2 = self.gate_up_proj_bias, self.down_proj_bias
        if any(is_recorded(tensor, bias) for tensor, bias in ((x, b13), (topk_weights, b2))):
            return self._one_after_the_other(x, topk_ids, topk_weights)
        return moe(
            x, self.gate_up_proj.prepared_tensor(), self.down_proj.prepared_tensor(), topk_ids, topk_weights,
            activation=self.activation, b13=b13, b2=b2, first_expert=self.first_expert, a_format=self.a_format,
            scale_rounding=self.scale_rounding, out_dtype=x.dtype,
        )  # fmt: skip

    def prepare(self, arch: str | None = None) -> None:
        """Make what this device's fastest route reads of the weights: see :meth:`mxgemm.MXTensor.prepare`.

        On Hopper that takes as much memory as the weights again; elsewhere it is nothing.

        Args:
            arch: for this architecture instead of that of the device.

        Raises:
            TypeError, ValueError: as :meth:`mxgemm.MXTensor.prepare`.
        """
        self.gate_up_proj.prepare(arch)
        self.down_proj.prepare(arch)

    def explain(self, tokens: int, top_k: int, *, device: torch.device | str | int | None = None) -> ExpertsExplanation:
        """Say which route a call of so many tokens takes, and why: see :func:`mxgemm.explain_experts`.

        Raises:
            TypeError, ValueError: as :func:`mxgemm.explain_experts`.
        """
        return explain_experts(
            tokens, self.gate_up_proj.prepared_tensor(), self.down_proj.prepared_tensor(), top_k=top_k,
            activation=self.activation, a_format=self.a_format, bias=self.gate_up_proj_bias is not None, device=device,
        )  # fmt: skip

    def warmup(self, tokens: Iterable[int], top_k: int, dtype: torch.dtype = torch.bfloat16) -> None:
        """Make calls of so many tokens once, of zeros: kernels are compiled, loaded and planned for afterwards.

        A call is of the same kind where ids are int64, the router's weights fp32, and everything named here is equal.

        Args:
            tokens: numbers of tokens.
            top_k: experts of each.
            dtype: of the tokens: bf16, fp16 or fp32.

        Raises:
            TypeError: a number that is no integer, or a dtype that is none of those.
            ValueError: a number below 1.
            RuntimeError: the current stream is captured into a graph, which would keep the work.
        """
        counts = [as_int("tokens", count) for count in tokens]
        for name, least in (("tokens", min(counts, default=1)), ("top_k", as_int("top_k", top_k))):
            if least < 1:
                raise ValueError(f"{name}: got {least}, want at least 1")
        if dtype not in FLOAT_DTYPES:
            raise TypeError(f"dtype: got {shown(dtype)}, want torch.bfloat16, torch.float16 or torch.float32")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("warmup: called while a graph is captured, want a call before the capture")
        device, hidden = self.gate_up_proj.weight.device, self.gate_up_proj.shape[2]
        for count in counts:
            ids = torch.arange(count * top_k, dtype=torch.int64, device=device).view(count, top_k) % self.count
            x = torch.zeros((count, hidden), dtype=dtype, device=device)
            weights = torch.zeros((count, top_k), dtype=torch.float32, device=device)
            with torch.no_grad():
                self(x, ids + self.first_expert, weights)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _one_after_the_other(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """Compute :meth:`forward` by operations that have gradients."""
        rows, ids = x.reshape(-1, x.shape[-1]), topk_ids.reshape(-1, topk_ids.shape[-1]) - self.first_expert
        factors = topk_weights.reshape(ids.shape)
        result = rows.new_zeros((rows.shape[0], self.down_proj.shape[1]))
        for expert in torch.unique(ids).tolist():
            if not 0 <= expert < self.count:
                continue
            token, place = torch.where(ids == expert)
            h = self._product(rows[token], self.gate_up_proj, self.gate_up_proj_bias, expert)
            y = self._product(self.activation.apply(h), self.down_proj, self.down_proj_bias, expert)
            result = result.index_add(0, token, (y * factors[token, place, None]).to(result.dtype))
        return result.reshape(*x.shape[:-1], self.down_proj.shape[1])

    def _product(self, x: Tensor, weight: MXWeight, bias: Tensor | None, expert: int) -> Tensor:
        options = Options(self.a_format, "e2m1", self.scale_rounding, out_dtype=x.dtype)
        added = None if bias is None else bias[expert]
        return linear(x, weight.weight[expert], weight.weight_scale[expert], added, options)

    def extra_repr(self) -> str:
        """Name what the parameters mean."""
        return f"{self.activation}, a_format={self.a_format}"


def _parameter(bias: Tensor) -> nn.Parameter:
    return bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, requires_grad=False)
