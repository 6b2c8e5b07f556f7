// The names of CK tile that the bridge uses, with the template parameters that it gives them. A kernel here is a loop on
// the host that multiplies for real, so that a library built with these headers can be called and judged.
#pragma once
#include <hip/hip_runtime.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ck_tile {

using index_t = int;
using half_t  = _Float16;

#if defined(CK_TILE_USE_OCP_FP8) && CK_TILE_USE_OCP_FP8
constexpr bool ocp = true;
#else
constexpr bool ocp = false;
#endif

template <int Mantissa>
struct float8
{
    std::uint8_t byte;
    float value() const
    {
        constexpr int bias = (1 << (6 - Mantissa)) - (ocp ? 1 : 0);
        const int magnitude = byte & 0x7f, exponent = magnitude >> Mantissa, mantissa = magnitude & ((1 << Mantissa) - 1);
        if(!ocp && byte == 0x80)
            return std::numeric_limits<float>::quiet_NaN();
        const float fraction = exponent ? 1 + std::ldexp(float(mantissa), -Mantissa) : std::ldexp(float(mantissa), -Mantissa);
        const float absolute = std::ldexp(fraction, (exponent ? exponent : 1) - bias);
        return byte & 0x80 ? -absolute : absolute;
    }
};
using fp8_t = float8<3>;
using bf8_t = float8<2>;
struct pk_fp4_t { std::uint8_t byte; };
struct e8m0_t { std::uint8_t byte; };

template <typename T>
struct numeric_traits { static constexpr int PackedSize = 1; };
template <>
struct numeric_traits<pk_fp4_t> { static constexpr int PackedSize = 2; };

template <typename T>
float element(const void* data, std::int64_t index) { return static_cast<const T*>(data)[index].value(); }
template <>
inline float element<pk_fp4_t>(const void* data, std::int64_t index)
{
    constexpr float magnitudes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    const int nibble = static_cast<const std::uint8_t*>(data)[index / 2] >> (index % 2 * 4) & 15;
    return nibble & 8 ? -magnitudes[nibble & 7] : magnitudes[nibble & 7];
}
inline float element_scale(const void* data, std::int64_t index)
{
    return std::ldexp(1.f, static_cast<const std::uint8_t*>(data)[index] - 127);
}

template <index_t...> struct sequence {};
template <typename...> struct tuple {};
namespace tensor_layout::gemm { struct RowMajor {}; struct ColumnMajor {}; }
namespace element_wise { struct PassThrough {}; }
enum class GemmPipelineScheduler { Intrawave };
enum class QuantType { RowColQuant, TensorQuant };

template <typename Tile, typename Warps, typename WarpTile, bool = false, bool = false> struct TileGemmShape;
template <int M, int N, int K, typename Warps, typename WarpTile, bool P, bool Q>
struct TileGemmShape<sequence<M, N, K>, Warps, WarpTile, P, Q> { static constexpr int k = K; };
template <typename Shape, int, int> struct GemmSpatiallyLocalTilePartitioner {};
template <typename Shape> struct GemmTile1DPartitioner { static int GetLoopNum(int k) { return k / Shape::k; } };

template <bool, bool, bool, bool, typename, typename, typename, bool, bool, bool, int, bool> struct TileGemmUniversalTraits {};
template <typename A, typename B, typename Acc, typename, typename, GemmPipelineScheduler>
struct UniversalGemmPipelineProblem { using Data = A; };
template <typename Problem> struct GemmPipelineAgBgCrCompAsync { using Data = typename Problem::Data; };

template <bool, bool, bool, bool, bool, bool, typename, typename, typename, QuantType, typename, typename, bool, bool, bool, int>
struct TileGemmQuantTraits {};
template <typename A, typename, typename, typename, typename, typename, bool, typename, GemmPipelineScheduler, bool = true, int = 0>
struct GemmRowColTensorQuantPipelineProblem { using Data = A; };
template <typename Problem> struct GemmPipelineAgBgCrCompV3 { using Data = typename Problem::Data; };
template <bool V> struct hot_loop { static constexpr bool value = V; };
template <int V> struct tail_number { static constexpr int value = V; };
template <typename Problem>
struct BaseGemmPipelineAgBgCrCompV3
{
    static bool BlockHasHotloop(int loops) { return loops > 2; }
    static int GetBlockLoopTailNum(int loops) { return loops % 2; }
    template <typename Run>
    static float TailHandler(const Run& run, bool hot, int tail)
    {
        if(hot)
            return tail ? run(hot_loop<true>{}, tail_number<1>{}) : run(hot_loop<true>{}, tail_number<0>{});
        return tail ? run(hot_loop<false>{}, tail_number<1>{}) : run(hot_loop<false>{}, tail_number<0>{});
    }
};

template <typename, typename, typename, typename, typename, typename, typename, typename,
          int, int, int, int, int, int, int, bool, int = 1, bool = false, int = 1, int = 1, bool = false,
          typename = void, typename = void, bool = false>
