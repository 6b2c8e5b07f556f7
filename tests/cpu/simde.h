// AVX-512 with VNNI, VBMI and BF16 as functions, for a CPU that has AVX2 alone: included before the kernels.
//
// SIMDe (Debian and Ubuntu: libsimde-dev) has most of them; where its names are left to the compiler's own, these are.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/avx512/dpbf16.h>
#include <simde/x86/avx512/dpbusd.h>
#include <string.h>

#define __AVX512VNNI__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512VBMI__ 1
#define __AVX512BF16__ 1

static inline simde__m512i masked_load_of_bytes(uint64_t mask, const void *p) {
    uint8_t bytes[64] = {0};
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1) bytes[i] = ((const uint8_t *)p)[i];
    return simde_mm512_loadu_si512(bytes);
}

static inline void masked_store_of_lanes(void *p, unsigned mask, simde__m512i x) {
    int32_t lanes[16];
    simde_mm512_storeu_si512(lanes, x);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy((int32_t *)p + i, &lanes[i], 4);
}

static inline simde__m512 floats_of_lanes(simde__m512i x) {
    int32_t lanes[16];
    float floats[16];
    simde_mm512_storeu_si512(lanes, x);
    for (int i = 0; i < 16; i++) floats[i] = (float)lanes[i];
    return simde_mm512_loadu_ps(floats);
}

static inline float sum_of_lanes(simde__m512 x) {
    float lanes[16], sum = 0;
    simde_mm512_storeu_ps(lanes, x);
    for (int i = 0; i < 16; i++) sum += lanes[i];
    return sum;
}

#undef _mm512_maskz_loadu_epi8
#undef _mm512_mask_storeu_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_reduce_add_ps
#define _mm512_maskz_loadu_epi8 masked_load_of_bytes
#define _mm512_mask_storeu_epi32 masked_store_of_lanes
#define _mm512_cvtepi32_ps floats_of_lanes
#define _mm512_reduce_add_ps sum_of_lanes
