/* One kernel as a library: the C functions of the CK bridge around a code object that was compiled ahead of time.

   kernel.h is generated with the code object: its name, architecture, types, scales, tile, variants, argument tables and
   C function. problem.h says what a problem may be; single.h or several.h has the functions that run one or several.
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

/* ---- launching ---- */

/* Packs what the kernel is launched with, in the order of enum value. */
static void pack(struct launch *l, const uint64_t *values)
{
    l->function = state.functions[l->variant - variants];
    l->kernarg_size = l->variant->kernarg_size;
    memset(l->kernarg, 0, sizeof l->kernarg);
    for (unsigned i = 0; i < l->variant->arguments; i++) /* both sides are little-endian */
        memcpy(l->kernarg + l->variant->table[i].offset, &values[l->variant->table[i].value], l->variant->table[i].size);
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

#include "problem.h"

#ifdef SEVERAL
#include "several.h"
#else
#include "single.h"
#endif
