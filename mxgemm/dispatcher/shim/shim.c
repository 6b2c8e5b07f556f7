/* One kernel as a library: the C functions of the CK bridge around a code object that was compiled ahead of time.

   kernel.h is generated with the code object: its name, architecture, operation, tile, variants and argument tables.
   docs/dispatcher.md has the contract of every function exported here. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>

#include "kernel.h"

#include "hip_runtime.h"

#define EXPORT __attribute__((visibility("default")))
enum { DONE = 0, FAILED = -1, UNSUPPORTED = -2, K_BLOCK = 32, ALIGNMENT = 16 };

/* 32-bit offsets reach this far; the masked rows of a last tile count too. */
static const int64_t SMALL_BYTES = (int64_t)1 << 31;
static const int64_t MOST_K = (int64_t)1 << 30;
static const int64_t MOST_THREADS = ((int64_t)1 << 32) - 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int ready, device;
    void *modules[VARIANTS], *functions[VARIANTS];
} state;
static _Thread_local char last_error[2048];

static const char *const operand_names[VALUES] = {
    [VALUE_A] = "A",
    [VALUE_B] = "B",
    [VALUE_A_SCALES] = "the scales of A",
    [VALUE_B_SCALES] = "the scales of B",
    [VALUE_OUT] = "C",
};

struct problem {
    const void *a, *b, *a_scales, *b_scales;
    void *out;
    int64_t m, n, k, k_batch, stride_a, stride_b, stride_c;
};

struct launch {
    const struct variant *variant;
    void *function;
    unsigned programs;
    unsigned char kernarg[KERNARG_BYTES];
    size_t kernarg_size;
};

__attribute__((format(printf, 2, 3))) static int fail(int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(last_error, sizeof last_error, format, values);
    va_end(values);
    return code;
}

static int hip_failed(const char *what, int error)
{
    return fail(FAILED, "%s: %s: HIP error %d (%s)", KERNEL_NAME, what, error, hip.error_string(error));
}

#define HIP(what, call)                                                                                                \
    do {                                                                                                               \
        int hip_error = (call);                                                                                        \
        if (hip_error != HIP_SUCCESS)                                                                                  \
            return hip_failed(what, hip_error);                                                                        \
    } while (0)

/* ---- what the library is ---- */

EXPORT const char *dispatcher_get_kernel_name(void) { return KERNEL_NAME; }
EXPORT int dispatcher_get_kernel_count(void) { return 1; }
EXPORT const char *dispatcher_get_arch(void) { return KERNEL_ARCH; }
EXPORT const char *dispatcher_get_source(void) { return "native"; }
EXPORT const char *dispatcher_last_error(void) { return last_error; }

/* ---- loading ---- */

static void unload(void)
{
    for (int i = 0; i < VARIANTS; i++) {
        if (state.modules[i])
            hip.module_unload(state.modules[i]); /* of no consequence: the process's end frees it too */
        state.modules[i] = state.functions[i] = NULL;
    }
    state.ready = 0;
    hip.library = NULL; /* opened anew next time; never closed, as a HIP runtime does not survive that */
}

static int load_modules(void)
{
    for (int i = 0; i < VARIANTS; i++) {
        HIP("hipModuleLoadData", hip.module_load_data(&state.modules[i], variants[i].code));
        HIP("hipModuleGetFunction",
            hip.module_get_function(&state.functions[i], state.modules[i], variants[i].kernel));
    }
    return DONE;
}

static int initialize(void)
{
    char arch[64], text[HIP_REASONS_BYTES + 256];
    int devices = 0;
    const char *missing = hip_open(text, sizeof text);

    if (missing)
        return fail(FAILED, "%s: %s", KERNEL_NAME, missing);
    HIP("hipInit (is there an AMD GPU?)", hip.init(0));
    HIP("hipGetDeviceCount (is there an AMD GPU?)", hip.get_device_count(&devices));
    if (devices < 1)
        return fail(FAILED, "%s: no AMD device: the HIP runtime sees none", KERNEL_NAME);
    HIP("hipGetDevice", hip.get_device(&state.device));
    HIP("hipGetDeviceProperties", device_arch(state.device, arch, sizeof arch));
    if (strcmp(arch, KERNEL_ARCH) != 0)
        return fail(FAILED, "%s: compiled for %s, but device %d is %s; build it with gfx_arch='%s'", KERNEL_NAME,
                    KERNEL_ARCH, state.device, *arch ? arch : "of no named architecture", *arch ? arch : "...");
    if (load_modules() != DONE) {
        unload();
        return FAILED;
    }
    state.ready = 1;
    return DONE;
}

