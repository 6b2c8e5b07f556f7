/* The plans of one weight: what a call must be for a plan to serve it, and what the weight was when they were made. */

#ifndef MXGEMM_TABLE_H
#define MXGEMM_TABLE_H

#include "program_type.h"

enum { BUCKETS = 64, OPTIONS = 4, MAX_WATCHED = 8 };

enum brought { BROUGHT_A, BROUGHT_BIAS, BROUGHT_OUT, BROUGHT };

typedef struct Entry {
    PyObject_HEAD
    struct Entry *next;
    struct facts facts[BROUGHT];
    int64_t bytes[BROUGHT]; /* from the first to the last byte */
    int present[BROUGHT];
    PyObject *options[OPTIONS];
    PyObject *allocate;
    Program *program;
    PyObject *device;
    int gpu; /* index, -1 for a CPU */
} Entry;

struct watched {
    PyObject *tensor;
    struct facts facts;
    uintptr_t address;
    int64_t bytes;
};

typedef struct {
    PyObject_HEAD
    PyObject *source; /* of the plans; another one has replaced it once they were forgotten */
    int count;        /* of `watched`: data and scales as multiplied first, which must lie where they did */
    struct watched watched[MAX_WATCHED];
    PyObject *counted; /* tensors whose changes are counted, None if none are */
    long long version;
    Entry *buckets[BUCKETS];
} Table;

static void Entry_dealloc(Entry *self)
{
    for (int i = 0; i < OPTIONS; i++)
        Py_CLEAR(self->options[i]);
    Py_CLEAR(self->allocate);
    Py_CLEAR(self->program);
    Py_CLEAR(self->device);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mxgemm_steady.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)Entry_dealloc,
};

static unsigned bucket_of(const struct facts *a)
{
    uint64_t hash = a->alignment;
    for (int64_t i = 0; i < a->dims; i++)
        hash = hash * 31 + (uint64_t)a->sizes[i];
    return (hash ^ hash >> 6 ^ hash >> 12) % BUCKETS;
}

static void Table_clear_entries(Table *self)
{
    for (int i = 0; i < BUCKETS; i++) {
        Entry *entry = self->buckets[i];
        self->buckets[i] = NULL;
        while (entry) {
            Entry *next = entry->next;
            entry->next = NULL;
            Py_DECREF(entry);
            entry = next;
        }
    }
}

static PyObject *Table_clear(Table *self, PyObject *unused)
{
    Table_clear_entries(self);
    Py_RETURN_NONE;
}

static void Table_dealloc(Table *self)
{
    Table_clear_entries(self);
    for (int i = 0; i < self->count; i++)
        Py_CLEAR(self->watched[i].tensor);
    Py_CLEAR(self->source);
    Py_CLEAR(self->counted);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Facts of a tensor whose kind is as it is now; an error is set if they cannot be read. */
static int facts_now(PyObject *tensor, struct facts *facts, uintptr_t *address)
{
    if (is_plain(tensor) && read_facts(tensor, keys_of(tensor), facts, address))
        return 1;
    PyErr_SetString(PyExc_TypeError, "got no tensor that can be read without Python");
    return 0;
}

/* Table(source, ((tensor, bytes), ...), counted, version) */
static int Table_init(Table *self, PyObject *args, PyObject *kwargs)
{
    PyObject *source, *watched, *counted;
    long long version;
    if (self->source) {
        PyErr_SetString(PyExc_TypeError, "a Table is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OO!OL", &source, &PyTuple_Type, &watched, &counted, &version))
        return -1;
    if (PyTuple_GET_SIZE(watched) > MAX_WATCHED || (counted != Py_None && !PyTuple_Check(counted))) {
        PyErr_SetString(PyExc_ValueError, "watched: too many tensors, or counted: no tuple");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(watched); i++) {
        struct watched *one = &self->watched[i];
        PyObject *tensor;
        long long bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(watched, i), "OL", &tensor, &bytes) ||
            !facts_now(tensor, &one->facts, &one->address))
            return -1;
        one->tensor = Py_NewRef(tensor);
        one->bytes = bytes;
        self->count++;
    }
    self->source = Py_NewRef(source);
    self->counted = Py_NewRef(counted);
    self->version = version;
    return 0;
}

