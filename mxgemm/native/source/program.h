/* The launches of a plan: kernels and products of a vendor's library with their arguments packed, and where in these the
   addresses of a call go. */

#ifndef MXGEMM_PROGRAM_H
#define MXGEMM_PROGRAM_H

#include "tensor.h"

enum { MAX_STEPS = 4, MAX_ARGUMENTS = 512, MAX_PATCHES = 16, MAX_ATTRIBUTES = 4, MAX_SPARE = 8 };

/* What a call brings; as mxgemm.native.program numbers them. */
enum slot { SLOT_FIXED, SLOT_A, SLOT_BIAS, SLOT_OUT, SLOT_SCRATCH, SLOT_COUNTERS, SLOTS };

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
    _Alignas(16) char arguments[MAX_ARGUMENTS];
};

struct product { /* of cublasLt: d = scales * (a @ b) + bias, in the library's order of columns */
    void *handle, *a_layout, *b_layout, *d_layout;
    void *spare[MAX_SPARE]; /* descriptions of the product; a call writes its addresses into one of its own */
    int spare_count;
    struct place a, b, b_scale, bias, d, memory;
    int has_bias;
    size_t memory_bytes;
    _Alignas(16) char algorithm[64]; /* cublasLtMatmulAlgo_t */
};

/* A tensor of a call; as mxgemm.native.program numbers them. */
enum matrix { MATRIX_A, MATRIX_OUT, MATRIX_VIEW, MATRIX_OWN, MATRICES };

struct matrix_place {
    int kind, index; /* index among the views of the scratch, or the program's own tensors */
};

struct torch_product { /* out = left @ right by torch's own function, past its dispatcher */
    struct matrix_place out, left, right;
};

enum step_kind { STEP_KERNEL, STEP_PRODUCT, STEP_TORCH };

struct step {
    enum step_kind kind;
    union {
        struct kernel kernel;
        struct product product;
        struct torch_product torch_product;
    };
};

/* What a call brings, and what was taken for it. */
struct operands {
    uintptr_t addresses[SLOTS];
    PyObject *a, *out, *views; /* views is a tuple, or NULL */
};

typedef struct {
    PyObject_HEAD
    PyObject *hooks;  /* ((holder, name, value), ...): must be as they were, and empty, or Python launches */
    PyObject *owners; /* of what the steps point to */
    PyObject *views;  /* ((offset, dtype, shape, strides), ...) of tensors in the scratch */
    PyObject *own;    /* tensors */
    Py_ssize_t scratch_bytes, counters;
    int count;
    struct step steps[MAX_STEPS];
} Program;

static struct {
    int (*launch)(const struct launch *, void *, void **, void **); /* cuLaunchKernelEx */
    int (*is_capturing)(void *, int *);                             /* cuStreamIsCapturing */
    int (*multiply)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                    void *, void *, void *, const void *, void *, size_t, void *); /* cublasLtMatmul */
    int (*describe)(void *, int, const void *, size_t); /* cublasLtMatmulDescSetAttribute */
    int (*mm)(void *, void *, void *);                  /* aoti_torch_cuda_mm_out */
} driver;

enum { BIAS_POINTER = 8, B_SCALE_POINTER = 18 }; /* cublasLtMatmulDescAttributes_t */

static uintptr_t at(struct place place, const uintptr_t *addresses) { return addresses[place.slot] + place.add; }

static int run_kernel(const struct kernel *kernel, const uintptr_t *addresses, void *stream)
{
    _Alignas(16) char arguments[MAX_ARGUMENTS];
    size_t size = kernel->size;
    memcpy(arguments, kernel->arguments, size);
    for (uint32_t i = 0; i < kernel->patch_count; i++) {
        uintptr_t address = at(kernel->patches[i].place, addresses);
        memcpy(arguments + kernel->patches[i].offset, &address, sizeof address);
    }
    void *extra[] = {(void *)1, arguments, (void *)2, &size, NULL}; /* CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END */
    struct launch launch = {.shared_bytes = kernel->shared_bytes,
                            .stream = stream,
                            .attributes = kernel->attribute_count ? kernel->attributes : NULL,
                            .count = kernel->attribute_count};
    memcpy(launch.grid, kernel->grid, sizeof launch.grid);
    memcpy(launch.block, kernel->block, sizeof launch.block);
    return driver.launch(&launch, kernel->function, NULL, extra);
}

static int run_product(const struct product *product, void *description, const uintptr_t *addresses, void *stream)
{
    const float one = 1, zero = 0;
    uintptr_t scale = at(product->b_scale, addresses);
    int status = driver.describe(description, B_SCALE_POINTER, &scale, sizeof scale);
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

static void *matrix_at(const Program *program, struct matrix_place place, const struct operands *operands)
{
    switch (place.kind) {
    case MATRIX_A:
        return handle_of(operands->a);
    case MATRIX_OUT:
        return handle_of(operands->out);
    case MATRIX_VIEW:
        return handle_of(PyTuple_GET_ITEM(operands->views, place.index));
    default:
        return handle_of(PyTuple_GET_ITEM(program->own, place.index));
    }
}

static int run_torch_product(const Program *program, const struct torch_product *product, const struct operands *operands)
{
    return driver.mm(matrix_at(program, product->out, operands), matrix_at(program, product->left, operands),
                     matrix_at(program, product->right, operands));
}

static int run_step(const Program *program, const struct step *step, void *description, const struct operands *operands,
                    void *stream)
{
    switch (step->kind) {
    case STEP_KERNEL:
        return run_kernel(&step->kernel, operands->addresses, stream);
    case STEP_PRODUCT:
        return run_product(&step->product, description, operands->addresses, stream);
    default:
        return run_torch_product(program, &step->torch_product, operands);
    }
}

/* Launch everything, the interpreter's lock not held: a driver's queue that is full waits for the device, which may wait
   for a callback that wants the lock. 0, or that something was not launched. */
static int run(Program *program, const struct operands *operands, void *stream)
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
            status = run_step(program, &program->steps[i], descriptions[i], operands, stream);
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
