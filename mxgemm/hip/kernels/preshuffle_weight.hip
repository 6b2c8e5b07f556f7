// Weight bytes from row-major to the preshuffled order of mxgemm/mx/layouts.py and back.
//
// The unit is 16 bytes. A row has `units` of them; the preshuffled order is, for each group of 16 rows, unit by unit, the
// sixteen rows' units one after the other. A workgroup takes 16 rows by 16 units, a lane one unit.
#include "wide_access.h"

constexpr u32 THREADS = 256;
constexpr u32 ROWS = 16, UNITS = THREADS / ROWS, UNIT_BYTES = 16;

template <int WIDTH, bool FORWARD>
MX_DEVICE void reorder(const u8* from, u8* to, i64 row_stride, u32 units, u32 groups_of_units) {
  const u32 group = block_x() / groups_of_units;
  const u32 row = thread_x() % ROWS;
  const u32 unit = (block_x() - group * groups_of_units) * UNITS + thread_x() / ROWS;
  if (unit >= units) return;
  const i64 row_major = ((i64)group * ROWS + row) * row_stride + (i64)unit * UNIT_BYTES;
  const i64 preshuffled = (((i64)group * units + unit) * ROWS + row) * UNIT_BYTES;
  u32 words[UNIT_BYTES / 4];
  if constexpr (FORWARD) {
    load_words<WIDTH>(from + row_major, words);
    store_words<16>(to + preshuffled, words);
  } else {
    load_words<16>(from + preshuffled, words);
    store_words<WIDTH>(to + row_major, words);
  }
}

#define FOR_WIDTH(WIDTH)                                                                                      \
  MX_KERNEL(THREADS)                                                                                          \
  void preshuffle_weight_##WIDTH(const u8* __restrict__ from, u8* __restrict__ to, i64 row_stride, u32 units, \
                                 u32 groups_of_units) {                                                       \
    reorder<WIDTH, true>(from, to, row_stride, units, groups_of_units);                                       \
  }

FOR_WIDTH(16)
FOR_WIDTH(8)
FOR_WIDTH(4)
FOR_WIDTH(2)
FOR_WIDTH(1)

// The row-major result is fresh memory: its rows are whole units.
MX_KERNEL(THREADS)
void unpreshuffle_weight(const u8* __restrict__ from, u8* __restrict__ to, i64 row_stride, u32 units, u32 groups_of_units) {
  reorder<16, false>(from, to, row_stride, units, groups_of_units);
}
