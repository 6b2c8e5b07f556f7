// Stands in for mxgemm/cuda/kernels/wgmma.h on a CPU, beside sm90.h: shared memory and barriers of each workgroup of a
// cluster; lanes_wgmma.cpp runs the lanes. Products of bf16 are done at once, those of e4m3 when they are waited for; copies
// at once, or, with LATE_COPIES, some turns later.
#pragma once
#include "barriers.h"

struct float4 {
  float x, y, z, w;
};
INLINE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// What lanes stop at besides the operations of sm90.h.
static const Operation WARP = static_cast<Operation>(64), SOME = static_cast<Operation>(65),
                       CLUSTERS = static_cast<Operation>(66);

struct Workgroup {
  std::vector<u8> memory;
  Barriers barriers;
};
static std::vector<Workgroup> workgroups;  // of the cluster that runs
static int threads_each;
static const u32 START = 1024;  // of shared memory

static u32 rank_of(u32 lane) { return lane / static_cast<u32>(threads_each); }
static Workgroup& mine() { return workgroups[rank_of(running)]; }
INLINE u8* shared_memory() { return mine().memory.data(); }
static u8* in_shared(u32 at, u32 bytes) {
  if (at % bytes || at - START + bytes > mine().memory.size()) wrong("a wrong address of shared memory");
  return &mine().memory[at - START];
}
INLINE u32 address_in_shared(const void* p) {
  return START + static_cast<u32>(static_cast<const u8*>(p) - shared_memory());
}
static Barriers& barriers_here() { return mine().barriers; }

INLINE void cluster_barrier() { stop(CLUSTERS); }
INLINE void warp_meets() { stop(WARP); }
INLINE void threads_barrier(int id, int threads) {
  lanes[running].in[0] = static_cast<u32>(id), lanes[running].in[1] = static_cast<u32>(threads);
  stop(SOME);
}
template <int COUNT>
static void have_fewer_registers() {}
template <int COUNT>
static void have_more_registers() {}

#ifndef LATE_COPIES
#define LATE_COPIES 0  // turns of all lanes until a copy is done, one after the other
#endif
struct Bulk {
  u32 workgroup, to, bytes, barrier;
  const void* from;
  int turns;
};
static std::vector<Bulk> under_way;
static void arrives(const Bulk& copy) {
  Workgroup& workgroup = workgroups[copy.workgroup];
  std::memcpy(&workgroup.memory[copy.to - START], copy.from, copy.bytes);
  bytes_arrive(barrier_at(copy.barrier, workgroup.barriers), copy.bytes);
}
// A turn of all lanes is over; true if there are copies.
static bool copies_go_on() {
  if (under_way.empty()) return false;
  if (--under_way[0].turns <= 0) {
    const Bulk copy = under_way[0];
    under_way.erase(under_way.begin());
    arrives(copy);
  }
  return true;
}
INLINE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  check(readable, from, bytes, 16);
  if (to % 16 || bytes % 16 || to - START + bytes > mine().memory.size()) wrong("a copy that is not to shared memory");
  const Bulk copy = {rank_of(running), to, bytes, barrier, from, LATE_COPIES};
  if (LATE_COPIES)
    under_way.push_back(copy);
  else
    arrives(copy);
}

INLINE float4 load_sums_of(u32 at, u32 workgroup) {
  const std::vector<u8>& from = workgroups.at(workgroup).memory;
  if (at % 16 || at - START + 16 > from.size()) wrong("a load that is not of shared memory");
  float4 v;
  std::memcpy(&v, &from[at - START], 16);
  return v;
}
INLINE float4 load_sums(u32 at) { return load_sums_of(at, rank_of(running)); }

