/* Looks at the stack of Python's main thread when a look is due, and not when that thread happens to let others run.
 *
 * A thread that wants to look needs the interpreter's lock. Where the main thread runs Python code it gives that away after
 * 5 ms at the earliest, or where it waits for something next: so a function of some ms was hardly ever seen, and what
 * came behind it took its share. From Python 3.12 on whichever thread has the lock looks, between two instructions: a
 * pending call. If that is not the main thread, that one waits, and is where it was when the look was due. If nobody has
 * the lock, who waits for the look gets it at once, and looks. In a call of C that keeps the lock a look is made where it
 * returns, and finds its line. Python 3.10 and 3.11 do not notice the pending calls of other threads. There the lock is
 * asked for at once, for the time that we wait for it.
 * traceops/capture/observing/stacks.py says what for, and has the same without it. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* RTLD_DEFAULT */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <frameobject.h>
#include <pthread.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "the interpreter's lock is what keeps the threads apart here"
#endif

enum { MOST_FRAMES = 100 };
#ifdef __APPLE__
#define HOST_CLOCK CLOCK_UPTIME_RAW /* of time.perf_counter_ns */
#else
#define HOST_CLOCK CLOCK_MONOTONIC
#endif

typedef struct {
    Py_ssize_t used;
    PyObject *codes[MOST_FRAMES]; /* innermost first */
    int instructions[MOST_FRAMES];
} Stack;

typedef struct {
    PyObject_HEAD
    PyObject *way; /* has `count` and `begun_ns` */
    /* Of both threads, under `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ended, asked, queued;
    unsigned forks;
    /* Under the interpreter's lock: whom to look at, and the latest look that nobody has taken. */
    PyThreadState *thread;
    long long at_ns, begun_ns, count;
    Stack seen, beside;    /* beside: of the thread that looked, where that is another */
    unsigned long looking; /* its number */
} Looks;

/* A fork leaves the lock as some thread held it, which the child does not have. */
static unsigned forks;
static void put_interval_back(void);

static void forked(void) {
    forks++;
    put_interval_back();
}

static struct timespec after(double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long long ns = until.tv_nsec + (long long)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    return until;
}

/* Wait with `lock` held; 0 where something changed, or may have. */
static int until(Looks *self, const struct timespec *when) {
#ifdef __APPLE__
    struct timespec now, left;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long ns = (when->tv_sec - now.tv_sec) * 1000000000ll + when->tv_nsec - now.tv_nsec;
    if (ns <= 0)
        return ETIMEDOUT;
    left.tv_sec = ns / 1000000000, left.tv_nsec = ns % 1000000000;
    return pthread_cond_timedwait_relative_np(&self->changed, &self->lock, &left);
#else
    return pthread_cond_timedwait(&self->changed, &self->lock, when);
#endif
}

static void empty(Stack *stack) {
    while (stack->used > 0) {
        stack->used--;
        Py_CLEAR(stack->codes[stack->used]);
    }
}

static void forget(Looks *self) {
    empty(&self->seen);
    empty(&self->beside);
}

#if PY_VERSION_HEX >= 0x030C0000

static long long number(PyObject *of, const char *name) {
    PyObject *value = PyObject_GetAttrString(of, name);
    long long found = value == NULL ? 0 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return found;
}

