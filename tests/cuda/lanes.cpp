// One instance of a kernel on a CPU. Built with its macros and with the stand-ins of this folder for sm90.h and cluster.h,
// and with SOURCE, KERNEL, ARGUMENTS, and BARRIERS, how often the lanes of a workgroup or of a cluster meet.
#include "cluster.h"

#ifndef SPLITS  // workgroups of a cluster
#define SPLITS 1
#endif
float sums[SHARED_WORDS] __attribute__((aligned(128)));
#include SOURCE

static ARGUMENTS arguments;
static void lane_main() {
  KERNEL(arguments);
  stop(DONE);
}

// The barrier of some warps: true if warp w was waiting for the last of them.
static bool some_go_on(std::vector<Operation>& at, size_t w) {
  const Lane* lane = &lanes[first_lane + 32 * w];
  u32 there = arrived_at[lane->in[1]], any = 0;
  auto same = [&](size_t i) { return at[i] == SEVERAL && lanes[first_lane + 32 * i].in[1] == lane->in[1]; };
  for (size_t i = 0; i < at.size(); i++)
    for (u32 l = 0; l < 32 && same(i); l++) there++, any |= lanes[first_lane + 32 * i + l].in[0];
  if (there > lane->in[2]) wrong("more lanes at a barrier than it is for");
  if (there < lane->in[2]) return false;
  const u32 number = lane->in[1];
  arrived_at[number] = 0;
  for (size_t i = 0; i < at.size(); i++)
    if (at[i] == SEVERAL && lanes[first_lane + 32 * i].in[1] == number) {
      for (u32 l = 0; l < 32; l++) lanes[first_lane + 32 * i + l].out = any;
      at[i] = NOTHING;
    }
  return true;
}

// Until all warps of a workgroup are at the same place. Its memory is in `sums` meanwhile.
static Operation run_workgroup(int threads, u32 rank) {
  std::memcpy(sums, of_workgroups[rank].shared.data(), sizeof sums);
  first_lane = rank * static_cast<u32>(threads);
  std::vector<Operation> at(static_cast<size_t>(threads / 32), NOTHING);
  for (bool moved = true; moved;) {
    for (size_t w = 0; w < at.size(); w++)
      if (at[w] == NOTHING) at[w] = run_warp(static_cast<int>(w));
    moved = false;
    for (size_t w = 0; w < at.size(); w++) moved |= at[w] == SEVERAL && some_go_on(at, w);
  }
  for (const Operation one : at)
    if (one != at[0] || one == SEVERAL) wrong("warps of a workgroup are at different barriers");
  std::memcpy(of_workgroups[rank].shared.data(), sums, sizeof sums);
  return at[0];
}

// Runs a grid. `ranges` are pairs of an address and a size: those that may be read, then, last, the result's.
// Returns the multiplications of warps.
extern "C" long run(const void* packed, long size, int grid, int threads, const i64* ranges, int count, long shared) {
  if (size != sizeof(ARGUMENTS)) wrong("arguments of another size");
  std::memcpy(&arguments, packed, sizeof(ARGUMENTS));
  readable.clear(), writable.clear();
  for (int i = 0; i < count; i++) {
    std::vector<Range>& of = i + 1 < count ? readable : writable;
    of.push_back({reinterpret_cast<const u8*>(ranges[2 * i]), ranges[2 * i + 1]});
  }
  if (shared > static_cast<long>(sizeof sums)) wrong("too much shared memory");
  if (grid % SPLITS) wrong("part of a cluster");
  std::memset(counts, 0, sizeof counts);
  lanes.resize(static_cast<size_t>(SPLITS * threads));
  for (int first = 0; first < grid; first += SPLITS) {
    of_workgroups.assign(SPLITS, {std::vector<float>(SHARED_WORDS, float_of(0xFFFFFFFFu)), 0, 0});
    lanes_begin(lane_main);
    clusters_met = 0;
    for (int i = 0; i <= BARRIERS; i++) {
      Operation at = NOTHING;
      for (u32 rank = 0; rank < SPLITS; rank++) {
        blockIdx.x = static_cast<u32>(first) + rank;
        const Operation now = run_workgroup(threads, rank);
        if (rank && now != at) wrong("workgroups of a cluster are at different barriers");
        at = now;
      }
      if ((at == DONE) != (i == BARRIERS)) wrong("lanes meet more or less often than they should");
      clusters_met += at == CLUSTER;
    }
    for (const OfWorkgroup& one : of_workgroups)
      for (long i = shared / 4; i < SHARED_WORDS; i++)
        if (bits_of(one.shared[i]) != 0xFFFFFFFFu) wrong("shared memory is written past its end");
  }
  lanes_end();
  return counts[MULTIPLY];
}