INLINE u64 matrix_at(u32 shared) {
  if (shared % 16) wrong("a matrix that does not begin at 16 bytes");
  return shared >> 4;
}
enum Kind { OF_BF16, OF_E4M3, OF_E4M3_ADDED };
struct Product {
  u32 in[7];
  float* sums;
};
static std::map<u32, std::vector<std::vector<Product>>> products;  // of a lane, by groups, the last one not ended
INLINE void products_begin() {}
INLINE void products_commit() { products[running].emplace_back(); }
template <int LEFT>
static void products_wait() {
  std::vector<std::vector<Product>>& groups = products[running];
  while (groups.size() > LEFT + 1) {
    const std::vector<Product> group = groups.front();
    groups.erase(groups.begin());
    for (const Product& product : group) {
      Lane& lane = lanes[running];
      std::memcpy(lane.in, product.in, sizeof product.in);
      lane.sums = product.sums;
      stop(MULTIPLY);
    }
  }
}
template <int COUNT>
static void multiply_group(float (&d)[COUNT], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  Lane& lane = lanes[running];
  const u32 in[] = {a0, a1, a2, a3, static_cast<u32>(b), 2 * COUNT, OF_BF16};
  std::memcpy(lane.in, in, sizeof in);
  lane.sums = d;
  stop(MULTIPLY);
}

INLINE double value_of_e4m3(u32 byte) {
  const int e = byte >> 3 & 15, m = byte & 7;
  if ((byte & 0x7F) == 0x7F) return NAN;
  return std::ldexp(e ? 8 + m : m, (e ? e : 1) - 10) * (byte & 0x80 ? -1 : 1);
}
// The same of e4m3, 32 along K: exact sums, rounded to fp32.
static void multiply_fp8_rows(Lane* warp, const Workgroup& workgroup) {
  double a[16][32];
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 16; i++)
      a[l / 4 + 8 * (i / 4 % 2)][4 * (l % 4) + i % 4 + 16 * (i / 8)] = value_of_e4m3(warp[l].in[i / 4] >> 8 * (i % 4) & 255);
  for (int n = 0; n < static_cast<int>(warp[0].in[5]); n++) {
    double b[32];
    for (int k = 0; k < 32; k++) {
      const u32 linear = (warp[0].in[4] << 4) + static_cast<u32>(n / 8 * 1024 + n % 8 * 128 + k);
      b[k] = value_of_e4m3(workgroup.memory.at((linear ^ (linear >> 3 & 0x70)) - START));
    }
    for (int m = 0; m < 16; m++) {
      float& sum = warp[m % 8 * 4 + n % 8 / 2].sums[n / 8 * 4 + m / 8 * 2 + n % 2];
      double exact = warp[0].in[6] == OF_E4M3_ADDED ? sum : 0;
      for (int k = 0; k < 32; k++) exact += a[m][k] * b[k];
      sum = static_cast<float>(exact);
    }
  }
}

// The product of a warp's 16 rows. PTX ISA, "Strides" and "Swizzling modes" of matrices in shared memory.
static void multiply_rows(Lane* warp, const Workgroup& workgroup) {
  if (warp[0].in[6] != OF_BF16) return multiply_fp8_rows(warp, workgroup);
  double a[16][16];
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 8; i++)
      a[l / 4 + 8 * (i / 2 % 2)][2 * (l % 4) + i % 2 + 8 * (i / 4)] = value_of_bf16(warp[l].in[i / 2] >> 16 * (i % 2) & 0xFFFFu);
  for (int n = 0; n < static_cast<int>(warp[0].in[5]); n++) {
    double b[16];
    for (int k = 0; k < 16; k++) {
      const u32 linear = (warp[0].in[4] << 4) + static_cast<u32>(n / 8 * 1024 + n % 8 * 128 + 2 * k);
      const u32 at = (linear ^ (linear >> 3 & 0x70)) - START;
      b[k] = value_of_bf16(workgroup.memory.at(at) | workgroup.memory.at(at + 1) << 8);
    }
    for (int m = 0; m < 16; m++) {
      float& sum = warp[m % 8 * 4 + n % 8 / 2].sums[n / 8 * 4 + m / 8 * 2 + n % 2];
      double exact = sum;
      for (int k = 0; k < 16; k++) exact += a[m][k] * b[k];
      sum = static_cast<float>(exact);
    }
  }
}
