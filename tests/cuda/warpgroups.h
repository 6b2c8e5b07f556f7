// Lanes of a cluster in turns, for a kernel of warpgroups: KERNEL, which takes `arguments`.
#pragma once

static Arguments arguments;
static void lane_main() {
  KERNEL(arguments);
  stop(DONE);
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
    moved |= copies_go_on();
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
