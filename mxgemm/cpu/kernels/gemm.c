// out = A @ B.T + bias on a CPU: the library that mxgemm/cpu/build.py makes of this file for one kind of CPU.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "neon.h"
#else
#error "no variant for this CPU"
#endif

#include "elements.h"
#include "panels.h"
#include "pool.h"
#include "rows.h"
#include "swiglu.h"
#include "tiles.h"

enum { A_BYTES = 8 << 20, TASK_ROWS = 32, LEAST_WORK = 1 << 20 };
enum { APART = 64 << 10 };  // between what threads write: a core fetches beyond what it writes, from another core's cache

#ifdef MX_ENGINE
const char *mx_variant(void) { return MX_ENGINE; }
#else
const char *mx_variant(void) { return MX_VARIANT; }
#endif
void mx_use_team(void *start) { atomic_store(&team, (start_team *)start); }
int64_t mx_call_bytes(void) { return sizeof(struct mx_call); }

// Tiles of A hold sixteen rows at least: where these are too long, rows.
static int64_t method_of(const struct mx_call *c) {
    int64_t tile = TILE_ROWS * c->k * (int64_t)sizeof(tile_element);
    return c->method == MX_TILES && tile > 2 * A_BYTES ? MX_ROWS : c->method;
}

static int is_float(const struct mx_call *c) { return c->a_format != MX_E2M1; }
static int64_t groups_of(const struct mx_call *c) { return (c->k / BLOCK + GROUP - 1) / GROUP; }

static int64_t block_offsets_of(const struct mx_call *c) { return method_of(c) == MX_ROWS ? LANE_OFFSETS : 1; }
static int64_t quantized_row_bytes(const struct mx_call *c) {
    return a_row_bytes(groups_of(c), is_float(c), block_offsets_of(c));
}

// Rows of A that are quantised at a time: all of them, or what A_BYTES hold.
static int64_t rows_at_a_time(const struct mx_call *c) {
    int tiles = method_of(c) == MX_TILES;
    int64_t row = tiles ? c->k * (int64_t)sizeof(tile_element) : quantized_row_bytes(c);
    int64_t step = tiles ? TILE_M : 4 * PANEL_M;
    return smaller(c->m, larger(A_BYTES / row / step * step, step));
}

static int64_t a_bytes(const struct mx_call *c) {
    int64_t rows = rows_at_a_time(c);
    if (method_of(c) == MX_TILES) return tiled_a_bytes(c, rows);
    return round_up(rows * quantized_row_bytes(c), 64);
}

// Threads that are worth waking: each has at least LEAST_WORK multiplications.
static int64_t useful_threads(const struct mx_call *c) {
    double work = (double)c->m * (double)c->n * (double)c->k / LEAST_WORK;
    int64_t most = smaller(c->threads, MAX_THREADS);
    return work < (double)most ? larger(1, (int64_t)work) : most;
}

static int64_t thread_bytes(const struct mx_call *c) {
    int64_t rows = rows_at_a_time(c);
    int64_t bytes = method_of(c) == MX_ROWS     ? rows_scratch(c)
                    : method_of(c) == MX_PANELS ? panel_scratch(c, rows)
                                                : tiles_scratch(c, rows, useful_threads(c));
    return round_up(bytes, 64) + APART;
}

int64_t mx_scratch_bytes(const struct mx_call *c) { return a_bytes(c) + useful_threads(c) * thread_bytes(c); }

struct job {
    const struct mx_call *call;
    struct activations a;
    struct tiles t;
    struct tile_plan plan;
    int64_t rows;  // of A, in `a` or `t`
    int64_t parts;  // that these are cut into, for the panels
    uint8_t *scratch;
    int64_t thread_bytes;
};

static void quantize_task(void *context, int64_t index, int64_t thread) {
    const struct job *j = context;
    (void)thread;
    if (method_of(j->call) == MX_TILES)
        pack_row(j->call, &j->t, index, j->rows);
    else
        (is_float(j->call) ? values_of_row : codes_of_row)(j->call, &j->a, j->a.first + index);
}

static void multiply_task(void *context, int64_t index, int64_t thread) {
    const struct job *j = context;
    const struct mx_call *c = j->call;
    uint8_t *scratch = j->scratch + thread * j->thread_bytes;
    if (method_of(c) == MX_ROWS) {
        int64_t n = index * TASK_ROWS;
        rows_task(c, &j->a, j->rows, n, smaller(n + TASK_ROWS, c->n), scratch, is_float(c));
        return;
    }
    int64_t step = method_of(c) == MX_TILES ? j->plan.rows : round_up((j->rows + j->parts - 1) / j->parts, PANEL_M);
    int64_t part = index % j->parts, m0 = smaller(part * step, j->rows), m1 = smaller(m0 + step, j->rows);
    if (m0 == m1) return;
    if (method_of(c) == MX_PANELS)
        panels_task(c, &j->a, m0, m1, index / j->parts * PANEL_N, scratch);
    else
        tiles_task(c, &j->t, &j->plan, index / j->parts, m0, m1, scratch);
}

