/* One problem a call: on the device, or copied there and back. kernel.h has the function's name and parameters. */

static int prepare(const struct problem *p, struct launch *l)
{
    const uint64_t values[VALUES] = {
        [VALUE_A] = (uintptr_t)p->at[OPERAND_A],
        [VALUE_B] = (uintptr_t)p->at[OPERAND_B],
        [VALUE_A_SCALES] = (uintptr_t)p->at[OPERAND_A_SCALES],
        [VALUE_B_SCALES] = (uintptr_t)p->at[OPERAND_B_SCALES],
        [VALUE_OUT] = (uintptr_t)p->at[OPERAND_C],
        [VALUE_M] = (uint64_t)p->m,
        [VALUE_N] = (uint64_t)p->n,
        [VALUE_K_BLOCKS] = (uint64_t)(p->k / K_BLOCK),
    };
    int64_t tiles = tiles_of(p);
    int64_t programs = PROGRAMS && tiles > PROGRAMS ? PROGRAMS : tiles;

    if (check_alignment(p) != DONE)
        return UNSUPPORTED;
    l->variant = fitting(is_even(p), is_small(p));
    if (!l->variant || tiles > INT32_MAX || programs * l->variant->threads > MOST_THREADS)
        return fail(UNSUPPORTED, "%s: M, N: got %lld, %lld: more tiles than a launch can have", KERNEL_NAME,
                    (long long)p->m, (long long)p->n);
    l->programs = (unsigned)programs;
    pack(l, values);
    return DONE;
}

static int check(const struct problem *p)
{
    int result = check_ready();

    if (result == DONE)
        result = check_operands(p);
    if (result == DONE)
        result = check_sizes(p);
    return result == DONE ? check_device() : result;
}

static int run_device_locked(const struct problem *p, void *stream, float *time_ms)
{
    struct launch l;
    int result = check(p);

    if (result == DONE)
        result = prepare(p, &l);
    if (result != DONE)
        return result;
    return time_ms ? run_timed(&l, stream, time_ms) : launch(&l, stream);
}

static int run_device(const struct problem *p, void *stream, float *time_ms)
{
    int result;
    pthread_mutex_lock(&lock);
    result = run_device_locked(p, stream, time_ms);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- operands on the host ---- */

static int upload(const struct problem *host, struct problem *device)
{
    for (int i = 0; i < OPERANDS; i++) {
        size_t bytes = bytes_of(host, i);
        int error = bytes ? hip.malloc_device(&device->at[i], bytes) : HIP_SUCCESS;
        if (error != HIP_SUCCESS) {
            device->at[i] = NULL;
            return fail(FAILED, "%s: hipMalloc of %zu bytes for %s: HIP error %d (%s)", KERNEL_NAME, bytes,
                        operand_names[i], error, hip.error_string(error));
        }
        if (bytes && i != OPERAND_C)
            HIP("hipMemcpy to the device", hip.copy(device->at[i], host->at[i], bytes, HIP_TO_DEVICE));
    }
    return DONE;
}

static int run_on_copies(const struct problem *host, struct problem *device, float *time_ms)
{
    int result = upload(host, device);

    if (result == DONE)
        result = run_device_locked(device, NULL, time_ms);
    if (result != DONE)
        return result;
    HIP("hipStreamSynchronize", hip.stream_synchronize(NULL));
    HIP("hipMemcpy to the host",
        hip.copy(host->at[OPERAND_C], device->at[OPERAND_C], bytes_of(host, OPERAND_C), HIP_TO_HOST));
    return DONE;
}

static int run_host_locked(const struct problem *p, float *time_ms)
{
    struct problem device = *p;
    int result = check(p);

    if (result != DONE)
        return result;
    memset(device.at, 0, sizeof device.at);
    result = run_on_copies(p, &device, time_ms);
    for (int i = 0; i < OPERANDS; i++) {
        int error = device.at[i] ? hip.free_device(device.at[i]) : HIP_SUCCESS;
        if (error != HIP_SUCCESS && result == DONE)
            result = hip_failed("hipFree", error);
    }
    return result;
}

static int run_host(const struct problem *p, float *time_ms)
{
    int result;
    pthread_mutex_lock(&lock);
    result = run_host_locked(p, time_ms);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- the entry points ---- */

#define DEFINE(name, name_device)                                                                                      \
    EXPORT int name(PARAMETERS, float *time_ms)                                                                        \
    {                                                                                                                  \
        struct problem p = {0};                                                                                        \
        ASSIGN(p)                                                                                                      \
        return run_host(&p, time_ms);                                                                                  \
    }                                                                                                                  \
    EXPORT int name_device(PARAMETERS, void *stream, float *time_ms)                                                   \
    {                                                                                                                  \
        struct problem p = {0};                                                                                        \
        ASSIGN(p)                                                                                                      \
        return run_device(&p, stream, time_ms);                                                                        \
    }

ENTRY_POINTS(DEFINE)
