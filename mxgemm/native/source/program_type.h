/* Programs as Python makes them: mxgemm/native/program.py has the other side of every tuple. */

#ifndef MXGEMM_PROGRAM_TYPE_H
#define MXGEMM_PROGRAM_TYPE_H

#include "program.h"

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
    kernel->arguments = PyMem_Malloc(arguments.len);
    int done = copy_bytes(&attributes, (char *)kernel->attributes, sizeof kernel->attributes, "attributes") &&
               (kernel->arguments ? copy_bytes(&arguments, kernel->arguments, MAX_ARGUMENTS, "arguments")
                                  : PyErr_NoMemory() != NULL);
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

/* (handle, a layout, b layout, d layout, (description, ...), a, b, scale of b or None, bias or None, d, memory, its
   bytes, algorithm) */
static int read_product(PyObject *object, struct product *product)
{
    unsigned long long handle, a, b, d;
    PyObject *descriptions, *b_scale, *bias;
    Py_buffer algorithm = {0};
    Py_ssize_t memory_bytes;
    if (!PyArg_ParseTuple(object, "KKKKO!O&O&OOO&O&ny*", &handle, &a, &b, &d, &PyTuple_Type, &descriptions, read_place,
                          &product->a, read_place, &product->b, &b_scale, &bias, read_place, &product->d, read_place,
                          &product->memory, &memory_bytes, &algorithm))
        return 0;
    int done = copy_bytes(&algorithm, product->algorithm, sizeof product->algorithm, "algorithm");
    PyBuffer_Release(&algorithm);
    product->has_b_scale = b_scale != Py_None;
    product->has_bias = bias != Py_None;
    if (!done || (product->has_b_scale && !read_place(b_scale, &product->b_scale)) ||
        (product->has_bias && !read_place(bias, &product->bias)))
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

static int read_step(PyObject *object, struct step *step)
{
    step->kind = PyTuple_GET_SIZE(object) == 7 ? STEP_KERNEL : STEP_PRODUCT;
    if (step->kind == STEP_KERNEL)
        return read_kernel(object, &step->kernel);
    if (driver.multiply)
        return read_product(object, &step->product);
    PyErr_SetString(PyExc_ValueError, "steps: a product, and no library for it");
    return 0;
}

static int Program_init(Program *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"steps", "scratch_bytes", "counters", "hooks", "owners", NULL};
    PyObject *steps, *hooks, *owners;
    if (self->hooks) {
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
    self->hooks = Py_NewRef(hooks);
    self->owners = Py_NewRef(owners);
    if (!(self->steps = PyMem_Calloc(count, sizeof *self->steps))) {
        PyErr_NoMemory();
        return -1;
    }
    self->room = (int)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PyTuple_GET_ITEM(steps, i);
        if (!PyTuple_Check(one)) {
            PyErr_SetString(PyExc_TypeError, "steps: want tuples");
            return -1;
        }
        if (!read_step(one, &self->steps[i]))
            return -1;
    }
    self->count = self->room;
    return 0;
}

/* run(stream, address of slot 1, of slot 2, ...) -> 0, or that something was not launched */
static PyObject *Program_run(Program *self, PyObject *const *args, Py_ssize_t count)
{
    uintptr_t addresses[SLOTS] = {0};
    if (count < 1 || count > SLOTS || !self->count) {
        PyErr_Format(PyExc_TypeError, "run: got %zd arguments, want 1 to %d of a program with steps", count, SLOTS);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        addresses[i] = PyLong_AsSize_t(args[i]);
        if (PyErr_Occurred())
            return NULL;
    }
    void *stream = (void *)addresses[0];
    addresses[0] = 0;
    return PyLong_FromLong(run(self, addresses, stream));
}

static PyMethodDef Program_methods[] = {
    {"run", (PyCFunction)(void (*)(void))Program_run, METH_FASTCALL, "Launch on a stream, with these addresses."},
    {NULL},
};

static void Program_dealloc(Program *self)
{
    for (int i = 0; i < self->room; i++)
        if (self->steps[i].kind == STEP_KERNEL)
            PyMem_Free(self->steps[i].kernel.arguments);
    PyMem_Free(self->steps);
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
    .tp_methods = Program_methods,
    .tp_dealloc = (destructor)Program_dealloc,
};

#endif
