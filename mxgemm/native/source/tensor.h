/* What a tensor is, read without Python: by torch's C functions (aoti_torch_*), whose arguments keep their meaning from
   release to release, and two offsets that Python finds by trial and hands over. */

#ifndef MXGEMM_TENSOR_H
#define MXGEMM_TENSOR_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MAX_DIMS = 5 };

/* Below lie few tensors and all whose storage was freed (mxgemm.memory). */
static const uintptr_t LOWEST_ADDRESS = (uintptr_t)1 << 40;

static struct {
    int (*data)(void *, void **);
    int (*sizes)(void *, int64_t **);
    int (*strides)(void *, int64_t **);
    int (*dims)(void *, int64_t *);
    int (*dtype)(void *, int32_t *);
    int (*device_type)(void *, int32_t *);
    int (*device_index)(void *, int32_t *);
    Py_ssize_t handle;   /* in the Python object: the pointer that torch's C functions are given the address of */
    Py_ssize_t borrowed; /* in the Python object: a byte that is 0 where the handle is the object's own; -1 for none */
    Py_ssize_t keys;     /* in what the pointer points to: the set of dispatch keys */
    PyTypeObject *tensor, *parameter;
    PyObject *freed; /* mxgemm.memory.freed */
} torch;

/* Equal for tensors that one plan serves. The keys say backend, layout, lazy negation, inference and nesting. */
struct facts {
    uint64_t keys;
    int64_t dims, sizes[MAX_DIMS], strides[MAX_DIMS];
    int32_t dtype, device_type, device_index;
    uint32_t alignment;
};

static int is_plain(PyObject *object)
{
    return Py_TYPE(object) == torch.tensor || Py_TYPE(object) == torch.parameter;
}

static void *handle_of(PyObject *tensor) { return (char *)tensor + torch.handle; }

static uint64_t keys_of(PyObject *tensor)
{
    uint64_t keys;
    memcpy(&keys, *(char **)handle_of(tensor) + torch.keys, sizeof keys);
    return keys;
}

/* Read a tensor's facts and address. 0 where it is none, or one of a kind that this file does not know; no error is
   set. `keys` are those that the caller has seen before: other kinds are not asked for anything. */
static int read_facts(PyObject *tensor, uint64_t keys, struct facts *facts, uintptr_t *address)
{
    if (!is_plain(tensor) || (torch.borrowed >= 0 && ((char *)tensor)[torch.borrowed]))
        return 0;
    void *handle = handle_of(tensor), *data = NULL;
    int64_t *sizes, *strides;
    facts->keys = keys_of(tensor);
    if (facts->keys != keys || torch.dims(handle, &facts->dims) || facts->dims < 0 || facts->dims > MAX_DIMS)
        return 0;
    if (torch.sizes(handle, &sizes) || torch.strides(handle, &strides) || torch.data(handle, &data) ||
        torch.dtype(handle, &facts->dtype) || torch.device_type(handle, &facts->device_type) ||
        torch.device_index(handle, &facts->device_index))
        return 0;
    for (int64_t i = 0; i < facts->dims; i++) {
        facts->sizes[i] = sizes[i];
        facts->strides[i] = strides[i];
    }
    *address = (uintptr_t)data;
    facts->alignment = *address & 15;
    if (*address >= LOWEST_ADDRESS)
        return 1;
    PyObject *freed = PyObject_CallOneArg(torch.freed, tensor);
    int gone = freed ? PyObject_IsTrue(freed) : 1;
    Py_XDECREF(freed);
    PyErr_Clear();
    return !gone;
}

static int same_facts(const struct facts *left, const struct facts *right)
{
    if (left->keys != right->keys || left->dims != right->dims || left->dtype != right->dtype ||
        left->device_type != right->device_type || left->device_index != right->device_index ||
        left->alignment != right->alignment)
        return 0;
    for (int64_t i = 0; i < left->dims; i++)
        if (left->sizes[i] != right->sizes[i] || left->strides[i] != right->strides[i])
            return 0;
    return 1;
}

#endif
