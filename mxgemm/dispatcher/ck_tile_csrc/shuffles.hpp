// What CK's kernels read in an order of their own, made of what callers give: preshuffled weights and scales, int4.
//
// The orders are CK's own functions. They work on the host, so such an operand is fetched from the device and put back.
#pragma once

#include "ck_tile/host.hpp"
#include "ck_tile/host/permute_pk_int4.hpp"
#include "ck_tile/host/tensor_shuffle_utils.hpp"

#include "problem.hpp"

#include <memory>
#include <type_traits>

namespace bridge {

// Sizes of groups; 1 where there are none, for nothing is divided by them then.
constexpr int group_k_a = A_SCALE_K ? A_SCALE_K : 1;
constexpr int group_k_b = B_SCALE_K ? B_SCALE_K : 1;
constexpr int group_n_b = B_SCALE_ROWS ? B_SCALE_ROWS : 1;

// The names that CK's shuffles of B look for.
struct ShuffleConfig
{
    static constexpr int N_Tile      = Config::tile_n;
    static constexpr int N_Warp      = Config::warp_n;
    static constexpr int N_Warp_Tile = Config::warp_tile_n;
    static constexpr int K_Warp_Tile = Config::warp_tile_k;
};

template <bool RowMajor, typename T>
ck_tile::HostTensor<T> fetched(const void* device, std::int64_t rows, std::int64_t columns)
{
    const auto lead = static_cast<ck_tile::index_t>(RowMajor ? columns : rows);
    ck_tile::HostTensor<T> tensor(ck_tile::host_tensor_descriptor(static_cast<ck_tile::index_t>(rows),
                                                                  static_cast<ck_tile::index_t>(columns),
                                                                  lead,
                                                                  ck_tile::bool_constant<RowMajor>{}));
    hip(hipMemcpy(tensor.data(), device, bytes<T>(rows * columns), hipMemcpyDeviceToHost), "hipMemcpy of an operand");
    return tensor;
}

template <typename T>
std::unique_ptr<Buffer> put(ck_tile::HostTensor<T>& tensor, std::int64_t elements)
{
    return std::make_unique<Buffer>(tensor.data(), bytes<T>(elements));
}

// Each returns the operand in the kernel's order, or nothing where the kernel reads it as it is. Templates, so that CK's
// functions are instantiated only for what they are for.

template <typename Config>
std::unique_ptr<Buffer> ordered_a(const problem& p)
{
    if constexpr(std::is_same_v<typename Config::A, ck_tile::pk_int4_t>)
    {
        auto a = fetched<true, typename Config::A>(p.at[OPERAND_A], p.m, p.k);
        ck_tile::permute_vectors_i4x4_b(a);
        return put(a, p.m * p.k);
    }
    return nullptr;
}

template <typename Config>
std::unique_ptr<Buffer> ordered_b(const problem& p)
{
    constexpr bool int4 = std::is_same_v<typename Config::B, ck_tile::pk_int4_t>;
    if constexpr(Config::preshuffle_b || int4)
    {
        auto b = fetched<false, typename Config::B>(p.at[OPERAND_B], p.k, p.n);
        if constexpr(Config::preshuffle_b && Config::permute_n)
            b = ck_tile::shuffle_b_permuteN<ShuffleConfig>(b);
        else if constexpr(Config::preshuffle_b)
            b = ck_tile::shuffle_b<ShuffleConfig>(b);
        if constexpr(int4)
            ck_tile::permute_vectors_i4x4_b(b);
        return put(b, p.k * p.n);
    }
    return nullptr;
}

template <typename Config>
std::unique_ptr<Buffer> ordered_aq(const problem& p)
{
    if constexpr(Config::preshuffle_aq)
    {
        const auto groups = ceil_div(p.k, group_k_a);
        require_multiple("groups of K", groups, Config::tile_k / group_k_a);
        auto aq       = fetched<true, typename Config::Scale>(p.at[OPERAND_A_SCALES], p.m, groups);
        auto shuffled = ck_tile::shuffle_aq(&aq, Config::tile_k / group_k_a);
        return put(shuffled, p.m * groups);
    }
    return nullptr;
}

template <typename Config>
std::unique_ptr<Buffer> ordered_bq(const problem& p)
{
    if constexpr(Config::preshuffle_bq || (Config::preshuffle_b && Config::permute_n))
    {
        constexpr int block = Config::tile_k / group_k_b;
        const auto groups   = ceil_div(p.k, group_k_b);
        const auto columns  = ceil_div(p.n, group_n_b);
        if constexpr(Config::preshuffle_bq)
            require_multiple("groups of K", groups, block);
        auto bq = fetched<Config::bq_row_major, typename Config::Scale>(p.at[OPERAND_B_SCALES], groups, columns);
        if constexpr(Config::preshuffle_b && Config::permute_n)
            bq = ck_tile::bq_permuteN<ShuffleConfig>(bq, group_n_b);
        if constexpr(Config::preshuffle_bq)
            bq = ck_tile::shuffle_bq(&bq, block);
        return put(bq, groups * columns);
    }
    return nullptr;
}

} // namespace bridge
