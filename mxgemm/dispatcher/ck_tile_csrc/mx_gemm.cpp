// mx_gemm through CK tile: fp4 or fp8 operands with an E8M0 scale per 32 elements of K, for gfx950.
//
// CK's kernel reads scales in the order of its matrix instruction, so they are shuffled here, on the host, before the
// launch: a call costs two small copies more than the kernel, and waits for it. The time reported is the kernel's.
#include "tile.hpp"

#if __has_include("ck_tile/ops/gemm_mx.hpp")
#include "ck_tile/ops/gemm_mx.hpp"
#endif

#include <type_traits>
#include <vector>

namespace {

using bridge::Call;
using bridge::Refusal;

using Data  = Config::Data;
using Scale = ck_tile::e8m0_t;

constexpr int block       = 32; // elements of K that share a scale
constexpr int least_fp4_m = 32;

using Partitioner = ck_tile::GemmSpatiallyLocalTilePartitioner<Shape, 8, 4>;
using Traits      = ck_tile::TileGemmUniversalTraits<Config::pad_m,
                                                Config::pad_n,
                                                Config::pad_k,
                                                true, // two buffers in LDS: the asynchronous pipeline needs them
                                                RowMajor,
                                                ColumnMajor,
                                                RowMajor,
                                                false, // C is not transposed
                                                false, // no structured sparsity
                                                Config::persistent,
                                                1,
                                                false>; // B is not preshuffled
using PipelineProblem = ck_tile::UniversalGemmPipelineProblem<Data,
                                                              Data,
                                                              float,
                                                              Shape,
                                                              Traits,
                                                              ck_tile::GemmPipelineScheduler::Intrawave>;
using Pipeline        = ck_tile::GemmPipelineAgBgCrCompAsync<PipelineProblem>;
using EpilogueProblem = ck_tile::CShuffleEpilogueProblem<Data,
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
                                                         false, // C is not transposed
                                                         1,     // groups of waves
                                                         false, // vector sizes are CK's choice
                                                         1,
                                                         1,
                                                         false,
                                                         Data,
                                                         Data,
                                                         true>; // tiles packed, as the packed scales want them
using Kernel          = ck_tile::MxGemmKernel<Partitioner, Pipeline, ck_tile::CShuffleEpilogue<EpilogueProblem>>;
using HostArguments   = ck_tile::MxGemmHostArgs<1, 1, 0>;

// Scales of two instructions share a register where a wave has an even number of them along a dimension.
constexpr int pack_of(int instructions) { return instructions >= 2 && instructions % 2 == 0 ? 2 : 1; }
constexpr int pack_m = pack_of(Config::tile_m / (Config::warp_m * Config::warp_tile_m));
constexpr int pack_n = pack_of(Config::tile_n / (Config::warp_n * Config::warp_tile_n));
constexpr int pack_k = pack_of(Config::tile_k / Config::warp_tile_k);

template <int Pack, int Rows>
std::vector<Scale> shuffled(const void* device_scales, std::int64_t rows, std::int64_t blocks)
{
    std::vector<Scale> plain(rows * blocks), order(rows / Pack * 2 * (blocks / pack_k * 2));
    bridge::hip(hipMemcpy(plain.data(), device_scales, plain.size(), hipMemcpyDeviceToHost), "hipMemcpy of scales");
    ck_tile::preShuffleScaleBuffer_gfx950<Pack, pack_k, Rows, 64 / Rows>(
        plain.data(), order.data(), static_cast<ck_tile::index_t>(rows), static_cast<ck_tile::index_t>(blocks), true);
    return order;
}

void check(const Call& call)
{
    bridge::check_call(call);
    if(call.k % block)
        throw Refusal{bridge::failed, "K: got " + std::to_string(call.k) + ", want a multiple of 32"};
    if(std::is_same_v<Data, ck_tile::pk_fp4_t> && call.m < least_fp4_m)
        throw Refusal{bridge::unsupported,
                      "M: got " + std::to_string(call.m) + ", want at least " + std::to_string(least_fp4_m) +
                          " for fp4: CK's kernel is wrong below or writes out of bounds (ROCm/rocm-libraries#11774); "
                          "the native kernel takes any M"};
    bridge::require_multiple("M", call.m, Config::pad_m ? pack_m : Config::tile_m);
    bridge::require_multiple("N", call.n, Config::pad_n ? pack_n : Config::tile_n);
    bridge::require_multiple("K", call.k, Config::pad_k ? block * pack_k : Config::tile_k);
}

float launch(const Call& call, const bridge::Timing& timing)
{
    bridge::hip(hipStreamSynchronize(timing.stream), "hipStreamSynchronize"); // scales may still be being written
    const auto a_order = shuffled<pack_m, Config::warp_tile_m>(call.a_scales, call.m, call.k / block);
    const auto b_order = shuffled<pack_n, Config::warp_tile_n>(call.b_scales, call.n, call.k / block);
    const bridge::Buffer a_scales(a_order.data(), a_order.size()), b_scales(b_order.data(), b_order.size());
    const auto m = static_cast<ck_tile::index_t>(call.m);
    const auto n = static_cast<ck_tile::index_t>(call.n);
    const auto k = static_cast<ck_tile::index_t>(call.k);
    const HostArguments host(
        {call.a}, {a_scales.get()}, {call.b}, {b_scales.get()}, {}, call.c, call.k_batch, m, n, k, {k}, {k}, {}, n);
    const auto arguments = Kernel::MakeKernelArgs(host);
    require_supported<Kernel>(arguments);
    const auto stream = stream_of(timing);
    const float took = ck_tile::launch_kernel(
        stream,
        ck_tile::make_kernel<Config::blocks_per_cu>(
            Kernel{}, Kernel::GridSize(m, n, call.k_batch), Kernel::BlockSize(), 0, arguments));
    bridge::hip(hipStreamSynchronize(timing.stream), "hipStreamSynchronize"); // the shuffled scales end here
    return took;
}

} // namespace

BRIDGE_EXPORT int dispatcher_run_mx_gemm_device(const void* A,
                                                const void* B,
                                                void* C,
                                                const std::uint8_t* scale_a,
                                                const std::uint8_t* scale_b,
                                                int M,
                                                int N,
                                                int K,
                                                int k_batch,
                                                void* stream,
                                                float* time_ms)
{
    const Call call{A, B, C, scale_a, scale_b, M, N, K, k_batch};
    if(const int code = bridge::guarded([&] { check(call); }))
        return code;
    return bridge::run_on_device(call, stream, time_ms, launch);
}

BRIDGE_EXPORT int dispatcher_run_mx_gemm(const void* A,
                                         const void* B,
                                         void* C,
                                         const std::uint8_t* scale_a,
                                         const std::uint8_t* scale_b,
                                         int M,
                                         int N,
                                         int K,
                                         int k_batch,
                                         float* time_ms)
{
    const Call call{A, B, C, scale_a, scale_b, M, N, K, k_batch};
    if(const int code = bridge::guarded([&] { check(call); }))
        return code;
    const auto m = static_cast<std::size_t>(M), n = static_cast<std::size_t>(N), k = static_cast<std::size_t>(K);
    constexpr std::size_t pack = ck_tile::numeric_traits<Data>::PackedSize;
    return bridge::run_on_host(
        call, {m * k / pack, n * k / pack, m * n * 2, m * (k / block), n * (k / block)}, time_ms, launch);
}
