/* The end of a step in which nothing is due, in one call that looks at no object of Python's but the arguments.
 *
 * A step leaves the caches to its own code. What a step's end then costs is the memory that it touches: in Python some
 * hundred objects, here this struct, a record of 24 bytes and the heartbeat's slot. traceops/capture/short_way/ways.py says
 * what it is for and when it is taken, and has the same in Python for where no compiler was. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "the interpreter's lock is what keeps the threads apart here"
#endif

struct record { /* traceops/core/rank_files.py has the same */
    uint32_t host_us, device_us, gc_us, compile_us, own_us;
    uint16_t core_wait;
    uint8_t compiles, flags;
};
_Static_assert(sizeof(struct record) == 24, "record");

struct slot { /* traceops/capture/progress.py has the same */
    int64_t step, samples, time_ns, free, filed_ns;
};
enum { SLOTS = 2, LAST = SLOTS * sizeof(struct slot) + 1, HEARTBEAT_BYTES = LAST + 1 };

enum { OWN_WORK_NS = 1000000, ROOM = 1024 };
#ifdef __APPLE__
#define HOST_CLOCK CLOCK_UPTIME_RAW /* of time.perf_counter_ns: the other one goes on while the machine sleeps */
#else
#define HOST_CLOCK CLOCK_MONOTONIC
#endif
static const double FOLLOWS = 1.05; /* as StepClock does */

typedef struct {
    PyObject_HEAD
    long long step, samples, count, begun_ns;
    double usual_ns;
    /* Until when nothing is due, and what would tell that something is. */
    int armed;
    unsigned long thread;
    unsigned forks;
    long long until, due_ns, filed_ns;
    PyObject *modules, *compiled, *names; /* sys.modules; torch's times of compilations, and their keys in it */
    Py_ssize_t known_modules, seen;
    Py_buffer heartbeat;
    long long gc_ns, gc_began_ns;
    /* Records that nobody has taken: `first` is the number of records[0]. From number `held` on none is to be taken. */
    struct record *records;
    size_t used, room;
    long long first, held;
} Way;

/* How often this process and those before it have been forked: to ask for its number would take a call to the system. */
static unsigned forks;

static void forked(void) { forks++; }