EXPORT int dispatcher_initialize(void)
{
    int result;
    pthread_mutex_lock(&lock);
    result = state.ready ? DONE : initialize();
    if (result != DONE)
        hip.library = NULL; /* the next attempt looks for the runtime anew: it may be another one by then */
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT int dispatcher_init(void) { return dispatcher_initialize(); }

EXPORT void dispatcher_cleanup(void)
{
    pthread_mutex_lock(&lock);
    if (state.ready)
        unload();
    pthread_mutex_unlock(&lock);
}

/* ---- from a problem to a launch ---- */

static int64_t up(int64_t size, int64_t tile) { return (size + tile - 1) / tile * tile; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int check(const struct problem *p)
{
    int device = -1;

    if (!state.ready)
        return fail(FAILED, "%s: not initialised: call dispatcher_initialize first", KERNEL_NAME);
    if (!p->a || !p->b || !p->a_scales || !p->b_scales || !p->out)
        return fail(FAILED, "%s: %s: got a null pointer", KERNEL_NAME,
                    operand_names[!p->a          ? VALUE_A
                                  : !p->b        ? VALUE_B
                                  : !p->a_scales ? VALUE_A_SCALES
                                  : !p->b_scales ? VALUE_B_SCALES
                                                 : VALUE_OUT]);
    if (p->m < 1 || p->n < 1 || p->k < 1)
        return fail(FAILED, "%s: M, N, K: got %lld, %lld, %lld, want 1 or more of each", KERNEL_NAME, (long long)p->m,
                    (long long)p->n, (long long)p->k);
    if (p->k % K_BLOCK)
        return fail(SCALE_BYTES == 1 ? FAILED : UNSUPPORTED, "%s: K: got %lld, want a multiple of %d", KERNEL_NAME,
                    (long long)p->k, K_BLOCK);
    if (p->k_batch != 1)
        return fail(UNSUPPORTED, "%s: k_batch: got %lld, want 1", KERNEL_NAME, (long long)p->k_batch);
    if (p->stride_a != p->k || p->stride_b != p->k || p->stride_c != p->n)
        return fail(UNSUPPORTED, "%s: strides of A, B, C: got %lld, %lld, %lld, want %lld, %lld, %lld", KERNEL_NAME,
                    (long long)p->stride_a, (long long)p->stride_b, (long long)p->stride_c, (long long)p->k,
                    (long long)p->k, (long long)p->n);
    if (p->k > MOST_K || p->m > INT32_MAX - TILE_M || p->n > INT32_MAX - TILE_N)
        return fail(UNSUPPORTED, "%s: M, N, K: got %lld, %lld, %lld, want K up to 2^30, M and N under 2^31 less a tile",
                    KERNEL_NAME, (long long)p->m, (long long)p->n, (long long)p->k);
    HIP("hipGetDevice", hip.get_device(&device));
    if (device != state.device)
        return fail(FAILED, "%s: the current device is %d, but the kernel was loaded on %d by dispatcher_initialize",
                    KERNEL_NAME, device, state.device);
    return DONE;
}

static const struct variant *fitting(const struct problem *p)
{
    int64_t rows = most(up(p->m, TILE_M), up(p->n, TILE_N));
    int64_t operand = rows * up(p->k, TILE_K) / ELEMENTS_PER_BYTE;
    int64_t result = 2 * up(p->m, TILE_M) * up(p->n, TILE_N);
    int even = p->n % TILE_N == 0 && p->k % TILE_K == 0;
    int small = operand < SMALL_BYTES && result < SMALL_BYTES;

    for (int i = 0; i < VARIANTS; i++)
        if ((even || !variants[i].even) && (small || variants[i].wide))
            return &variants[i];
    return NULL;
}

static int prepare(const struct problem *p, struct launch *l)
{
    const uint64_t values[VALUES] = {
        [VALUE_A] = (uintptr_t)p->a,
        [VALUE_B] = (uintptr_t)p->b,
        [VALUE_A_SCALES] = (uintptr_t)p->a_scales,
        [VALUE_B_SCALES] = (uintptr_t)p->b_scales,
        [VALUE_OUT] = (uintptr_t)p->out,
        [VALUE_M] = (uint64_t)p->m,
        [VALUE_N] = (uint64_t)p->n,
        [VALUE_K_BLOCKS] = (uint64_t)(p->k / K_BLOCK),
    };
    int64_t tiles = up(p->m, TILE_M) / TILE_M * (up(p->n, TILE_N) / TILE_N);
    int64_t programs = PROGRAMS && tiles > PROGRAMS ? PROGRAMS : tiles;

    for (int i = VALUE_A; i <= VALUE_OUT; i++) /* the kernel was compiled for addresses like those of hipMalloc */
        if (values[i] % ALIGNMENT)
            return fail(UNSUPPORTED, "%s: %s: got an address off a multiple of %d bytes", KERNEL_NAME, operand_names[i],
                        ALIGNMENT);
    l->variant = fitting(p);
    if (!l->variant || tiles > INT32_MAX || programs * l->variant->threads > MOST_THREADS)
        return fail(UNSUPPORTED, "%s: M, N: got %lld, %lld: more tiles than a launch can have", KERNEL_NAME,
                    (long long)p->m, (long long)p->n);
    l->function = state.functions[l->variant - variants];
    l->programs = (unsigned)programs;
    l->kernarg_size = l->variant->kernarg_size;
    memset(l->kernarg, 0, sizeof l->kernarg);
    for (unsigned i = 0; i < l->variant->arguments; i++) /* both sides are little-endian */
        memcpy(l->kernarg + l->variant->table[i].offset, &values[l->variant->table[i].value], l->variant->table[i].size);
    return DONE;
}

static int launch(struct launch *l, void *stream)
{
    void *extra[] = {LAUNCH_BUFFER, l->kernarg, LAUNCH_BUFFER_SIZE, &l->kernarg_size, LAUNCH_END};

    HIP("hipModuleLaunchKernel",
        hip.module_launch_kernel(l->function, l->programs, 1, 1, l->variant->threads, 1, 1, l->variant->lds, stream,
                                 NULL, extra));
    return DONE;
}

/* ---- running and timing ---- */

static int times(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    char *end;
    long value = text ? strtol(text, &end, 10) : otherwise;

    return text && (end == text || *end || value < 0 || value > 1000000) ? otherwise : (int)value;
}

static int timed_between(struct launch *l, void *stream, float *time_ms, void *start, void *stop)
{
    int warmup = times("CK_TILE_BENCH_WARMUP", 20), repeat = times("CK_TILE_BENCH_REPEAT", 50);

    repeat = repeat < 1 ? 1 : repeat;
    for (int i = 0; i < warmup; i++)
        if (launch(l, stream) != DONE)
            return FAILED;
    HIP("hipEventRecord", hip.event_record(start, stream));
    for (int i = 0; i < repeat; i++)
        if (launch(l, stream) != DONE)
            return FAILED;
    HIP("hipEventRecord", hip.event_record(stop, stream));
    HIP("hipEventSynchronize", hip.event_synchronize(stop));
    HIP("hipEventElapsedTime", hip.event_elapsed(time_ms, start, stop));
    *time_ms /= (float)repeat;
    return DONE;
}

static int run_timed(struct launch *l, void *stream, float *time_ms)
{
    void *start = NULL, *stop = NULL;
    int result;

    HIP("hipEventCreate", hip.event_create(&start));
    result = hip.event_create(&stop);
    if (result != HIP_SUCCESS) {
        hip.event_destroy(start);
        return hip_failed("hipEventCreate", result);
    }
    result = timed_between(l, stream, time_ms, start, stop);
    hip.event_destroy(start);
    hip.event_destroy(stop);
    return result;
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

enum { BUFFERS = 5 };
struct buffer {
    const char *name;
    const void *host;
    void *device;
    size_t bytes;
};

static int upload(struct buffer *buffers)
{
    for (int i = 0; i < BUFFERS; i++) {
        int error = hip.malloc_device(&buffers[i].device, buffers[i].bytes);
        if (error != HIP_SUCCESS) {
            buffers[i].device = NULL;
            return fail(FAILED, "%s: hipMalloc of %zu bytes for %s: HIP error %d (%s)", KERNEL_NAME, buffers[i].bytes,
                        buffers[i].name, error, hip.error_string(error));
        }
        if (buffers[i].host)
            HIP("hipMemcpy to the device", hip.copy(buffers[i].device, buffers[i].host, buffers[i].bytes, HIP_TO_DEVICE));
    }
    return DONE;
}

static int run_on_copies(const struct problem *p, struct buffer *buffers, float *time_ms)
{
    struct problem on_device = *p;
    int result = upload(buffers);

    if (result != DONE)
        return result;
    on_device.a = buffers[0].device;
    on_device.b = buffers[1].device;
    on_device.a_scales = buffers[2].device;
    on_device.b_scales = buffers[3].device;
    on_device.out = buffers[4].device;
    result = run_device_locked(&on_device, NULL, time_ms);
    if (result != DONE)
        return result;
    HIP("hipStreamSynchronize", hip.stream_synchronize(NULL));
    HIP("hipMemcpy to the host", hip.copy(p->out, buffers[4].device, buffers[4].bytes, HIP_TO_HOST));
    return DONE;
}

static int run_host_locked(const struct problem *p, float *time_ms)
{
    size_t blocks = SCALE_BYTES == 1 ? (size_t)(p->k / K_BLOCK) : 1;
    size_t scales_a = (ONE_SCALE ? 1 : (size_t)p->m * blocks) * SCALE_BYTES;
    size_t scales_b = (ONE_SCALE ? 1 : (size_t)p->n * blocks) * SCALE_BYTES;
    struct buffer buffers[BUFFERS] = {
        {operand_names[VALUE_A], p->a, NULL, (size_t)p->m * (size_t)p->k / ELEMENTS_PER_BYTE},
        {operand_names[VALUE_B], p->b, NULL, (size_t)p->n * (size_t)p->k / ELEMENTS_PER_BYTE},
        {operand_names[VALUE_A_SCALES], p->a_scales, NULL, scales_a},
        {operand_names[VALUE_B_SCALES], p->b_scales, NULL, scales_b},
        {operand_names[VALUE_OUT], NULL, NULL, 2 * (size_t)p->m * (size_t)p->n},
    };
    int result = check(p);

    if (result != DONE)
        return result;
    result = run_on_copies(p, buffers, time_ms);
    for (int i = 0; i < BUFFERS; i++) {
        int error = buffers[i].device ? hip.free_device(buffers[i].device) : HIP_SUCCESS;
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

#include "operations.h"
