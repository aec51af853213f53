/* The Python side of events.c: traceops.traces._native. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <structmember.h>

#include "block.h"
#include "events.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    Events events;
    int busy; /* a method is at work: reading without the interpreter's lock, or calling what may run Python code */
} Columns;

static const char *const wide_names[] = {"index", "ts", "dur", "pid", "tid", "stream", "correlation", "external", "sequence"};
static const char *const narrow_names[] = {"name", "cat", "shape", "types", "strides", "concrete"};

static int seed(Events *events) {
    uint64_t seeds[2];
    if (!draw_seeds(seeds))
        return 0;
    for (int column = 0; column < NARROW_COLUMNS; column++)
        memcpy(events->strings[column].seeds, seeds, sizeof seeds);
    return 1;
}

static PyObject *columns_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"exact", NULL};
    int exact = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "p", keywords, &exact))
        return NULL;
    Columns *self = (Columns *)type->tp_alloc(type, 0); /* zeros are empty Events */
    if (self == NULL)
        return NULL;
    self->events.exact = exact;
    if (!seed(&self->events))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void columns_dealloc(Columns *self) {
    events_free(&self->events);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Every method begins so and sets `busy` to 0 at its end: none runs inside another one of the same columns. */
static int begin(Columns *self) {
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is reading into these columns");
        return 0;
    }
    return self->busy = 1;
}

static PyObject *columns_take(Columns *self, PyObject *text) {
    if (!PyBytes_Check(text)) { /* whose bytes are followed by a zero */
        PyErr_SetString(PyExc_TypeError, "take() wants bytes");
        return NULL;
    }
    if (!begin(self))
        return NULL;
    size_t consumed = 0;
    Status status;
    Py_INCREF(text);
    Py_BEGIN_ALLOW_THREADS
    status = events_take(&self->events, (const unsigned char *)PyBytes_AS_STRING(text),
                         (size_t)PyBytes_GET_SIZE(text), &consumed);
    Py_END_ALLOW_THREADS
    Py_DECREF(text);
    self->busy = 0;
    if (status == NO_MEMORY)
        return PyErr_NoMemory();
    return Py_BuildValue("(ni)", (Py_ssize_t)consumed, (int)status);
}

static PyObject *columns_collectives(Columns *self, PyObject *unused) {
    (void)unused;
    Events *events = &self->events;
    if (!begin(self))
        return NULL;
    PyObject *list = PyList_New((Py_ssize_t)events->kept_count);
    for (size_t i = 0; list != NULL && i < events->kept_count; i++) {
        const Kept *own = &events->kept[i];
        PyObject *pair = Py_BuildValue("(Ly#)", (long long)own->row, (const char *)events->kept_text + own->start,
                                       (Py_ssize_t)(own->end - own->start));
        if (pair == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, pair);
    }
    if (list != NULL)
        events->kept_count = events->text_used = 0;
    self->busy = 0;
    return list;
}

/* The number of a column of strings, -1 with an exception for others. */
static int narrow_column(const char *name) {
    for (int i = 0; i < NARROW_COLUMNS; i++)
        if (strcmp(name, narrow_names[i]) == 0)
            return i;
    PyErr_Format(PyExc_ValueError, "there are no strings of a column %.50s", name);
    return -1;
}

static PyObject *columns_number(Columns *self, PyObject *args) {
    const char *name, *text;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "ss#", &name, &text, &length))
        return NULL;
    int column = narrow_column(name);
    if (column < 0 || !begin(self))
        return NULL;
    int32_t number = strings_number(&self->events.strings[column], (const unsigned char *)text, (size_t)length);
    self->busy = 0;
    return number < 0 ? PyErr_NoMemory() : PyLong_FromLong(number);
}

static PyObject *columns_strings(Columns *self, PyObject *args) {
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    int column = narrow_column(name);
    if (column < 0 || !begin(self))
        return NULL;
    const Strings *strings = &self->events.strings[column];
    PyObject *tuple = PyTuple_New(strings->count);
    for (int32_t i = 0; tuple != NULL && i < strings->count; i++) {
        size_t start = i ? strings->ends[i - 1] : 0;
        PyObject *text = PyUnicode_DecodeUTF8((const char *)strings->bytes + start,
                                              (Py_ssize_t)(strings->ends[i] - start), "replace");
        if (text == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, text);
    }
    self->busy = 0;
    return tuple;
}

