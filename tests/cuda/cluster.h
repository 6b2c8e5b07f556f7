// Stands in for mxgemm/cuda/kernels/cluster.h on a CPU: a workgroup runs until all have to meet, then the next one does.
#pragma once
#include "sm90.h"

struct OfWorkgroup {
  std::vector<float> shared;
  u32 barrier;
  i64 bytes;  // that are still to come
};
static std::vector<OfWorkgroup> of_workgroups;  // of the cluster that runs
static int clusters_met;

static OfWorkgroup& mine() { return of_workgroups.at(running / (lanes.size() / of_workgroups.size())); }
INLINE void cluster_begins(u32 barrier, u32 bytes, bool one) {
  if (barrier % 8 || barrier / 4 + 2 > SHARED_WORDS) wrong("a barrier outside of shared memory");
  if (one) mine().barrier = barrier, mine().bytes += bytes, sums[barrier / 4] = sums[barrier / 4 + 1] = 0;
  lanes[running].arrived++;
}
INLINE void wait_for_cluster() {
  if (lanes[running].arrived != 1) wrong("a lane waits for a cluster that it has not arrived at");
  stop(CLUSTER);
}
template <int COUNT>
static void send(u32 at, u32 barrier, int workgroup, const float (&x)[COUNT]) {
  OfWorkgroup& to = of_workgroups.at(static_cast<size_t>(workgroup));
  if (!clusters_met) wrong("something is sent to a workgroup that may not have begun");
  if (&to == &mine() || barrier != to.barrier) wrong("something is sent to the wrong place");
  if (at % (4 * COUNT)) wrong("what is sent is not aligned");
  for (int i = 0; i < COUNT; i++) {
    float& there = to.shared.at(at / 4 + i);
    if (bits_of(there) != 0xFFFFFFFFu) wrong("something is sent over what is there");
    there = x[i];
  }
  to.bytes -= 4 * COUNT;
}
INLINE void wait_for_sent(u32 barrier) {
  if (barrier != mine().barrier) wrong("a wrong barrier");
  stop(CLUSTER);
  if (mine().bytes) wrong("more or less was sent than is waited for");
}
