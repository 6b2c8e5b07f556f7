/* The launches of a plan: kernels and products of a vendor's library with their arguments packed, and where in these the
   addresses of a call go. */

#ifndef MXGEMM_PROGRAM_H
#define MXGEMM_PROGRAM_H

#include "tensor.h"

enum { MAX_STEPS = 8, MAX_ARGUMENTS = 4096, MAX_PATCHES = 48, MAX_ATTRIBUTES = 4, MAX_SPARE = 8 };

/* What a call brings; as mxgemm.native.program numbers them. Those behind the counters are of who runs a program by its
   addresses. */
enum slot { SLOT_FIXED, SLOT_A, SLOT_BIAS, SLOT_OUT, SLOT_SCRATCH, SLOT_COUNTERS, SLOTS = 16 };

struct attribute { /* CUlaunchAttribute */
    int32_t id, padding;
    char value[64];
};

struct launch { /* CUlaunchConfig */
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    const struct attribute *attributes;
    uint32_t count;
};

struct place { /* an address of a call: slot's address + add */
    int32_t slot;
    int64_t add;
};

struct patch {
    uint32_t offset;
    struct place place;
};

struct kernel {
    void *function;
    uint32_t grid[3], block[3], shared_bytes, attribute_count, size, patch_count;
    struct attribute attributes[MAX_ATTRIBUTES];
    struct patch patches[MAX_PATCHES];
    char *arguments; /* of the program's own */
};

struct product { /* of cublasLt: d = a @ b, times scales if it has any, + bias, in the library's order of columns */
    void *handle, *a_layout, *b_layout, *d_layout;
    void *spare[MAX_SPARE]; /* descriptions of the product; a call writes its addresses into one of its own */
    int spare_count;
    struct place a, b, b_scale, bias, d, memory;
    int has_b_scale, has_bias;
    size_t memory_bytes;
    _Alignas(16) char algorithm[64]; /* cublasLtMatmulAlgo_t */
};

enum step_kind { STEP_KERNEL, STEP_PRODUCT };

struct step {
    enum step_kind kind;
    union {
        struct kernel kernel;
        struct product product;
    };
};

typedef struct {
    PyObject_HEAD
    PyObject *hooks;  /* ((holder, name, value), ...): must be as they were, and empty, or Python launches */
    PyObject *owners; /* of what the steps point to */
    Py_ssize_t scratch_bytes, counters;
    int count, room; /* of steps; `count` is 0 until all have been read */
    struct step *steps;
} Program;

static struct {
    int (*launch)(const struct launch *, void *, void **, void **); /* cuLaunchKernelEx; NULL on AMD */
    int (*launch_on_amd)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                         void **); /* hipModuleLaunchKernel; NULL on NVIDIA */
    int (*is_capturing)(void *, int *); /* StreamIsCapturing of either */
    int (*multiply)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                    void *, void *, void *, const void *, void *, size_t, void *); /* cublasLtMatmul */
    int (*describe)(void *, int, const void *, size_t); /* cublasLtMatmulDescSetAttribute */
} driver;

enum { BIAS_POINTER = 8, B_SCALE_POINTER = 18 }; /* cublasLtMatmulDescAttributes_t */

static uintptr_t at(struct place place, const uintptr_t *addresses) { return addresses[place.slot] + place.add; }

static int run_kernel(const struct kernel *kernel, const uintptr_t *addresses, void *stream)
{
    _Alignas(64) char arguments[MAX_ARGUMENTS];
    size_t size = kernel->size;
    memcpy(arguments, kernel->arguments, size);
    for (uint32_t i = 0; i < kernel->patch_count; i++) {
        uintptr_t address = at(kernel->patches[i].place, addresses);
        memcpy(arguments + kernel->patches[i].offset, &address, sizeof address);
    }
    const uint32_t *grid = kernel->grid, *block = kernel->block;
    /* LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END of CU_ and of HIP_, whose end is another */
    void *extra[] = {(void *)1, arguments, (void *)2, &size, driver.launch ? NULL : (void *)3};
    if (!driver.launch)
        return driver.launch_on_amd(kernel->function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                    kernel->shared_bytes, stream, NULL, extra);
    struct launch launch = {.shared_bytes = kernel->shared_bytes,
                            .stream = stream,
                            .attributes = kernel->attribute_count ? kernel->attributes : NULL,
                            .count = kernel->attribute_count};
    memcpy(launch.grid, grid, sizeof launch.grid);
    memcpy(launch.block, block, sizeof launch.block);
    return driver.launch(&launch, kernel->function, NULL, extra);
}

static int run_product(const struct product *product, void *description, const uintptr_t *addresses, void *stream)
{
    const float one = 1, zero = 0;
    int status = 0;
    if (product->has_b_scale) {
        uintptr_t scale = at(product->b_scale, addresses);
        status = driver.describe(description, B_SCALE_POINTER, &scale, sizeof scale);
    }
    if (!status && product->has_bias) {
        uintptr_t bias = at(product->bias, addresses);
        status = driver.describe(description, BIAS_POINTER, &bias, sizeof bias);
    }
    if (status)
        return status;
    void *d = (void *)at(product->d, addresses);
    return driver.multiply(product->handle, description, &one, (void *)at(product->a, addresses), product->a_layout,
                           (void *)at(product->b, addresses), product->b_layout, &zero, d, product->d_layout, d,
                           product->d_layout, product->algorithm,
                           product->memory_bytes ? (void *)at(product->memory, addresses) : NULL,
                           product->memory_bytes, stream);
}

static int run_step(const struct step *step, void *description, const uintptr_t *addresses, void *stream)
{
    return step->kind == STEP_KERNEL ? run_kernel(&step->kernel, addresses, stream)
                                     : run_product(&step->product, description, addresses, stream);
}

/* Launch everything, the interpreter's lock not held: a driver's queue that is full waits for the device, which may wait
   for a callback that wants the lock. 0, or that something was not launched. */
static int run(Program *program, const uintptr_t *addresses, void *stream)
{
    void *descriptions[MAX_STEPS] = {NULL};
    int status = 0;
    for (int i = 0; i < program->count; i++) {
        struct product *product = &program->steps[i].product;
        if (program->steps[i].kind == STEP_PRODUCT) {
            if (!product->spare_count) { /* more threads than descriptions */
                status = -1;
                break;
            }
            descriptions[i] = product->spare[--product->spare_count];
        }
    }
    if (!status) {
        Py_BEGIN_ALLOW_THREADS
        for (int i = 0; i < program->count && !status; i++)
            status = run_step(&program->steps[i], descriptions[i], addresses, stream);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < program->count; i++)
        if (descriptions[i]) {
            struct product *product = &program->steps[i].product;
            product->spare[product->spare_count++] = descriptions[i];
        }
    return status;
}

#endif