struct CShuffleEpilogueProblem {};
template <typename> struct CShuffleEpilogue {};

struct stream_config
{
    hipStream_t stream_id_;
    bool time_kernel_;
    int log_level_, cold_niters_, nrepeat_;
    bool is_gpu_timer_, flush_cache_;
    int rotating_count_;
};
template <int, typename Kernel, typename Arguments>
auto make_kernel(Kernel kernel, dim3, dim3, int, Arguments arguments) { return [=] { kernel(arguments); }; }
// The "time" of a launch is the number of launches, so that a test sees what was asked for.
template <typename Launch>
float launch_kernel(const stream_config& stream, Launch launch)
{
    launch();
    return stream.time_kernel_ ? float(stream.cold_niters_ * 1000 + stream.nrepeat_) : 0.f;
}

template <int = 1, int = 1, int = 0>
struct MxGemmHostArgs
{
    using Pointers = std::array<const void*, 1>;
    using Strides  = std::array<index_t, 1>;
    using None     = std::array<const void*, 0>;
    Pointers a, a_scale, b, b_scale;
    void* c;
    index_t k_batch, m, n, k;
    Strides stride_a, stride_b;
    index_t stride_c;
    MxGemmHostArgs(const Pointers& a_, const Pointers& a_scale_, const Pointers& b_, const Pointers& b_scale_, const None&,
                   void* c_, index_t k_batch_, index_t m_, index_t n_, index_t k_, const Strides& stride_a_,
                   const Strides& stride_b_, const std::array<index_t, 0>&, index_t stride_c_)
        : a(a_), a_scale(a_scale_), b(b_), b_scale(b_scale_), c(c_), k_batch(k_batch_), m(m_), n(n_), k(k_),
          stride_a(stride_a_), stride_b(stride_b_), stride_c(stride_c_)
    {
    }
};
template <typename, typename Pipeline, typename>
struct MxGemmKernel
{
    using Data = typename Pipeline::Data;
    static auto MakeKernelArgs(const MxGemmHostArgs<>& host) { return host; }
    static bool IsSupportedArgument(const MxGemmHostArgs<>& host) { return host.k_batch == 1; }
    static dim3 GridSize(int, int, int) { return {}; }
    static dim3 BlockSize() { return {}; }
    void operator()(const MxGemmHostArgs<>& host) const
    {
        for(int m = 0; m < host.m; ++m)
            for(int n = 0; n < host.n; ++n)
            {
                float sum = 0;
                for(int k = 0; k < host.k; ++k)
                    sum += element<Data>(host.a[0], std::int64_t(m) * host.stride_a[0] + k) *
                           element<Data>(host.b[0], std::int64_t(n) * host.stride_b[0] + k) *
                           element_scale(host.a_scale[0], std::int64_t(m) * (host.k / 32) + k / 32) *
                           element_scale(host.b_scale[0], std::int64_t(n) * (host.k / 32) + k / 32);
                static_cast<half_t*>(host.c)[std::int64_t(m) * host.stride_c + n] = half_t(sum);
            }
    }
};

struct QuantGemmHostArgs
{
    const void *a_ptr, *b_ptr, *aq_ptr, *bq_ptr;
    void* c_ptr;
    index_t k_batch, M, N, K, QK_A, QK_B, stride_A, stride_B, stride_C, stride_AQ, stride_BQ;
};
template <typename, typename Pipeline, typename, QuantType Kind>
struct QuantGemmKernel
{
    using Data = typename Pipeline::Data;
    static auto MakeKernelArgs(const QuantGemmHostArgs& host) { return host; }
    static bool IsSupportedArgument(const QuantGemmHostArgs& host) { return host.k_batch == 1; }
    static dim3 GridSize(int, int, int) { return {}; }
    static dim3 BlockSize() { return {}; }
    void operator()(const QuantGemmHostArgs& host) const
    {
        const auto* rows = static_cast<const float*>(host.aq_ptr);
        const auto* columns = static_cast<const float*>(host.bq_ptr);
        constexpr int each  = Kind == QuantType::RowColQuant;
        for(int m = 0; m < host.M; ++m)
            for(int n = 0; n < host.N; ++n)
            {
                float sum = 0;
                for(int k = 0; k < host.K; ++k)
                    sum += element<Data>(host.a_ptr, std::int64_t(m) * host.stride_A + k) *
                           element<Data>(host.b_ptr, std::int64_t(n) * host.stride_B + k);
                static_cast<half_t*>(host.c_ptr)[std::int64_t(m) * host.stride_C + n] = half_t(sum * rows[each * m] * columns[each * n]);
            }
    }
};

// CK puts scales in the order of the matrix instruction; the kernel here reads them as they were.
template <int, int, int, int, typename Scale>
void preShuffleScaleBuffer_gfx950(const Scale* from, Scale* to, index_t rows, index_t blocks, bool)
{
    std::memcpy(to, from, std::size_t(rows) * blocks);
}

} // namespace ck_tile