/* The buffer of columns[name], whole and of the machine's integers; 0 with an exception if it is no such thing. */
static int column_buffer(PyObject *columns, const char *name, Py_ssize_t size, Py_buffer *view) {
    PyObject *column = PyMapping_GetItemString(columns, name);
    if (column == NULL)
        return 0;
    int failed = PyObject_GetBuffer(column, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    Py_DECREF(column); /* the view holds it */
    if (failed)
        return 0;
    const char *format = view->format;
    if (view->itemsize == size && format != NULL && format[0] && strchr("ilq", format[0]) && !format[1])
        return 1;
    PyBuffer_Release(view);
    PyErr_Format(PyExc_ValueError, "column %s is of another type than int%d", name, (int)size * 8);
    return 0;
}

static PyObject *columns_extend(Columns *self, PyObject *columns) {
    Events *events = &self->events;
    Py_buffer views[WIDE_COLUMNS + NARROW_COLUMNS];
    int count = 0, done = 0;
    if (!PyDict_Check(columns)) {
        PyErr_SetString(PyExc_TypeError, "extend() wants a dict of columns");
        return NULL;
    }
    if (!begin(self))
        return NULL;
    for (; count < WIDE_COLUMNS + NARROW_COLUMNS; count++) {
        int wide = count < WIDE_COLUMNS;
        const char *name = wide ? wide_names[count] : narrow_names[count - WIDE_COLUMNS];
        if (!column_buffer(columns, name, wide ? 8 : 4, &views[count]))
            goto release;
        if (views[count].len / (wide ? 8 : 4) != views[0].len / 8) {
            PyErr_Format(PyExc_ValueError, "column %s is of another length than index", name);
            count++;
            goto release;
        }
    }
    size_t rows = (size_t)views[0].len / 8;
    if (!events_reserve(events, rows)) {
        PyErr_NoMemory();
        goto release;
    }
    for (int i = 0; rows > 0 && i < WIDE_COLUMNS; i++)
        memcpy(events->wide[i] + events->rows, views[i].buf, rows * 8);
    for (int i = 0; rows > 0 && i < NARROW_COLUMNS; i++)
        memcpy(events->narrow[i] + events->rows, views[WIDE_COLUMNS + i].buf, rows * 4);
    events->rows += rows;
    done = 1;
release:
    while (count > 0)
        PyBuffer_Release(&views[--count]);
    self->busy = 0;
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *columns_finish(Columns *self, PyObject *unused) {
    (void)unused;
    Events *events = &self->events;
    if (!begin(self))
        return NULL;
    PyObject *result = PyDict_New();
    for (int i = 0; result != NULL && i < WIDE_COLUMNS + NARROW_COLUMNS; i++) {
        int wide = i < WIDE_COLUMNS;
        void *column = wide ? (void *)events->wide[i] : (void *)events->narrow[i - WIDE_COLUMNS];
        PyObject *block = block_of(column, events->rows, wide ? 8 : 4);
        if (block != NULL && wide)
            events->wide[i] = NULL;
        else if (block != NULL)
            events->narrow[i - WIDE_COLUMNS] = NULL;
        if (block == NULL || PyDict_SetItemString(result, wide ? wide_names[i] : narrow_names[i - WIDE_COLUMNS], block) < 0)
            Py_CLEAR(result);
        Py_XDECREF(block);
    }
    if (result != NULL)
        events->rows = events->room = 0;
    else
        events_free(events); /* some columns have gone */
    self->busy = 0;
    return result;
}

static PyMethodDef columns_methods[] = {
    {"take", (PyCFunction)columns_take, METH_O,
     PyDoc_STR("take(text: bytes) -> (consumed, status): read whole events; see events.h.")},
    {"collectives", (PyCFunction)columns_collectives, METH_NOARGS,
     PyDoc_STR("collectives() -> [(row, JSON)] of those read since the last call, and with row -1 of long Python frames.")},
    {"number", (PyCFunction)columns_number, METH_VARARGS,
     PyDoc_STR("number(column, text) -> the text's number in a column of strings; new ones are added.")},
    {"strings", (PyCFunction)columns_strings, METH_VARARGS,
     PyDoc_STR("strings(column) -> all texts of a column of strings, by number.")},
    {"extend", (PyCFunction)columns_extend, METH_O,
     PyDoc_STR("extend(columns: dict of arrays): add rows that were read elsewhere.")},
    {"finish", (PyCFunction)columns_finish, METH_NOARGS,
     PyDoc_STR("finish() -> dict of buffers, int64 or int32, one a column; no rows are left.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef columns_members[] = {
    {"rows", T_PYSSIZET, offsetof(Columns, events.rows), READONLY, NULL},
    {"seen", T_LONGLONG, offsetof(Columns, events.seen), 0, PyDoc_STR("Events of all phases.")},
    {"bad_times", T_LONGLONG, offsetof(Columns, events.bad_times), 0, PyDoc_STR("Events without a usable time.")},
    {"with_stack", T_INT, offsetof(Columns, events.with_stack), 0, PyDoc_STR("Whether there were Python frames.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject columns_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceops.traces._native.Columns",
    .tp_doc = PyDoc_STR("Columns(exact): complete events of trace JSON, read quickly."),
    .tp_basicsize = sizeof(Columns),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = columns_new,
    .tp_dealloc = (destructor)columns_dealloc,
    .tp_methods = columns_methods,
    .tp_members = columns_members,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceops.traces._native",
    .m_doc = PyDoc_STR("Trace JSON to columns in one pass over the bytes."),
    .m_size = -1,
};

/* `busy` relies on the interpreter's lock. A free-threaded Python turns the lock on when it imports a module that does
 * not declare Py_MOD_GIL_NOT_USED, as this one does not; isolated subinterpreters refuse modules of this kind. */
PyMODINIT_FUNC PyInit__native(void) {
    if (PyType_Ready(&block_type) < 0 || PyType_Ready(&columns_type) < 0)
        return NULL;
    PyObject *self = PyModule_Create(&module);
    if (self == NULL)
        return NULL;
    Py_INCREF(&columns_type);
    if (PyModule_AddObject(self, "Columns", (PyObject *)&columns_type) < 0 ||
        PyModule_AddIntConstant(self, "MORE", MORE) < 0 || PyModule_AddIntConstant(self, "ODD", ODD) < 0 ||
        PyModule_AddIntConstant(self, "CLOSED", CLOSED) < 0 || PyModule_AddIntConstant(self, "LAYOUT", LAYOUT) < 0)
        Py_CLEAR(self);
    return self;
}
