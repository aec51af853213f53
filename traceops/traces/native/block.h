/* What both modules ask of Python: a finished column as it sees it, of a type of their own, and seeds of hashes. */
#ifndef TRACEOPS_BLOCK_H
#define TRACEOPS_BLOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>

/* A finished column: memory that NumPy reads in place. */
typedef struct {
    PyObject_HEAD
    void *data;
    Py_ssize_t bytes;
} Block;

static void block_dealloc(Block *self) {
    free(self->data);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int block_getbuffer(Block *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data, self->bytes, 0, flags);
}

static PyBufferProcs block_as_buffer = {.bf_getbuffer = (getbufferproc)block_getbuffer};

static PyTypeObject block_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceops.traces.Block",
    .tp_doc = PyDoc_STR("Memory of a column, for numpy.frombuffer."),
    .tp_basicsize = sizeof(Block),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)block_dealloc,
    .tp_as_buffer = &block_as_buffer,
};

/* Takes the memory over, cut to what is used. */
static PyObject *block_of(void *column, size_t rows, size_t size) {
    Block *block = PyObject_New(Block, &block_type);
    if (block == NULL)
        return NULL;
    void *fitted = rows ? realloc(column, rows * size) : NULL;
    block->data = fitted ? fitted : column;
    block->bytes = (Py_ssize_t)(rows * size);
    return (PyObject *)block;
}

/* Seeds of texts' hashes, random in each process as Python's own are. */
static int draw_seeds(uint64_t seeds[2]) {
    static const char *const texts[] = {"traceops: one seed", "traceops: another seed"};
    for (int i = 0; i < 2; i++) {
        PyObject *text = PyUnicode_FromString(texts[i]);
        Py_hash_t hash = text ? PyObject_Hash(text) : -1;
        Py_XDECREF(text);
        if (hash == -1)
            return 0;
        seeds[i] = (uint64_t)hash;
    }
    return 1;
}

#endif
