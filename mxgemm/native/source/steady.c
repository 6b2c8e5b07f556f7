/* A steady call of mxgemm.gemm, without Python between the caller and the driver.

   mxgemm/steady.py is the definition, and the way of whatever is unusual: `call` answers None for it, having done
   nothing that could be seen. Only one thread at a time is in here: the interpreter's lock is let go of for the launches
   alone, which read what is on the stack, in a program that nobody changes, and scratch lent to this call. */

#define PY_SSIZE_T_CLEAN
#include "table.h"

static struct {
    PyObject *weight_type, *known_type;  /* MXTensor, Known */
    PyObject *plans, *forward, *scratch; /* dictionaries of modules */
    PyObject *quiet;                     /* functions of torch that answer 0 where nothing observes a call */
    PyObject *function_modes, *only_default_device, *is_grad_enabled, *get_device, *get_stream;
    PyObject *take, *mark_written;
    PyObject *zero; /* a stream that a CPU has */
} python;

static PyObject *name_known, *name_table, *name_plans, *name_level, *name_free, *name_calls, *name_grad,
    *name_version, *name_address, *name_nbytes, *name_count, *name_counters_address, *name_exit;

/* 1 for a true answer, 0 for a false one, -1 for an error. */
static int truth(PyObject *answer)
{
    if (!answer)
        return -1;
    int result = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return result;
}

/* Whether torch's dispatcher must see the call (mxgemm.ambient.is_observed, but for the arguments). */
static int is_observed(void)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(python.quiet); i++) {
        int found = truth(PyObject_CallNoArgs(PyTuple_GET_ITEM(python.quiet, i)));
        if (found)
            return found;
    }
    PyObject *level = PyDict_GetItemWithError(python.forward, name_level); /* borrowed */
    if (!level)
        return PyErr_Occurred() ? -1 : 1;
    long value = PyLong_AsLong(level);
    if (value >= 0 || PyErr_Occurred())
        return 1;
    int modes = truth(PyObject_CallNoArgs(python.function_modes));
    if (modes <= 0)
        return modes;
    int only = truth(PyObject_CallNoArgs(python.only_default_device));
    return only < 0 ? only : !only;
}

static int is_recorded(PyObject *const *brought)
{
    for (int i = 0; i < BROUGHT; i++) {
        if (brought[i] == Py_None)
            continue;
        int wants = truth(PyObject_GetAttr(brought[i], name_grad));
        if (wants < 0)
            return -1;
        if (wants)
            return truth(PyObject_CallNoArgs(python.is_grad_enabled));
    }
    return 0;
}

static int is_fresh(Table *table)
{
    if (table->counted == Py_None)
        return 1;
    long long version = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(table->counted); i++) {
        PyObject *one = PyObject_GetAttr(PyTuple_GET_ITEM(table->counted, i), name_version);
        if (!one)
            return -1;
        version += PyLong_AsLongLong(one);
        Py_DECREF(one);
        if (PyErr_Occurred())
            return -1;
    }
    return version == table->version;
}

/* Whether nobody wants to hear of launches. */
static int is_unheard(PyObject *hooks)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(hooks); i++) {
        PyObject *hook = PyTuple_GET_ITEM(hooks, i);
        PyObject *expected = PyTuple_GET_ITEM(hook, 2);
        PyObject *now = PyObject_GetAttr(PyTuple_GET_ITEM(hook, 0), PyTuple_GET_ITEM(hook, 1));
        if (!now)
            return -1;
        int same = now == expected;
        Py_DECREF(now);
        if (!same)
            return 0;
        if (expected == Py_None)
            continue;
        int called = truth(PyObject_GetAttr(expected, name_calls));
        if (called < 0)
            PyErr_Clear(); /* a hook of another kind */
        if (called)
            return 0;
    }
    return 1;
}

static int read_number(PyObject *object, PyObject *name, uintptr_t *value)
{
    PyObject *number = PyObject_GetAttr(object, name);
    if (!number)
        return 0;
    *value = PyLong_AsSize_t(number);
    Py_DECREF(number);
    return !PyErr_Occurred();
}

