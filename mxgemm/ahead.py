"""Build HIP kernels before anything runs: in a container image, or on a machine without a GPU, for one that has it.

The build cache is keyed by the compiler too, so build with the compiler of the machine that will run the kernels, and
ship the cache folder (``MXGEMM_CACHE``) with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip import fused
from mxgemm.hip.build import build
from mxgemm.hip.fused import FusedConfig
from mxgemm.hip.prepared import ARCH
from mxgemm.hip.shuffle import SOURCES
from mxgemm.mx.formats import E2M1
from mxgemm.mx.layouts import padded_scale_shape
from mxgemm.problem import Options, Problem, contiguous_strides
from mxgemm.routing.router import choose


@dataclass(frozen=True, slots=True)
class Built:
    """One kernel that is in the cache now.

    Attributes:
        source: the file that it was built from.
        what: for which problem and configuration, "" for kernels that serve all.
        nbytes: size of the code object.
        seconds: that it took; next to nothing if it was there.
    """

    source: str
    what: str
    nbytes: int
    seconds: float


def build_ahead(shapes: Iterable[tuple[int, int, int]], arch: str = ARCH) -> Iterator[Built]:
    """Build the shuffles and, for each (M, N, K), the fused GEMM in the configuration that a call would take.

    That is bf16 in and out, the default scale rule, no bias; the configuration comes from a table row
    (``MXGEMM_TABLES``) or is the route's guess.

    Raises:
        BuildError: no compiler, or it refuses a source.
        ValueError: ``arch`` is not one that these kernels are for.
        RouteUnavailable: the fused GEMM does not take a shape.
    """
    if arch != ARCH:
        raise ValueError(f"arch: got {arch!r}, want {ARCH!r}")
    for source in SOURCES:
        yield _timed(source, "", arch, {})
    for m, n, k in shapes:
        problem = Problem(
            m, n, k, KNOWN_MACHINES[arch], Options(weight_layout="preshuffled", scale_layout="shuffled"),
            strides=contiguous_strides(n, k, E2M1, padded_scale_shape(n, k)[1]),
        )  # fmt: skip
        config = choose(problem, route="hip_fused").config
        assert isinstance(config, FusedConfig)
        yield _timed(fused.SOURCE, f"{problem}: {config}", arch, fused.defines(problem, config))


def _timed(source: str, what: str, arch: str, defines: dict[str, int | str]) -> Built:
    start = time.monotonic()
    image = build(source, arch=arch, defines=defines)
    return Built(source, what, len(image), time.monotonic() - start)