#if defined(__x86_64__)
// Rounding to nearest, subnormals kept, whatever the calling thread is set to.
typedef unsigned float_state;
static float_state plain_arithmetic(void) {
    float_state before = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return before;
}
static void restore_arithmetic(float_state before) { _mm_setcsr(before); }
#else
typedef uint64_t float_state;
static float_state plain_arithmetic(void) {
    float_state before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((float_state)0));
    return before;
}
static void restore_arithmetic(float_state before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#endif

static void with_plain_arithmetic(mx_task *task, void *context, int64_t index, int64_t thread) {
    float_state before = plain_arithmetic();
    task(context, index, thread);
    restore_arithmetic(before);
}

static void quantize_plainly(void *context, int64_t index, int64_t thread) {
    with_plain_arithmetic(quantize_task, context, index, thread);
}

static void multiply_plainly(void *context, int64_t index, int64_t thread) {
    with_plain_arithmetic(multiply_task, context, index, thread);
}

// Tasks of columns, and the parts that rows of A are cut into for each.
static int64_t share_out(struct job *j, int64_t threads) {
    const struct mx_call *c = j->call;
    j->parts = 1;
    if (method_of(c) == MX_ROWS) return (c->n + TASK_ROWS - 1) / TASK_ROWS;
    if (method_of(c) == MX_TILES) {
        j->parts = j->plan.down;
        return j->plan.across;
    }
    int64_t panels = (c->n + PANEL_N - 1) / PANEL_N;  // decoded once a part: parts are for threads without a panel
    if (panels < 4 * threads && threads > 1) j->parts = larger(1, smaller(4 * threads / panels, j->rows / 48));
    return panels;
}

void mx_gemm(const struct mx_call *c) {
    int64_t rows = rows_at_a_time(c), groups = groups_of(c), threads = useful_threads(c);
    struct job j = {.call = c, .scratch = c->scratch + a_bytes(c), .thread_bytes = thread_bytes(c)};
    j.a.groups = groups;
    j.a.block_offsets = block_offsets_of(c);
    if (method_of(c) == MX_TILES) {
        j.t = tiles_in(c, rows, c->scratch);
        j.plan = tile_plan_of(c, rows, threads);
    } else if (is_float(c)) {
        j.a.values = (float_element *)c->scratch;
        j.a.scales = (float *)(j.a.values + rows * groups * GROUP * BLOCK);
    } else {
        j.a.codes = (int8_t *)c->scratch;
        j.a.offsets = (int32_t *)(j.a.codes + rows * groups * GROUP * BLOCK);
        j.a.scales = (float *)(j.a.offsets + rows * groups * GROUP * j.a.block_offsets);
    }
    for (int64_t first = 0; first < c->m; first += rows) {
        j.a.first = j.t.first = first;
        j.rows = smaller(rows, c->m - first);
        pool_run(quantize_plainly, &j, j.rows, j.rows * c->k < LEAST_WORK / 16 ? 1 : threads);
        int64_t tasks = share_out(&j, threads);
        pool_run(multiply_plainly, &j, tasks * j.parts, threads);
    }
}

static int64_t decoding_bytes(const struct mx_call *c) { return round_up(c->k / 2, 64) + APART; }

static void decode_plainly(void *context, int64_t index, int64_t thread) {
    const struct mx_call *c = context;
    float_state before = plain_arithmetic();
    decode_row(c, index, c->scratch + thread * decoding_bytes(c));
    restore_arithmetic(before);
}

static void round_plainly(void *context, int64_t index, int64_t thread) {
    (void)thread;
    float_state before = plain_arithmetic();
    round_row(context, index);
    restore_arithmetic(before);
}

static void encode_plainly(void *context, int64_t index, int64_t thread) {
    (void)thread;
    float_state before = plain_arithmetic();
    encode_row(context, index);
    restore_arithmetic(before);
}

static int64_t row_threads(const struct mx_call *c, int64_t rows) {
    double work = (double)rows * (double)c->k / (LEAST_WORK / 16);
    int64_t most = smaller(c->threads, MAX_THREADS);
    return work < (double)most ? larger(1, (int64_t)work) : most;
}

// B as values, see decode_row; scratch only where rows do not lie in a row.
int64_t mx_decode_scratch_bytes(const struct mx_call *c) {
    return is_plain(c) ? 0 : row_threads(c, c->n) * decoding_bytes(c);
}
void mx_decode(const struct mx_call *c) { pool_run(decode_plainly, (void *)c, c->n, row_threads(c, c->n)); }

// A as values of its format, see round_row.
void mx_round(const struct mx_call *c) { pool_run(round_plainly, (void *)c, c->m, row_threads(c, c->m)); }

// A as bytes and scales, see encode_row.
void mx_encode(const struct mx_call *c) { pool_run(encode_plainly, (void *)c, c->m, row_threads(c, c->m)); }

static void swiglu_plainly(void *context, int64_t index, int64_t thread) {
    (void)thread;
    float_state before = plain_arithmetic();
    swiglu_row(context, index);
    restore_arithmetic(before);
}

// The activation of gated experts, see swiglu_row.
void mx_swiglu(const struct mx_swiglu *c) {
    int64_t threads = c->rows * c->columns < LEAST_WORK / 16 ? 1 : smaller(c->threads, MAX_THREADS);
    pool_run(swiglu_plainly, (void *)c, c->rows, threads);
}