/* add(tensors, bytes, options, allocate, program, device, gpu): a, bias and out, with None for what is not brought */
static PyObject *Table_add(Table *self, PyObject *args)
{
    PyObject *tensors, *options, *allocate, *program, *device;
    long long bytes[BROUGHT];
    int gpu;
    if (!PyArg_ParseTuple(args, "O!(LLL)O!OO!Oi", &PyTuple_Type, &tensors, bytes, bytes + 1, bytes + 2, &PyTuple_Type,
                          &options, &allocate, &ProgramType, &program, &device, &gpu))
        return NULL;
    if (PyTuple_GET_SIZE(tensors) != BROUGHT || PyTuple_GET_SIZE(options) != OPTIONS || !((Program *)program)->count) {
        PyErr_SetString(PyExc_ValueError, "tensors, options, program: got too few");
        return NULL;
    }
    Entry *entry = (Entry *)EntryType.tp_alloc(&EntryType, 0);
    if (!entry)
        return NULL;
    for (int i = 0; i < BROUGHT; i++) {
        PyObject *tensor = PyTuple_GET_ITEM(tensors, i);
        uintptr_t address;
        entry->bytes[i] = bytes[i];
        entry->present[i] = tensor != Py_None;
        if (entry->present[i] && !facts_now(tensor, &entry->facts[i], &address)) {
            Py_DECREF(entry);
            return NULL;
        }
    }
    for (int i = 0; i < OPTIONS; i++)
        entry->options[i] = Py_NewRef(PyTuple_GET_ITEM(options, i));
    entry->allocate = Py_NewRef(allocate);
    entry->program = (Program *)Py_NewRef(program);
    entry->device = Py_NewRef(device);
    entry->gpu = gpu;
    Entry **bucket = &self->buckets[bucket_of(&entry->facts[BROUGHT_A])];
    entry->next = *bucket;
    *bucket = entry;
    Py_RETURN_NONE;
}

static PyMethodDef Table_methods[] = {
    {"add", (PyCFunction)Table_add, METH_VARARGS, "Keep a plan."},
    {"clear", (PyCFunction)Table_clear, METH_NOARGS, "Forget the plans."},
    {NULL},
};

static PyTypeObject TableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mxgemm_steady.Table",
    .tp_doc = "The plans of one weight.",
    .tp_basicsize = sizeof(Table),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Table_init,
    .tp_dealloc = (destructor)Table_dealloc,
    .tp_methods = Table_methods,
};

static int same_option(PyObject *left, PyObject *right)
{
    return left == right || (PyUnicode_CheckExact(left) && PyUnicode_CheckExact(right) &&
                             PyUnicode_Compare(left, right) == 0);
}

/* Return the plan for a call, borrowed, and the addresses of what it brings; NULL if there is none, no error set. */
static Entry *find(Table *table, PyObject *const *brought, PyObject *const *options, uintptr_t *addresses)
{
    struct facts facts[BROUGHT];
    PyObject *a = brought[BROUGHT_A];
    if (!is_plain(a) || !read_facts(a, keys_of(a), &facts[BROUGHT_A], &addresses[BROUGHT_A]))
        return NULL;
    for (Entry *entry = table->buckets[bucket_of(&facts[BROUGHT_A])]; entry; entry = entry->next) {
        int same = same_facts(&facts[BROUGHT_A], &entry->facts[BROUGHT_A]);
        for (int i = 0; same && i < OPTIONS; i++)
            same = same_option(options[i], entry->options[i]);
        for (int i = BROUGHT_BIAS; same && i < BROUGHT; i++) {
            if (!entry->present[i]) {
                same = brought[i] == Py_None;
                addresses[i] = 0;
            } else {
                same = read_facts(brought[i], entry->facts[i].keys, &facts[i], &addresses[i]) &&
                       same_facts(&facts[i], &entry->facts[i]);
            }
        }
        if (same)
            return entry;
    }
    return NULL;
}

static int meet(uintptr_t at, int64_t bytes, uintptr_t start, int64_t length)
{
    return at < start + (uintptr_t)length && start < at + (uintptr_t)bytes;
}

/* Whether the weight is what and where it was, and lies apart from an output. */
static int holds(Table *table, uintptr_t out, int64_t out_bytes)
{
    for (int i = 0; i < table->count; i++) {
        struct watched *one = &table->watched[i];
        struct facts facts;
        uintptr_t address;
        if (!read_facts(one->tensor, one->facts.keys, &facts, &address) || !same_facts(&facts, &one->facts) ||
            address != one->address || (out && meet(address, one->bytes, out, out_bytes)))
            return 0;
    }
    return 1;
}

#endif