static void walk(PyThreadState *thread, Stack *stack) {
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    while (frame != NULL && stack->used < MOST_FRAMES) {
        PyFrameObject *back = PyFrame_GetBack(frame);
        stack->codes[stack->used] = (PyObject *)PyFrame_GetCode(frame);
        stack->instructions[stack->used++] = PyFrame_GetLasti(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
}

/* Nothing here runs Python code. */
static void look(Looks *self) {
    struct timespec now;
    PyThreadState *here = PyThreadState_Get();
    PyObject *raised = PyErr_GetRaisedException();
    clock_gettime(HOST_CLOCK, &now);
    forget(self);
    self->at_ns = now.tv_sec * 1000000000ll + now.tv_nsec;
    self->begun_ns = number(self->way, "begun_ns");
    self->count = number(self->way, "count");
    walk(self->thread, &self->seen);
    if (here != self->thread)
        walk(here, &self->beside);
    self->looking = PyThread_get_thread_ident();
    PyErr_SetRaisedException(raised);
}

/* The pending call, on any thread. */
static int called(void *given) {
    Looks *self = given;
    if (self->forks == forks) {
        pthread_mutex_lock(&self->lock);
        int asked = self->asked;
        self->asked = self->queued = 0;
        pthread_mutex_unlock(&self->lock);
        if (asked)
            look(self);
    }
    Py_DECREF(self);
    return 0;
}

#if PY_VERSION_HEX >= 0x030D0000
static int is_ending(void) { return Py_IsFinalizing(); }
#else
static int is_ending(void) { return _Py_IsFinalizing(); }
#endif

/* A call of the interpreter's, which any thread may make; one of the main thread's waits where that does. Python exports
 * this without telling; NULL where a build does not. */
static int (*add_call)(PyInterpreterState *, int (*)(void *), void *, int);
static void find(void) { *(void **)&add_call = dlsym(RTLD_DEFAULT, "_PyEval_AddPendingCall"); }

/* Without the interpreter's lock, and with ours: have whoever has that look. kept: a reference that a call may have. */
static void ask(Looks *self, int *kept) {
    if (add_call == NULL || is_ending())
        return;
    self->asked = 1;
    if (*kept) {
        self->queued = 1;
        pthread_mutex_unlock(&self->lock);
        int full = add_call(PyInterpreterState_Main(), called, self, 0);
        pthread_mutex_lock(&self->lock);
        if (full)
            self->asked = self->queued = 0;
        else
            *kept = 0;
    }
}

/* With the interpreter's lock: who comes to it later finds nothing to do. */
static void ask_no_more(Looks *self) {
    pthread_mutex_lock(&self->lock);
    self->asked = 0;
    pthread_mutex_unlock(&self->lock);
}

static void take_lock(PyThreadState *saved, int Py_UNUSED(at_once)) { PyEval_RestoreThread(saved); }
static void put_interval_back(void) {}

#else

enum { AT_ONCE_US = 53 /* which nobody else has, and sys.setswitchinterval hits */ };

/* What Python exports without telling; NULL where a build does not. */
static unsigned long (*get_interval)(void);
static void (*set_interval)(unsigned long);
static void find(void) {
    *(void **)&get_interval = dlsym(RTLD_DEFAULT, "_PyEval_GetSwitchInterval");
    *(void **)&set_interval = dlsym(RTLD_DEFAULT, "_PyEval_SetSwitchInterval");
}

static void ask(Looks *Py_UNUSED(self), int *Py_UNUSED(kept)) {}
static void ask_no_more(Looks *Py_UNUSED(self)) {}

static volatile unsigned long interval; /* as it was before we shortened it; 0 where we never did */

/* Also in a forked process, which does not have the thread that shortened it; and where a program has read ours and set
 * it again behind us. */
static void put_interval_back(void) {
    if (interval != 0 && get_interval() == AT_ONCE_US)
        set_interval(interval);
}

/* Who waits for the lock wakes up once an interval: beside a long call of C that keeps it, 2.5 % of a core and more. What
 * was asked for in the first ms stays asked for, so then the interval can be put back. That takes another thread, which is
 * not for nothing either: only the looks behind one that waited long have it. */
enum { LONG_NS = 2000000, WARY_LOOKS = 20 };
static const struct timespec AT_ONCE_FOR = {0, 1000000};
static volatile int wary; /* so many looks more */

static void *put_back_soon(void *Py_UNUSED(unused)) {
    nanosleep(&AT_ONCE_FOR, NULL);
    put_interval_back();
    return NULL;
}

/* Who waits for the interpreter's lock is who reads the interval. */
static void take_lock(PyThreadState *saved, int at_once) {
    pthread_t thread; /* with our mask of signals: it blocks all */
    struct timespec begin, end;
    at_once = at_once && get_interval != NULL && set_interval != NULL;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (at_once) {
        put_interval_back();
        unsigned long found = get_interval();
        if (found > AT_ONCE_US) {
            interval = found;
            set_interval(AT_ONCE_US);
            if (wary > 0 && pthread_create(&thread, NULL, put_back_soon, NULL) == 0)
                pthread_detach(thread);
        }
    }
    PyEval_RestoreThread(saved);
    if (at_once) {
        put_interval_back();
        clock_gettime(CLOCK_MONOTONIC, &end);
        long long ns = (end.tv_sec - begin.tv_sec) * 1000000000ll + end.tv_nsec - begin.tv_nsec;
        wary = ns > LONG_NS ? WARY_LOOKS : wary > 0 ? wary - 1 : 0;
    }
}

#endif

static PyObject *wait_for(Looks *self, PyObject *args) {
    double seconds;
    int wanted, ended, kept;
    if (!PyArg_ParseTuple(args, "dp", &seconds, &wanted))
        return NULL;
    if (self->forks != forks)
        Py_RETURN_TRUE;
    forget(self);
    kept = wanted && !self->queued; /* a call that is queued has a reference already */
    if (kept)
        Py_INCREF(self);
    PyThreadState *saved = PyEval_SaveThread();
    struct timespec when = after(seconds < 0 ? 0 : seconds);
    pthread_mutex_lock(&self->lock);
    while (!self->ended && until(self, &when) == 0)
        ;
    ended = self->ended;
    if (wanted && !ended)
        ask(self, &kept);
    pthread_mutex_unlock(&self->lock);
    take_lock(saved, wanted && !ended);
    ask_no_more(self);
    if (kept)
        Py_DECREF(self);
    return PyBool_FromLong(ended);
}

static PyObject *frames(const Stack *stack) {
    PyObject *listed = PyList_New(stack->used);
    for (Py_ssize_t at = 0; listed != NULL && at < stack->used; at++) {
        PyObject *frame = Py_BuildValue("Oi", stack->codes[at], stack->instructions[at]);
        if (frame == NULL)
            Py_CLEAR(listed);
        else
            PyList_SET_ITEM(listed, at, frame);
    }
    return listed;
}

static PyObject *take(Looks *self, PyObject *Py_UNUSED(ignored)) {
    if (self->seen.used == 0)
        Py_RETURN_NONE;
    PyObject *seen = frames(&self->seen), *beside = frames(&self->beside);
    if (seen == NULL || beside == NULL) {
        Py_XDECREF(seen);
        Py_XDECREF(beside);
        return NULL;
    }
    PyObject *look = Py_BuildValue("LLLNkN", self->at_ns, self->begun_ns, self->count, seen, self->looking, beside);
    forget(self);
    return look;
}

static PyObject *end(Looks *self, PyObject *Py_UNUSED(ignored)) {
    if (self->forks == forks) {
        pthread_mutex_lock(&self->lock);
        self->ended = 1;
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->lock);
    }
    put_interval_back();
    Py_RETURN_NONE;
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *way;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O", &way))
        return NULL;
    Looks *self = (Looks *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->way = Py_NewRef(way);
    self->forks = forks;
    self->thread = PyThreadState_Get();
    pthread_mutex_init(&self->lock, NULL);
#ifdef __APPLE__
    pthread_cond_init(&self->changed, NULL);
#else
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&self->changed, &clock);
    pthread_condattr_destroy(&clock);
#endif
    return (PyObject *)self;
}

static void destroy(Looks *self) {
    forget(self);
    Py_XDECREF(self->way);
    if (self->forks == forks) {
        pthread_cond_destroy(&self->changed);
        pthread_mutex_destroy(&self->lock);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef methods[] = {
    {"wait", (PyCFunction)wait_for, METH_VARARGS, "wait(seconds, look): True where it was ended."},
    {"take", (PyCFunction)take, METH_NOARGS, "The look that the latest wait asked for, None where there is none."},
    {"end", (PyCFunction)end, METH_NOARGS, "Have all waits return."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject looks_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "traceops.capture.observing._looks.Looks",
    .tp_basicsize = sizeof(Looks),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Looks at the main thread's stack, when they are due.",
    .tp_new = create,
    .tp_dealloc = (destructor)destroy,
    .tp_methods = methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_looks", .m_size = -1};

PyMODINIT_FUNC PyInit__looks(void) {
    if (PyType_Ready(&looks_type) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddObjectRef(made, "Looks", (PyObject *)&looks_type) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    pthread_atfork(NULL, NULL, forked);
    find();
    return made;
}
