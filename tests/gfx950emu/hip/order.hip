// Data from workgroup to workgroup. Each step that makes a store visible can be taken out: -DWRITE_BACK='"s_nop 0"'.
#include "common.h"

#ifndef STORE_WAIT
#define STORE_WAIT "s_waitcnt vmcnt(0)"
#endif
#ifndef BARRIER
#define BARRIER "s_barrier"
#endif
#ifndef WRITE_BACK
#define WRITE_BACK "buffer_wbl2 sc1"
#endif
#ifndef WRITE_BACK_WAIT
#define WRITE_BACK_WAIT "s_waitcnt vmcnt(0)"
#endif
#ifndef INVALIDATE
#define INVALIDATE "buffer_inv sc1"
#endif
#define STEP(TEXT) asm volatile(TEXT ::: "memory")
#define ADD_ONE(COUNTER) __scoped_atomic_fetch_add(COUNTER, 1u, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)

// Workgroups of 128 (two waves) in teams, workgroup % teams: each stores its numbers, the last of a team adds all.
KERNEL sum_of_team(const u32* x, u32* parts, u32* counters, u32* o, int teams, int members) {
  int t = THREAD, group = GROUP, team = group % teams;
  SHARED u32 arrived;
  parts[group * 128 + t] = x[group * 128 + t];
  STEP(STORE_WAIT);
  STEP(BARRIER);
  if (t == 0) {
    STEP(WRITE_BACK);
    STEP(WRITE_BACK_WAIT);
    arrived = ADD_ONE(counters + team);
    STEP(INVALIDATE);
    STEP("s_waitcnt lgkmcnt(0)");
  }
  STEP("s_barrier");
  if (arrived != (u32)members - 1) return;
  u32 sum = 0;
  for (int i = 0; i < members; ++i) sum += parts[(team + i * teams) * 128 + (t ^ 64)];
  o[team * 128 + t] = sum;
}

// Workgroup 1 stores numbers and a flag; the last one looks at the flag, and reads the numbers if it is there.
#ifndef FLAG_STORE
#define FLAG_STORE "sc1"
#endif
#ifndef FLAG_LOAD
#define FLAG_LOAD "sc1"
#endif
KERNEL flag(u32* data, u32* up, u32* o, int last) {
  int t = THREAD;
  if (GROUP == 1) {
    data[t] = t + 1;
    STEP(WRITE_BACK);
    STEP(WRITE_BACK_WAIT);
    asm volatile("global_store_dword %0, %1, off " FLAG_STORE ::"v"(up), "v"(1u) : "memory");
  } else if (GROUP == last) {
    u32 seen;
    asm volatile("global_load_dword %0, %1, off " FLAG_LOAD "\ns_waitcnt vmcnt(0)" : "=v"(seen) : "v"(up) : "memory");
    STEP(INVALIDATE);
    if (seen) o[t] = data[t];
  }
}

// A wave reads what the other of its workgroup stored.
KERNEL within(u32* data, u32* o) {
  int t = THREAD;
  data[t] = t;
  STEP(STORE_WAIT);
  STEP(BARRIER);
  o[t] = data[t ^ 64];
}

// The scalar cache keeps what it has: nothing here invalidates it.
KERNEL scalar(u32* data, u32* o) {
  int t = THREAD;
  if (t < 64) data[t] = t;
  STEP("s_waitcnt vmcnt(0)");
  STEP("s_barrier");
  u32 value;
  asm volatile("s_load_dword %0, %1, 0\ns_waitcnt lgkmcnt(0)" : "=s"(value) : "s"(data) : "memory");
  o[t] = value;
}
