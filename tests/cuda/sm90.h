// Stands in for mxgemm/cuda/kernels/sm90.h on a CPU: the text of a kernel runs lane by lane, 32 lanes a warp.
//
// A lane is a coroutine that stops at each operation of a whole warp or workgroup until all others are there too; lanes
// that stop at different ones are an error, and so is a load outside the operands. Arithmetic is by the PTX ISA.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define INLINE static inline
#define MEMBER inline
#define __global__
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 {
  u32 x, y;
};
struct uint4 {
  u32 x, y, z, w;
};
struct Index {
  u32 x;
};
static Index threadIdx, blockIdx;
INLINE uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
INLINE int min(int a, int b) { return a < b ? a : b; }
INLINE u32 min(u32 a, u32 b) { return a < b ? a : b; }
INLINE int max(int a, int b) { return a > b ? a : b; }
INLINE u32 max(u32 a, u32 b) { return a > b ? a : b; }

[[noreturn]] static void wrong(const char* what) {
  std::fprintf(stderr, "workgroup %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  std::abort();
}

// Memory: what may be read and written.
struct Range {
  const u8* start;
  i64 size;
};
static std::vector<Range> readable, writable;
static void check(const std::vector<Range>& ranges, const void* p, i64 size, int alignment) {
  const u8* at = static_cast<const u8*>(p);
  if (reinterpret_cast<uintptr_t>(p) % alignment) wrong("an address is not a multiple of the access");
  for (const Range& r : ranges)
    if (at >= r.start && at + size <= r.start + r.size) return;
  wrong("an access outside the operands");
}
template <class T>
static T load(const void* p) {
  check(readable, p, sizeof(T), sizeof(T));
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
INLINE uint4 load_streamed(const void* p) { return load<uint4>(p); }
INLINE uint4 load_16(const void* p) { return load<uint4>(p); }
INLINE u32 load_u8(const void* p) { return load<u8>(p); }
INLINE u32 load_u16(const void* p) { return load<u16>(p); }
INLINE u32 load_u32(const void* p) { return load<u32>(p); }
template <class T>
static void store(void* p, T v) {
  check(writable, p, sizeof(T), sizeof(T));
  std::memcpy(p, &v, sizeof(T));
}
INLINE void store_16(void* p, const uint4& v) { store(p, v); }
INLINE void store_8(void* p, u32 low, u32 high) { store(p, low | static_cast<u64>(high) << 32); }
INLINE void store_u8(void* p, u32 v) { store(p, static_cast<u8>(v)); }
INLINE void store_u32(void* p, u32 v) { store(p, v); }
INLINE void store_u16(void* p, u32 v) { store(p, static_cast<u16>(v)); }
INLINE void store_f32(void* p, float v) { store(p, v); }

// Arithmetic.
INLINE float float_of(u32 bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
INLINE u32 bits_of(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
INLINE void keep_as_it_is(i64&) {}
INLINE void keep_as_it_is(u32&) {}
INLINE void keep_as_it_is(const u8*&) {}
INLINE u32 permute(u32 a, u32 b, u32 selector) {
  const u64 both = a | static_cast<u64>(b) << 32;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    const u32 s = selector >> (4 * i) & 15;
    u32 byte = both >> (8 * (s & 7)) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
INLINE u32 and_or(u32 a, u32 mask, u32 c) { return (a & mask) | c; }

// Rounds to nearest even with `bits` of significand and the least step 2^least; `nan` is the result for NaN.
INLINE long double nearest(long double x, int bits, int least) {
  int e;
  std::frexp(x, &e);
  const int step = e - bits > least ? e - bits : least;
  return std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
}
INLINE float value_of_bf16(u32 half) { return float_of(half << 16); }
INLINE u32 bf16_of(long double x) {
  if (std::isnan(x)) return 0x7FFF;
  const float y = static_cast<float>(std::isinf(x) ? x : nearest(x, 8, -133));  // a step too large is infinity
  return bits_of(y) >> 16;
}
template <class F>
static u32 by_halves(F f) {
  return (f(0) & 0xFFFFu) | f(16) << 16;
}
INLINE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  return by_halves([&](int i) {
    const long double x = value_of_bf16(a >> i), y = value_of_bf16(b >> i), z = value_of_bf16(c >> i);
    return bf16_of(x * y + z);
  });
}
INLINE u32 mul_bf16x2(u32 a, u32 b) {
  return by_halves([&](int i) {
    return bf16_of(static_cast<long double>(value_of_bf16(a >> i)) * value_of_bf16(b >> i));
  });
}
INLINE u32 abs_bf16x2(u32 a) { return a & 0x7FFF7FFFu; }
INLINE u32 max_bf16x2(u32 a, u32 b) {
  return by_halves([&](int i) -> u32 {
    const float x = value_of_bf16(a >> i), y = value_of_bf16(b >> i);
    if (std::isnan(x) || std::isnan(y)) return 0x7FFF;
    return (x > y ? a : b) >> i & 0xFFFFu;
  });
}
INLINE u32 min_magnitude_bf16x2(u32 a, u32 b) {
  return by_halves([&](int i) -> u32 {
    const u32 x = a >> i & 0x7FFFu, y = b >> i & 0x7FFFu, sign = ((a ^ b) >> i) & 0x8000u;
    if (x > 0x7F80u || y > 0x7F80u) return x > 0x7F80u && y > 0x7F80u ? 0x7FFF : (x > 0x7F80u ? y : x) | sign;
    return (x < y ? x : y) | sign;
  });
}
INLINE u32 bf16x2_of(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
INLINE u32 f16_of(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  u16 bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
INLINE u32 f16x2_of(float low, float high) { return f16_of(low) | f16_of(high) << 16; }
INLINE float float_of_f16(u32 bits) {
  const u16 low = static_cast<u16>(bits);
  _Float16 half;
  std::memcpy(&half, &low, 2);
  return static_cast<float>(half);
}
INLINE int lowest_bit(u64 x) { return __builtin_ctzll(x); }

// Lanes.
enum Operation { NOTHING, MULTIPLY, ANY, SHUFFLE, MEET, SEVERAL, BARRIER, CLUSTER, DONE };
struct Copy {
  u32 to;
  uint4 value;
  u32 bytes = 16;
};
struct Lane {
  ucontext_t context;
  static constexpr size_t STACK = 1 << 18;
  std::unique_ptr<u8[]> stack{new u8[STACK]};  // of which what is not used takes no memory
  Operation at = NOTHING;
  u32 in[7];
  float* sums;
  u32 out;
  std::vector<std::vector<Copy>> copies;  // by groups, the last one not ended
  int arrived = 0;                        // at the barrier of its cluster, so often
};
static std::vector<Lane> lanes;
// Every lane is where the kernel begins.
static void lanes_begin(void (*kernel)()) {
  for (Lane& lane : lanes) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = Lane::STACK;
    makecontext(&lane.context, kernel, 0);
    lane.at = NOTHING, lane.copies.clear(), lane.arrived = 0;
  }
}
// They are gone: a library stays loaded, and there are hundreds of them in a process.
static void lanes_end() {
  std::vector<Lane>().swap(lanes);
}
static bool all_at(size_t from, size_t count, Operation at) {
  for (size_t l = from; l < from + count; l++)
    if (lanes[l].at != at) return false;
  return true;
}
static void go_on(size_t from, size_t count) {
  for (size_t l = from; l < from + count; l++) lanes[l].at = NOTHING;
}
static ucontext_t scheduler;
static u32 running, first_lane;  // of the workgroup that runs
static long counts[DONE + 1];

static u32 stop(Operation at) {
  Lane& lane = lanes[running];
  lane.at = at;
  swapcontext(&lane.context, &scheduler);
  return lane.out;
}
INLINE void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  Lane& lane = lanes[running];
  const u32 in[] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(lane.in, in, sizeof in);
  lane.sums = d;
  stop(MULTIPLY);
}
INLINE bool any_lane(bool x) {
  lanes[running].in[0] = x;
  return stop(ANY) != 0;
}
INLINE u32 from_lane(u32 x, int lane) {
  lanes[running].in[0] = x, lanes[running].in[1] = static_cast<u32>(lane);
  return stop(SHUFFLE);
}
INLINE void workgroup_barrier() { stop(BARRIER); }
INLINE void warp_barrier() { stop(MEET); }
INLINE bool any_of_warps(int number, int threads, bool x) {
  if (number < 1 || number > 15) wrong("a barrier that there is not");
  lanes[running].in[0] = x, lanes[running].in[1] = static_cast<u32>(number);
  lanes[running].in[2] = static_cast<u32>(threads);
  return stop(SEVERAL) != 0;
}
static u32 arrived_at[16];  // lanes that did not wait, of the workgroup that runs
INLINE void arrive_at_barrier(int number, int) { arrived_at[number]++; }
INLINE void warps_barrier(int number, int threads) { any_of_warps(number, threads, false); }

// Shared memory. What a lane copies to it arrives when that lane waits for it, no earlier.
static const int SHARED_WORDS = 1 << 16;
extern float sums[];
INLINE u32 shared_address(const float* p) { return static_cast<u32>((p - sums) * 4); }
#ifdef SHARED_OF_WORKGROUPS  // wgmma.h says where it is
static u8* in_shared(u32 at, u32 bytes = 16);
#else
static u8* in_shared(u32 at, u32 bytes = 16) {
  if (at % bytes || at + bytes > 4 * SHARED_WORDS) wrong("a wrong address of shared memory");
  return reinterpret_cast<u8*>(sums) + at;
}
#endif
INLINE uint4 load_shared_16(u32 at) {
  uint4 v;
  std::memcpy(&v, in_shared(at), 16);
  return v;
}
INLINE u32 load_shared_4(u32 at) {
  u32 v;
  std::memcpy(&v, in_shared(at, 4), 4);
  return v;
}
INLINE uint2 load_shared_8(u32 at) {
  if (at % 8) wrong("an address is not a multiple of the access");
  const uint4 both = load_shared_16(at & ~15u);
  return at & 8 ? uint2{both.z, both.w} : uint2{both.x, both.y};
}
INLINE void store_shared_16(u32 at, const uint4& v) { std::memcpy(in_shared(at), &v, 16); }
INLINE void copy_16(u32 to, const void* from, u32 bytes) {
  if (bytes != 0 && bytes != 16) wrong("part of 16 bytes");
  std::vector<std::vector<Copy>>& copies = lanes[running].copies;
  if (copies.empty()) copies.emplace_back();
  copies.back().push_back({to, bytes ? load<uint4>(from) : uint4{}});
}
INLINE void end_group_of_copies() {
  std::vector<std::vector<Copy>>& copies = lanes[running].copies;
  if (copies.empty()) copies.emplace_back();
  copies.emplace_back();
}
template <int NEWER>
INLINE void wait_for_copies() {
  std::vector<std::vector<Copy>>& copies = lanes[running].copies;
  while (copies.size() > NEWER + 1) {
    for (const Copy& copy : copies.front()) std::memcpy(in_shared(copy.to, copy.bytes), &copy.value, copy.bytes);
    copies.erase(copies.begin());
  }
}
INLINE void prefetch_to_l2(const void* p, u32 bytes) {
  if (bytes % 16 || !bytes) wrong("a wrong size of what is prefetched");
  check(readable, p, bytes, 16);
}
INLINE u32 from_lane_xor(u32 x, int mask) { return from_lane(x, static_cast<int>(running & 31) ^ mask); }
INLINE void wait_for_earlier_launches() {}
INLINE void prefetch_line(const void* p) { check(readable, p, 1, 1); }
INLINE void let_later_launches_begin() {}

static void multiply_all(Lane* warp) {
  double a[16][16], b[16][8];
  for (int l = 0; l < 32; l++)
    for (int half = 0; half < 2; half++) {
      const int g = l / 4, k = 2 * (l % 4) + half, shift = 16 * half;
      for (int i = 0; i < 4; i++) a[g + 8 * (i & 1)][k + 8 * (i >> 1)] = value_of_bf16(warp[l].in[i] >> shift & 0xFFFFu);
      for (int i = 0; i < 2; i++) b[k + 8 * i][g] = value_of_bf16(warp[l].in[4 + i] >> shift & 0xFFFFu);
    }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 4; i++) {
      double sum = warp[l].sums[i];
      for (int k = 0; k < 16; k++) sum += a[l / 4 + 8 * (i >> 1)][k] * b[k][2 * (l % 4) + (i & 1)];
      warp[l].sums[i] = static_cast<float>(sum);
    }
}

// Runs a warp until it is at a barrier with others or done.
static Operation run_warp(int w) {
  const u32 first = first_lane + 32 * static_cast<u32>(w);
  Lane* warp = &lanes[first];
  for (;;) {
    for (int l = 0; l < 32; l++) {
      running = first + static_cast<u32>(l), threadIdx.x = running - first_lane;
      swapcontext(&scheduler, &warp[l].context);
      if (warp[l].at != warp[0].at) wrong("lanes of a warp are at different operations");
    }
    const Operation at = warp[0].at;
    counts[at]++;
    if (at >= SEVERAL) return at;
    bool any = false;
    for (int l = 0; l < 32; l++) any |= warp[l].in[0] != 0;
    if (at == MULTIPLY) multiply_all(warp);
    for (int l = 0; l < 32; l++) warp[l].out = at == ANY ? any : at == SHUFFLE ? warp[warp[l].in[1] & 31].in[0] : 0;
  }
}
