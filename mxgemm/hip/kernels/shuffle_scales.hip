// Scale bytes from row-major to the shuffled order of mxgemm/mx/layouts.py and back.
//
// The shuffled order has tiles of 32 rows by 8 columns, 256 contiguous bytes each; within a tile, row r and column c lie at
//     (c % 4) * 64 + (r % 16) * 4 + (c / 4) * 2 + r / 16.
// Four lanes take a tile. Lane `quad` has rows 4 * quad .. + 3 and the same sixteen rows further on: on the row-major
// side eight rows of eight bytes, on the shuffled side four pieces of sixteen bytes, one for each c % 4.
#include "wide_access.h"

constexpr u32 THREADS = 256;
constexpr u32 LANES_PER_TILE = 4;

// What a lane works on.
struct Part {
  u32 tile, quad, first_row, first_column;
};

MX_DEVICE Part part_of_lane(u32 tile_columns) {
  const u32 tile = block_x() * (THREADS / LANES_PER_TILE) + thread_x() / LANES_PER_TILE;
  const u32 quad = thread_x() % LANES_PER_TILE, tile_row = tile / tile_columns;
  return {tile, quad, tile_row * 32 + quad * 4, (tile - tile_row * tile_columns) * 8};
}

// Row of the i-th of a lane's eight: four neighbours, then four that lie sixteen further.
MX_DEVICE u32 row_of(const Part& part, int i) { return part.first_row + i / 4 * 16 + i % 4; }

template <int WIDTH>
MX_DEVICE void shuffle(const u8* scales, u8* shuffled, i64 row_stride, u32 rows, u32 columns, u32 tile_columns, u32 tiles) {
  const Part part = part_of_lane(tile_columns);
  if (part.tile >= tiles) return;
  u32 line[8][2];
  // Addresses are clamped to the last row and column rather than masked, so that all loads of a lane are in flight at once.
  if (part.first_column + 8 <= columns) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 row = row_of(part, i) < rows ? row_of(part, i) : rows - 1;
      load_words<WIDTH>(scales + (i64)row * row_stride + part.first_column, line[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 row = row_of(part, i) < rows ? row_of(part, i) : rows - 1;
      line[i][0] = line[i][1] = 0;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        const u32 column = part.first_column + c;
        const u32 byte = scales[(i64)row * row_stride + (column < columns ? column : columns - 1)];
        line[i][c / 4] |= (column < columns ? byte : 0) << (c % 4 * 8);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (row_of(part, i) >= rows) line[i][0] = line[i][1] = 0;
  }
  u8* const out = shuffled + (u64)part.tile * 256 + part.quad * 16;
  u32 four[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    // Rows interleaved byte by byte: columns 0, 1 | 2, 3 | 4, 5 | 6, 7.
    const u32 c01 = pick_bytes<0, 4, 1, 5>(line[j][0], line[j + 4][0]);
    const u32 c23 = pick_bytes<2, 6, 3, 7>(line[j][0], line[j + 4][0]);
    const u32 c45 = pick_bytes<0, 4, 1, 5>(line[j][1], line[j + 4][1]);
    const u32 c67 = pick_bytes<2, 6, 3, 7>(line[j][1], line[j + 4][1]);
    four[0][j] = pick_bytes<0, 1, 4, 5>(c01, c45);
    four[1][j] = pick_bytes<2, 3, 6, 7>(c01, c45);
    four[2][j] = pick_bytes<0, 1, 4, 5>(c23, c67);
    four[3][j] = pick_bytes<2, 3, 6, 7>(c23, c67);
  }
#pragma unroll
  for (int c = 0; c < 4; c++) store_words<16>(out + c * 64, four[c]);
}

template <int WIDTH>
MX_DEVICE void unshuffle(const u8* shuffled, u8* scales, i64 row_stride, u32 rows, u32 columns, u32 tile_columns, u32 tiles) {
  const Part part = part_of_lane(tile_columns);
  if (part.tile >= tiles || part.first_column >= columns) return;
  const u8* const in = shuffled + (u64)part.tile * 256 + part.quad * 16;
  u32 four[4][4], line[8][2];
#pragma unroll
  for (int c = 0; c < 4; c++) load_words<16>(in + c * 64, four[c]);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const u32 c01 = pick_bytes<0, 1, 4, 5>(four[0][j], four[1][j]), c45 = pick_bytes<2, 3, 6, 7>(four[0][j], four[1][j]);
    const u32 c23 = pick_bytes<0, 1, 4, 5>(four[2][j], four[3][j]), c67 = pick_bytes<2, 3, 6, 7>(four[2][j], four[3][j]);
    line[j][0] = pick_bytes<0, 2, 4, 6>(c01, c23);
    line[j + 4][0] = pick_bytes<1, 3, 5, 7>(c01, c23);
    line[j][1] = pick_bytes<0, 2, 4, 6>(c45, c67);
    line[j + 4][1] = pick_bytes<1, 3, 5, 7>(c45, c67);
  }
  const bool whole = part.first_column + 8 <= columns;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (row_of(part, i) >= rows) continue;
    u8* const out = scales + (i64)row_of(part, i) * row_stride + part.first_column;
    if (whole) {
      store_words<WIDTH>(out, line[i]);
    } else {
#pragma unroll
      for (u32 c = 0; c < 7; c++) {
        if (part.first_column + c < columns) out[c] = (u8)(line[i][c / 4] >> (c % 4 * 8));
      }
    }
  }
}

// For each width that the row-major side's address and row stride may be a multiple of. Sizes are of the row-major side;
// `tile_columns` is the shuffled side's number of tiles in a row, `tiles` how many tiles are worked on, in order.
#define FOR_WIDTH(WIDTH)                                                                                            \
  MX_KERNEL(THREADS)                                                                                                \
  void shuffle_scales_##WIDTH(const u8* __restrict__ scales, u8* __restrict__ shuffled, i64 row_stride, u32 rows,   \
                              u32 columns, u32 tile_columns, u32 tiles) {                                           \
    shuffle<WIDTH>(scales, shuffled, row_stride, rows, columns, tile_columns, tiles);                               \
  }                                                                                                                 \
  MX_KERNEL(THREADS)                                                                                                \
  void unshuffle_scales_##WIDTH(const u8* __restrict__ shuffled, u8* __restrict__ scales, i64 row_stride, u32 rows, \
                                u32 columns, u32 tile_columns, u32 tiles) {                                         \
    unshuffle<WIDTH>(shuffled, scales, row_stride, rows, columns, tile_columns, tiles);                             \
  }

FOR_WIDTH(8)
FOR_WIDTH(4)
FOR_WIDTH(2)
FOR_WIDTH(1)
