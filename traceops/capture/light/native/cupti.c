/* Kernels, copies and memsets from CUPTI's activity API, without Python on any of CUPTI's threads.
 *
 * CUPTI asks for buffers and hands them back on whichever thread launches, or on one of its own. A callback in Python
 * would take the interpreter's lock there, which the thread that launches may hold while it waits for CUPTI. So both
 * callbacks are here and touch no Python. The library is the one that torch has loaded; nothing is linked with it.
 *
 * CUPTI's records have grown from release to release, and always at their end. What is read here lies in front and has
 * lain there from CUDA 12.0 to 13.x (cupti_activity.h of 12.1, 12.4, 12.6, 12.8, 12.9, 13.0 and 13.5 were looked at). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#endif

#define OLDEST_API 18      /* CUDA 12.0 */
#define NEWEST_API 139999  /* CUDA 13.x */

enum { MEMCPY = 1, MEMSET = 2, KERNEL = 3, CONCURRENT_KERNEL = 10 };

struct kernel { /* CUpti_ActivityKernel9 to 13 */
    uint32_t kind;
    uint8_t config[4];
    uint64_t partitioned;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
};
struct copy { /* CUpti_ActivityMemcpy5 to 7 */
    uint32_t kind;
    uint8_t copy_kind, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
};
struct set { /* CUpti_ActivityMemset4 and 5 */
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
};
_Static_assert(offsetof(struct kernel, start) == 16 && offsetof(struct kernel, device) == 40, "kernel");
_Static_assert(offsetof(struct kernel, correlation) == 92 && offsetof(struct kernel, name) == 104, "kernel");
_Static_assert(offsetof(struct copy, bytes) == 8 && offsetof(struct copy, stream) == 40, "copy");
_Static_assert(offsetof(struct set, bytes) == 8 && offsetof(struct set, stream) == 40, "set");

struct row { /* traceops/core/rank_files.py has the same */
    uint64_t start, end;
    uint64_t size; /* blocks of a kernel's grid; bytes */
    uint32_t name, stream, correlation;
    uint8_t kind, detail, device, reserved;
};
_Static_assert(sizeof(struct row) == 40, "row");

typedef uint32_t code;
typedef void (*requested_fn)(uint8_t **, size_t *, size_t *);
typedef void (*completed_fn)(void *, uint32_t, uint8_t *, size_t, size_t);

static struct {
    code (*get_version)(uint32_t *);
    code (*register_callbacks)(requested_fn, completed_fn);
    code (*enable)(uint32_t);
    code (*disable)(uint32_t);
    code (*flush)(uint32_t);
    code (*next)(uint8_t *, size_t, void **);
    code (*dropped)(void *, uint32_t, size_t *);
    code (*timestamp)(uint64_t *);
} cupti;

/* For `detach` alone. One subscriber is all that CUPTI takes: where Kineto is it, nothing is done. */
typedef void (*call_fn)(void *, uint32_t, uint32_t, const void *);
static struct {
    code (*subscribe)(void **, call_fn, void *);
    code (*unsubscribe)(void *);
    code (*enable_callback)(uint32_t, void *, uint32_t, uint32_t);
    code (*finalize)(void);
} leave;
static void *subscriber;
static code unsubscribed, finalized;
static int detached;
enum { DRIVER_API = 1, GET_VERSION = 2 /* cuDriverGetVersion */, API_EXIT = 1 };

