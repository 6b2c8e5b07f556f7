// Every method and format of a variant against sums in double, in memory that ends where it ends: for sanitizers, and
// for CPUs that are emulated. Prints nothing and ends with 0, or says what is wrong.
#include "gemm.c"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#if defined(__AMX_BF16__) && !defined(MX_EMULATED_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t state = 1;

static uint32_t drawn(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static const double E2M1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

static double scale_in_double(uint8_t byte) { return byte == 255 ? NAN : ldexp(1.0, byte - 127); }

// A result and the size of its summands.
static double product(const struct mx_call *c, const float *a, int64_t m, int64_t n, double *size) {
    double sum = 0;
    *size = 0;
    double scale = 0;
    for (int64_t k = 0; k < c->k; k++) {
        if (k % BLOCK == 0) scale = scale_in_double(scale_at(&c->b_scales, n, k / BLOCK));
        uint8_t pair = c->b[n * c->b_row + k / 2 * c->b_column];
        double w = E2M1[k % 2 ? pair >> 4 : pair & 15] * scale;
        sum += a[m * c->k + k] * w;
        *size += fabs(a[m * c->k + k] * w);
    }
    return sum;
}

static int check(int64_t m, int64_t n, int64_t k, int64_t format, int64_t method, int64_t threads, int64_t gap) {
    int64_t a_row = k + gap, b_column = 1 + gap, out_column = 1 + gap;
    float *a = malloc((size_t)((m - 1) * a_row + k) * 4), *rounded = malloc((size_t)(m * k) * 4);
    uint16_t *halves = malloc((size_t)((m - 1) * a_row + k) * 2);
    uint8_t *b = malloc((size_t)(n * k / 2 * b_column)), *scales = malloc((size_t)(n * k / 32));
    float *out = malloc((size_t)((m * n - 1) * out_column + 1) * 4);
    for (int64_t i = 0; i < (m - 1) * a_row + k; i++) {
        halves[i] = to_bf16(ldexpf((float)drawn(2001) / 1000 - 1, (int)drawn(8) - 24));
        a[i] = from_bf16(halves[i]);
    }
    for (int64_t i = 0; i < n * k / 2 * b_column; i++) b[i] = (uint8_t)drawn(256);
    for (int64_t i = 0; i < n * k / 32; i++) scales[i] = drawn(50) ? (uint8_t)(118 + drawn(16)) : drawn(2) ? 255 : 250;
    struct mx_call c = {
        .m = m, .n = n, .k = k, .a = a, .a_row = a_row, .a_column = 1, .a_dtype = MX_FP32, .a_format = format,
        .addend = format == MX_E4M3 ? 0x80000 : 0x200000, .b = b, .b_row = k / 2 * b_column, .b_column = b_column,
        .b_scales = {scales, k / 32, 1, 0, 0}, .out = out, .out_row = n * out_column, .out_column = out_column,
        .out_dtype = MX_FP32, .method = method, .threads = threads,
    };
    if (gap) c.a = halves, c.a_dtype = MX_BF16;
    struct mx_call exact = c;
    exact.out = rounded;
    exact.out_row = k;
    mx_round(&exact);
    void *memory = malloc((size_t)mx_scratch_bytes(&c) + 64);
    c.scratch = (uint8_t *)round_up((int64_t)(intptr_t)memory, 64);
    mx_gemm(&c);
    int wrong = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double size, want = product(&c, rounded, i, j, &size), got = out[i * c.out_row + j * out_column];
            double room = ldexp(size, -24) * (32 + (double)k / 64) + ldexp(fabs(want), -23);
            if (isnan(want) ? isnan(got) : fabs(got - want) <= room) continue;
            if (!wrong++)
                printf("(%ld, %ld, %ld) format %ld method %ld threads %ld: out[%ld, %ld] is %g, want %g\n", (long)m,
                       (long)n, (long)k, (long)format, (long)method, (long)threads, (long)i, (long)j, got, want);
        }
    free(memory), free(out), free(scales), free(b), free(rounded), free(halves), free(a);
    return wrong;
}

static _Atomic int runs[300];

static void count_run(void *context, int64_t index, int64_t thread) {
    (void)context;
    (void)thread;
    atomic_fetch_add(&runs[index], 1);
}

// Threads that take what others leave: every task is run, and once.
static int check_tasks(int64_t tasks, int64_t threads) {
    int wrong = 0;
    for (int64_t i = 0; i < tasks; i++) atomic_store(&runs[i], 0);
    pool_run(count_run, NULL, tasks, threads);
    for (int64_t i = 0; i < tasks; i++) {
        int times = atomic_load(&runs[i]);
        if (times != 1 && !wrong++)
            printf("%ld tasks, %ld threads: task %ld is run %d times\n", (long)tasks, (long)threads, (long)i, times);
    }
    return wrong;
}

int main(void) {
#if defined(__AMX_BF16__) && !defined(MX_EMULATED_AMX)
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 2;  // see permit_matrix_unit() in mxgemm/cpu/abi.py
#endif
    static const int64_t sizes[][3] = {{1, 1, 32},     {3, 35, 96},    {6, 33, 160},  {10, 34, 2080},
                                       {13, 40, 2880}, {20, 33, 1056}, {26, 9, 8256}, {35, 67, 1056}};
    static const int64_t formats[] = {MX_E2M1, MX_E4M3, MX_BF16_ELEMENTS};
    int wrong = 0;
    for (int i = 0; i < 8; i++)
        for (int64_t threads = 1; threads <= 3; threads += 2)
            for (int64_t gap = 0; gap <= 1; gap++) {
                const int64_t *s = sizes[i];
                for (int f = 0; f < 3; f++)
                    for (int64_t method = MX_ROWS; method <= MX_TILES; method++)
                        if (method != MX_PANELS || formats[f] == MX_E2M1)
                            wrong += check(s[0], s[1], s[2], formats[f], method, threads, gap);
            }
    static const int64_t tasks[] = {1, 2, 3, 7, 64, 300};
    for (int i = 0; i < 6; i++)
        for (int64_t threads = 1; threads <= 9; threads++) wrong += check_tasks(tasks[i], threads);
    wrong += check(600, 3, 64, MX_E4M3, MX_TILES, 2, 0);  // more rows than a task has
    return wrong != 0;
}
