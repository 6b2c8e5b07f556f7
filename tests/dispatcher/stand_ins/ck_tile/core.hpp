// The names of CK tile that the bridge uses, with the template parameters that it gives them. A kernel here is a loop on
// the host that multiplies for real, so that a library built with these headers can be called and judged.
#pragma once
#include <hip/hip_runtime.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

struct Config; // of the generated header, which includes this one before it

namespace ck_tile {

template <typename> struct Later { using type = ::Config; }; // a name that is looked up when a template is instantiated

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
struct pk_int4_t { std::uint8_t byte; };
struct e8m0_t { std::uint8_t byte; float value() const { return std::ldexp(1.f, byte - 127); } };
struct bf16_t
{
    std::uint16_t bits;
    bf16_t() = default;
    explicit bf16_t(float f) // to nearest even; no NaN comes here
    {
        std::uint32_t b;
        std::memcpy(&b, &f, 4);
        bits = std::uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
    float value() const
    {
        const std::uint32_t b = std::uint32_t(bits) << 16;
        float f;
        std::memcpy(&f, &b, 4);
        return f;
    }
};

template <typename T>
struct numeric_traits { static constexpr int PackedSize = 1; };
template <>
struct numeric_traits<pk_fp4_t> { static constexpr int PackedSize = 2; };
template <>
struct numeric_traits<pk_int4_t> { static constexpr int PackedSize = 2; };

template <typename T>
float element(const void* data, std::int64_t index) { return static_cast<const T*>(data)[index].value(); }
template <>
inline float element<pk_fp4_t>(const void* data, std::int64_t index)
{
    constexpr float magnitudes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    const int nibble = static_cast<const std::uint8_t*>(data)[index / 2] >> (index % 2 * 4) & 15;
    return nibble & 8 ? -magnitudes[nibble & 7] : magnitudes[nibble & 7];
}
template <>
inline float element<float>(const void* data, std::int64_t index) { return static_cast<const float*>(data)[index]; }
// The even k is in the high nibble; the kernel is given every four bytes permuted (permute_vectors_i4x4_b below).
template <>
inline float element<pk_int4_t>(const void* data, std::int64_t index)
{
    std::uint32_t word;
    std::memcpy(&word, static_cast<const std::uint8_t*>(data) + index / 8 * 4, 4);
    constexpr int nibble_of[] = {1, 0, 3, 2, 5, 4, 7, 6}; // of the word as callers have it
    constexpr int moved[]     = {0, 4, 1, 5, 2, 6, 3, 7}; // nibble n of 0x76543210 is nibble moved[n] of 0x75316420
    return float(word >> moved[nibble_of[index % 8]] * 4 & 15) - 8;
}
inline float element_scale(const void* data, std::int64_t index)
{
    return std::ldexp(1.f, static_cast<const std::uint8_t*>(data)[index] - 127);
}

template <index_t...> struct sequence {};
template <typename...> struct tuple {};
namespace tensor_layout::gemm { struct RowMajor {}; struct ColumnMajor {}; }
namespace element_wise { struct PassThrough {}; }
enum class GemmPipelineScheduler { Intrawave, Interwave };
enum class QuantType { AQuantGrouped, BQuantGrouped, ABQuantGrouped, RowColQuant, TensorQuant };
enum class CastPolicy { BeforeLDSWrite, AfterLDSRead };
template <typename T> struct QuantGroupShape;
template <int M, int N, int K> struct QuantGroupShape<sequence<M, N, K>> { static constexpr int kM = M, kN = N, kK = K; };
template <bool B> using bool_constant = std::bool_constant<B>;
inline index_t integer_least_multiple(index_t size, index_t of) { return (size + of - 1) / of * of; }

template <typename Tile, typename Warps, typename WarpTile, bool = false, bool = false> struct TileGemmShape;
template <int M, int N, int K, typename Warps, typename WarpTile, bool P, bool Q>
struct TileGemmShape<sequence<M, N, K>, Warps, WarpTile, P, Q> { static constexpr int k = K; };
template <typename Shape, int, int>
struct GemmSpatiallyLocalTilePartitioner { static int GetLoopNum(int k) { return k / Shape::k; } };
template <typename Shape> struct GemmTile1DPartitioner { static int GetLoopNum(int k) { return k / Shape::k; } };

template <bool, bool, bool, bool, typename, typename, typename, bool, bool, bool, int, bool> struct TileGemmUniversalTraits {};
template <typename A, typename B, typename Acc, typename, typename, GemmPipelineScheduler>
struct UniversalGemmPipelineProblem { using Data = A; };
template <typename Problem> struct GemmPipelineAgBgCrCompAsync { using Data = typename Problem::Data; };

template <bool, bool, bool, bool AQ, bool BQ, bool B, typename ALayout_, typename BLayout_, typename, QuantType, typename AQLayout_,
          typename BQLayout_, bool, bool, bool = false, int = 16>
struct TileGemmQuantTraits
{
    static constexpr bool aq = AQ, bq = BQ, b = B;
    using ALayout = ALayout_;
    using BLayout = BLayout_;
    using AQLayout = AQLayout_;
    using BQLayout = BQLayout_;
};
template <bool, bool, bool, typename, typename, typename> struct TileGemmTraits {};
template <typename, typename, typename, typename, typename> struct GemmPipelineProblem {};
template <typename, typename, typename, typename, typename, typename = void, typename = void> struct GemmPipelineProblemBase {};
struct NoScale { using Group = QuantGroupShape<sequence<1, 1, 1>>; using Type = float; };
template <typename A_, typename Q_, typename B_, typename, typename Shape_, typename Traits_, typename Group_, bool, typename Compute,
          GemmPipelineScheduler, bool, int>
struct GemmAQuantPipelineProblem
{
    using A = A_; using B = B_; using Traits = Traits_; using Shape = Shape_; using Q = Q_;
    using AGroup = Group_; using BGroup = void;
    using AComputeDataType = Compute; using BComputeDataType = Compute;
};
template <typename A_, typename B_, typename Q_, typename, typename Shape_, typename Traits_, typename Group_, typename Compute,
          GemmPipelineScheduler, bool, int, CastPolicy>
struct GemmBQuantPipelineProblem
{
    using A = A_; using B = B_; using Traits = Traits_; using Shape = Shape_; using Q = Q_;
    using AGroup = void; using BGroup = Group_;
    using AComputeDataType = Compute; using BComputeDataType = Compute;
};
template <typename A_, typename Q_, typename B_, typename, typename, typename Shape_, typename Traits_, typename AGroup_, typename BGroup_,
          bool, typename Compute, GemmPipelineScheduler, bool, int>
struct GemmABQuantPipelineProblem
{
    using A = A_; using B = B_; using Traits = Traits_; using Shape = Shape_; using Q = Q_;
    using AGroup = AGroup_; using BGroup = BGroup_;
    using AComputeDataType = Compute; using BComputeDataType = Compute;
};
template <typename A, typename, typename, typename, typename, typename, bool, typename, GemmPipelineScheduler, bool = true, int = 0>
struct GemmRowColTensorQuantPipelineProblem { using Data = A; };
template <typename Problem> struct GemmPipelineAgBgCrCompV3 { using Data = typename Problem::Data; };
#define STAND_IN_PIPELINE(name) template <typename P> struct name { using Problem = P; }
STAND_IN_PIPELINE(AQuantGemmPipelineAgBgCrMem);
STAND_IN_PIPELINE(AQuantGemmPipelineAgBgCrCompV3);
STAND_IN_PIPELINE(BQuantGemmPipelineAgBgCrCompV3);
STAND_IN_PIPELINE(WPQuantBPipelineAgBgCrV2);
STAND_IN_PIPELINE(MicroscaleGemmPipelineAgBgCrCompV3);
STAND_IN_PIPELINE(ABQuantGemmPipelineAgBgCrCompV3);
STAND_IN_PIPELINE(WPABQuantBPipelineAgBgCrV2);
STAND_IN_PIPELINE(ABQuantGemmPipelineAgBgCrEightWaves);
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

template <typename Problem> struct BaseGemmPipelineAgBgCrMem : BaseGemmPipelineAgBgCrCompV3<Problem> {};
template <typename Problem> struct BaseWeightPreshufflePipelineAGmemBGmemCRegV2 : BaseGemmPipelineAgBgCrCompV3<Problem> {};

template <typename, typename, typename, typename, typename, typename, typename, typename,
          int, int, int, int, int, int, int, bool, int = 1, bool = false, int = 1, int = 1, bool = false,
          typename = void, typename = void, bool = false>
struct CShuffleEpilogueProblem {};
template <typename> struct CShuffleEpilogue { static constexpr bool permutes = false; };
template <typename, typename, typename, typename, typename, typename, typename, typename, int, int, int, int, int, int, int, bool, bool, int>
struct PermuteNEpilogueProblem {};
template <typename> struct PermuteNEpilogue { static constexpr bool permutes = true; };
template <typename, typename, typename, typename, typename, typename, typename, typename, int, int, bool, bool, int, int, int, bool>
struct DefaultGemm2DEpilogueProblem {};
template <typename> struct DefaultGemm2DEpilogue { static constexpr bool permutes = false; };

struct stream_config
{
    hipStream_t stream_id_;
    bool time_kernel_;
    int log_level_, cold_niters_, nrepeat_;
    bool is_gpu_timer_, flush_cache_;
    int rotating_count_;
};
template <bool> struct kernel_attr {};
template <int, typename = kernel_attr<false>, typename Kernel, typename... Arguments>
auto make_kernel(Kernel kernel, dim3, dim3, int, Arguments... arguments) { return [=] { kernel(arguments...); }; }
inline const void* cast_pointer_to_constant_address_space(const void* pointer) { return pointer; }
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
#include "shuffles.inc"

// The kernels with scales by groups of K: they read what the library has shuffled through the same shuffles of indices.
template <typename, typename Pipeline, typename Epilogue, QuantType Kind>
struct QuantGemmKernel
{
    using Problem = typename Pipeline::Problem;
    using Traits  = typename Problem::Traits;
    static auto MakeKernelArgs(const QuantGemmHostArgs& host) { return host; }
    static bool IsSupportedArgument(const QuantGemmHostArgs& host) { return host.k_batch == 1; }
    static dim3 GridSize(int, int, int) { return {}; }
    static dim3 BlockSize() { return {}; }
    void operator()(const QuantGemmHostArgs& host) const
    {
        constexpr bool a_column = std::is_same_v<typename Traits::ALayout, tensor_layout::gemm::ColumnMajor>;
        constexpr bool b_row    = std::is_same_v<typename Traits::BLayout, tensor_layout::gemm::RowMajor>;
        const auto b_place      = place_of_b<Traits, Epilogue::permutes>(host.K, host.N);
        const auto scale        = [&](const void* data, const std::vector<index_t>& place, index_t at) {
            return element<typename Problem::Q>(data, place.empty() ? at : place[at]);
        };
        const auto aq_place = place_of_aq<Traits, typename Problem::AGroup>(host);
        const auto bq_place = place_of_bq<Traits, typename Problem::BGroup, Epilogue::permutes>(host);
        for(int m = 0; m < host.M; ++m)
            for(int n = 0; n < host.N; ++n)
            {
                float sum = 0;
                for(int k = 0; k < host.K; ++k)
                {
                    const std::int64_t in_b = b_row ? std::int64_t(k) * host.stride_B + n : std::int64_t(n) * host.stride_B + k;
                    float term = element<typename Problem::A>(
                                     host.a_ptr, a_column ? std::int64_t(k) * host.stride_A + m : std::int64_t(m) * host.stride_A + k) *
                                 element<typename Problem::B>(host.b_ptr, b_place.empty() ? in_b : b_place[in_b]);
                    if constexpr(!std::is_void_v<typename Problem::AGroup>)
                    {
                        constexpr bool column = std::is_same_v<typename Traits::AQLayout, tensor_layout::gemm::ColumnMajor>;
                        const index_t g = k / Problem::AGroup::kK;
                        term *= scale(host.aq_ptr, aq_place, column ? g * host.stride_AQ + m : m * host.stride_AQ + g);
                    }
                    if constexpr(!std::is_void_v<typename Problem::BGroup>)
                    {
                        constexpr bool row = std::is_same_v<typename Traits::BQLayout, tensor_layout::gemm::RowMajor>;
                        const index_t g = k / Problem::BGroup::kK, c = n / Problem::BGroup::kN;
                        term *= scale(host.bq_ptr, bq_place, row ? g * host.stride_BQ + c : c * host.stride_BQ + g);
                    }
                    sum += term;
                }
                using C = typename Later<Pipeline>::type::C;
                static_cast<C*>(host.c_ptr)[std::int64_t(m) * host.stride_C + n] = C(sum);
            }
    }
};

template <typename Partitioner, typename Problem, typename Epilogue, QuantType Kind>
struct QuantGemmKernel<Partitioner, GemmPipelineAgBgCrCompV3<Problem>, Epilogue, Kind>
{
    using Data = typename Problem::Data;
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

// One problem through the kernel for groups of problems, which reads a table of them.
struct QuantGroupedGemmHostArgs
{
    const void *a, *b;
    void* c;
    const void *aq, *bq;
    index_t k_batch, M, N, K, QK_A, QK_B, stride_A, stride_B, stride_C, stride_AQ, stride_BQ;
};
struct QuantGemmTransKernelArg { QuantGemmHostArgs host; };
template <typename Partitioner, typename Pipeline, typename Epilogue, QuantType Kind>
struct QuantGroupedGemmKernel
{
    using Inner = QuantGemmKernel<Partitioner, Pipeline, Epilogue, Kind>;
    static auto MakeKargs(const std::vector<QuantGroupedGemmHostArgs>& groups)
    {
        std::vector<QuantGemmTransKernelArg> table;
        for(const auto& g : groups)
            table.push_back({{g.a, g.b, g.aq, g.bq, g.c, g.k_batch, g.M, g.N, g.K, g.QK_A, g.QK_B, g.stride_A, g.stride_B,
                              g.stride_C, g.stride_AQ, g.stride_BQ}});
        return table;
    }
    static bool IsSupportedArgument(const std::vector<QuantGemmTransKernelArg>&) { return true; }
    static dim3 GridSize(const std::vector<QuantGroupedGemmHostArgs>&) { return {}; }
    static dim3 MaxOccupancyGridSize(const stream_config&) { return {}; }
    static dim3 BlockSize() { return {}; }
    void operator()(const void* table, std::size_t count) const
    {
        for(std::size_t i = 0; i < count; ++i)
            Inner{}(static_cast<const QuantGemmTransKernelArg*>(table)[i].host);
    }
};

// CK puts scales in the order of the matrix instruction; the kernel here reads them as they were.
template <int, int, int, int, typename Scale>
void preShuffleScaleBuffer_gfx950(const Scale* from, Scale* to, index_t rows, index_t blocks, bool)
{
    std::memcpy(to, from, std::size_t(rows) * blocks);
}

} // namespace ck_tile