struct buffer {
    uint8_t *data;
    size_t valid;
    struct buffer *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *kept, *last;
static size_t buffer_bytes = 4 << 20, most_buffers = 64, buffers, discarded, requested;
static int keeping;
static const uint32_t kinds[] = {CONCURRENT_KERNEL, MEMCPY, MEMSET};
enum { KINDS = 3 };

static void on_requested(uint8_t **data, size_t *size, size_t *most) {
    *data = malloc(buffer_bytes); /* as aligned as CUPTI wants it: to 8 bytes */
    *size = *data == NULL ? 0 : buffer_bytes;
    *most = 0; /* as many records as fit */
    pthread_mutex_lock(&lock);
    requested++;
    pthread_mutex_unlock(&lock);
}

static void on_completed(void *context, uint32_t stream, uint8_t *data, size_t size, size_t valid) {
    struct buffer *one = NULL;
    (void)context, (void)stream, (void)size;
    if (data == NULL)
        return;
    pthread_mutex_lock(&lock);
    if (keeping && valid > 0 && buffers < most_buffers && (one = malloc(sizeof *one)) != NULL) {
        *one = (struct buffer){data, valid, NULL};
        if (last != NULL)
            last->next = one;
        else
            kept = one;
        last = one;
        buffers++;
    } else if (keeping && valid > 0) {
        discarded++;
    }
    pthread_mutex_unlock(&lock);
    if (one == NULL)
        free(data);
}

static void forget(void) {
    struct buffer *one;
    pthread_mutex_lock(&lock);
    one = kept;
    kept = last = NULL;
    buffers = 0;
    pthread_mutex_unlock(&lock);
    while (one != NULL) {
        struct buffer *next = one->next;
        free(one->data);
        free(one);
        one = next;
    }
}

static int note(PyObject *calls, const char *name, uint32_t argument, code result) {
    PyObject *call = Py_BuildValue("(sIi)", name, (unsigned)argument, (int)result);
    if (call == NULL)
        return -1;
    int failed = PyList_Append(calls, call);
    Py_DECREF(call);
    return failed;
}

static int find(PyObject *calls, const char *path) {
    struct {
        const char *name;
        void **to;
    } wanted[] = {
        {"cuptiGetVersion", (void **)&cupti.get_version},
        {"cuptiActivityRegisterCallbacks", (void **)&cupti.register_callbacks},
        {"cuptiActivityEnable", (void **)&cupti.enable},
        {"cuptiActivityDisable", (void **)&cupti.disable},
        {"cuptiActivityFlushAll", (void **)&cupti.flush},
        {"cuptiActivityGetNextRecord", (void **)&cupti.next},
        {"cuptiActivityGetNumDroppedRecords", (void **)&cupti.dropped},
        {"cuptiGetTimestamp", (void **)&cupti.timestamp},
    };
    struct {
        const char *name;
        void **to;
    } leaving[] = {
        {"cuptiSubscribe", (void **)&leave.subscribe},
        {"cuptiUnsubscribe", (void **)&leave.unsubscribe},
        {"cuptiEnableCallback", (void **)&leave.enable_callback},
        {"cuptiFinalize", (void **)&leave.finalize},
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* never one that torch does not use */
    if (library == NULL) {
        note(calls, "dlopen", 0, (code)-1);
        return 0;
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(library, wanted[i].name);
        if (*wanted[i].to == NULL) {
            note(calls, wanted[i].name, 0, (code)-1);
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof leaving / sizeof *leaving; i++)
        *leaving[i].to = dlsym(library, leaving[i].name);
    return 1;
}

static void disable_all(PyObject *calls, int count) {
    for (int i = 0; i < count; i++) {
        code result;
        Py_BEGIN_ALLOW_THREADS;
        result = cupti.disable(kinds[i]);
        Py_END_ALLOW_THREADS;
        note(calls, "cuptiActivityDisable", kinds[i], result);
    }
}

PyDoc_STRVAR(start_doc,
             "start(path, buffer_bytes, most_buffers) -> (whether it records, [(call, argument, result), ...])\n\n"
             "Record with the libcupti at `path`, which is loaded. A failure leaves no activity kind enabled.");
static PyObject *start(PyObject *self, PyObject *arguments) {
    const char *path;
    Py_ssize_t bytes, most;
    uint32_t version = 0;
    code result;
    int ready = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "snn", &path, &bytes, &most))
        return NULL;
    PyObject *calls = PyList_New(0);
    if (calls == NULL)
        return NULL;
    if (keeping || !find(calls, path))
        goto done;
    result = cupti.get_version(&version);
    note(calls, "cuptiGetVersion", version, result);
    if (result != 0 || version < OLDEST_API || version > NEWEST_API)
        goto done;
    forget();
    buffer_bytes = (size_t)bytes, most_buffers = (size_t)most, discarded = requested = 0;
    Py_BEGIN_ALLOW_THREADS;
    result = cupti.register_callbacks(on_requested, on_completed);
    Py_END_ALLOW_THREADS;
    note(calls, "cuptiActivityRegisterCallbacks", 0, result);
    if (result != 0)
        goto done;
    keeping = 1;
    for (int i = 0; i < KINDS; i++) {
        Py_BEGIN_ALLOW_THREADS;
        result = cupti.enable(kinds[i]);
        Py_END_ALLOW_THREADS;
        note(calls, "cuptiActivityEnable", kinds[i], result);
        if (result != 0) {
            disable_all(calls, i);
            keeping = 0;
            forget();
            goto done;
        }
    }
    ready = 1;
done:
    return Py_BuildValue("(NN)", PyBool_FromLong(ready), calls);
}

PyDoc_STRVAR(stop_doc, "stop() -> [(call, argument, result), ...]\n\nHand over what is in CUPTI's buffers and disable "
                       "what was enabled. The device must be idle. What was recorded waits for `take`.");
static PyObject *stop(PyObject *self, PyObject *unused) {
    code result;
    size_t lost = 0;
    (void)self, (void)unused;
    PyObject *calls = PyList_New(0);
    if (calls == NULL || !keeping)
        return calls;
    Py_BEGIN_ALLOW_THREADS;
    result = cupti.flush(1);
    Py_END_ALLOW_THREADS;
    note(calls, "cuptiActivityFlushAll", 1, result);
    disable_all(calls, KINDS);
    Py_BEGIN_ALLOW_THREADS;
    result = cupti.dropped(NULL, 0, &lost);
    Py_END_ALLOW_THREADS;
    note(calls, "cuptiActivityGetNumDroppedRecords", (uint32_t)lost, result);
    discarded += lost;
    keeping = 0;
    return calls;
}

/* On our own thread: of all calls only the one that `detach` makes is subscribed to. */
static void on_call(void *user, uint32_t domain, uint32_t id, const void *call) {
    uint32_t site;
    (void)user;
    memcpy(&site, call, sizeof site);
    if (domain != DRIVER_API || id != GET_VERSION || site != API_EXIT || __sync_lock_test_and_set(&detached, 1))
        return;
    unsubscribed = leave.unsubscribe(subscriber);
    finalized = leave.finalize();
}

PyDoc_STRVAR(detach_doc, "detach() -> [(call, argument, result), ...]\n\nEnd CUPTI in this process, from where a call of "
                         "the driver's returns, as NVIDIA says. After `take`; any call of CUPTI's attaches it again.");
static PyObject *detach(PyObject *self, PyObject *unused) {
    int (*get_version)(int *) = NULL;
    int version = 0;
    code result;
    (void)self, (void)unused;
    PyObject *calls = PyList_New(0);
    if (calls == NULL || keeping)
        return calls;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver != NULL)
        *(void **)&get_version = dlsym(driver, "cuDriverGetVersion");
    if (get_version == NULL || leave.subscribe == NULL || leave.unsubscribe == NULL || leave.enable_callback == NULL ||
        leave.finalize == NULL) {
        note(calls, "detach", 0, (code)-1);
        return calls;
    }
    detached = 0, unsubscribed = finalized = (code)-1;
    Py_BEGIN_ALLOW_THREADS;
    result = leave.subscribe(&subscriber, on_call, NULL);
    Py_END_ALLOW_THREADS;
    note(calls, "cuptiSubscribe", 0, result);
    if (result != 0)
        return calls;
    Py_BEGIN_ALLOW_THREADS;
    result = leave.enable_callback(1, subscriber, DRIVER_API, GET_VERSION);
    if (result == 0)
        get_version(&version);
    if (__sync_lock_test_and_set(&detached, 1) == 0) /* it was not called back, and is not to be later */
        unsubscribed = leave.unsubscribe(subscriber);
    Py_END_ALLOW_THREADS;
    note(calls, "cuptiEnableCallback", GET_VERSION, result);
    note(calls, "cuptiUnsubscribe", 0, unsubscribed);
    note(calls, "cuptiFinalize", 0, finalized);
    return calls;
}

