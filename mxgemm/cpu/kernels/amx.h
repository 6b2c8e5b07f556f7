// The engine of tiles on CPUs with a matrix unit for bf16 (AMX): sums of 16 x 16 stay in its registers.
//
// With MX_EMULATED_AMX its instructions are functions here, which any CPU runs: for tests.
#pragma once

enum { TILE_M = 32, TILE_BLOCKS = 8 };
enum { NARROW_BYTES = 1 << 20 };
#include "bf16.h"

#define MX_ENGINE "amx_bf16"

struct tile_config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifdef MX_EMULATED_AMX
static _Thread_local struct {
    int rows, row_bytes;
    uint8_t bytes[16][64];
} emulated[8];

static inline void amx_configure(const struct tile_config *c) {
    for (int i = 0; i < 8; i++) emulated[i].rows = c->rows[i], emulated[i].row_bytes = c->row_bytes[i];
}
static inline void amx_release(void) { memset(emulated, 0, sizeof emulated); }
static inline void amx_zero(int t) { memset(emulated[t].bytes, 0, sizeof emulated[t].bytes); }
static inline void amx_load(int t, const void *p, int64_t stride) {
    amx_zero(t);
    for (int i = 0; i < emulated[t].rows; i++)
        memcpy(emulated[t].bytes[i], (const uint8_t *)p + i * stride, (size_t)emulated[t].row_bytes);
}
static inline void amx_store(int t, void *p, int64_t stride) {
    for (int i = 0; i < emulated[t].rows; i++)
        memcpy((uint8_t *)p + i * stride, emulated[t].bytes[i], (size_t)emulated[t].row_bytes);
}
static inline float amx_flushed(float x) { return (bits_of(x) & 0x7F800000) ? x : float_of(bits_of(x) & 0x80000000u); }
static inline float amx_operand(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return amx_flushed(from_bf16(h));
}
// Even products and odd ones have a sum each, subnormals are zero, and both are added to what is there.
static inline void amx_multiply(int sums, int a, int b) {
    for (int m = 0; m < emulated[sums].rows; m++)
        for (int n = 0; n < emulated[sums].row_bytes / 4; n++) {
            float parts[2] = {0, 0}, sum;
            for (int k = 0; k < emulated[a].row_bytes / 4; k++)
                for (int i = 0; i < 2; i++) {
                    float x = amx_operand(emulated[a].bytes[m] + 4 * k + 2 * i);
                    float y = amx_operand(emulated[b].bytes[k] + 4 * n + 2 * i);
                    parts[i] = amx_flushed(__builtin_fmaf(x, y, parts[i]));
                }
            memcpy(&sum, emulated[sums].bytes[m] + 4 * n, 4);
            sum = amx_flushed(sum + amx_flushed(parts[0] + parts[1]));
            memcpy(emulated[sums].bytes[m] + 4 * n, &sum, 4);
        }
}
#else
#define amx_configure(config) _tile_loadconfig(config)
#define amx_release() _tile_release()
#define amx_zero(t) _tile_zero(t)
#define amx_load(t, p, stride) _tile_loadd(t, p, stride)
#define amx_store(t, p, stride) _tile_stored(t, p, stride)
#define amx_multiply(sums, a, b) _tile_dpbf16ps(sums, a, b)
#endif

static inline void tiles_begin(void) {
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 64, config.rows[i] = 16;
    amx_configure(&config);
}
static inline void tiles_end(void) { amx_release(); }

// Decode a block to the place of one that was loaded, while the unit multiplies. With one tile of rows that is faster
// than after all of them; with two, whose loads it is between, slower.
static inline void decode_beside(struct tile_source *next, tile_element *panel) {
    __asm__ volatile("" : : : "memory");  // no earlier than that
    if (next && next->decoded < next->blocks) decode_next(next, panel);
}

// Add the products of `rows` rows of A, in tiles `a_step` elements apart, with a panel's blocks to `sums`, or put them
// there. Whole tiles are written. With `next` no other rows will read the panel: its blocks may be decoded to their
// places.
static __attribute__((noinline)) void multiply_tiles(const tile_element *a, int64_t a_step, int64_t rows,
                                                     tile_element *w, int64_t blocks, int add, float *sums,
                                                     struct tile_source *next, const float *tables) {
    tile_element *panel = w;
    (void)tables;
    enum { TILE = 16 * BLOCK, SUMS_ROW = TILE_N * 4 };
    float *below = sums + 16 * TILE_N;
    __asm__ volatile("" : : : "memory");  // what tiles are loaded from is written by now
    if (rows > 16) {
        if (add) {
            amx_load(0, sums, SUMS_ROW);
            amx_load(1, sums + 16, SUMS_ROW);
            amx_load(2, below, SUMS_ROW);
            amx_load(3, below + 16, SUMS_ROW);
        } else {
            amx_zero(0);
            amx_zero(1);
            amx_zero(2);
            amx_zero(3);
        }
        for (int64_t b = 0; b < blocks; b++, a += TILE, w += 2 * TILE) {
            amx_load(6, w, 64);
            amx_load(4, a, 64);
            amx_load(7, w + TILE, 64);
            amx_load(5, a + a_step, 64);
            amx_multiply(0, 4, 6);
            amx_multiply(1, 4, 7);
            amx_multiply(2, 5, 6);
            amx_multiply(3, 5, 7);
        }
        amx_store(2, below, SUMS_ROW);
        amx_store(3, below + 16, SUMS_ROW);
    } else {
        if (add) {
            amx_load(0, sums, SUMS_ROW);
            amx_load(1, sums + 16, SUMS_ROW);
        } else {
            amx_zero(0);
            amx_zero(1);
        }
        for (int64_t b = 0; b < blocks; b++, a += TILE, w += 2 * TILE) {
            amx_load(4, a, 64);
            amx_load(6, w, 64);
            amx_load(7, w + TILE, 64);
            amx_multiply(0, 4, 6);
            amx_multiply(1, 4, 7);
            decode_beside(next, panel);
        }
    }
    amx_store(0, sums, SUMS_ROW);
    amx_store(1, sums + 16, SUMS_ROW);
    __asm__ volatile("" : : : "memory");
}
