// One instance of grouped_wgmma.cu on a CPU, a workgroup at a time, its lanes in turns. Built with its macros and with the
// stand-ins of this folder for its headers.
#define SHARED_OF_WORKGROUPS
#include "grouped_wgmma.cu"
#define KERNEL grouped_wgmma
#include "warpgroups.h"

// Runs a grid. `ranges` are pairs of an address and a size: those that may be read, then the `written` last, results.
// Returns the products of warps.
extern "C" long run(const void* packed, long size, int grid, int threads, const i64* ranges, int count, int written,
                    long shared) {
  if (size != sizeof(Arguments)) wrong("arguments of another size");
  std::memcpy(&arguments, packed, sizeof(Arguments));
  readable.clear(), writable.clear();
  for (int i = 0; i < count; i++) {
    std::vector<Range>& of = i < count - written ? readable : writable;
    of.push_back({reinterpret_cast<const u8*>(ranges[2 * i]), ranges[2 * i + 1]});
  }
  std::memset(counts, 0, sizeof counts);
  threads_each = threads;
  lanes.resize(static_cast<size_t>(1 * threads));
  for (blockIdx.x = 0; blockIdx.x < static_cast<u32>(grid); blockIdx.x += 1) {
    workgroups.assign(1, {std::vector<u8>(static_cast<size_t>(shared), 255), {}});
    lanes_begin(lane_main);
    run_cluster(1);
  }
  lanes_end();
  return counts[MULTIPLY];
}