/* Names of kernels by the pointers that CUPTI gives: one for each kernel, for as long as its buffers are there. */
struct names {
    const char **known;
    size_t count, room;
    uint32_t *slots;
    size_t mask;
};

static uint32_t name_of(struct names *names, const char *name) {
    if (name == NULL)
        name = "";
    size_t at = ((uintptr_t)name >> 3) * 0x9E3779B97F4A7C15ull >> 20;
    for (at &= names->mask; names->slots[at] != 0; at = (at + 1) & names->mask)
        if (names->known[names->slots[at] - 1] == name)
            return names->slots[at] - 1;
    if (names->count == names->room)
        return UINT32_MAX;
    names->known[names->count++] = name;
    names->slots[at] = (uint32_t)names->count;
    return (uint32_t)names->count - 1;
}

static int row_of(const void *record, struct names *names, struct row *row) {
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    memset(row, 0, sizeof *row);
    row->name = UINT32_MAX;
    if (kind == KERNEL || kind == CONCURRENT_KERNEL) {
        const struct kernel *one = record;
        row->start = one->start, row->end = one->end, row->stream = one->stream;
        row->device = (uint8_t)one->device, row->correlation = one->correlation, row->kind = CONCURRENT_KERNEL;
        row->size = (uint64_t)(uint32_t)one->grid[0] * (uint32_t)one->grid[1] * (uint32_t)one->grid[2];
        row->name = name_of(names, one->name);
    } else if (kind == MEMCPY) {
        const struct copy *one = record;
        row->start = one->start, row->end = one->end, row->size = one->bytes, row->stream = one->stream;
        row->device = (uint8_t)one->device, row->correlation = one->correlation, row->kind = MEMCPY;
        row->detail = one->copy_kind;
    } else if (kind == MEMSET) {
        const struct set *one = record;
        row->start = one->start, row->end = one->end, row->size = one->bytes, row->stream = one->stream;
        row->device = (uint8_t)one->device, row->correlation = one->correlation, row->kind = MEMSET;
    } else {
        return 0;
    }
    return row->start != 0 && row->end >= row->start;
}

