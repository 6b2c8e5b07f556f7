// One instance of a kernel on a CPU, whose lanes may meet as often as they like. Built with its macros, with the stand-ins
// of this folder for its headers, and with SOURCE, KERNEL and ARGUMENTS.
#include "sm90.h"

float sums[SHARED_WORDS] __attribute__((aligned(128)));
#include SOURCE

static ARGUMENTS arguments;
static void lane_main() {
  KERNEL(arguments);
  stop(DONE);
}

// Runs a grid. `ranges` are pairs of an address and a size: those that may be read, then the `written` last, results.
// Returns the multiplications of warps.
extern "C" long run(const void* packed, long size, int grid, int threads, const i64* ranges, int count, int written,
                    long shared) {
  if (size != sizeof(ARGUMENTS)) wrong("arguments of another size");
  std::memcpy(&arguments, packed, sizeof(ARGUMENTS));
  readable.clear(), writable.clear();
  for (int i = 0; i < count; i++) {
    std::vector<Range>& of = i < count - written ? readable : writable;
    of.push_back({reinterpret_cast<const u8*>(ranges[2 * i]), ranges[2 * i + 1]});
  }
  if (shared > static_cast<long>(sizeof sums)) wrong("too much shared memory");
  std::memset(counts, 0, sizeof counts);
  lanes.resize(static_cast<size_t>(threads));
  for (blockIdx.x = 0; blockIdx.x < static_cast<u32>(grid); blockIdx.x++) {
    std::memset(sums, 255, sizeof sums);
    lanes_begin(lane_main);
    for (Operation at = BARRIER; at != DONE;) {
      at = run_warp(0);
      for (int w = 1; w < threads / 32; w++)
        if (run_warp(w) != at) wrong("warps of a workgroup part at the barrier");
    }
    for (long i = shared / 4; i < SHARED_WORDS; i++)
      if (bits_of(sums[i]) != 0xFFFFFFFFu) wrong("shared memory is written past its end");
  }
  lanes_end();
  return counts[MULTIPLY];
}
