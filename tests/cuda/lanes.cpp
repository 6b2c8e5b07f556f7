// One instance of w4_mma.cu on a CPU. Built with the kernel's macros and with tests/cuda/sm90.h before its own sm90.h.
#include "sm90.h"

static const int SHARED = 1 << 16;
float sums[SHARED];
#include "w4_mma.cu"

static Arguments arguments;
static void lane_main() {
  w4_mma(arguments);
  stop(DONE);
}

// Runs a grid. `ranges` are pairs of an address and a size: those that may be read, then, last, the result's.
// Returns the multiplications of warps.
extern "C" long run(const void* packed, long size, int grid, int threads, const i64* ranges, int count, long shared) {
  if (size != sizeof(Arguments)) wrong("arguments of another size");
  std::memcpy(&arguments, packed, sizeof(Arguments));
  readable.clear(), writable.clear();
  for (int i = 0; i < count; i++) {
    std::vector<Range>& of = i + 1 < count ? readable : writable;
    of.push_back({reinterpret_cast<const u8*>(ranges[2 * i]), ranges[2 * i + 1]});
  }
  if (threads != 32 * WARPS || shared > static_cast<long>(sizeof sums)) wrong("another workgroup than was compiled");
  std::memset(counts, 0, sizeof counts);
  lanes.resize(static_cast<size_t>(threads));
  for (blockIdx.x = 0; blockIdx.x < static_cast<u32>(grid); blockIdx.x++) {
    std::memset(sums, 255, sizeof sums);
    for (Lane& lane : lanes) {
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.data();
      lane.context.uc_stack.ss_size = lane.stack.size();
      makecontext(&lane.context, lane_main, 0);
    }
    for (Operation want : {BARRIER, DONE})
      for (int w = 0; w < WARPS; w++)
        if (run_warp(w) != want) wrong("warps of a workgroup part at the barrier");
    for (long i = shared / 4; i < SHARED; i++)
      if (bits_of(sums[i]) != 0xFFFFFFFFu) wrong("shared memory is written past its end");
  }
  return counts[MULTIPLY];
}
