// One instance of grouped_wgmma.cu on a CPU, a workgroup at a time, its lanes in turns. Built with its macros and with the
// stand-ins of this folder for its headers.
#include "grouped_wgmma.cu"

static Arguments arguments;
static void lane_main() {
  grouped_wgmma(arguments);
  stop(DONE);
}

static bool all_at(size_t from, size_t count, Operation at) {
  for (size_t l = from; l < from + count; l++)
    if (lanes[l].at != at) return false;
  return true;
}
static void go_on(size_t from, size_t count) {
  for (size_t l = from; l < from + count; l++) lanes[l].at = NOTHING;
}

// What a warp's lanes have met at is done; true if there was something.
static bool warp_goes_on(size_t from, const Workgroup& workgroup) {
  Lane* warp = &lanes[from];
  for (const Operation at : {MULTIPLY, ANY, SHUFFLE, WARP}) {
    if (!all_at(from, 32, at)) continue;
    if (at == MULTIPLY) counts[at]++;
    bool any = false;
    for (int l = 0; l < 32; l++) any |= warp[l].in[0] != 0;
    if (at == MULTIPLY) multiply_rows(warp, workgroup);
    for (int l = 0; l < 32; l++) warp[l].out = at == ANY ? any : at == SHUFFLE ? warp[warp[l].in[1] & 31].in[0] : 0;
    go_on(from, 32);
    return true;
  }
  return false;
}
// The barrier of some threads: those that count, from the first on.
static bool some_meet(size_t from) {
  if (lanes[from].at != SOME || !all_at(from, lanes[from].in[1], SOME)) return false;
  go_on(from, lanes[from].in[1]);
  return true;
}

static void run_cluster(size_t size) {
  const size_t each = static_cast<size_t>(threads_each);
  const u32 first = blockIdx.x;
  for (;;) {
    bool moved = false;
    changed = false;
    for (size_t l = 0; l < size * each; l++) {
      Lane& lane = lanes[l];
      if (lane.at != NOTHING && lane.at != WAIT) continue;
      running = static_cast<u32>(l), threadIdx.x = static_cast<u32>(l % each);
      blockIdx.x = first + static_cast<u32>(l / each);
      swapcontext(&scheduler, &lane.context);
      moved |= lane.at != WAIT;
    }
    blockIdx.x = first;
    moved |= changed;
    for (size_t w = 0; w < size * each / 32; w++) moved |= warp_goes_on(32 * w, workgroups[32 * w / each]);
    for (size_t i = 0; i < size; i++) {
      moved |= some_meet(i * each);
      if (all_at(i * each, each, BARRIER)) go_on(i * each, each), moved = true;
    }
    if (all_at(0, size * each, CLUSTERS)) go_on(0, size * each), moved = true;
    if (all_at(0, size * each, DONE)) return;
    if (!moved) wrong("nobody can go on");
  }
}

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
    for (Lane& lane : lanes) {
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.data();
      lane.context.uc_stack.ss_size = lane.stack.size();
      makecontext(&lane.context, lane_main, 0);
      lane.at = NOTHING;
    }
    run_cluster(1);
  }
  return counts[MULTIPLY];
}
