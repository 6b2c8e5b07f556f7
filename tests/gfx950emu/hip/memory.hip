// Loads that go straight to LDS, buffer descriptors and their range check, transposed LDS reads, atomics.
#include "common.h"

#define RESOURCE(p, bytes) __builtin_amdgcn_make_buffer_rsrc((void*)(p), 0, bytes, 0x20000)

// 4 waves: each copies 1 KiB to LDS, then all read it rotated.
KERNEL load_lds_16(const GLOBAL v4u* x, v4u* o) {
  SHARED v4u buf[256];
  int t = THREAD;
  __builtin_amdgcn_global_load_lds((GLOBAL void*)(x + (t ^ 3)), (LDS void*)(buf + (t & ~63)), 16, 0, 0);
  SYNC();
  o[t] = buf[(t + 77) & 255];
}

KERNEL load_lds_4(const GLOBAL u32* x, u32* o) {
  SHARED u32 buf[512];
  int t = THREAD;
  __builtin_amdgcn_global_load_lds((GLOBAL void*)(x + (t ^ 5)), (LDS void*)(buf + (t & ~63)), 4, 0, 0);
  __builtin_amdgcn_global_load_lds((GLOBAL void*)(x + 256 + t), (LDS void*)(buf + 256 + (t & ~63)), 4, 0, 0);
  SYNC();
  o[t] = buf[(t + 77) & 255] * 3 + buf[256 + ((t + 5) & 255)];
}

KERNEL buffer_load_lds(const u32* x, v4u* o, int bytes) {
  SHARED v4u buf[260];
  int t = THREAD;
  buf[t] = (v4u){1, 2, 3, 4};
  SYNC();
  __builtin_amdgcn_raw_ptr_buffer_load_lds(RESOURCE(x, bytes), (LDS void*)(buf + (t & ~63)), 16, t * 16, 32, 16, 0);
  SYNC();
  o[t] = buf[t];
}

KERNEL buffer_load(const u32* x, v4u* o, v3u* o3, u32* o1, int bytes, int soff) {
  int t = THREAD;
  __amdgpu_buffer_rsrc_t r = RESOURCE(x, bytes);
  o[t] = __builtin_amdgcn_raw_buffer_load_b128(r, t * 20, soff, 0);
  o3[t] = __builtin_amdgcn_raw_buffer_load_b96(r, t * 12 + 4, soff, 0);
  o1[t] = __builtin_amdgcn_raw_buffer_load_b8(r, t, soff, 0) +
          (__builtin_amdgcn_raw_buffer_load_b16(r, t * 2, soff, 0) << 8);
}

KERNEL buffer_store(u32* x, const v4u* v, int bytes) {
  int t = THREAD;
  __amdgpu_buffer_rsrc_t r = RESOURCE(x, bytes);
  __builtin_amdgcn_raw_buffer_store_b128(v[t], r, t * 16, 8, 0);
  if (t & 1) __builtin_amdgcn_raw_buffer_store_b16((u16)v[t].x, r, t * 2 + 4096, 0, 0);
}

KERNEL transposed(const v4u* x, v2i* o4, v3i* o6, v2i* o8, v2i* o16) {
  SHARED v4u buf[256];
  typedef short v4s __attribute__((ext_vector_type(4)));
  int t = THREAD;
  for (int i = 0; i < 4; i++) buf[t + 64 * i] = x[t + 64 * i];
  SYNC();
  LDS u8* b = (LDS u8*)buf;
  o4[t] = __builtin_amdgcn_ds_read_tr4_b64_v2i32((LDS v2i*)(b + t * 8));
  o8[t] = __builtin_amdgcn_ds_read_tr8_b64_v2i32((LDS v2i*)(b + t * 8));
  o6[t] = __builtin_amdgcn_ds_read_tr6_b96_v3i32((LDS v3i*)(b + t * 16));
  v4s q = __builtin_amdgcn_ds_read_tr16_b64_v4i16((LDS v4s*)(b + t * 8));
  o16[t] = __builtin_bit_cast(v2i, q);
}

KERNEL atomics(const u32* x, u32* o, float* f, int n) {
  int t = THREAD + 256 * GROUP;
  if (t >= n) return;
  __atomic_fetch_add(o + (x[t] & 7), 1u, __ATOMIC_RELAXED);
  __atomic_fetch_max(o + 8, x[t], __ATOMIC_RELAXED);
  __builtin_amdgcn_global_atomic_fadd_f32((GLOBAL float*)f, (float)(x[t] & 3));
  u32 expected = 0;
  __atomic_compare_exchange_n(o + 16 + (t & 63), &expected, (u32)t + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// Every wave reads what another wave wrote to LDS, in 1, 2, 4, 8 and 16 byte pieces.
KERNEL lds_widths(const v4u* x, u32* o) {
  SHARED v4u buf[256];
  int t = THREAD;
  buf[t] = x[t];
  SYNC();
  int p = (t + 100) & 255;
  u32 r = buf[p].y ^ ((LDS u8*)buf)[p * 16 + 3] ^ ((LDS u16*)buf)[p * 8 + 7];
  v2u two = ((LDS v2u*)buf)[2 * p + 1];
  v4u four = buf[(p + 3) & 255];
  SYNC();
  ((LDS u8*)buf)[t] = (u8)r;
  SYNC();
  o[t] = r ^ two.x ^ two.y ^ four.x ^ four.w ^ ((LDS u8*)buf)[255 - t];
}
