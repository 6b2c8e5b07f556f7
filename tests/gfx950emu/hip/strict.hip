// Code that works by luck, and its correct twin: what strict mode tells apart.
#include "common.h"

// Two byte writes of one register: the second must not follow at once.
#define CONVERT(NAME, BETWEEN)                                                          \
  KERNEL NAME(const v2f* x, u32* o) {                                                   \
    int t = THREAD;                                                                     \
    u32 r = 0;                                                                          \
    v2f v = x[t];                                                                       \
    asm volatile("v_cvt_scalef32_pk_fp4_f32 %0, %1, %2, 1.0 op_sel:[0,0,1,0]\n" BETWEEN \
                 "v_cvt_scalef32_pk_fp4_f32 %0, %1, %2, 1.0 op_sel:[0,0,0,1]\n"         \
                 "s_nop 0"                                                              \
                 : "+v"(r)                                                              \
                 : "v"(v.x), "v"(v.y));                                                 \
    o[t] = r;                                                                           \
  }
CONVERT(convert_close, "")
CONVERT(convert_apart, "s_nop 0\n")

// A matrix result takes passes; reading it earlier gives what was there before.
#define MATRIX(NAME, BETWEEN)                                                \
  KERNEL NAME(const v8b* a, const v8b* b, v4f* o) {                          \
    int t = THREAD;                                                          \
    v4f c = {0, 0, 0, 0};                                                    \
    v8b x = a[t], y = b[t];                                                  \
    asm volatile("s_nop 4\nv_mfma_f32_16x16x32_bf16 %0, %1, %2, %0\n" BETWEEN \
                 : "+v"(c)                                                   \
                 : "v"(x), "v"(y));                                          \
    o[t] = c;                                                                \
  }
MATRIX(matrix_close, "s_nop 3")
MATRIX(matrix_apart, "s_nop 7")

// Registers that a vector instruction has just written, as operands of a matrix instruction.
#define OPERAND(NAME, BETWEEN)                                                                  \
  KERNEL NAME(const v8b* a, const v8b* b, v4f* o) {                                             \
    int t = THREAD;                                                                             \
    v4f c = {0, 0, 0, 0};                                                                       \
    v8b y = b[t];                                                                               \
    u64 low = ((const u64*)a)[2 * t], high = ((const u64*)a)[2 * t + 1];                        \
    asm volatile("v_mov_b64 v[40:41], %1\nv_mov_b64 v[42:43], %2\n" BETWEEN                     \
                 "v_mfma_f32_16x16x32_bf16 %0, v[40:43], %3, %0\ns_nop 7"                       \
                 : "+v"(c)                                                                      \
                 : "v"(low), "v"(high), "v"(y)                                                  \
                 : "v40", "v41", "v42", "v43");                                                 \
    o[t] = c;                                                                                   \
  }
OPERAND(operand_close, "")
OPERAND(operand_apart, "s_nop 1\n")

KERNEL race(const u32* x, u32* o) {
  SHARED u32 buf[256];
  int t = THREAD;
  buf[t] = x[t];
  __builtin_amdgcn_s_waitcnt(0);
  o[t] = ((volatile LDS u32*)buf)[255 - t];
}

// Every wave writes the same byte.
KERNEL race_write(const u32* x, u32* o) {
  SHARED u8 buf[256];
  int t = THREAD;
  if ((t & 63) == 5) ((volatile LDS u8*)buf)[17] = (u8)x[t];
  SYNC();
  o[t] = buf[17];
}

// The second round overwrites what slower waves may still read: a barrier is missing at the end of the loop.
KERNEL race_loop(const u32* x, u32* o) {
  SHARED u32 buf[256];
  int t = THREAD;
  u32 sum = 0;
  for (int i = 0; i < 2; i++) {
    ((volatile LDS u32*)buf)[t] = x[t] + i;
    SYNC();
    sum += ((volatile LDS u32*)buf)[255 - t];
  }
  o[t] = sum;
}

// What was read of another wave's part is waited for behind the barrier only, where that wave overwrites it.
KERNEL race_in_flight(const u32* x, u32* o) {
  SHARED u32 buf[256];
  int t = THREAD;
  u32 r;
  ((volatile LDS u32*)buf)[t] = x[t];
  SYNC();
  asm volatile("ds_read_b32 %0, %1\ns_barrier\ns_waitcnt lgkmcnt(0)" : "=&v"(r) : "v"((LDS u32*)buf + (255 - t)) : "memory");
  ((volatile LDS u32*)buf)[t] = 0;
  SYNC();
  o[t] = r + ((volatile LDS u32*)buf)[t];
}

// Lanes of a wave exchange what is theirs, twice, and then waves do: of three barriers the last orders something.
KERNEL own_parts(const u32* x, u32* o) {
  SHARED u32 buf[256];
  int t = THREAD, mirrored = t ^ 63;
  ((volatile LDS u32*)buf)[t] = x[t];
  SYNC();
  u32 r = ((volatile LDS u32*)buf)[mirrored];
  SYNC();
  ((volatile LDS u32*)buf)[t] = 3 * r;
  SYNC();
  o[t] = ((volatile LDS u32*)buf)[t ^ 64];
}

KERNEL no_wait(const u32* x, u32* o) {
  int t = THREAD;
  u32 r;
  asm volatile("global_load_dword %0, %1, off\ns_nop 0" : "=&v"(r) : "v"(x + t));
  o[t] = r;
}

KERNEL subnormals(const float* x, float* o) {
  int t = THREAD;
  o[t] = x[t] * 0.5f;
  __builtin_amdgcn_s_setreg(2305, 0);  // MODE, offset 4, two bits: flush
  o[t + 64] = x[t + 64] + 0.0f;
  __builtin_amdgcn_s_setreg(2305, 3);
  o[t + 128] = x[t + 128] * 0.5f;
}

KERNEL beyond(const u32* x, u32* o, int n) {
  int t = THREAD + 256 * GROUP;
  o[t] = x[t + n];
}

typedef double v4d __attribute__((ext_vector_type(4)));
KERNEL unknown(const double* a, v4d* c) {
  int t = THREAD;
  c[t] = __builtin_amdgcn_mfma_f64_16x16x4f64(a[t], a[t], c[t], 0, 0, 0);
}
