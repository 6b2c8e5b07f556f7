/* Several problems in one launch, each with its own operands and sizes: ours, CK's grouped kernels take one.

   The device gets a table with a row a problem that is not empty; several_gemm.py has its fields. */

struct dispatcher_problem {
    const void *A, *B, *AQ, *BQ; /* AQ, BQ: NULL where the kernel has no such scales */
    void *C;
    int64_t M, N, K; /* M or N of 0: an empty problem, whose operands are not looked at */
};

enum { FIELDS = 9 };
struct row {
    uint64_t at[OPERANDS];
    int64_t m, n, k_blocks, last_tile;
};
_Static_assert(sizeof(struct row) == FIELDS * 8, "the kernel reads nine words a problem");

static struct problem problem_of(const struct dispatcher_problem *given)
{
    return (struct problem){.at = {(void *)(uintptr_t)given->A, (void *)(uintptr_t)given->B, (void *)(uintptr_t)given->AQ,
                                   (void *)(uintptr_t)given->BQ, given->C},
                            .m = given->M,
                            .n = given->N,
                            .k = given->K,
                            .k_batch = 1};
}

static int is_empty(const struct dispatcher_problem *given) { return given->M == 0 || given->N == 0; }

/* Says which problem a text is about, which a check has just written. */
static int of_problem(int result, int index)
{
    char text[sizeof last_error];

    if (result != DONE) {
        snprintf(text, sizeof text, "problem %d: %.1900s", index, last_error);
        snprintf(last_error, sizeof last_error, "%s", text);
    }
    return result;
}

static int check_several(const struct dispatcher_problem *given, int count)
{
    int result = check_ready();

    if (result != DONE)
        return result;
    if (count < 0 || (count && !given))
        return fail(FAILED, "%s: problems: got %d at %p, want an array", KERNEL_NAME, count, (const void *)given);
    for (int i = 0; i < count; i++) {
        struct problem p = problem_of(&given[i]);
        if (is_empty(&given[i]))
            continue;
        result = check_operands(&p);
        if (result == DONE)
            result = check_sizes(&p);
        if (result != DONE)
            return of_problem(result, i);
    }
    return check_device();
}

/* Fills the rows of problems on the device, and what a launch needs to know of all; the number of rows, or a code. */
static int fill(const struct dispatcher_problem *given, int count, struct row *rows, int64_t *tiles, int *small)
{
    int filled = 0;

    *tiles = 0;
    *small = 1;
    for (int i = 0; i < count; i++) {
        struct problem p = problem_of(&given[i]);
        if (is_empty(&given[i]))
            continue;
        if (check_alignment(&p) != DONE)
            return of_problem(UNSUPPORTED, i);
        *small = *small && is_small(&p);
        *tiles += tiles_of(&p);
        if (*tiles > INT32_MAX)
            return fail(UNSUPPORTED, "%s: problems: got more tiles than a launch can have", KERNEL_NAME);
        for (int j = 0; j < OPERANDS; j++)
            rows[filled].at[j] = (uintptr_t)p.at[j];
        rows[filled].m = p.m;
        rows[filled].n = p.n;
        rows[filled].k_blocks = p.k / K_BLOCK;
        rows[filled++].last_tile = *tiles;
    }
    return filled;
}

static int launch_table(const struct row *rows, int count, int64_t tiles, int small, void *table, void *stream,
                        float *time_ms)
{
    const uint64_t values[VALUES] = {
        [VALUE_PROBLEMS] = (uintptr_t)table, [VALUE_COUNT] = (uint64_t)count, [VALUE_TILES] = (uint64_t)tiles};
    struct launch l = {.variant = fitting(0, small), .programs = (unsigned)tiles};
    int result;

    if (!l.variant || tiles * l.variant->threads > MOST_THREADS)
        return fail(UNSUPPORTED, "%s: problems: got more tiles than a launch can have", KERNEL_NAME);
    pack(&l, values);
    HIP("hipMemcpy to the device", hip.copy(table, rows, (size_t)count * sizeof *rows, HIP_TO_DEVICE));
    result = time_ms ? run_timed(&l, stream, time_ms) : launch(&l, stream);
    if (result == DONE)
        HIP("hipStreamSynchronize", hip.stream_synchronize(stream)); /* the table is freed next */
    return result;
}

