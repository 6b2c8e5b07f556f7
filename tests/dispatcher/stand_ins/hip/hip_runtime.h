// A HIP runtime whose device memory is the host's. STAND_IN_ARCH names the device ("none": there is none).
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>

enum hipError_t { hipSuccess = 0, hipErrorOutOfMemory = 2, hipErrorNoDevice = 100 };
enum hipMemcpyKind { hipMemcpyHostToDevice, hipMemcpyDeviceToHost };
using hipStream_t = void*;
struct hipDeviceProp_t { char gcnArchName[256]; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

inline const char* stand_in_arch()
{
    const char* named = std::getenv("STAND_IN_ARCH");
    return named ? named : "gfx950:sramecc+:xnack-";
}
inline const char* hipGetErrorString(hipError_t status)
{
    return status == hipErrorNoDevice ? "no ROCm-capable device is detected" : "out of memory";
}
inline hipError_t hipGetDevice(int* device)
{
    *device = 0;
    return std::strcmp(stand_in_arch(), "none") ? hipSuccess : hipErrorNoDevice;
}
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int)
{
    std::strncpy(properties->gcnArchName, stand_in_arch(), sizeof properties->gcnArchName - 1);
    return hipSuccess;
}
inline hipError_t hipMalloc(void** pointer, std::size_t bytes)
{
    *pointer = std::malloc(bytes);
    return *pointer ? hipSuccess : hipErrorOutOfMemory;
}
inline hipError_t hipFree(void* pointer)
{
    std::free(pointer);
    return hipSuccess;
}
inline hipError_t hipMemcpy(void* to, const void* from, std::size_t bytes, hipMemcpyKind)
{
    std::memcpy(to, from, bytes);
    return hipSuccess;
}
inline hipError_t hipDeviceSynchronize() { return hipSuccess; }
inline hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