/* Take scratch, as mxgemm.workspace.take does, and say where it is; `kept` is the list to give it back to, or NULL. */
static PyObject *take_scratch(Entry *entry, PyObject *stream, uintptr_t *addresses, PyObject **kept)
{
    Program *program = entry->program;
    PyObject *lists = PyDict_GetItemWithError(python.scratch, name_free), *arena = NULL; /* borrowed */
    *kept = NULL;
    if (!lists)
        return NULL;
    PyObject *key = PyTuple_Pack(2, entry->device, stream);
    if (!key)
        return NULL;
    PyObject *list = PyDict_GetItemWithError(lists, key); /* borrowed */
    Py_DECREF(key);
    if (list && PyList_CheckExact(list) && PyList_GET_SIZE(list)) {
        Py_ssize_t last = PyList_GET_SIZE(list) - 1;
        PyObject *found = PyList_GET_ITEM(list, last);
        uintptr_t bytes, count;
        if (!read_number(found, name_nbytes, &bytes) || !read_number(found, name_count, &count))
            return NULL;
        if (bytes >= (uintptr_t)program->scratch_bytes && count >= (uintptr_t)program->counters) {
            arena = Py_NewRef(found);
            *kept = Py_NewRef(list);
            PyList_SetSlice(list, last, last + 1, NULL);
        }
    }
    if (PyErr_Occurred())
        goto failed;
    if (!arena) {
        PyObject *wanted = Py_BuildValue("nOn", program->scratch_bytes, entry->device, program->counters);
        arena = wanted ? PyObject_CallObject(python.take, wanted) : NULL;
        Py_XDECREF(wanted);
    }
    if (arena && read_number(arena, name_address, &addresses[SLOT_SCRATCH]) &&
        read_number(arena, name_counters_address, &addresses[SLOT_COUNTERS]))
        return arena;
failed:
    Py_XDECREF(arena);
    Py_CLEAR(*kept);
    return NULL;
}

