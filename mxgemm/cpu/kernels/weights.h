// B as the kernels read it: rows of packed bytes in blocks, their scales decoded to fp32.
#pragma once
#include "activations.h"

// A row of B: block b lies at bytes + b * step. What will be read next lies `ahead` bytes from what is read now; no
// prefetcher of a CPU's own follows so many short rows.
struct weight_row {
    const uint8_t *bytes;
    int64_t step, ahead;
};

static inline int is_plain(const struct mx_call *c) { return c->b_column == 1 && !c->b_preshuffled; }

static inline struct weight_row stored_row(const struct mx_call *c, int64_t n) {
    if (!c->b_preshuffled) return (struct weight_row){c->b + n * c->b_row, BLOCK_BYTES, 0};
    return (struct weight_row){c->b + n / 16 * 16 * c->b_row + n % 16 * BLOCK_BYTES, 16 * BLOCK_BYTES, 0};
}

// A row whose blocks from `first` on follow each other: as it is stored, or copied to `room`.
static struct weight_row plain_row(const struct mx_call *c, int64_t n, int64_t first, int64_t blocks, uint8_t *room) {
    struct weight_row row = stored_row(c, n);
    if (is_plain(c)) return (struct weight_row){row.bytes + first * BLOCK_BYTES, BLOCK_BYTES, 0};
    for (int64_t b = 0; b < blocks; b++)
        if (c->b_preshuffled)
            memcpy(room + b * BLOCK_BYTES, row.bytes + (first + b) * row.step, BLOCK_BYTES);
        else
            for (int64_t i = 0; i < BLOCK_BYTES; i++)
                room[b * BLOCK_BYTES + i] = row.bytes[((first + b) * BLOCK_BYTES + i) * c->b_column];
    return (struct weight_row){room, BLOCK_BYTES, 0};
}

// A row from block `first` on, as it is stored if blocks are whole there, else copied to `room`.
static struct weight_row row_from(const struct mx_call *c, int64_t n, int64_t first, int64_t blocks, uint8_t *room) {
    if (c->b_column != 1 && !c->b_preshuffled) return plain_row(c, n, first, blocks, room);
    struct weight_row row = stored_row(c, n);
    row.bytes += first * row.step;
    return row;
}

// The scales of sixteen blocks of LANES rows, as v_transpose has bytes; beyond the last block they are those of 1, and
// beyond the last row those of that row.
static inline void v_scale_bytes(const struct mx_call *c, int64_t n, int64_t block, vbytes four[4]) {
    const struct mx_scales *s = &c->b_scales;
    int64_t here = smaller(BLOCK_BYTES, c->k / BLOCK - block);
    uint8_t copies[LANES][BLOCK_BYTES];
    const uint8_t *rows[LANES];
    for (int r = 0; r < LANES; r++) {
        int64_t row = smaller(n + r, c->n - 1);
        rows[r] = s->bytes + row * s->row + block;
        int in_row = s->column == 1 && s->order == IN_ROWS;
        if (in_row && here == BLOCK_BYTES) continue;
        memset(copies[r], 127, BLOCK_BYTES);
        if (in_row)
            memcpy(copies[r], rows[r], (size_t)here);
        else
            for (int64_t i = 0; i < here; i++) copies[r][i] = scale_at(s, row, block + i);
        rows[r] = copies[r];
    }
    v_transpose(rows, 0, four);
}

// Scales of integers are 2^10 too large, which makes up for A's 2^-12 and for both operands being doubled. Bytes from
// here to 254 have no fp32 value then: such rows are computed again, one product after the other (sum_in_double).
enum { FIRST_TOO_LARGE = 245 };

static inline float scale_of_integers(uint8_t byte) {
    return float_of(byte == 255 ? 0x7FC00000u : ((uint32_t)byte + 10) << 23);
}

static inline float scale_of_floats(uint8_t byte) {
    return float_of(byte == 255 ? 0x7FC00000u : byte == 0 ? 0x00400000u : (uint32_t)byte << 23);
}

// Decode a row's scales; up to `padded` they are 0. Says whether one of them has no fp32 value.
static inline int decode_scales(const struct mx_call *c, int64_t n, int64_t padded, int is_float, float *scales) {
    int64_t have = c->k / BLOCK;
    const struct mx_scales *s = &c->b_scales;
    int too_large = 0;
    if (s->order == IN_ROWS && s->column == 1) {
        const uint8_t *bytes = s->bytes + n * s->row;
        for (int64_t b = 0; b < have; b++) {
            scales[b] = is_float ? scale_of_floats(bytes[b]) : scale_of_integers(bytes[b]);
            too_large |= bytes[b] >= FIRST_TOO_LARGE && bytes[b] != 255;
        }
    } else {
        for (int64_t b = 0; b < have; b++) {
            uint8_t byte = scale_at(s, n, b);
            scales[b] = is_float ? scale_of_floats(byte) : scale_of_integers(byte);
            too_large |= byte >= FIRST_TOO_LARGE && byte != 255;
        }
    }
    for (int64_t b = have; b < padded; b++) scales[b] = 0.0f;
    return too_large & !is_float;
}

// One element of the product of integers: each block exact, the sum in double, rounded once.
static float sum_in_double(const struct mx_call *c, const struct activations *a, int64_t at, int64_t n) {
    static const int8_t twice_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    struct weight_row row = stored_row(c, n);
    double sum = 0;
    for (int64_t b = 0; b < c->k / BLOCK; b++) {
        const int8_t *even = a->codes + (at * a->groups + b / GROUP) * GROUP * BLOCK + b % GROUP * BLOCK_BYTES;
        const int8_t *odd = even + GROUP * BLOCK_BYTES;
        int dot = 0;
        for (int64_t i = 0; i < BLOCK_BYTES; i++) {
            uint8_t pair = row.bytes[c->b_preshuffled ? b * row.step + i : (b * BLOCK_BYTES + i) * c->b_column];
            dot += twice_values[pair & 15] * even[i] + twice_values[pair >> 4] * odd[i];
        }
        int byte = scale_at(&c->b_scales, n, b);
        double scale = byte == 255 ? (double)not_a_number() : (double)power_of_two(byte - 127);
        sum += dot * (double)a->scales[at * a->groups * GROUP + b] * 1024.0 * scale;
    }
    return (float)sum;
}