static long long clock_ns(clockid_t which) {
    struct timespec now;
    clock_gettime(which, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static uint32_t us(long long ns) {
    return ns <= 0 ? 0 : ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

/* Whether torch has compiled something, or may begin to: its module was not loaded when we were armed. */
static int may_have_compiled(Way *way) {
    if (way->compiled == NULL)
        return PyDict_GET_SIZE(way->modules) != way->known_modules;
    if (PyDict_GET_SIZE(way->compiled) != 0) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(way->names); i++) {
            PyObject *times = PyDict_GetItemWithError(way->compiled, PyTuple_GET_ITEM(way->names, i));
            if (times != NULL)
                return !PyList_Check(times) || PyList_GET_SIZE(times) != way->seen;
            PyErr_Clear();
        }
    }
    return way->seen != 0;
}

/* As progress.py does: cleared first and written in order, so that one that was cut short does not end as it should. */
static void tell(Way *way, long long time_ns) {
    char *memory = way->heartbeat.buf;
    int last = !memory[LAST];
    volatile struct slot *slot = (volatile struct slot *)memory + last;
    slot->filed_ns = 0;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    slot->step = way->step, slot->samples = way->samples, slot->time_ns = time_ns;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    slot->filed_ns = way->filed_ns;
    memory[LAST] = (char)last;
}

/* times: of the step's end, of the next one's begin, and Unix time; NULL for now. */
static int passed(Way *way, PyObject *samples, const long long *times) {
    int overflow = 0;
    long long more = 0, now, took, own;
    if (!way->armed)
        return 0;
    way->armed = 0; /* what follows says why not */
    now = times != NULL ? times[0] : clock_ns(HOST_CLOCK);
    if (way->step >= way->until || now >= way->due_ns || way->used == way->room || may_have_compiled(way))
        return 0;
    if (PyThread_get_thread_ident() != way->thread || forks != way->forks)
        return 0;
    if (samples != Py_None) {
        if (!PyLong_CheckExact(samples))
            return 0;
        more = PyLong_AsLongLongAndOverflow(samples, &overflow);
        if (overflow || more < 0 || more > INT32_MAX)
            return 0;
        way->samples = (way->samples < 0 ? 0 : way->samples) + more;
    }
    way->armed = 1;
    took = now - way->begun_ns;
    way->usual_ns *= (double)took > way->usual_ns ? FOLLOWS : 1 / FOLLOWS;
    way->begun_ns = now;
    way->step++, way->count++;
    if (way->heartbeat.buf != NULL)
        tell(way, times != NULL ? times[2] : clock_ns(CLOCK_REALTIME));
    struct record *record = &way->records[way->used++];
    *record = (struct record){.host_us = us(took), .gc_us = us(way->gc_ns)};
    way->gc_ns = 0;
    own = times != NULL ? times[1] : clock_ns(HOST_CLOCK);
    record->own_us = us(own - now);
    if (own - now > OWN_WORK_NS) /* it was stopped here */
        way->begun_ns = own;
    return 1;
}

PyDoc_STRVAR(passed_doc, "passed(samples=None) -> bool\n\nA step ended, and all is done. False: nothing is, go the long "
                         "way; so it stays until `arm`.");
static PyObject *way_passed(Way *way, PyObject *const *arguments, Py_ssize_t count) {
    return PyBool_FromLong(passed(way, count > 0 ? arguments[0] : Py_None, NULL));
}

PyDoc_STRVAR(passed_at_doc, "passed_at(ended_ns, resumed_ns, time_ns) -> bool\n\nThe same at these times.");
static PyObject *way_passed_at(Way *way, PyObject *arguments) {
    long long times[3];
    if (!PyArg_ParseTuple(arguments, "LLL", &times[0], &times[1], &times[2]))
        return NULL;
    return PyBool_FromLong(passed(way, Py_None, times));
}

PyDoc_STRVAR(arm_doc, "arm(until, due_ns, filed_ns, modules, compiled, names, seen)\n\nGo the short way from now on, "
                      "in this thread: for steps before number `until`, before `due_ns`, while torch has compiled no more.");
static PyObject *way_arm(Way *way, PyObject *arguments) {
    PyObject *modules, *compiled, *names;
    way->armed = 0;
    if (!PyArg_ParseTuple(arguments, "LLLO!OO!n", &way->until, &way->due_ns, &way->filed_ns, &PyDict_Type, &modules,
                          &compiled, &PyTuple_Type, &names, &way->seen))
        return NULL;
    Py_XSETREF(way->modules, Py_NewRef(modules));
    Py_XSETREF(way->compiled, PyDict_Check(compiled) ? Py_NewRef(compiled) : NULL);
    Py_XSETREF(way->names, Py_NewRef(names));
    way->known_modules = PyDict_GET_SIZE(modules);
    way->thread = PyThread_get_thread_ident(), way->forks = forks;
    way->armed = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(rest_doc, "rest()\n\nSomething is due at the end of this step.");
static PyObject *way_rest(Way *way, PyObject *unused) {
    (void)unused;
    way->armed = 0;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(heartbeat_doc, "publish_to(memory)\n\nThe heartbeat's memory, None for no more.");
static PyObject *way_publish_to(Way *way, PyObject *memory) {
    Py_buffer told = {0};
    if (memory != Py_None) {
        if (PyObject_GetBuffer(memory, &told, PyBUF_WRITABLE) != 0)
            return NULL;
        if (told.len < HEARTBEAT_BYTES) {
            PyBuffer_Release(&told);
            PyErr_SetString(PyExc_ValueError, "too small");
            return NULL;
        }
    }
    way->armed = 0;
    Py_buffer before = way->heartbeat;
    way->heartbeat = told; /* of none its `buf` is NULL: releasing leaves that as it was */
    PyBuffer_Release(&before);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(collected_doc, "collected(phase, info)\n\nFor gc.callbacks.");
static PyObject *way_collected(Way *way, PyObject *const *arguments, Py_ssize_t count) {
    long long now = clock_ns(HOST_CLOCK);
    if (count > 0 && PyUnicode_Check(arguments[0]) && PyUnicode_CompareWithASCIIString(arguments[0], "start") == 0) {
        way->gc_began_ns = now;
    } else if (way->gc_began_ns != 0) {
        way->gc_ns += now - way->gc_began_ns;
        way->gc_began_ns = 0;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_gc_doc, "take_collected() -> ns\n\nSince it was asked last, or a step passed.");
static PyObject *way_take_collected(Way *way, PyObject *unused) {
    long long total = way->gc_ns;
    (void)unused;
    way->gc_ns = 0;
    return PyLong_FromLongLong(total);
}

PyDoc_STRVAR(append_doc, "append(record, hold) -> its number\n\nhold: it is not to be taken yet, nor those behind it.");
static PyObject *way_append(Way *way, PyObject *arguments) {
    const char *bytes;
    Py_ssize_t size;
    int hold;
    if (!PyArg_ParseTuple(arguments, "y#p", &bytes, &size, &hold))
        return NULL;
    if (size != sizeof(struct record)) {
        PyErr_SetString(PyExc_ValueError, "no record");
        return NULL;
    }
    if (way->used + 1 >= way->room) { /* one is left for the next short way */
        size_t room = way->room == 0 ? ROOM : 2 * way->room;
        struct record *larger = PyMem_Realloc(way->records, room * sizeof *larger);
        if (larger == NULL)
            return PyErr_NoMemory();
        way->records = larger, way->room = room;
    }
    memcpy(&way->records[way->used], bytes, sizeof(struct record));
    long long number = way->first + (long long)way->used++;
    if (hold && number < way->held)
        way->held = number;
    return PyLong_FromLongLong(number);
}

PyDoc_STRVAR(device_doc, "on_device(number, us)\n\nWhat the device took for the step of this record.");
static PyObject *way_on_device(Way *way, PyObject *arguments) {
    long long number;
    unsigned int device_us;
    if (!PyArg_ParseTuple(arguments, "LI", &number, &device_us))
        return NULL;
    if (number >= way->first && number < way->first + (long long)way->used)
        way->records[number - way->first].device_us = device_us;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc, "take() -> bytes\n\nThe records before number `held` that nobody has taken.");
static PyObject *way_take(Way *way, PyObject *unused) {
    size_t ready = way->used;
    (void)unused;
    if (way->held < way->first + (long long)way->used)
        ready = way->held > way->first ? (size_t)(way->held - way->first) : 0;
    PyObject *taken = PyBytes_FromStringAndSize((char *)way->records, (Py_ssize_t)(ready * sizeof(struct record)));
    if (taken == NULL)
        return NULL;
    way->used -= ready, way->first += (long long)ready;
    if (way->used > 0)
        memmove(way->records, way->records + ready, way->used * sizeof(struct record));
    return taken;
}

static PyObject *way_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    (void)arguments, (void)names;
    Way *way = (Way *)type->tp_alloc(type, 0);
    if (way != NULL)
        way->samples = -1, way->held = INT64_MAX;
    return (PyObject *)way;
}

static void way_dealloc(Way *way) {
    PyBuffer_Release(&way->heartbeat);
    Py_XDECREF(way->modules);
    Py_XDECREF(way->compiled);
    Py_XDECREF(way->names);
    PyMem_Free(way->records);
    Py_TYPE(way)->tp_free((PyObject *)way);
}

static PyMethodDef methods[] = {
    {"passed", (PyCFunction)(void (*)(void))way_passed, METH_FASTCALL, passed_doc},
    {"passed_at", (PyCFunction)way_passed_at, METH_VARARGS, passed_at_doc},
    {"arm", (PyCFunction)way_arm, METH_VARARGS, arm_doc},
    {"rest", (PyCFunction)way_rest, METH_NOARGS, rest_doc},
    {"publish_to", (PyCFunction)way_publish_to, METH_O, heartbeat_doc},
    {"collected", (PyCFunction)(void (*)(void))way_collected, METH_FASTCALL, collected_doc},
    {"take_collected", (PyCFunction)way_take_collected, METH_NOARGS, take_gc_doc},
    {"append", (PyCFunction)way_append, METH_VARARGS, append_doc},
    {"on_device", (PyCFunction)way_on_device, METH_VARARGS, device_doc},
    {"take", (PyCFunction)way_take, METH_NOARGS, take_doc},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"step", T_LONGLONG, offsetof(Way, step), 0, "Steps that ended."},
    {"samples", T_LONGLONG, offsetof(Way, samples), 0, "Of them; -1 where nobody said."},
    {"count", T_LONGLONG, offsetof(Way, count), 0, "Steps that were timed."},
    {"begun_ns", T_LONGLONG, offsetof(Way, begun_ns), 0, "Where the step began that goes on."},
    {"usual_ns", T_DOUBLE, offsetof(Way, usual_ns), 0, "About the median step."},
    {"gc_ns", T_LONGLONG, offsetof(Way, gc_ns), 0, "Of Python's garbage collector, not taken yet."},
    {"held", T_LONGLONG, offsetof(Way, held), 0, "Records from this number on are not to be taken yet."},
    {"armed", T_INT, offsetof(Way, armed), READONLY, "Whether the next step may go the short way."},
    {NULL, 0, 0, 0, NULL},
};
static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceops.capture.short_way._short_way.ShortWay",
    .tp_basicsize = sizeof(Way),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "See traceops/capture/short_way/ways.py.",
    .tp_new = way_new,
    .tp_dealloc = (destructor)way_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};
static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_short_way", .m_size = -1};

PyMODINIT_FUNC PyInit__short_way(void) {
    static int watched; /* forks are, once for a process */
    if (PyType_Ready(&type) != 0)
        return NULL;
    if (!watched && pthread_atfork(NULL, NULL, forked) != 0)
        return PyErr_NoMemory();
    watched = 1;
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObjectRef(made, "ShortWay", (PyObject *)&type) != 0)
        Py_CLEAR(made);
    return made;
}
