// What the kernels of every operation through CK tile have alike; after the generated header's Config.
#pragma once

#include "ck_tile/core.hpp"
#include "ck_tile/host.hpp"
#include "ck_tile/host/kernel_launch.hpp"
#include "ck_tile/ops/epilogue.hpp"
#include "ck_tile/ops/gemm.hpp"

#include "bridge.hpp"

namespace {

using RowMajor    = ck_tile::tensor_layout::gemm::RowMajor;
using ColumnMajor = ck_tile::tensor_layout::gemm::ColumnMajor;
using Shape       = ck_tile::TileGemmShape<ck_tile::sequence<Config::tile_m, Config::tile_n, Config::tile_k>,
                                     ck_tile::sequence<Config::warp_m, Config::warp_n, Config::warp_k>,
                                     ck_tile::sequence<Config::warp_tile_m, Config::warp_tile_n, Config::warp_tile_k>>;

inline ck_tile::stream_config stream_of(const bridge::Timing& timing)
{
    return {timing.stream, timing.wanted, 0, timing.warmup, timing.repeat, true, false, 1};
}

template <typename Kernel, typename Arguments>
void require_supported(const Arguments& arguments)
{
    if(!Kernel::IsSupportedArgument(arguments))
        throw bridge::Refusal{bridge::unsupported, "CK tile's kernel does not support these sizes"};
}

} // namespace
