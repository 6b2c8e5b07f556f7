// The C interface of docs/dispatcher.md, all of it but the operation's own two functions.
//
// Compiled once per kernel with the generated header force-included. That header defines, at global scope,
//   struct Config { name, source types and sizes of one kernel };
// and the compiler is given -DGFX_ARCH="gfx950", the architecture that the kernel is compiled for.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#define BRIDGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace bridge {

constexpr int done = 0, failed = -1, unsupported = -2;

// Ends a call: a code for the caller and a text for dispatcher_last_error.
struct Refusal
{
    int code;
    std::string text;
};

inline thread_local std::string last_error;

// Runs the body of an exported function: no exception leaves the library.
template <typename Body>
int guarded(Body&& body)
{
    try
    {
        body();
        return done;
    }
    catch(const Refusal& refusal)
    {
        last_error = refusal.text;
        return refusal.code;
    }
    catch(const std::exception& error)
    {
        last_error = error.what();
        return failed;
    }
}

inline void hip(hipError_t status, const char* call)
{
    if(status != hipSuccess)
        throw Refusal{failed, std::string(call) + ": " + hipGetErrorString(status)};
}

// Device memory that frees itself.
class Buffer
{
    public:
    explicit Buffer(std::size_t bytes) { hip(hipMalloc(&pointer_, bytes), "hipMalloc"); }
    Buffer(const void* host, std::size_t bytes) : Buffer(bytes)
    {
        hip(hipMemcpy(pointer_, host, bytes, hipMemcpyHostToDevice), "hipMemcpy to the device");
    }
    Buffer(const Buffer&)            = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { (void)hipFree(pointer_); }
    void* get() const { return pointer_; }

    private:
    void* pointer_ = nullptr;
};

// A call's operands; scales are row-major, as the caller has them.
struct Call
{
    const void* a;
    const void* b;
    void* c;
    const void* a_scales;
    const void* b_scales;
    std::int64_t m, n, k;
    int k_batch;
};

// Bytes of each operand.
struct Sizes
{
    std::size_t a, b, c, a_scales, b_scales;
};

// How often a launch is repeated, and where it goes.
struct Timing
{
    hipStream_t stream;
    bool wanted;
    int warmup, repeat;
};

inline std::mutex state;
inline int loaded_on = -1; // the device of dispatcher_initialize, or -1

inline int current_device()
{
    int device = -1;
    hip(hipGetDevice(&device), "hipGetDevice");
    return device;
}

inline void check_initialized()
{
    const std::lock_guard<std::mutex> lock(state);
    if(loaded_on < 0)
        throw Refusal{failed, "not initialized: call dispatcher_initialize first"};
    if(current_device() != loaded_on)
        throw Refusal{failed, "the current device is not the one of dispatcher_initialize"};
}

inline void check_call(const Call& call)
{
    if(!call.a || !call.b || !call.c || !call.a_scales || !call.b_scales)
        throw Refusal{failed, "an operand is a null pointer"};
    if(call.m < 1 || call.n < 1 || call.k < 1)
        throw Refusal{failed, "M, N and K: want at least 1"};
    if(call.k_batch != 1)
        throw Refusal{unsupported, "k_batch: got " + std::to_string(call.k_batch) + ", want 1"};
}

inline void require_multiple(const char* name, std::int64_t size, std::int64_t of)
{
    if(size % of)
        throw Refusal{unsupported,
                      std::string(name) + ": got " + std::to_string(size) + ", want a multiple of " +
                          std::to_string(of) + ", the tile"};
}

inline int environment(const char* name, int otherwise)
{
    const char* text = std::getenv(name);
    return text && *text ? std::atoi(text) : otherwise;
}

inline Timing timing(void* stream, bool wanted)
{
    return {static_cast<hipStream_t>(stream),
            wanted,
            wanted ? environment("CK_TILE_BENCH_WARMUP", 20) : 0,
            wanted ? environment("CK_TILE_BENCH_REPEAT", 50) : 1};
}

// Launch is float(const Call&, const Timing&): milliseconds a launch.
template <typename Launch>
int run_on_device(const Call& call, void* stream, float* time_ms, Launch&& launch)
{
    return guarded([&] {
        check_initialized();
        const float took = launch(call, timing(stream, time_ms != nullptr));
        if(time_ms)
            *time_ms = took;
    });
}

template <typename Launch>
int run_on_host(const Call& call, const Sizes& bytes, float* time_ms, Launch&& launch)
{
    return guarded([&] {
        check_initialized();
        const Buffer a(call.a, bytes.a), b(call.b, bytes.b), c(bytes.c);
        const Buffer a_scales(call.a_scales, bytes.a_scales), b_scales(call.b_scales, bytes.b_scales);
        Call device     = call;
        device.a        = a.get();
        device.b        = b.get();
        device.c        = c.get();
        device.a_scales = a_scales.get();
        device.b_scales = b_scales.get();
        const float took = launch(device, timing(nullptr, time_ms != nullptr));
        hip(hipDeviceSynchronize(), "hipDeviceSynchronize");
        hip(hipMemcpy(call.c, c.get(), bytes.c, hipMemcpyDeviceToHost), "hipMemcpy to the host");
        if(time_ms)
            *time_ms = took;
    });
}

} // namespace bridge

BRIDGE_EXPORT const char* dispatcher_get_kernel_name() { return Config::name; }
BRIDGE_EXPORT int dispatcher_get_kernel_count() { return 1; }
BRIDGE_EXPORT const char* dispatcher_get_arch() { return GFX_ARCH; }
BRIDGE_EXPORT const char* dispatcher_get_source() { return "ck_tile"; }
BRIDGE_EXPORT const char* dispatcher_last_error() { return bridge::last_error.c_str(); }

BRIDGE_EXPORT int dispatcher_initialize()
{
    return bridge::guarded([] {
        const std::lock_guard<std::mutex> lock(bridge::state);
        const int device = bridge::current_device();
        hipDeviceProp_t properties{};
        bridge::hip(hipGetDeviceProperties(&properties, device), "hipGetDeviceProperties");
        const std::string full = properties.gcnArchName;
        const std::string arch = full.substr(0, full.find(':'));
        if(arch != GFX_ARCH)
            throw bridge::Refusal{bridge::failed, "the device is " + arch + ", the kernel is for " GFX_ARCH};
        bridge::loaded_on = device;
    });
}

BRIDGE_EXPORT int dispatcher_init() { return dispatcher_initialize(); }

BRIDGE_EXPORT void dispatcher_cleanup()
{
    const std::lock_guard<std::mutex> lock(bridge::state);
    bridge::loaded_on = -1;
}