static int give_back(PyObject *arena, PyObject *kept)
{
    if (kept && !PyList_GET_SIZE(kept))
        return PyList_Append(kept, arena);
    PyObject *none = PyObject_CallMethodObjArgs(arena, name_exit, Py_None, Py_None, Py_None, NULL);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

static PyObject *launch(Entry *entry, uintptr_t *addresses, PyObject *out)
{
    PyObject *stream = python.zero, *arena = NULL, *kept = NULL, *result = NULL;
    Program *program = entry->program;
    void *handle = NULL;
    int scratch = program->scratch_bytes || program->counters, status = -1;
    if (entry->gpu >= 0) {
        PyObject *current = PyObject_CallNoArgs(python.get_device);
        long index = current ? PyLong_AsLong(current) : -1;
        Py_XDECREF(current);
        if (PyErr_Occurred())
            return NULL;
        if (index != entry->gpu)
            return Py_NewRef(Py_None);
        PyObject *number = PyLong_FromLong(index);
        stream = number ? PyObject_CallOneArg(python.get_stream, number) : NULL;
        Py_XDECREF(number);
        if (!stream)
            return NULL;
        handle = PyLong_AsVoidPtr(stream);
        int capturing = 1;
        if (PyErr_Occurred() || (scratch && (driver.is_capturing(handle, &capturing) || capturing))) {
            Py_DECREF(stream);
            return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
        }
    } else {
        Py_INCREF(stream);
    }
    if (scratch && !(arena = take_scratch(entry, stream, addresses, &kept)))
        goto done;
    result = out == Py_None ? PyObject_CallNoArgs(entry->allocate) : Py_NewRef(out);
    if (!result)
        goto done;
    if (out == Py_None) {
        if (!is_plain(result)) /* what a mode of torch's gave in place of a tensor */
            goto done;
        void *data = NULL;
        torch.data(handle_of(result), &data);
        addresses[SLOT_OUT] = (uintptr_t)data;
    }
    if (addresses[SLOT_OUT])
        status = run(program, addresses, handle);
done:
    Py_DECREF(stream);
    /* Scratch of a call that was not launched to its end is left to torch's allocator, as in mxgemm.workspace. */
    if (!status && arena && give_back(arena, kept) < 0)
        Py_CLEAR(result);
    Py_XDECREF(arena);
    Py_XDECREF(kept);
    if (PyErr_Occurred() || !status)
        return result;
    Py_XDECREF(result);
    return Py_NewRef(Py_None); /* Python tries, and says what is wrong */
}

/* call(weight, a, bias, out, a_format, scale_rounding, out_dtype, route) -> result, or None */
static PyObject *call(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 1 + BROUGHT + OPTIONS) {
        PyErr_Format(PyExc_TypeError, "call: got %zd arguments, want %d", count, 1 + BROUGHT + OPTIONS);
        return NULL;
    }
    PyObject *const *brought = args + 1, *const *options = brought + BROUGHT;
    if ((PyObject *)Py_TYPE(args[0]) != python.weight_type)
        Py_RETURN_NONE;
    PyObject *known = PyObject_GetAttr(args[0], name_known), *found = NULL, *result = NULL;
    if (known && (PyObject *)Py_TYPE(known) == python.known_type)
        found = PyObject_GetAttr(known, name_table);
    Py_XDECREF(known);
    if (!found || Py_TYPE(found) != &TableType) {
        Py_XDECREF(found);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Table *table = (Table *)found;
    Entry *entry = NULL;
    uintptr_t brought_at[BROUGHT];
    if (table->source != PyDict_GetItemWithError(python.plans, name_plans) ||
        !(entry = find(table, brought, options, brought_at))) {
        Py_DECREF(table);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Py_INCREF(entry); /* Python that runs below may clear the table */
    uintptr_t out = brought_at[BROUGHT_OUT];
    int64_t out_bytes = entry->bytes[BROUGHT_OUT];
    int bars = !holds(table, out, out_bytes);
    for (int i = 0; i < BROUGHT_OUT && out && !bars; i++)
        bars = entry->present[i] && meet(brought_at[i], entry->bytes[i], out, out_bytes);
    if (!bars)
        bars = is_observed();
    if (!bars)
        bars = is_recorded(brought);
    if (!bars && (bars = is_fresh(table)) >= 0)
        bars = !bars;
    if (!bars && (bars = is_unheard(entry->program->hooks)) >= 0)
        bars = !bars;
    Py_DECREF(table);
    if (!bars) {
        uintptr_t addresses[SLOTS] = {
            [SLOT_A] = brought_at[BROUGHT_A], [SLOT_BIAS] = brought_at[BROUGHT_BIAS], [SLOT_OUT] = out};
        result = launch(entry, addresses, brought[BROUGHT_OUT]);
        if (result && result != Py_None && out) {
            PyObject *none = PyObject_CallOneArg(python.mark_written, result);
            Py_XDECREF(none);
            if (!none)
                Py_CLEAR(result);
        }
    } else if (bars > 0 && !PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    }
    Py_DECREF(entry);
    return result;
}

/* configure(objects, functions, offsets): see mxgemm.native.module */
static PyObject *configure(PyObject *module, PyObject *args)
{
    PyObject *tensor, *parameter;
    unsigned long long f[12];
    if (!PyArg_ParseTuple(args, "(OOOOOOOOOOOOOOOO)(KKKKKKKKKKKK)(nnn)", &tensor, &parameter, &python.weight_type,
                          &python.known_type, &python.plans, &python.forward, &python.scratch, &python.quiet,
                          &python.function_modes, &python.only_default_device, &python.is_grad_enabled,
                          &python.get_device, &python.get_stream, &python.take, &python.mark_written, &torch.freed, f,
                          f + 1, f + 2, f + 3, f + 4, f + 5, f + 6, f + 7, f + 8, f + 9, f + 10, f + 11, &torch.handle,
                          &torch.borrowed, &torch.keys))
        return NULL;
    if (!PyType_Check(tensor) || !PyType_Check(parameter) || !PyTuple_Check(python.quiet) ||
        !PyDict_Check(python.plans) || !PyDict_Check(python.forward) || !PyDict_Check(python.scratch)) {
        PyErr_SetString(PyExc_TypeError, "configure: got an object of a wrong type");
        return NULL;
    }
    torch.tensor = (PyTypeObject *)tensor;
    torch.parameter = (PyTypeObject *)parameter;
    Py_INCREF(args); /* for as long as the process lives */
    void **functions[] = {(void **)&torch.data,  (void **)&torch.sizes,       (void **)&torch.strides,
                          (void **)&torch.dims,  (void **)&torch.dtype,       (void **)&torch.device_type,
                          (void **)&torch.device_index, (void **)&driver.launch,
                          (void **)&driver.launch_on_amd, (void **)&driver.is_capturing,
                          (void **)&driver.multiply, (void **)&driver.describe};
    for (int i = 0; i < 12; i++)
        *functions[i] = (void *)(uintptr_t)f[i];
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, "Multiply, if a plan is known and nothing is unusual."},
    {"configure", configure, METH_VARARGS, "Say where everything is; once."},
    {NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "mxgemm_steady", "Steady calls.", -1, methods};

PyMODINIT_FUNC PyInit_mxgemm_steady(void)
{
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_known, "known"},     {&name_table, "table"},   {&name_plans, "_plans"},
                 {&name_level, "_current_level"}, {&name_free, "_free"},    
                 {&name_calls, "calls"},     {&name_grad, "requires_grad"}, {&name_version, "_version"},
                 {&name_address, "address"}, {&name_nbytes, "nbytes"}, {&name_count, "count"},
                 {&name_counters_address, "counters_address"}, {&name_exit, "__exit__"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text)))
            return NULL;
    if (!(python.zero = PyLong_FromLong(0)) || PyType_Ready(&ProgramType) < 0 || PyType_Ready(&EntryType) < 0 ||
        PyType_Ready(&TableType) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module || PyModule_AddObjectRef(module, "Program", (PyObject *)&ProgramType) < 0 ||
        PyModule_AddObjectRef(module, "Table", (PyObject *)&TableType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