PyDoc_STRVAR(take_doc, "take() -> (rows, names, incomplete, discarded)\n\nWhat was recorded since the last `start`, as "
                       "bytes of rows (traceops/core/rank_files.py), and the names of its kernels; its buffers are freed.");
static PyObject *take(PyObject *self, PyObject *unused) {
    enum { ROOM = 1 << 16 };
    struct names names = {malloc(ROOM * sizeof(char *)), 0, ROOM, calloc(4 * ROOM, sizeof(uint32_t)), 4 * ROOM - 1};
    PyObject *rows = NULL, *texts = NULL, *result = NULL;
    size_t bytes = 0, incomplete = 0, lost = discarded;
    struct row *out = NULL;
    (void)self, (void)unused;
    if (keeping) {
        PyErr_SetString(PyExc_RuntimeError, "still recording");
        goto done;
    }
    for (struct buffer *one = kept; one != NULL; one = one->next)
        bytes += one->valid;
    /* The smallest record that becomes a row has 56 bytes, more than a row. */
    rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(bytes / 56 + 1) * (Py_ssize_t)sizeof(struct row));
    texts = PyList_New(0);
    if (names.known == NULL || names.slots == NULL || rows == NULL || texts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    out = (struct row *)PyBytes_AS_STRING(rows);
    struct row *const end = out + bytes / 56;
    for (struct buffer *one = kept; one != NULL; one = one->next) {
        void *record = NULL;
        while (out < end && cupti.next(one->data, one->valid, &record) == 0 && record != NULL) {
            if (row_of(record, &names, out))
                out++;
            else
                incomplete++;
        }
    }
    for (size_t i = 0; i < names.count; i++) {
        PyObject *text = PyUnicode_DecodeUTF8(names.known[i], (Py_ssize_t)strlen(names.known[i]), "replace");
        if (text == NULL || PyList_Append(texts, text) != 0) {
            Py_XDECREF(text);
            goto done;
        }
        Py_DECREF(text);
    }
    forget();
    Py_ssize_t used = (char *)out - PyBytes_AS_STRING(rows);
    if (_PyBytes_Resize(&rows, used) != 0)
        goto done;
    result = Py_BuildValue("(OOnn)", rows, texts, (Py_ssize_t)incomplete, (Py_ssize_t)lost);
done:
    free(names.known);
    free(names.slots);
    Py_XDECREF(rows);
    Py_XDECREF(texts);
    return result;
}

PyDoc_STRVAR(clocks_doc, "clocks() -> (realtime ns, monotonic ns, time stamp counter, CUPTI's), now; 0 where there is "
                         "none. Records are in one of them: torch's profiler may have given CUPTI another clock.");
static PyObject *clocks(PyObject *self, PyObject *unused) {
    struct timespec real, mono;
    uint64_t counter = 0, own = 0;
    (void)self, (void)unused;
    if (cupti.timestamp != NULL)
        cupti.timestamp(&own);
#if defined(__x86_64__) || defined(__i386__)
    counter = __rdtsc();
#endif
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    return Py_BuildValue("(KKKK)", (unsigned long long)real.tv_sec * 1000000000ull + (unsigned long long)real.tv_nsec,
                         (unsigned long long)mono.tv_sec * 1000000000ull + (unsigned long long)mono.tv_nsec,
                         (unsigned long long)counter, (unsigned long long)own);
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, start_doc},
    {"stop", stop, METH_NOARGS, stop_doc},
    {"detach", detach, METH_NOARGS, detach_doc},
    {"take", take, METH_NOARGS, take_doc},
    {"clocks", clocks, METH_NOARGS, clocks_doc},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_cupti", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__cupti(void) { return PyModule_Create(&module); }
