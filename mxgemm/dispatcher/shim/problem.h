/* What a problem is, what is wrong with one, and which of the kernel's variants it takes. */

enum operand { OPERAND_A, OPERAND_B, OPERAND_A_SCALES, OPERAND_B_SCALES, OPERAND_C, OPERANDS };
static const char *const operand_names[OPERANDS] = {"A", "B", "the scales of A", "the scales of B", "C"};

struct problem {
    void *at[OPERANDS];
    int64_t m, n, k, k_batch;
    int64_t stated[EXTENTS + 1]; /* strides and counts that the caller states, in the order of extents[] */
};

static int64_t ceil_div(int64_t size, int64_t by) { return (size + by - 1) / by; }

static int64_t up(int64_t size, int64_t tile) { return ceil_div(size, tile) * tile; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Bytes of an operand; 0 where the kernel has no such. Groups of 0 rows or elements of K are all of them. */
static size_t bytes_of(const struct problem *p, enum operand which)
{
    static const int bits[] = {[OPERAND_A] = A_BITS, [OPERAND_B] = B_BITS};
    static const int64_t scales[][3] = {[OPERAND_A_SCALES] = {A_SCALE_BYTES, A_SCALE_ROWS, A_SCALE_K},
                                        [OPERAND_B_SCALES] = {B_SCALE_BYTES, B_SCALE_ROWS, B_SCALE_K}};
    int64_t rows = which == OPERAND_B || which == OPERAND_B_SCALES ? p->n : p->m;

    if (which == OPERAND_C)
        return 2 * (size_t)p->m * (size_t)p->n;
    if (which == OPERAND_A || which == OPERAND_B)
        return (size_t)rows * (size_t)p->k / 8 * (size_t)bits[which]; /* K is a multiple of 32 */
    return (size_t)(scales[which][0] * (scales[which][1] ? ceil_div(rows, scales[which][1]) : 1) *
                    (scales[which][2] ? ceil_div(p->k, scales[which][2]) : 1));
}

static int64_t extent_of(const struct problem *p, const struct extent *e)
{
    const int64_t sizes[] = {[SIZE_ONE] = 1, [SIZE_M] = p->m, [SIZE_N] = p->n, [SIZE_K] = p->k};

    return ceil_div(sizes[e->size], e->per);
}

static int check_operands(const struct problem *p)
{
    for (int i = 0; i < OPERANDS; i++)
        if (!p->at[i] && (i != OPERAND_A_SCALES || A_SCALE_BYTES > 0) &&
            (i != OPERAND_B_SCALES || B_SCALE_BYTES > 0))
            return fail(FAILED, "%s: %s: got a null pointer", KERNEL_NAME, operand_names[i]);
    return DONE;
}

static int check_sizes(const struct problem *p)
{
    if (p->m < 1 || p->n < 1 || p->k < 1)
        return fail(FAILED, "%s: M, N, K: got %lld, %lld, %lld, want 1 or more of each", KERNEL_NAME, (long long)p->m,
                    (long long)p->n, (long long)p->k);
    if (p->k % K_BLOCK)
        return fail(K_BLOCKS_SHARE_SCALES ? FAILED : UNSUPPORTED, "%s: K: got %lld, want a multiple of %d", KERNEL_NAME,
                    (long long)p->k, K_BLOCK);
    if (A_COLUMN && A_BITS == 4 && p->m % 2)
        return fail(FAILED, "%s: M: got %lld, want an even number: two rows of A share a byte", KERNEL_NAME,
                    (long long)p->m);
    for (int i = 0; i < EXTENTS; i++) {
        int64_t want = extent_of(p, &extents[i]);
        if (p->stated[i] != want)
            return fail(extents[i].counts ? FAILED : UNSUPPORTED, "%s: %s: got %lld, want %lld", KERNEL_NAME,
                        extents[i].name, (long long)p->stated[i], (long long)want);
    }
    if (p->k_batch != 1)
        return fail(UNSUPPORTED, "%s: k_batch: got %lld, want 1", KERNEL_NAME, (long long)p->k_batch);
    if (p->k > MOST_K || p->m > INT32_MAX - TILE_M || p->n > INT32_MAX - TILE_N)
        return fail(UNSUPPORTED, "%s: M, N, K: got %lld, %lld, %lld, want K up to 2^30, M and N under 2^31 less a tile",
                    KERNEL_NAME, (long long)p->m, (long long)p->n, (long long)p->k);
    return DONE;
}

static int check_device(void)
{
    int device = -1;

    HIP("hipGetDevice", hip.get_device(&device));
    if (device != state.device)
        return fail(FAILED, "%s: the current device is %d, but the kernel was loaded on %d by dispatcher_initialize",
                    KERNEL_NAME, device, state.device);
    return DONE;
}

static int check_ready(void)
{
    if (!state.ready)
        return fail(FAILED, "%s: not initialised: call dispatcher_initialize first", KERNEL_NAME);
    return DONE;
}

/* The kernels were compiled for addresses like those of hipMalloc. */
static int check_alignment(const struct problem *p)
{
    for (int i = 0; i < OPERANDS; i++)
        if ((uintptr_t)p->at[i] % ALIGNMENT)
            return fail(UNSUPPORTED, "%s: %s: got an address off a multiple of %d bytes", KERNEL_NAME, operand_names[i],
                        ALIGNMENT);
    return DONE;
}

static int64_t tiles_of(const struct problem *p) { return ceil_div(p->m, TILE_M) * ceil_div(p->n, TILE_N); }

static int is_even(const struct problem *p)
{
    return p->n % TILE_N == 0 && p->k % TILE_K == 0 && (!A_COLUMN || p->m % TILE_M == 0);
}

static int is_small(const struct problem *p)
{
    int64_t k = up(p->k, TILE_K) / 8;
    int64_t operand = most(up(p->m, TILE_M) * k * A_BITS, up(p->n, TILE_N) * k * B_BITS);
    int64_t result = 2 * up(p->m, TILE_M) * up(p->n, TILE_N);

    return operand < SMALL_BYTES && result < SMALL_BYTES;
}

/* Returns the first variant that takes such sizes, or NULL. */
static const struct variant *fitting(int even, int small)
{
    for (int i = 0; i < VARIANTS; i++)
        if ((even || !variants[i].even) && (small || variants[i].wide))
            return &variants[i];
    return NULL;
}
