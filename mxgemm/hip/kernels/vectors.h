#pragma once
// Types and helpers of the freestanding kernels: no HIP header is needed, so any clang with gfx950 compiles them.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u16x2 = u16 __attribute__((ext_vector_type(2)));
using u32x2 = u32 __attribute__((ext_vector_type(2)));
using u32x4 = u32 __attribute__((ext_vector_type(4)));
using i32x8 = int __attribute__((ext_vector_type(8)));
using f32x4 = float __attribute__((ext_vector_type(4)));
using fp16x2 = _Float16 __attribute__((ext_vector_type(2)));
using bf16x2 = __bf16 __attribute__((ext_vector_type(2)));

#define DEVICE static inline __attribute__((device, always_inline, unused))
#define KERNEL extern "C" __attribute__((global))
#define SHARED __attribute__((shared))
#define LDS __attribute__((address_space(3)))

// By value: clang 22's bit_cast of an element of a vector reads element 0 instead.
template <class To, class From> DEVICE To bits_as(From value) { return __builtin_bit_cast(To, value); }

constexpr u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
