"""Experts that processes share out: tokens go to the ranks of their experts as bytes, and come back as fp32."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mxgemm.ambient import check_no_grad
from mxgemm.experts import SwiGLU
from mxgemm.experts.apart import combine, results
from mxgemm.experts.steps import LayerOptions
from mxgemm.experts.validation import check_moe
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import MXTensor
from mxgemm.nn import MXExperts
from mxgemm.parallel.exchange import send_rows
from mxgemm.parallel.ranks import Ranks, ranks_of
from mxgemm.quantize import quantize


class ExpertParallelMXExperts(MXExperts):
    """An :class:`mxgemm.nn.MXExperts` whose experts are divided over processes, each with tokens of its own.

    Rank r holds the experts from ``r * E / size`` on. A token's row is quantised first and sent to the rank of each of
    its experts, 4.25 bits an element of e2m1; each pair's result comes back in fp32 and is added by the token's own
    process in the order of its pairs. So the result has the bits of one process with all experts, by the routes of
    which a row does not depend on the others (docs/experts.md). How many rows go where is read by the host.

    Args:
        w13: of this rank's experts, as in :class:`mxgemm.nn.MXExperts`, and so are the rest.
        w2: see there.
        activation: see there.
        b13: see there.
        b2: see there.
        a_format: see there.
        scale_rounding: see there.
        group: a ``ProcessGroup``, a ``DeviceMesh`` of one dimension, or None for all processes.

    Raises:
        TypeError, ValueError: as :class:`mxgemm.nn.MXExperts`.
        RuntimeError: torch.distributed is not initialised.
    """

    def __init__(
        self,
        w13: MXTensor,
        w2: MXTensor,
        *,
        activation: SwiGLU,
        b13: Tensor | None = None,
        b2: Tensor | None = None,
        a_format: ActivationFormat = "bf16",
        scale_rounding: ScaleRounding = "even",
        group: Any = None,
    ) -> None:
        ranks = ranks_of(group)
        super().__init__(
            w13, w2, activation=activation, b13=b13, b2=b2, a_format=a_format, scale_rounding=scale_rounding
        )
        self.ranks: Ranks = ranks
        self.first_expert = ranks.rank * self.count

    @classmethod
    def from_experts(cls, layer: MXExperts, group: Any = None) -> ExpertParallelMXExperts:
        """Return this process's part of a layer that has all experts, with copies of the bytes.

        Raises:
            ValueError: they cannot be divided evenly.
            RuntimeError: torch.distributed is not initialised.
        """
        part = ranks_of(group).part("layer", layer.count)
        w13, w2 = (weight.mx_tensor()[part].clone() for weight in (layer.gate_up_proj, layer.down_proj))
        biases = (layer.gate_up_proj_bias, layer.down_proj_bias)
        b13, b2 = (None if bias is None else bias.detach()[part].clone() for bias in biases)
        return cls(
            w13, w2, activation=layer.activation, b13=b13, b2=b2, a_format=layer.a_format,
            scale_rounding=layer.scale_rounding, group=group,
        )  # fmt: skip

    def forward(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """Return the weighted sums of this process's tokens, which may be none; all processes call it together.

        Args:
            x: ``[..., H]``, this process's tokens.
            topk_ids: int32 or int64 ``[..., top_k]``, ids of all experts.
            topk_weights: ``[..., top_k]``.

        Raises:
            TypeError, ValueError: as :func:`mxgemm.moe`, before anything is sent.
            RuntimeError: an input requires grad while gradients are recorded.
        """
        w13, w2 = self.gate_up_proj.mx_tensor(), self.down_proj.mx_tensor()
        b13, b2 = (None if bias is None else bias.detach() for bias in (self.gate_up_proj_bias, self.down_proj_bias))
        check_moe(
            x, w13, w2, topk_ids, topk_weights, self.activation, b13, b2, None, None, self.a_format,
            self.scale_rounding, x.dtype,
        )  # fmt: skip
        check_no_grad(x=x, topk_weights=topk_weights)
        top_k, total = topk_ids.shape[-1], self.count * self.ranks.size
        rows, ids = x.reshape(-1, x.shape[-1]), topk_ids.reshape(-1, top_k)
        flat = ids.reshape(-1)
        known = (flat >= 0) & (flat < total)
        rank = torch.where(known, flat // self.count, self.ranks.size)
        order = torch.argsort(rank, stable=True)
        sent = torch.bincount(rank, minlength=self.ranks.size + 1)[: self.ranks.size]
        pairs = order[: int(sent.sum())]
        received = torch.empty_like(sent)
        if self.ranks.size > 1:
            dist.all_to_all_single(received, sent, group=self.ranks.group)
        else:
            received = sent
        there, back = sent.tolist(), received.tolist()

        token = pairs // top_k
        expert = send_rows((flat[pairs] % self.count).to(torch.int32), there, back, self.ranks)
        left: Tensor | MXTensor
        if self.a_format == "bf16":
            left = send_rows(rows.to(torch.bfloat16)[token], there, back, self.ranks)
        else:
            q = quantize(rows, format=self.a_format, scale_rounding=self.scale_rounding)
            parts = (send_rows(part[token], there, back, self.ranks) for part in (q.data, q.scales))
            left = MXTensor.wrap(*parts, format=self.a_format)
        options = LayerOptions(self.activation, 0, self.a_format, self.scale_rounding, x.dtype)
        y = torch.empty((0, w2.shape[1]), dtype=torch.float32, device=x.device)
        if len(expert):
            y = results(left, w13, w2, expert, b13, b2, options)
        mine = send_rows(y, back, there, self.ranks)
        whole = torch.zeros((flat.shape[0], w2.shape[1]), dtype=torch.float32, device=x.device)
        whole[pairs] = mine
        out = combine(whole, ids, topk_weights.reshape(ids.shape), total, x.dtype)
        return out.reshape(*x.shape[:-1], w2.shape[1])

    def extra_repr(self) -> str:
        """Name what the parameters mean, and this process's place."""
        return f"{super().extra_repr()}, rank {self.ranks.rank} of {self.ranks.size}"
