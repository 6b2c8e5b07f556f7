// One instance of grouped_layer.cu on a CPU: all workgroups at the same time, or one after the other, whose lanes take turns.
// Built with its macros, with the stand-ins of this folder for its headers, and with SOURCE, KERNEL and ARGUMENTS.
#include "sm90.h"

float sums[SHARED_WORDS] __attribute__((aligned(128)));
#include SOURCE

static ARGUMENTS arguments;
static void lane_main() {
  KERNEL(arguments);
  stop(DONE);
}

struct Workgroup {
  std::vector<u8> memory;
  Barriers barriers;
  std::vector<Bulk> copies;
};
static std::vector<Workgroup> workgroups;

// What a warp's lanes have met at is done; true if there was something.
static bool warp_goes_on(size_t from) {
  Lane* warp = &lanes[from];
  for (const Operation at : {MULTIPLY, ANY, SHUFFLE, MEET}) {
    if (!all_at(from, 32, at)) continue;
    counts[at]++;
    bool any = false;
    for (int l = 0; l < 32; l++) any |= warp[l].in[0] != 0;
    if (at == MULTIPLY) multiply_all(warp);
    for (int l = 0; l < 32; l++) warp[l].out = at == ANY ? any : at == SHUFFLE ? warp[warp[l].in[1] & 31].in[0] : 0;
    go_on(from, 32);
    return true;
  }
  return false;
}
// Barriers of some threads of a workgroup: all that have come, if they are enough.
static bool some_meet(size_t from, size_t each) {
  bool moved = false;
  for (u32 number = 1; number < 16; number++) {
    std::vector<size_t> come;
    for (size_t l = from; l < from + each; l++)
      if (lanes[l].at == SEVERAL && lanes[l].in[1] == number) come.push_back(l);
    if (come.empty() || come.size() < lanes[come[0]].in[2]) continue;
    if (come.size() > lanes[come[0]].in[2]) wrong("a barrier of too many");
    for (const size_t l : come) lanes[l].at = NOTHING;
    moved = true;
  }
  return moved;
}

static void run_together(u32 start, size_t count, size_t each, long shared) {
  workgroups.assign(count, {std::vector<u8>(sizeof sums, 255), {}, {}});
  lanes_begin(lane_main);
  while (!all_at(0, count * each, DONE)) {
    bool moved = false;
    for (size_t w = 0; w < count; w++) {
      if (all_at(w * each, each, DONE)) continue;
      changed = false;
      if (count > 1) std::memcpy(sums, workgroups[w].memory.data(), static_cast<size_t>(shared));
      else if (workgroups[w].barriers.empty()) std::memset(sums, 255, sizeof sums);
      barriers = &workgroups[w].barriers, under_way = &workgroups[w].copies;
      blockIdx.x = start + static_cast<u32>(w);
      for (size_t l = w * each; l < (w + 1) * each; l++) {
        Lane& lane = lanes[l];
        if (lane.at != NOTHING && lane.at != WAIT) continue;
        running = static_cast<u32>(l), threadIdx.x = static_cast<u32>(l - w * each);
        swapcontext(&scheduler, &lane.context);
        moved |= lane.at != WAIT;
      }
      moved |= copies_go_on();
      for (size_t l = w * each; l < (w + 1) * each; l += 32) moved |= warp_goes_on(l);
      moved |= some_meet(w * each, each);
      if (all_at(w * each, each, BARRIER)) go_on(w * each, each), moved = true;
      moved |= changed;
      if (count > 1) std::memcpy(workgroups[w].memory.data(), sums, static_cast<size_t>(shared));
      for (long i = shared / 4; i < SHARED_WORDS; i++)
        if (count == 1 && all_at(0, each, DONE) && bits_of(sums[i]) != 0xFFFFFFFFu) wrong("shared memory is written past its end");
    }
    if (!moved) wrong("nobody can go on");
  }
}

// Runs a grid. `ranges` are pairs of an address and a size: those that may be read, then the `written` last, results, which
// may be read too. Returns the multiplications of warps.
extern "C" long run(const void* packed, long size, int grid, int threads, const i64* ranges, int count, int written,
                    long shared) {
  if (size != sizeof(ARGUMENTS)) wrong("arguments of another size");
  std::memcpy(&arguments, packed, sizeof(ARGUMENTS));
  readable.clear(), writable.clear();
  for (int i = 0; i < count; i++) {
    const Range range = {reinterpret_cast<const u8*>(ranges[2 * i]), ranges[2 * i + 1]};
    readable.push_back(range);
    if (i >= count - written) writable.push_back(range);
  }
  if (shared > static_cast<long>(sizeof sums)) wrong("too much shared memory");
  std::memset(counts, 0, sizeof counts);
  const size_t together = AT_ONCE ? static_cast<size_t>(grid) : 1, each = static_cast<size_t>(threads);
  lanes.resize(together * each);
  for (int at = 0; at < grid; at += static_cast<int>(together)) run_together(static_cast<u32>(at), together, each, shared);
  lanes_end();
  return counts[MULTIPLY];
}
