/* The Python side of snapshot.c: traceops.traces._snapshot. */
#include "block.h"
#include "snapshot.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
    int file;
    PyObject *place;
} From;

static int64_t more_bytes(void *of, unsigned char *to, size_t room) {
    const From *from = of;
    for (;;) {
        ssize_t got;
        Py_BEGIN_ALLOW_THREADS
        got = read(from->file, to, room);
        Py_END_ALLOW_THREADS
        if (got < 0 && errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (PyErr_CheckSignals() < 0)
            return -1;
        if (got >= 0)
            return got;
    }
}

static PyObject *text_of(const Strings *texts, int32_t number) {
    size_t start = number ? texts->ends[number - 1] : 0;
    return PyUnicode_DecodeUTF8((const char *)texts->bytes + start, (Py_ssize_t)(texts->ends[number] - start),
                                "surrogatepass");
}

/* What the caller's function says of a frame; a text that is none makes the file unusual. */
static int64_t place_of_frame(void *of, const Snapshot *snapshot, int32_t file, uint64_t line, int32_t name) {
    const From *from = of;
    PyObject *file_text = text_of(&snapshot->texts, file), *name_text = text_of(&snapshot->texts, name);
    if (file_text == NULL || name_text == NULL) {
        Py_XDECREF(file_text);
        Py_XDECREF(name_text);
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            return -2;
        PyErr_Clear();
        return -1;
    }
    PyObject *said = PyObject_CallFunction(from->place, "NKN", file_text, (unsigned long long)line, name_text);
    long long number = said == NULL ? -1 : PyLong_AsLongLong(said);
    Py_XDECREF(said);
    if (!PyErr_Occurred() && (number < 0 || number >> 2 > INT32_MAX))
        PyErr_SetString(PyExc_ValueError, "the number of a place is out of range");
    return PyErr_Occurred() ? -2 : number;
}

/* Adds a column to the dict, which has the memory then. */
static int add(PyObject *found, const char *name, void **column, size_t rows, size_t size) {
    PyObject *block = block_of(*column, rows, size);
    if (block == NULL)
        return 0;
    *column = NULL;
    int added = PyDict_SetItemString(found, name, block);
    Py_DECREF(block);
    return added == 0;
}

static PyObject *columns_of(Snapshot *s) {
    PyObject *found = PyDict_New();
    if (found != NULL && add(found, "action", (void **)&s->actions, s->events, sizeof *s->actions) &&
        add(found, "address", (void **)&s->addresses, s->events, sizeof *s->addresses) &&
        add(found, "size", (void **)&s->sizes, s->events, sizeof *s->sizes) &&
        add(found, "place", (void **)&s->places, s->events, sizeof *s->places) &&
        add(found, "shortages", (void **)&s->shortages, s->shortage_count, sizeof *s->shortages) &&
        add(found, "blocks", (void **)&s->blocks, s->block_count, sizeof *s->blocks) &&
        add(found, "segments", (void **)&s->segments, s->segment_count, sizeof *s->segments) &&
        add(found, "traces", (void **)&s->inner, s->inner_count, 2 * sizeof *s->inner))
        return found;
    Py_XDECREF(found);
    return NULL;
}

static PyObject *read_snapshot(PyObject *self, PyObject *args) {
    (void)self;
    From from;
    if (!PyArg_ParseTuple(args, "iO", &from.file, &from.place))
        return NULL;
    Snapshot snapshot = {.more = more_bytes, .place = place_of_frame, .from = &from};
    if (!draw_seeds(snapshot.texts.seeds) || !draw_seeds(snapshot.frames.seeds))
        return NULL;
    Outcome outcome = snapshot_read(&snapshot);
    snapshot_free_reading(&snapshot);
    PyObject *found = NULL;
    if (outcome == READ)
        found = columns_of(&snapshot);
    else if (outcome == UNUSUAL)
        found = Py_NewRef(Py_None);
    else if (outcome == CUT_OFF)
        PyErr_SetString(PyExc_EOFError, "the file is cut off");
    else if (outcome == NO_ROOM)
        PyErr_NoMemory();
    snapshot_free(&snapshot);
    return found;
}

static PyMethodDef methods[] = {
    {"read", read_snapshot, METH_VARARGS,
     PyDoc_STR("read(file: int, place) -> dict of buffers, or None where Python's unpickler has to judge the file.\n\n"
               "place(filename, line, name) numbers the place of a frame, times 4, plus 0 (best) to 3.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceops.traces._snapshot",
    .m_doc = PyDoc_STR("torch's memory snapshots to packed rows, in one pass over the bytes."),
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__snapshot(void) {
    if (PyType_Ready(&block_type) < 0)
        return NULL;
    return PyModule_Create(&module);
}
