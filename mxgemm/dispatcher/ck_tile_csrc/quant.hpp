// fp8 or bf8 operands with fp32 scales that multiply the sum, through CK tile.
//
// The operation's own file defines, before including this one,
//   QUANTISATION  the member of ck_tile::QuantType that says how far a scale reaches,
//   LEAST_M       the smallest M that CK takes,
//   SCALES(rows)  how many scales an operand with so many rows has,
//   RUN, RUN_DEVICE  the names of the exported functions.
#pragma once

#include "tile.hpp"

#include "ck_tile/ops/gemm_quant.hpp"

namespace {

using bridge::Call;
using bridge::Refusal;

using Data = Config::Data;

constexpr auto quantisation = ck_tile::QuantType::QUANTISATION;
constexpr auto scheduler    = ck_tile::GemmPipelineScheduler::Intrawave;

using Partitioner = ck_tile::GemmTile1DPartitioner<Shape>;
using Traits      = ck_tile::TileGemmQuantTraits<false, // M is not padded
                                            false, // nor N
                                            true,  // K is
                                            false, // scales of A, of B, and B itself are not preshuffled
                                            false,
                                            false,
                                            RowMajor,
                                            ColumnMajor,
                                            RowMajor,
                                            quantisation,
                                            RowMajor,
                                            ColumnMajor,
                                            false, // C is not transposed
                                            Config::double_smem_buffer,
                                            false, // not persistent
                                            16>;
using BaseProblem =
    ck_tile::GemmRowColTensorQuantPipelineProblem<Data, Data, float, float, Shape, Traits, false, Data, scheduler>;
using BasePipeline = ck_tile::BaseGemmPipelineAgBgCrCompV3<BaseProblem>;
using Epilogue     = ck_tile::CShuffleEpilogue<ck_tile::CShuffleEpilogueProblem<Data,
                                                                            Data,
                                                                            ck_tile::tuple<>,
                                                                            float,
                                                                            ck_tile::half_t,
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
                                                                            false>>;

void check(const Call& call, std::int64_t stride_a, std::int64_t stride_b, std::int64_t stride_c)
{
    bridge::check_call(call);
    if(stride_a != call.k || stride_b != call.k || stride_c != call.n)
        throw Refusal{bridge::unsupported, "strides: want packed operands, stride_A = stride_B = K, stride_C = N"};
    if(call.m < LEAST_M)
        throw Refusal{bridge::unsupported,
                      "M: got " + std::to_string(call.m) + ", want at least " + std::to_string(LEAST_M)};
    if(call.m > INT32_MAX || call.n > INT32_MAX || call.k > INT32_MAX)
        throw Refusal{bridge::unsupported, "M, N and K: want less than 2^31"};
    bridge::require_multiple("M", call.m, Config::tile_m);
    bridge::require_multiple("N", call.n, Config::tile_n);
    bridge::require_multiple("K", call.k, Config::tile_k);
}

float launch(const Call& call, const bridge::Timing& timing)
{
    ck_tile::QuantGemmHostArgs host{};
    host.a_ptr     = call.a;
    host.b_ptr     = call.b;
    host.aq_ptr    = call.a_scales;
    host.bq_ptr    = call.b_scales;
    host.c_ptr     = call.c;
    host.k_batch   = call.k_batch;
    host.M         = static_cast<ck_tile::index_t>(call.m);
    host.N         = static_cast<ck_tile::index_t>(call.n);
    host.K         = static_cast<ck_tile::index_t>(call.k);
    host.QK_A      = 1;
    host.QK_B      = 1;
    host.stride_A  = host.K;
    host.stride_B  = host.K;
    host.stride_C  = host.N;
    host.stride_AQ = 1;
    host.stride_BQ = 1;

    const auto stream = stream_of(timing);
    const auto loops = Partitioner::GetLoopNum(host.K);
    const auto run   = [&](const auto hot_loop, const auto tail) {
        using Problem  = ck_tile::GemmRowColTensorQuantPipelineProblem<Data,
                                                                      Data,
                                                                      float,
                                                                      float,
                                                                      Shape,
                                                                      Traits,
                                                                      false,
                                                                      Data,
                                                                      scheduler,
                                                                      decltype(hot_loop)::value,
                                                                      decltype(tail)::value>;
        using Pipeline = ck_tile::GemmPipelineAgBgCrCompV3<Problem>;
        using Kernel   = ck_tile::QuantGemmKernel<Partitioner, Pipeline, Epilogue, quantisation>;
        const auto arguments = Kernel::MakeKernelArgs(host);
        require_supported<Kernel>(arguments);
        return ck_tile::launch_kernel(
            stream,
            ck_tile::make_kernel<Config::blocks_per_cu>(
                Kernel{}, Kernel::GridSize(host.M, host.N, host.k_batch), Kernel::BlockSize(), 0, arguments));
    };
    return BasePipeline::TailHandler(run, BasePipeline::BlockHasHotloop(loops), BasePipeline::GetBlockLoopTailNum(loops));
}

} // namespace

BRIDGE_EXPORT int RUN_DEVICE(const void* A,
                             const void* B,
                             const void* AQ,
                             const void* BQ,
                             void* C,
                             std::int64_t M,
                             std::int64_t N,
                             std::int64_t K,
                             std::int64_t stride_A,
                             std::int64_t stride_B,
                             std::int64_t stride_C,
                             int k_batch,
                             void* stream,
                             float* time_ms)
{
    const Call call{A, B, C, AQ, BQ, M, N, K, k_batch};
    if(const int code = bridge::guarded([&] { check(call, stride_A, stride_B, stride_C); }))
        return code;
    return bridge::run_on_device(call, stream, time_ms, launch);
}

BRIDGE_EXPORT int RUN(const void* A,
                      const void* B,
                      const void* AQ,
                      const void* BQ,
                      void* C,
                      std::int64_t M,
                      std::int64_t N,
                      std::int64_t K,
                      std::int64_t stride_A,
                      std::int64_t stride_B,
                      std::int64_t stride_C,
                      int k_batch,
                      float* time_ms)
{
    const Call call{A, B, C, AQ, BQ, M, N, K, k_batch};
    if(const int code = bridge::guarded([&] { check(call, stride_A, stride_B, stride_C); }))
        return code;
    const auto m = static_cast<std::size_t>(M), n = static_cast<std::size_t>(N), k = static_cast<std::size_t>(K);
    return bridge::run_on_host(call, {m * k, n * k, m * n * 2, SCALES(m) * 4, SCALES(n) * 4}, time_ms, launch);
}
