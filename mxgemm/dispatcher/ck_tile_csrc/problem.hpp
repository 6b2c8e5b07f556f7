// A call's operands and sizes as the generated header's ASSIGN fills them in, and what is refused of them.
//
// That header defines PARAMETERS, ASSIGN, ENTRY_POINTS and extents (c_interface.py).
#pragma once

#include "bridge.hpp"

#include <string>

enum operand { OPERAND_A, OPERAND_B, OPERAND_A_SCALES, OPERAND_B_SCALES, OPERAND_C, OPERANDS };

struct problem
{
    void* at[OPERANDS];
    std::int64_t m, n, k, k_batch;
    std::int64_t stated[EXTENTS + 1];
};

namespace bridge {

inline std::int64_t ceil_div(std::int64_t size, std::int64_t by) { return (size + by - 1) / by; }

// How many scales an operand has; groups of 0 rows or elements of K are all of them.
inline std::int64_t scales(std::int64_t rows, std::int64_t k, std::int64_t a_row, std::int64_t a_group)
{
    return (a_row ? ceil_div(rows, a_row) : 1) * (a_group ? ceil_div(k, a_group) : 1);
}

template <typename T>
std::size_t bytes(std::int64_t elements)
{
    return static_cast<std::size_t>(elements) * sizeof(T) / ck_tile::numeric_traits<T>::PackedSize;
}

inline void check_problem(const problem& p)
{
    for(int i = 0; i < OPERANDS; ++i)
        if(!p.at[i] && (i != OPERAND_A_SCALES || A_SCALE_BYTES > 0) && (i != OPERAND_B_SCALES || B_SCALE_BYTES > 0))
            throw Refusal{failed, "an operand is a null pointer"};
    if(p.m < 1 || p.n < 1 || p.k < 1)
        throw Refusal{failed, "M, N and K: want at least 1"};
    for(int i = 0; i < EXTENTS; ++i)
    {
        const std::int64_t sizes[] = {1, p.m, p.n, p.k};
        const std::int64_t want    = ceil_div(sizes[extents[i].size], extents[i].per);
        if(p.stated[i] != want)
            throw Refusal{extents[i].counts ? failed : unsupported,
                          std::string(extents[i].name) + ": got " + std::to_string(p.stated[i]) + ", want " +
                              std::to_string(want)};
    }
    if(p.k_batch != 1)
        throw Refusal{unsupported, "k_batch: got " + std::to_string(p.k_batch) + ", want 1"};
    if(p.m > INT32_MAX || p.n > INT32_MAX || p.k > INT32_MAX)
        throw Refusal{unsupported, "M, N and K: want less than 2^31"};
    require_multiple("M", p.m, Config::pad_m ? 1 : Config::tile_m);
    require_multiple("N", p.n, Config::pad_n ? 1 : Config::tile_n);
    require_multiple("K", p.k, Config::pad_k ? 1 : Config::tile_k);
}

// Bytes of every operand; 0 where there is none.
inline void sizes_of(const problem& p, std::size_t (&size)[OPERANDS])
{
    size[OPERAND_A]        = bytes<Config::A>(p.m * p.k);
    size[OPERAND_B]        = bytes<Config::B>(p.n * p.k);
    size[OPERAND_A_SCALES] = A_SCALE_BYTES * scales(p.m, p.k, A_SCALE_ROWS, A_SCALE_K);
    size[OPERAND_B_SCALES] = B_SCALE_BYTES * scales(p.n, p.k, B_SCALE_ROWS, B_SCALE_K);
    size[OPERAND_C]        = bytes<Config::C>(p.m * p.n);
}

// Launch is float(const problem&, const Timing&): milliseconds a launch, operands on the device.
template <typename Launch>
int device_entry(const problem& p, void* stream, float* time_ms, Launch&& launch)
{
    return guarded([&] {
        check_problem(p);
        check_initialized();
        const float took = launch(p, timing(stream, time_ms != nullptr));
        if(time_ms)
            *time_ms = took;
    });
}

template <typename Launch>
int host_entry(const problem& p, float* time_ms, Launch&& launch)
{
    return guarded([&] {
        check_problem(p);
        check_initialized();
        std::size_t size[OPERANDS];
        sizes_of(p, size);
        std::unique_ptr<Buffer> buffers[OPERANDS];
        problem device = p;
        for(int i = 0; i < OPERANDS; ++i)
        {
            device.at[i] = nullptr;
            if(!size[i])
                continue;
            buffers[i]   = i == OPERAND_C ? std::make_unique<Buffer>(size[i]) : std::make_unique<Buffer>(p.at[i], size[i]);
            device.at[i] = buffers[i]->get();
        }
        const float took = launch(device, timing(nullptr, time_ms != nullptr));
        hip(hipDeviceSynchronize(), "hipDeviceSynchronize");
        hip(hipMemcpy(p.at[OPERAND_C], device.at[OPERAND_C], size[OPERAND_C], hipMemcpyDeviceToHost),
            "hipMemcpy to the host");
        if(time_ms)
            *time_ms = took;
    });
}

} // namespace bridge

// Defines the exported functions; the source has a function float launch(const problem&, const bridge::Timing&).
#define BRIDGE_DEFINE(name, name_device)                                            \
    BRIDGE_EXPORT int name(PARAMETERS, float* time_ms)                              \
    {                                                                               \
        problem p{};                                                                \
        ASSIGN(p)                                                                   \
        return bridge::host_entry(p, time_ms, launch);                              \
    }                                                                               \
    BRIDGE_EXPORT int name_device(PARAMETERS, void* stream, float* time_ms)         \
    {                                                                               \
        problem p{};                                                                \
        ASSIGN(p)                                                                   \
        return bridge::device_entry(p, stream, time_ms, launch);                    \
    }
