/* The launches of a plan: kernels and products of a vendor's library with their arguments packed, and where in these the
   addresses of a call go. */

#ifndef MXGEMM_PROGRAM_H
#define MXGEMM_PROGRAM_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

struct step {
    int is_product;
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
    int count;
    struct step steps[MAX_STEPS];
} Program;

static struct {
    int (*launch)(const struct launch *, void *, void **, void **); /* cuLaunchKernelEx */
    int (*is_capturing)(void *, int *);                             /* cuStreamIsCapturing */
    int (*multiply)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                    void *, void *, void *, const void *, void *, size_t, void *); /* cublasLtMatmul */
    int (*describe)(void *, int, const void *, size_t); /* cublasLtMatmulDescSetAttribute */
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

/* Launch everything, the interpreter's lock not held: a driver's queue that is full waits for the device, which may wait
   for a callback that wants the lock. 0, or that something was not launched. */
static int run(Program *program, const uintptr_t *addresses, void *stream)
{
    void *descriptions[MAX_STEPS] = {NULL};
    int status = 0;
    for (int i = 0; i < program->count; i++) {
        struct product *product = &program->steps[i].product;
        if (program->steps[i].is_product) {
            if (!product->spare_count) { /* more threads than descriptions */
                status = -1;
                break;
            }
            descriptions[i] = product->spare[--product->spare_count];
        }
    }
    if (!status) {
        Py_BEGIN_ALLOW_THREADS
        for (int i = 0; i < program->count && !status; i++) {
            const struct step *step = &program->steps[i];
            status = step->is_product ? run_product(&step->product, descriptions[i], addresses, stream)
                                      : run_kernel(&step->kernel, addresses, stream);
        }
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < program->count; i++)
        if (descriptions[i]) {
            struct product *product = &program->steps[i].product;
            product->spare[product->spare_count++] = descriptions[i];
        }
    return status;
}

static int read_place(PyObject *object, void *into)
{
    struct place *place = into;
    long long add;
    if (!PyArg_ParseTuple(object, "iL", &place->slot, &add))
        return 0;
    place->add = add;
    if (place->slot >= 0 && place->slot < SLOTS)
        return 1;
    PyErr_SetString(PyExc_ValueError, "place: no such slot");
    return 0;
}

static int copy_bytes(const Py_buffer *view, char *into, Py_ssize_t most, const char *name)
{
    if (view->len > most) {
        PyErr_Format(PyExc_ValueError, "%s: got %zd bytes, want at most %zd", name, view->len, most);
        return 0;
    }
    memcpy(into, view->buf, view->len);
    return 1;
}

/* (function, grid, block, shared bytes, attributes, arguments, ((offset, slot, add), ...)) */
static int read_kernel(PyObject *object, struct kernel *kernel)
{
    unsigned long long function;
    Py_buffer attributes = {0}, arguments = {0};
    PyObject *patches;
    uint32_t *g = kernel->grid, *b = kernel->block;
    if (!PyArg_ParseTuple(object, "K(III)(III)Iy*y*O!", &function, g, g + 1, g + 2, b, b + 1, b + 2,
                          &kernel->shared_bytes, &attributes, &arguments, &PyTuple_Type, &patches))
        return 0;
    kernel->function = (void *)(uintptr_t)function;
    kernel->attribute_count = attributes.len / sizeof *kernel->attributes;
    kernel->size = arguments.len;
    int done = copy_bytes(&attributes, (char *)kernel->attributes, sizeof kernel->attributes, "attributes") &&
               copy_bytes(&arguments, kernel->arguments, sizeof kernel->arguments, "arguments");
    PyBuffer_Release(&attributes);
    PyBuffer_Release(&arguments);
    if (!done)
        return 0;
    Py_ssize_t count = PyTuple_GET_SIZE(patches);
    if (count > MAX_PATCHES) {
        PyErr_Format(PyExc_ValueError, "patches: got %zd, want at most %d", count, MAX_PATCHES);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        struct patch *patch = &kernel->patches[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(patches, i), "IO&", &patch->offset, read_place, &patch->place))
            return 0;
        if (patch->offset + sizeof(uintptr_t) > kernel->size) {
            PyErr_SetString(PyExc_ValueError, "patches: an offset beyond the arguments");
            return 0;
        }
    }
    kernel->patch_count = count;
    return 1;
}

/* (handle, a layout, b layout, d layout, (description, ...), a, b, scale of b, bias or None, d, memory, its bytes,
   algorithm) */
static int read_product(PyObject *object, struct product *product)
{
    unsigned long long handle, a, b, d;
    PyObject *descriptions, *bias;
    Py_buffer algorithm = {0};
    Py_ssize_t memory_bytes;
    if (!PyArg_ParseTuple(object, "KKKKO!O&O&O&OO&O&ny*", &handle, &a, &b, &d, &PyTuple_Type, &descriptions, read_place,
                          &product->a, read_place, &product->b, read_place, &product->b_scale, &bias, read_place,
                          &product->d, read_place, &product->memory, &memory_bytes, &algorithm))
        return 0;
    int done = copy_bytes(&algorithm, product->algorithm, sizeof product->algorithm, "algorithm");
    PyBuffer_Release(&algorithm);
    product->has_bias = bias != Py_None;
    if (!done || (product->has_bias && !read_place(bias, &product->bias)))
        return 0;
    product->handle = (void *)(uintptr_t)handle;
    product->a_layout = (void *)(uintptr_t)a;
    product->b_layout = (void *)(uintptr_t)b;
    product->d_layout = (void *)(uintptr_t)d;
    product->memory_bytes = memory_bytes;
    Py_ssize_t count = PyTuple_GET_SIZE(descriptions);
    for (Py_ssize_t i = 0; i < count && i < MAX_SPARE; i++) {
        void *description = PyLong_AsVoidPtr(PyTuple_GET_ITEM(descriptions, i));
        if (PyErr_Occurred())
            return 0;
        product->spare[product->spare_count++] = description;
    }
    return 1;
}

static int Program_init(Program *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"steps", "scratch_bytes", "counters", "hooks", "owners", NULL};
    PyObject *steps, *hooks, *owners;
    if (self->count) {
        PyErr_SetString(PyExc_TypeError, "a Program is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nnO!O!", names, &PyTuple_Type, &steps,
                                     &self->scratch_bytes, &self->counters, &PyTuple_Type, &hooks, &PyTuple_Type,
                                     &owners))
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(steps);
    if (count < 1 || count > MAX_STEPS) {
        PyErr_Format(PyExc_ValueError, "steps: got %zd, want 1 to %d", count, MAX_STEPS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PyTuple_GET_ITEM(steps, i);
        if (!PyTuple_Check(one)) {
            PyErr_SetString(PyExc_TypeError, "steps: want tuples");
            return -1;
        }
        struct step *step = &self->steps[i];
        step->is_product = PyTuple_GET_SIZE(one) > 7;
        if (step->is_product && !driver.multiply) {
            PyErr_SetString(PyExc_ValueError, "steps: a product, and no library for it");
            return -1;
        }
        if (!(step->is_product ? read_product(one, &step->product) : read_kernel(one, &step->kernel)))
            return -1;
    }
    Py_XSETREF(self->hooks, Py_NewRef(hooks));
    Py_XSETREF(self->owners, Py_NewRef(owners));
    self->count = (int)count;
    return 0;
}

static void Program_dealloc(Program *self)
{
    Py_CLEAR(self->hooks);
    Py_CLEAR(self->owners);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mxgemm_steady.Program",
    .tp_doc = "The launches of a plan.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Program_init,
    .tp_dealloc = (destructor)Program_dealloc,
};

#endif