static int run_rows(const struct row *rows, int count, int64_t tiles, int small, void *stream, float *time_ms)
{
    void *table = NULL;
    int result, error;

    HIP("hipMalloc of the table of problems", hip.malloc_device(&table, (size_t)count * sizeof *rows));
    result = launch_table(rows, count, tiles, small, table, stream, time_ms);
    error = hip.free_device(table);
    return error != HIP_SUCCESS && result == DONE ? hip_failed("hipFree", error) : result;
}

static int run_device_locked(const struct dispatcher_problem *given, int count, void *stream, float *time_ms)
{
    struct row *rows = malloc(sizeof *rows * (size_t)(count + 1));
    int64_t tiles;
    int small, filled;

    if (!rows)
        return fail(FAILED, "%s: problems: no memory for a table of %d", KERNEL_NAME, count);
    filled = fill(given, count, rows, &tiles, &small);
    if (filled > 0)
        filled = run_rows(rows, filled, tiles, small, stream, time_ms);
    else if (filled == 0 && time_ms)
        *time_ms = 0;
    free(rows);
    return filled;
}

/* ---- operands on the host ---- */

static int upload(const struct dispatcher_problem *given, int count, struct dispatcher_problem *device)
{
    for (int i = 0; i < count; i++) {
        struct problem p = problem_of(&given[i]);
        void *at[OPERANDS] = {NULL};
        int error = HIP_SUCCESS;

        for (int j = 0; j < OPERANDS && error == HIP_SUCCESS && !is_empty(&given[i]); j++) {
            size_t bytes = bytes_of(&p, j);
            if (bytes)
                error = hip.malloc_device(&at[j], bytes);
            if (error != HIP_SUCCESS)
                at[j] = NULL;
            else if (bytes && j != OPERAND_C)
                error = hip.copy(at[j], p.at[j], bytes, HIP_TO_DEVICE);
        }
        device[i] = (struct dispatcher_problem){at[OPERAND_A], at[OPERAND_B], at[OPERAND_A_SCALES], at[OPERAND_B_SCALES],
                                                at[OPERAND_C], given[i].M,    given[i].N,           given[i].K};
        if (error != HIP_SUCCESS)
            return of_problem(hip_failed("hipMalloc or hipMemcpy to the device", error), i);
    }
    return DONE;
}

static int download(const struct dispatcher_problem *given, int count, const struct dispatcher_problem *device)
{
    for (int i = 0; i < count; i++) {
        struct problem p = problem_of(&given[i]);
        if (!is_empty(&given[i]))
            HIP("hipMemcpy to the host", hip.copy(given[i].C, device[i].C, bytes_of(&p, OPERAND_C), HIP_TO_HOST));
    }
    return DONE;
}

static int release(int count, const struct dispatcher_problem *device, int result)
{
    for (int i = 0; i < count; i++) {
        struct problem p = problem_of(&device[i]);
        for (int j = 0; j < OPERANDS; j++) {
            int error = p.at[j] ? hip.free_device(p.at[j]) : HIP_SUCCESS;
            if (error != HIP_SUCCESS && result == DONE)
                result = hip_failed("hipFree", error);
        }
    }
    return result;
}

static int run_host_locked(const struct dispatcher_problem *given, int count, float *time_ms)
{
    struct dispatcher_problem *device = calloc((size_t)count + 1, sizeof *device);
    int result;

    if (!device)
        return fail(FAILED, "%s: problems: no memory for a table of %d", KERNEL_NAME, count);
    result = upload(given, count, device);
    if (result == DONE)
        result = run_device_locked(device, count, NULL, time_ms);
    if (result == DONE)
        result = download(given, count, device);
    result = release(count, device, result);
    free(device);
    return result;
}

/* ---- the entry points ---- */

EXPORT int dispatcher_run_several(const struct dispatcher_problem *problems, int count, float *time_ms)
{
    int result;
    pthread_mutex_lock(&lock);
    result = check_several(problems, count);
    if (result == DONE)
        result = run_host_locked(problems, count, time_ms);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT int dispatcher_run_several_device(const struct dispatcher_problem *problems, int count, void *stream,
                                         float *time_ms)
{
    int result;
    pthread_mutex_lock(&lock);
    result = check_several(problems, count);
    if (result == DONE)
        result = run_device_locked(problems, count, stream, time_ms);
    pthread_mutex_unlock(&lock);
    return result;
}
