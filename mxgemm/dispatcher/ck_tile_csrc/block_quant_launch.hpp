// The launch that aquant, abquant and bquant share, and the exported functions; after PipelineProblem is defined.
#pragma once

#include "block_quant.hpp"

namespace {

template <typename Problem>
using CShuffle = ck_tile::CShuffleEpilogue<ck_tile::CShuffleEpilogueProblem<typename Problem::AComputeDataType,
                                                                          typename Problem::BComputeDataType,
                                                                          ck_tile::tuple<>,
                                                                          float,
                                                                          C,
                                                                          ck_tile::tuple<>,
                                                                          RowMajor,
                                                                          ck_tile::element_wise::PassThrough,
                                                                          Config::tile_m,
                                                                          Config::tile_n,
                                                                          Config::warp_m,
                                                                          Config::warp_n,
                                                                          Config::warp_tile_m,
                                                                          Config::warp_tile_n,
                                                                          Config::warp_tile_k,
                                                                          Config::transpose_c>>;
template <typename Problem>
using PermuteN = ck_tile::PermuteNEpilogue<ck_tile::PermuteNEpilogueProblem<typename Problem::AComputeDataType,
                                                                          typename Problem::BComputeDataType,
                                                                          ck_tile::tuple<>,
                                                                          float,
                                                                          C,
                                                                          ck_tile::tuple<>,
                                                                          RowMajor,
                                                                          ck_tile::element_wise::PassThrough,
                                                                          Config::tile_m,
                                                                          Config::tile_n,
                                                                          Config::warp_m,
                                                                          Config::warp_n,
                                                                          Config::warp_tile_m,
                                                                          Config::warp_tile_n,
                                                                          Config::warp_tile_k,
                                                                          Config::transpose_c,
                                                                          false,
                                                                          1>>;
template <typename Problem>
using Default = ck_tile::DefaultGemm2DEpilogue<ck_tile::DefaultGemm2DEpilogueProblem<A,
                                                                                   B,
                                                                                   ck_tile::tuple<>,
                                                                                   float,
                                                                                   C,
                                                                                   ck_tile::tuple<>,
                                                                                   RowMajor,
                                                                                   ck_tile::element_wise::PassThrough,
                                                                                   Config::tile_m,
                                                                                   Config::tile_n,
                                                                                   Config::pad_m,
                                                                                   Config::pad_n,
                                                                                   Config::warp_tile_m,
                                                                                   Config::warp_tile_n,
                                                                                   Config::warp_tile_k,
                                                                                   Config::transpose_c>>;

using BasePipeline = Config::BasePipeline<BaseProblem>;

ck_tile::QuantGemmHostArgs host_arguments(const problem& p)
{
    ck_tile::QuantGemmHostArgs host{};
    host.a_ptr     = p.at[OPERAND_A];
    host.b_ptr     = p.at[OPERAND_B];
    host.aq_ptr    = p.at[OPERAND_A_SCALES];
    host.bq_ptr    = p.at[OPERAND_B_SCALES];
    host.c_ptr     = p.at[OPERAND_C];
    host.k_batch   = 1;
    host.M         = static_cast<ck_tile::index_t>(p.m);
    host.N         = static_cast<ck_tile::index_t>(p.n);
    host.K         = static_cast<ck_tile::index_t>(p.k);
    host.stride_A  = Config::a_column_major ? host.M : host.K;
    host.stride_B  = Config::b_row_major ? host.N : host.K;
    host.stride_C  = host.N;
    const auto groups = [&](int of) { return of ? static_cast<ck_tile::index_t>(bridge::ceil_div(p.k, of)) : 0; };
    host.QK_A      = groups(A_SCALE_K);
    host.QK_B      = groups(B_SCALE_K);
    host.stride_AQ = Config::aq_column_major ? host.M : host.QK_A;
    host.stride_BQ = Config::bq_row_major
                         ? static_cast<ck_tile::index_t>(bridge::ceil_div(p.n, bridge::group_n_b))
                         : host.QK_B;
    return host;
}

float launch_ordered(const problem& p, const bridge::Timing& timing)
{
    const auto host  = host_arguments(p);
    const auto loops = Partitioner::GetLoopNum(ck_tile::integer_least_multiple(host.K, Config::tile_k));
    const auto stream = stream_of(timing);
    const auto run = [&](const auto hot_loop, const auto tail) {
        using Problem  = PipelineProblem<decltype(hot_loop)::value, decltype(tail)::value>;
        using Epilogue = Config::Epilogue<CShuffle<Problem>, PermuteN<Problem>, Default<Problem>>;
        using Kernel =
            ck_tile::QuantGemmKernel<Partitioner, Config::Pipeline<Problem>, Epilogue, Config::quantisation>;
        const auto arguments = Kernel::MakeKernelArgs(host);
        require_supported<Kernel>(arguments);
        return ck_tile::launch_kernel(
            stream,
            ck_tile::make_kernel<Config::blocks_per_cu, ck_tile::kernel_attr<Config::eight_waves>>(
                Kernel{}, Kernel::GridSize(host.M, host.N, host.k_batch), Kernel::BlockSize(), 0, arguments));
    };
    return BasePipeline::TailHandler(run, BasePipeline::BlockHasHotloop(loops), BasePipeline::GetBlockLoopTailNum(loops));
}

float launch(const problem& p, const bridge::Timing& timing)
{
    constexpr bool ordered = std::is_same_v<A, ck_tile::pk_int4_t> || std::is_same_v<B, ck_tile::pk_int4_t> ||
                             Config::preshuffle_aq || Config::preshuffle_bq || Config::preshuffle_b;
    if(!ordered)
        return launch_ordered(p, timing);
    bridge::hip(hipStreamSynchronize(timing.stream), "hipStreamSynchronize"); // operands may still be being written
    const std::unique_ptr<bridge::Buffer> order[] = {
        bridge::ordered_a<Config>(p),
                                                   bridge::ordered_b<Config>(p),
                                                   bridge::ordered_aq<Config>(p),
                                                   bridge::ordered_bq<Config>(p)};
    problem device = p;
    for(int i = 0; i < OPERAND_C; ++i)
        if(order[i])
            device.at[i] = order[i]->get();
    const float took = launch_ordered(device, timing);
    bridge::hip(hipStreamSynchronize(timing.stream), "hipStreamSynchronize"); // what was put in order ends here
    return took;
}

} // namespace

ENTRY_POINTS(BRIDGE_DEFINE)
