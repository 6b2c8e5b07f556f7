// One instance of w4_wgmma.cu or w4_fp8.cu on a CPU, a cluster at a time, its lanes in turns. Built with its macros, with
// the stand-ins of this folder for sm90.h, wgmma.h and fp8.h, and with SOURCE and KERNEL.
#define SHARED_OF_WORKGROUPS
#include SOURCE
#include "warpgroups.h"

// Runs a grid. `ranges` are pairs of an address and a size: those that may be read, then, last, the result's.
// Returns the products of warps.
extern "C" long run(const void* packed, long size, int grid, int threads, const i64* ranges, int count, long shared) {
  if (size != sizeof(Arguments)) wrong("arguments of another size");
  std::memcpy(&arguments, packed, sizeof(Arguments));
  readable.clear(), writable.clear();
  for (int i = 0; i < count; i++) {
    std::vector<Range>& of = i + 1 < count ? readable : writable;
    of.push_back({reinterpret_cast<const u8*>(ranges[2 * i]), ranges[2 * i + 1]});
  }
  std::memset(counts, 0, sizeof counts);
  threads_each = threads;
  lanes.resize(static_cast<size_t>(SPLITS * threads));
  for (blockIdx.x = 0; blockIdx.x < static_cast<u32>(grid); blockIdx.x += SPLITS) {
    workgroups.assign(SPLITS, {std::vector<u8>(static_cast<size_t>(shared), 255), {}});
    lanes_begin(lane_main);
    products.clear();
    run_cluster(SPLITS);
  }
  lanes_end();
  return counts[MULTIPLY];
}
