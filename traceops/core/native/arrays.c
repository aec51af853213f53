/* Passes over columns of numbers for traceops/core/arrays.py and traceops/measure: traceops.core._arrays.
 *
 * Each does in one loop what NumPy does in many, with the same result to the last bit, and nothing here allocates an
 * array: results go into arrays that the caller made. A function answers None where an argument is no column of the
 * type that it takes (another type, other strides), and its caller then does it with NumPy. */
#include "../../traces/native/block.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

/* ---- arguments ---- */

typedef struct {
    Py_buffer views[24];
    int count;
} Taken;

static void give_back(Taken *taken) {
    while (taken->count > 0)
        PyBuffer_Release(&taken->views[--taken->count]);
}

/* Of numbers: l int64, i int32, d double, b uint8, ? truth (! where it is written to); upper case: it is written to. */
static void *column(Taken *taken, PyObject *array, char kind, Py_ssize_t *length) {
    int writes = kind == 'L' || kind == 'I' || kind == 'D' || kind == '!';
    Py_buffer *view = &taken->views[taken->count];
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0)) < 0) {
        PyErr_Clear();
        return NULL;
    }
    taken->count++;
    const char *format = view->format;
    Py_ssize_t size = kind == 'i' || kind == 'I' ? 4 : kind == '?' || kind == '!' || kind == 'b' ? 1 : 8;
    const char *fits = kind == 'd' || kind == 'D' ? "d" : kind == '?' || kind == '!' ? "?" : kind == 'b' ? "B" : "ilq";
    if (format == NULL || !format[0] || format[1] || !strchr(fits, format[0]) || view->itemsize != size)
        return NULL;
    *length = view->len / size;
    return view->buf;
}

/* Takes columns by `kinds`, one letter an argument; their lengths go into `lengths`. 0 where one does not fit. */
static int columns(Taken *taken, const char *kinds, PyObject *const *arguments, Py_ssize_t count, void **data,
                   Py_ssize_t *lengths) {
    taken->count = 0;
    for (Py_ssize_t i = 0; kinds[i]; i++)
        if (i >= count || (data[i] = column(taken, arguments[i], kinds[i], &lengths[i])) == NULL) {
            give_back(taken);
            return 0;
        }
    return 1;
}

#define ARGUMENTS PyObject *module, PyObject *const *arguments, Py_ssize_t count
#define TAKE(kinds)                                                                                                    \
    Taken taken;                                                                                                       \
    void *data[24];                                                                                                    \
    Py_ssize_t lengths[24];                                                                                            \
    (void)module;                                                                                                      \
    if (!columns(&taken, kinds, arguments, count, data, lengths))                                                      \
    Py_RETURN_NONE
#define GIVE_NUMBER(number)                                                                                            \
    do {                                                                                                               \
        Py_ssize_t given = (number);                                                                                   \
        give_back(&taken);                                                                                             \
        return PyLong_FromSsize_t(given);                                                                              \
    } while (0)
#define REFUSE                                                                                                         \
    do {                                                                                                               \
        give_back(&taken);                                                                                             \
        Py_RETURN_NONE;                                                                                                \
    } while (0)

/* ---- searching ---- */

/* The first place whose value is greater than `t`, sought from `hint` outwards: near it in most columns of times. */
static Py_ssize_t behind(const int64_t *values, Py_ssize_t length, int64_t t, Py_ssize_t hint) {
    Py_ssize_t low, high, step = 1;
    if (hint > length)
        hint = length;
    if (hint < length && values[hint] <= t) {
        low = hint + 1;
        for (high = low; high < length && values[high] <= t; step *= 2) {
            low = high + 1;
            high = high + step < length ? high + step : length;
        }
    } else {
        high = hint;
        for (low = high; low > 0 && values[low - 1] > t; step *= 2) {
            high = low - 1;
            low = low - step > 0 ? low - step : 0;
        }
    }
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (values[middle] <= t)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- sets of intervals ---- */

typedef struct {
    int64_t start, end;
} Span;

/* Sorts by start: runs that are in order already are merged, as traces have few of them. 0 without memory. */
static int sort_spans(Span *spans, Py_ssize_t length) {
    Py_ssize_t run = 0, runs = 0, room = 64;
    Py_ssize_t *begins = malloc((size_t)(room + 1) * sizeof *begins);
    Span *other = malloc((size_t)length * sizeof *other);
    int done = begins != NULL && other != NULL;
    while (done && run < length) {
        if (runs == room) {
            Py_ssize_t *more = realloc(begins, (size_t)(room * 2 + 1) * sizeof *begins);
            if ((done = more != NULL)) {
                begins = more;
                room *= 2;
            } else
                break;
        }
        begins[runs++] = run;
        for (run++; run < length && spans[run].start >= spans[run - 1].start; run++) {}
    }
    Span *from = spans, *to = other;
    if (done)
        begins[runs] = length;
    while (done && runs > 1) {
        Py_ssize_t left = 0;
        for (Py_ssize_t i = 0; i < runs; i += 2) {
            Py_ssize_t a = begins[i], b = i + 1 < runs ? begins[i + 1] : length, at = a;
            Py_ssize_t a_end = b, b_end = i + 2 < runs ? begins[i + 2] : length;
            while (a < a_end && b < b_end)
                to[at++] = from[b].start < from[a].start ? from[b++] : from[a++];
            while (a < a_end)
                to[at++] = from[a++];
            while (b < b_end)
                to[at++] = from[b++];
            begins[left++] = begins[i];
        }
        begins[left] = length;
        runs = left;
        Span *swap = from;
        from = to;
        to = swap;
    }
    if (done && from != spans)
        memcpy(spans, from, (size_t)length * sizeof *spans);
    free(begins);
    free(other);
    return done;
}

/* The next interval of a set that is being made in order: what touches the last one prolongs it. */
static inline Py_ssize_t add_span(int64_t *start, int64_t *end, Py_ssize_t made, int64_t from, int64_t to) {
    if (from >= to)
        return made;
    if (made && from <= end[made - 1]) {
        if (to > end[made - 1])
            end[made - 1] = to;
        return made;
    }
    start[made] = from;
    end[made] = to;
    return made + 1;
}

/* unite(start, end, out_start, out_end): how many disjoint intervals these are together */
static PyObject *unite(ARGUMENTS) {
    TAKE("llLL");
    const int64_t *start = data[0], *end = data[1];
    Py_ssize_t length = lengths[0], made = 0, sorted = 1;
    if (lengths[1] != length || lengths[2] < length || lengths[3] < length)
        REFUSE;
    for (Py_ssize_t i = 1; i < length && sorted; i++)
        sorted = start[i] >= start[i - 1];
    if (sorted) {
        for (Py_ssize_t i = 0; i < length; i++)
            made = add_span(data[2], data[3], made, start[i], end[i]);
        GIVE_NUMBER(made);
    }
    Span *spans = malloc((size_t)length * sizeof *spans);
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; spans != NULL && i < length; i++)
        if (end[i] > start[i])
            spans[kept++] = (Span){start[i], end[i]};
    if (spans == NULL || (kept > 1 && !sort_spans(spans, kept))) {
        free(spans);
        REFUSE;
    }
    for (Py_ssize_t i = 0; i < kept; i++)
        made = add_span(data[2], data[3], made, spans[i].start, spans[i].end);
    free(spans);
    GIVE_NUMBER(made);
}

/* intersect(start, end, other_start, other_end, out_start, out_end): how many; the outputs hold both lengths */
static PyObject *intersect(ARGUMENTS) {
    TAKE("llllLL");
    const int64_t *start = data[0], *end = data[1], *starts = data[2], *ends = data[3];
    Py_ssize_t few = lengths[0], many = lengths[2], made = 0, at = 0;
    if (lengths[1] != few || lengths[3] != many || lengths[4] < few + many || lengths[5] < few + many)
        REFUSE;
    for (Py_ssize_t i = 0; i < few && at < many; i++) {
        at = behind(ends, many, start[i], at);
        for (Py_ssize_t j = at; j < many && starts[j] < end[i]; j++) {
            int64_t from = start[i] > starts[j] ? start[i] : starts[j], to = end[i] < ends[j] ? end[i] : ends[j];
            made = add_span(data[4], data[5], made, from, to);
        }
    }
    GIVE_NUMBER(made);
}

/* subtract(start, end, other_start, other_end, out_start, out_end): how many; the outputs hold both lengths */
static PyObject *subtract(ARGUMENTS) {
    TAKE("llllLL");
    const int64_t *start = data[0], *end = data[1], *starts = data[2], *ends = data[3];
    Py_ssize_t length = lengths[0], others = lengths[2], made = 0, at = 0;
    if (lengths[1] != length || lengths[3] != others || lengths[4] < length + others || lengths[5] < length + others)
        REFUSE;
    for (Py_ssize_t i = 0; i < length; i++) {
        int64_t from = start[i];
        at = behind(ends, others, from, at);
        for (Py_ssize_t j = at; j < others && starts[j] < end[i]; j++) {
            made = add_span(data[4], data[5], made, from, starts[j]);
            from = ends[j];
        }
        made = add_span(data[4], data[5], made, from, end[i]);
    }
    GIVE_NUMBER(made);
}

/* covered(start, end, t, out): the length of the set before each t */
static PyObject *covered(ARGUMENTS) {
    TAKE("lllL");
    const int64_t *start = data[0], *end = data[1], *t = data[2];
    int64_t *out = data[3];
    Py_ssize_t length = lengths[0], moments = lengths[2], at = 0, summed = 0;
    if (lengths[1] != length || lengths[3] != moments)
        REFUSE;
    int64_t *before = malloc((size_t)(length + 1) * sizeof *before);
    if (before == NULL)
        REFUSE;
    before[0] = 0;
    for (Py_ssize_t i = 0; i < moments; i++) {
        at = behind(start, length, t[i], at);
        for (; summed < at; summed++)
            before[summed + 1] = before[summed] + (end[summed] - start[summed]);
        int64_t over = at ? end[at - 1] - t[i] : 0;
        out[i] = before[at] - (over > 0 ? over : 0);
    }
    free(before);
    GIVE_NUMBER(moments);
}

/* within(start, end, from, to, out): the length of the set in each [from, to) */
static PyObject *within(ARGUMENTS) {
    TAKE("llllL");
    const int64_t *start = data[0], *end = data[1];
    const int64_t *sides[2] = {data[3], data[2]};
    int64_t *out = data[4];
    Py_ssize_t length = lengths[0], bins = lengths[2], summed = 0;
    if (lengths[1] != length || lengths[3] != bins || lengths[4] != bins)
        REFUSE;
    int64_t *before = malloc((size_t)(length + 1) * sizeof *before);
    if (before == NULL)
        REFUSE;
    before[0] = 0;
    Py_ssize_t at[2] = {0, 0};
    for (Py_ssize_t i = 0; i < bins; i++) {
        int64_t found[2];
        for (int side = 0; side < 2; side++) {
            int64_t t = sides[side][i];
            at[side] = behind(start, length, t, at[side]);
            for (; summed < at[side]; summed++)
                before[summed + 1] = before[summed] + (end[summed] - start[summed]);
            int64_t over = at[side] ? end[at[side] - 1] - t : 0;
            found[side] = before[at[side]] - (over > 0 ? over : 0);
        }
        out[i] = found[0] - found[1];
    }
    free(before);
    GIVE_NUMBER(bins);
}

/* holds(start, end, t, out): whether each moment lies in the set */
static PyObject *holds(ARGUMENTS) {
    TAKE("lll!");
    const int64_t *start = data[0], *end = data[1], *t = data[2];
    unsigned char *out = data[3];
    Py_ssize_t length = lengths[0], moments = lengths[2], at = 0;
    if (lengths[1] != length || lengths[3] != moments)
        REFUSE;
    for (Py_ssize_t i = 0; i < moments; i++) {
        at = behind(start, length, t[i], at);
        out[i] = at > 0 && end[at - 1] > t[i];
    }
    GIVE_NUMBER(moments);
}

/* ---- operators in operators ---- */

/* nest(start, end, sorted_ends, depth, parent): see Nesting in traceops/measure/nesting.py */
static PyObject *nest(ARGUMENTS) {
    TAKE("lllII");
    const int64_t *start = data[0], *end = data[1], *ends = data[2];
    int32_t *depth = data[3], *parent = data[4];
    Py_ssize_t length = lengths[0], ended = 0, group = 0, empty = 0;
    for (int i = 1; i < 5; i++)
        if (lengths[i] != length)
            REFUSE;
    Py_ssize_t room = 0;
    int32_t *first = NULL; /* by depth: the last event that is deeper than the one before it */
    for (Py_ssize_t i = 0; i < length; i++) {
        while (ended < length && ends[ended] <= start[i])
            ended++;
        if (i == group) /* events of no length that begin here, from this one on, ended by then but began no earlier */
            for (empty = 0; group < length && start[group] == start[i]; group++)
                empty += end[group] == start[group];
        Py_ssize_t own = i - ended + empty;
        empty -= end[i] == start[i];
        depth[i] = own > 0 ? (int32_t)own : 0;
        if (depth[i] >= room) {
            Py_ssize_t wanted = depth[i] < 32 ? 64 : 2 * (Py_ssize_t)depth[i];
            int32_t *more = realloc(first, (size_t)wanted * sizeof *first);
            if (more == NULL) {
                free(first);
                REFUSE;
            }
            first = more;
            for (; room < wanted; room++)
                first[room] = 0;
        }
        if (i && depth[i] > depth[i - 1])
            first[depth[i]] = (int32_t)i;
        parent[i] = first[depth[i]] - 1;
    }
    free(first);
    GIVE_NUMBER(length);
}

/* Where a moment of a thread lies on the axis of Nesting: -1 on a thread that has none of the events. */
static inline int64_t place(const int64_t *threads, Py_ssize_t thread_count, int64_t origin, int64_t span, int64_t tid,
                            int64_t ts, Py_ssize_t *thread) {
    if (*thread >= thread_count || threads[*thread] != tid) {
        Py_ssize_t at = behind(threads, thread_count, tid, 0);
        if (at == 0 || threads[at - 1] != tid)
            return -1;
        *thread = at - 1;
    }
    int64_t passed = ts - origin;
    if (passed < -1)
        passed = -1;
    if (passed > span - 1)
        passed = span - 1;
    return *thread * span + passed;
}

/* Where the rows given first begin, on the axis of Nesting: their threads, times and what place() wants. */
#define AXIS                                                                                                           \
    const int64_t *rows = data[0], *tid = data[1], *ts = data[2], *threads = data[3], *axis = data[4];                 \
    Py_ssize_t asked = lengths[0], events = lengths[1], thread_count = lengths[3], thread = 0;                         \
    if (lengths[2] != events || lengths[4] != 2)                                                                       \
        REFUSE;                                                                                                        \
    for (Py_ssize_t i = 0; i < asked; i++)                                                                             \
        if (rows[i] < 0 || rows[i] >= events)                                                                          \
    REFUSE

/* innermost(rows, tid, ts, threads, (origin, span), start, sorted_ends, depth, parent, out) */
static PyObject *innermost(ARGUMENTS) {
    TAKE("llllllliiL");
    AXIS;
    int64_t *out = data[9];
    const int64_t *start = data[5], *ends = data[6];
    const int32_t *depth = data[7], *parent = data[8];
    Py_ssize_t length = lengths[5], begun = 0, ended = 0;
    if (lengths[6] != length || lengths[7] != length || lengths[8] != length || lengths[9] != asked)
        REFUSE;
    for (Py_ssize_t i = 0; i < asked; i++) {
        int64_t at = place(threads, thread_count, axis[0], axis[1], tid[rows[i]], ts[rows[i]], &thread);
        begun = behind(start, length, at, begun);
        ended = behind(ends, length, at, ended);
        Py_ssize_t level = begun - ended - 1, found = level >= 0 ? begun - 1 : -1;
        for (Py_ssize_t above = level >= 0 ? depth[found] - level : 0; above > 0; above--)
            found = parent[found < 0 ? found + length : found];
        out[i] = found;
    }
    GIVE_NUMBER(asked);
}

/* outermost(rows, tid, ts, threads, (origin, span), start, reach, outermost, out) */
static PyObject *outermost(ARGUMENTS) {
    TAKE("llllllllL");
    AXIS;
    int64_t *out = data[8];
    const int64_t *start = data[5], *reach = data[6], *outer = data[7];
    Py_ssize_t length = lengths[5], outers = lengths[7], begun = 0;
    if (lengths[6] != length || lengths[8] != asked)
        REFUSE;
    for (Py_ssize_t i = 0; i < outers; i++)
        if (outer[i] < 0 || outer[i] >= length)
            REFUSE;
    for (Py_ssize_t i = 0; i < asked; i++) {
        int64_t at = place(threads, thread_count, axis[0], axis[1], tid[rows[i]], ts[rows[i]], &thread);
        while (begun < outers && start[outer[begun]] <= at)
            begun++;
        while (begun > 0 && start[outer[begun - 1]] > at)
            begun--;
        /* what lies inside the last one begun may outlast it where events only overlap */
        int64_t over = begun == 0 ? -1 : begun < outers ? reach[outer[begun] - 1] : reach[length - 1];
        out[i] = over > at ? (begun ? outer[begun - 1] : -1) : -1;
    }
    GIVE_NUMBER(asked);
}

/* ---- sums as HTA's tables have them ---- */

/* statistics(group, value, sum, most, least, deviation): of the values of each group, in their order; how many values.
 *
 * The sum is Kahan's and the deviation Welford's, in the order of the values: pandas' to the last digit. */
static PyObject *statistics(ARGUMENTS) {
    TAKE("idDDDD");
    const int32_t *group = data[0];
    const double *value = data[1];
    double *sum = data[2], *most = data[3], *least = data[4], *deviation = data[5];
    Py_ssize_t length = lengths[0], groups = lengths[2];
    if (lengths[1] != length || lengths[3] != groups || lengths[4] != groups || lengths[5] != groups)
        REFUSE;
    struct {
        double lost, mean, squares;
        Py_ssize_t count;
    } *own = calloc((size_t)(groups ? groups : 1), sizeof *own);
    if (own == NULL)
        REFUSE;
    for (Py_ssize_t i = 0; i < length; i++) {
        int32_t at = group[i];
        if (at < 0 || at >= groups) {
            free(own);
            REFUSE;
        }
        double next = value[i], rest, more, before;
        if (own[at].count++ == 0) {
            sum[at] = 0.0;
            most[at] = least[at] = next;
        }
        if (next > most[at])
            most[at] = next;
        if (next < least[at])
            least[at] = next;
        rest = next - own[at].lost;
        more = sum[at] + rest;
        own[at].lost = more - sum[at] - rest;
        sum[at] = more;
        before = next - own[at].mean;
        own[at].mean += before / (double)own[at].count;
        own[at].squares += (next - own[at].mean) * before;
    }
    for (Py_ssize_t i = 0; i < groups; i++)
        deviation[i] = own[i].count > 1 ? sqrt(own[i].squares / (double)(own[i].count - 1)) : 0.0;
    free(own);
    GIVE_NUMBER(length);
}

/* kahan(value): Kahan's sum of the values */
static PyObject *kahan(ARGUMENTS) {
    TAKE("d");
    const double *value = data[0];
    double total = 0.0, lost = 0.0;
    for (Py_ssize_t i = 0; i < lengths[0]; i++) {
        double next = value[i] - lost, more = total + next;
        lost = more - total - next;
        total = more;
    }
    give_back(&taken);
    return PyFloat_FromDouble(total);
}

/* running(start, end, start, end, start, end, sum, count, both): time in which each set of three parts runs, whole
 * microseconds of each stretch as HTA counts it, how many stretches, and how long those are in which exactly the first
 * two run: their number is the answer. The parts are sorted and disjoint. None where equal times leave it open which
 * sets run for no time. */
static PyObject *running(ARGUMENTS) {
    TAKE("ddddddLLD");
    Py_ssize_t at[3] = {0, 0, 0}, both = 0;
    int64_t *sum = data[6], *stretches = data[7];
    double *lengths_of_both = data[8];
    if (lengths[6] != 8 || lengths[7] != 8)
        REFUSE;
    Py_ssize_t all = 0;
    for (int part = 0; part < 3; part++) {
        if (lengths[2 * part] != lengths[2 * part + 1])
            REFUSE;
        all += 2 * lengths[2 * part];
    }
    if (lengths[8] < all)
        REFUSE;
    memset(sum, 0, 8 * sizeof *sum);
    memset(stretches, 0, 8 * sizeof *stretches);
    int set = 0, perhaps = 0; /* perhaps: a bit for each set that may run for no time */
    double since = 0.0;
    for (;;) {
        double next = INFINITY;
        for (int part = 0; part < 3; part++)
            if (at[part] < 2 * lengths[2 * part]) {
                double own = ((double *)data[2 * part + (at[part] & 1)])[at[part] / 2];
                if (own < next)
                    next = own;
            }
        if (next == INFINITY)
            break;
        if (set) {
            sum[set] += (int64_t)(next - since);
            stretches[set]++;
            if (set == 3)
                lengths_of_both[both++] = next - since;
        }
        int changed = 0;
        for (int part = 0; part < 3; part++)
            if (at[part] < 2 * lengths[2 * part] && ((double *)data[2 * part + (at[part] & 1)])[at[part] / 2] == next) {
                changed |= 1 << part;
                at[part]++;
                if (at[part] < 2 * lengths[2 * part] && ((double *)data[2 * part + (at[part] & 1)])[at[part] / 2] <= next)
                    REFUSE; /* it lasts no time, or is not sorted */
            }
        for (int some = (changed - 1) & changed; some; some = (some - 1) & changed) /* some of the changes came first */
            perhaps |= 1 << (set ^ some);
        set ^= changed;
        since = next;
    }
    for (int one = 1; one < 8; one++)
        if (perhaps >> one & 1 && !stretches[one])
            REFUSE;
    GIVE_NUMBER(both);
}

/* ---- HTA's rows ---- */

#define MOST_SPREAD 32
#define MOST_JOINED 100000

/* hta_rows(stream, correlation, name, ts, dur, is_step, is_sync, steps): see hta_rows() in measure/hta_tables.py.
 *
 * steps: an array of one number, whether the last step is left out. None as well where ids are spread too widely. */
static PyObject *hta_rows(ARGUMENTS) {
    TAKE("llill??l");
    const int64_t *stream = data[0], *correlation = data[1], *ts = data[3], *dur = data[4];
    const int32_t *name = data[2];
    const unsigned char *is_step = data[5], *is_sync = data[6];
    Py_ssize_t length = lengths[0], names = lengths[5];
    if (lengths[1] != length || lengths[2] != length || lengths[3] != length || lengths[4] != length ||
        lengths[6] != names || lengths[7] != 1 || length == 0 || length > INT32_MAX)
        REFUSE;
    int leaves_out = ((const int64_t *)data[7])[0] != 0;
    int64_t zero = INT64_MAX, low = INT64_MAX, high = INT64_MIN;
    Py_ssize_t cut = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (name[i] < 0 || name[i] >= names)
            REFUSE;
        if (ts[i] < zero)
            zero = ts[i];
        if (stream[i] != -1 || correlation[i] != -1 || is_step[name[i]])
            cut++;
        if (correlation[i] != -1) {
            low = correlation[i] < low ? correlation[i] : low;
            high = correlation[i] > high ? correlation[i] : high;
        }
    }
    if (high >= low && (uint64_t)high - (uint64_t)low >= (uint64_t)MOST_SPREAD * (uint64_t)cut)
        REFUSE;
    size_t ids = high >= low ? (size_t)(high - low) + 1 : 0;
    PyObject *answer = NULL;
    int32_t *number = calloc(ids + 1, sizeof *number), *row = malloc(((size_t)cut + 1) * sizeof *row);
    int32_t *key = malloc(((size_t)cut + 1) * sizeof *key);
    double *time = malloc(((size_t)cut + 1) * sizeof *time);
    uint32_t *on_device = NULL, *on_host = NULL;
    int32_t *last_call = NULL;
    int64_t *out_row = NULL, *out_stream = NULL, *out_key = NULL;
    double *out_ts = NULL, *out_dur = NULL, *out_launch = NULL;
    if (number == NULL || row == NULL || key == NULL || time == NULL)
        goto end;
    Py_ssize_t at = 0;
    double first = INFINITY;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (stream[i] == -1 && correlation[i] == -1 && !is_step[name[i]])
            continue;
        row[at] = (int32_t)i;
        time[at] = (double)(ts[i] - zero) / 1000.0;
        if (time[at] < first)
            first = time[at];
        if (correlation[i] != -1)
            number[correlation[i] - low] = 1;
        at++;
    }
    int32_t keys = 0;
    for (size_t id = 0; id < ids; id++)
        number[id] = number[id] ? keys++ : -1;
    on_device = calloc((size_t)keys + 1, sizeof *on_device);
    on_host = calloc((size_t)keys + 1, sizeof *on_host);
    last_call = malloc(((size_t)keys + 1) * sizeof *last_call);
    if (on_device == NULL || on_host == NULL || last_call == NULL)
        goto end;
    for (Py_ssize_t i = 0; i < cut; i++) {
        int64_t id = correlation[row[i]];
        time[i] -= first;
        key[i] = id == -1 ? -1 : number[id - low];
        if (key[i] >= 0)
            (stream[row[i]] >= 0 ? on_device : on_host)[key[i]]++;
    }
    for (Py_ssize_t i = 0; i < cut; i++)
        if (key[i] >= 0 && (uint64_t)on_device[key[i]] * on_host[key[i]] > MOST_JOINED)
            key[i] = -1;
#define IS_DEVICE(i)                                                                                                   \
    ((stream[row[i]] >= 0 && correlation[row[i]] >= 0 && key[i] >= 0) || is_sync[name[row[i]]])
    memset(last_call, 0xff, ((size_t)keys + 1) * sizeof *last_call);
    memset(on_host, 0, ((size_t)keys + 1) * sizeof *on_host); /* now: the calls that are kept; the last is of no key */
    double last_step = INFINITY;
    if (leaves_out) {
        last_step = -INFINITY;
        for (Py_ssize_t i = 0; i < cut; i++)
            if (is_step[name[row[i]]] && time[i] > last_step && !IS_DEVICE(i))
                last_step = time[i];
    }
    size_t kept = 0;
    for (Py_ssize_t i = 0; i < cut; i++) {
        if (IS_DEVICE(i))
            continue;
        if (key[i] >= 0)
            last_call[key[i]] = (int32_t)i;
        if (!leaves_out || time[i] < last_step) {
            on_host[key[i] >= 0 ? key[i] : keys]++;
            kept++;
        }
    }
    if (on_host[keys] > 1)
        on_host[keys] = 1;
    if (leaves_out)
        for (Py_ssize_t i = 0; i < cut; i++)
            kept += IS_DEVICE(i) ? on_host[key[i] >= 0 ? key[i] : keys] : 0;
    else
        kept = (size_t)cut;
    out_row = malloc((kept + 1) * 8), out_stream = malloc((kept + 1) * 8), out_key = malloc((kept + 1) * 8);
    out_ts = malloc((kept + 1) * 8), out_dur = malloc((kept + 1) * 8), out_launch = malloc((kept + 1) * 8);
    if (!out_row || !out_stream || !out_key || !out_ts || !out_dur || !out_launch)
        goto end;
    size_t made = 0;
    for (int devices = leaves_out; devices >= 0; devices--) { /* where none is left out, all in one pass */
        for (Py_ssize_t i = 0; i < cut; i++) {
            uint32_t times = 1;
            if (leaves_out) {
                if (IS_DEVICE(i) != devices)
                    continue;
                times = devices ? on_host[key[i] >= 0 ? key[i] : keys] : time[i] < last_step;
            }
            int32_t call = key[i] >= 0 ? last_call[key[i]] : -1;
            double launch = call >= 0 && (!leaves_out || time[call] < last_step) ? time[call] : (double)NAN;
            for (; times; times--, made++) {
                out_row[made] = row[i];
                out_stream[made] = stream[row[i]];
                out_key[made] = key[i];
                out_ts[made] = time[i];
                out_dur[made] = (double)dur[row[i]] / 1000.0;
                out_launch[made] = launch;
            }
        }
    }
    answer = Py_BuildValue("(NNNNNNi)", block_of(out_row, made, 8), block_of(out_stream, made, 8),
                           block_of(out_key, made, 8), block_of(out_ts, made, 8), block_of(out_dur, made, 8),
                           block_of(out_launch, made, 8), (int)keys);
    out_row = out_stream = out_key = NULL;
    out_ts = out_dur = out_launch = NULL;
end:
    free(number), free(row), free(key), free(time), free(on_device), free(on_host), free(last_call);
    free(out_row), free(out_stream), free(out_key), free(out_ts), free(out_dur), free(out_launch);
    give_back(&taken);
    if (answer != NULL || PyErr_Occurred())
        return answer;
    return PyErr_NoMemory();
}

/* join(left, right, keys, of_left, of_right): see join() in measure/hta_tables.py; how many pairs there are.
 *
 * keys: an array of one number. Where the outputs are too short for all pairs, nothing is written into them. */
static PyObject *join(ARGUMENTS) {
    TAKE("lllLL");
    const int64_t *left = data[0], *right = data[1];
    int64_t *of_left = data[3], *of_right = data[4];
    Py_ssize_t lefts = lengths[0], rights = lengths[1], pairs = 0;
    if (lengths[2] != 1 || lengths[3] != lengths[4] || rights > INT32_MAX)
        REFUSE;
    int64_t keys = ((const int64_t *)data[2])[0];
    if (keys < 0 || keys > INT32_MAX)
        REFUSE;
    int32_t *first = malloc(((size_t)keys + 1) * sizeof *first), *next = malloc(((size_t)rights + 1) * sizeof *next);
    int32_t *count_of = calloc((size_t)keys + 1, sizeof *count_of);
    int fits = first != NULL && next != NULL && count_of != NULL;
    if (fits)
        memset(first, 0xff, ((size_t)keys + 1) * sizeof *first);
    for (Py_ssize_t i = rights - 1; fits && i >= 0; i--) {
        if ((fits = right[i] >= 0 && right[i] < keys)) {
            next[i] = first[right[i]];
            first[right[i]] = (int32_t)i;
            count_of[right[i]]++;
        }
    }
    for (Py_ssize_t i = 0; fits && i < lefts; i++)
        if ((fits = left[i] >= 0 && left[i] < keys))
            pairs += count_of[left[i]];
    if (fits && pairs <= lengths[3]) {
        Py_ssize_t at = 0;
        for (Py_ssize_t i = 0; i < lefts; i++)
            for (int32_t j = first[left[i]]; j >= 0; j = next[j], at++) {
                of_left[at] = i;
                of_right[at] = j;
            }
    }
    free(first), free(next), free(count_of);
    if (!fits)
        REFUSE;
    GIVE_NUMBER(pairs);
}

/* ---- few values of many rows ---- */

/* few(column, values, which): the different values in rising order, and the place of each row's among them.
 *
 * The answer is how many there are. None where there are more than `values` has room for. `which` may be empty. */
static PyObject *few(ARGUMENTS) {
    TAKE("lLL");
    const int64_t *column = data[0];
    int64_t *values = data[1], *which = data[2], seen[256], place[256];
    Py_ssize_t length = lengths[0], room = lengths[1] < 256 ? lengths[1] : 256, known = 0, last = 0;
    if (lengths[2] && lengths[2] != length)
        REFUSE;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (known == 0 || seen[last] != column[i]) {
            for (last = 0; last < known && seen[last] != column[i]; last++) {}
            if (last == known) {
                if (known == room)
                    REFUSE;
                seen[known++] = column[i];
            }
        }
        if (lengths[2])
            which[i] = last;
    }
    for (Py_ssize_t i = 0; i < known; i++) {
        place[i] = 0;
        for (Py_ssize_t j = 0; j < known; j++)
            place[i] += seen[j] < seen[i];
        values[place[i]] = seen[i];
    }
    for (Py_ssize_t i = 0; i < lengths[2]; i++)
        which[i] = place[which[i]];
    GIVE_NUMBER(known);
}

/* group(key, first, which): rows of one key have one number in `which`, in the order in which keys appear, at `first`.
 *
 * The answer is how many there are. None where keys lie badly: who wrote them may have meant them to. */
static PyObject *group(ARGUMENTS) {
    TAKE("lLL");
    const int64_t *key = data[0];
    int64_t *first = data[1], *which = data[2];
    Py_ssize_t length = lengths[0], known = 0, patience = 16 * lengths[0] + 1024;
    int bits = 6;
    while (bits < 30 && ((Py_ssize_t)1 << bits) < 2 * length)
        bits++;
    if (lengths[1] != length || lengths[2] != length || ((Py_ssize_t)1 << bits) < 2 * length)
        REFUSE;
    size_t mask = ((size_t)1 << bits) - 1;
    int32_t *numbers = malloc((mask + 1) * sizeof *numbers); /* -1 where free */
    if (numbers == NULL)
        REFUSE;
    memset(numbers, 0xff, (mask + 1) * sizeof *numbers);
    for (Py_ssize_t i = 0; i < length && patience > 0; i++) {
        size_t at = (size_t)((uint64_t)key[i] * 0x9e3779b97f4a7c15u >> (64 - bits));
        for (; numbers[at] >= 0 && key[first[numbers[at]]] != key[i]; at = (at + 1) & mask)
            patience--;
        if (numbers[at] < 0) {
            first[known] = i;
            numbers[at] = (int32_t)known++;
        }
        which[i] = numbers[at];
    }
    free(numbers);
    if (patience <= 0)
        REFUSE;
    GIVE_NUMBER(known);
}

/* ---- quantiles, and bars drawn together ---- */

/* The value that stands at `at` once the values are in order; they are rearranged. */
static int64_t selected(int64_t *values, Py_ssize_t length, Py_ssize_t at) {
    Py_ssize_t low = 0, high = length - 1;
    while (low < high) {
        int64_t a = values[low], b = values[low + (high - low) / 2], c = values[high];
        int64_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        Py_ssize_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot)
                i++;
            while (values[j] > pivot)
                j--;
            if (i <= j) {
                int64_t swap = values[i];
                values[i++] = values[j];
                values[j--] = swap;
            }
        }
        if (at <= j)
            high = j;
        else if (at >= i)
            low = i;
        else
            break;
    }
    return values[at];
}

/* select(kind, value, at, out): of each kind the value that stands at `at` of them once they are in order.
 *
 * A kind whose `at` is negative is passed over. The answer is the least value above 0, or 0. */
static PyObject *select_values(ARGUMENTS) {
    TAKE("bllL");
    const unsigned char *kind = data[0];
    const int64_t *value = data[1], *at = data[2];
    int64_t *out = data[3], least = 0;
    Py_ssize_t length = lengths[0], kinds = lengths[2], begins[257] = {0};
    if (lengths[1] != length || lengths[3] != kinds || kinds > 256)
        REFUSE;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (kind[i] >= kinds)
            REFUSE;
        begins[kind[i] + 1] += at[kind[i]] >= 0;
        if (value[i] > 0 && (least == 0 || value[i] < least))
            least = value[i];
    }
    for (Py_ssize_t i = 0; i < kinds; i++)
        begins[i + 1] += begins[i];
    int64_t *sorted = malloc(((size_t)begins[kinds] + 1) * sizeof *sorted);
    if (sorted == NULL)
        REFUSE;
    Py_ssize_t next[256];
    memcpy(next, begins, sizeof next);
    for (Py_ssize_t i = 0; i < length; i++)
        if (at[kind[i]] >= 0)
            sorted[next[kind[i]]++] = value[i];
    for (Py_ssize_t i = 0; i < kinds; i++)
        if (at[i] >= 0 && at[i] < begins[i + 1] - begins[i])
            out[i] = selected(sorted + begins[i], begins[i + 1] - begins[i], at[i]);
    free(sorted);
    give_back(&taken);
    return PyLong_FromLongLong(least);
}

#define NAME_BITS 22
#define LONGEST (((int64_t)1 << (62 - NAME_BITS)) - 1)
#define CELL_BITS 3

/* Whether a bar is drawn apart from the one before it; short is what lasts less than 2**shift ns. */
static inline int apart(const int64_t *start, const int64_t *end, Py_ssize_t i, int shift) {
    int64_t length = (int64_t)1 << shift;
    return (start[i] - start[0]) >> (shift + CELL_BITS) != (start[i - 1] - start[0]) >> (shift + CELL_BITS) ||
           start[i] - end[i - 1] >= length || end[i] - start[i] >= length || end[i - 1] - start[i - 1] >= length;
}

/* fewer(start, end, name, count, busy, most, out_start, ..., out_busy): see fewer() in core/arrays.py; how many bars. */
static PyObject *fewer(ARGUMENTS) {
    TAKE("llllllLLLLL");
    const int64_t *start = data[0], *end = data[1], *name = data[2], *number = data[3], *busy = data[4];
    int64_t *out_start = data[6], *out_end = data[7], *out_name = data[8], *out_count = data[9], *out_busy = data[10];
    Py_ssize_t bars = lengths[0];
    for (int i = 1; i < 5; i++)
        if (lengths[i] != bars)
            REFUSE;
    int64_t most = lengths[5] == 1 ? ((const int64_t *)data[5])[0] : 0;
    if (most < 1 || bars <= most)
        REFUSE;
    for (int i = 6; i < 11; i++)
        if (lengths[i] < most)
            REFUSE;
    int64_t *lasts = malloc((size_t)bars * sizeof *lasts);
    if (lasts == NULL)
        REFUSE;
    for (Py_ssize_t i = 0; i < bars; i++)
        lasts[i] = end[i] - start[i];
    int64_t middle = selected(lasts, bars, bars - (most / 2 + 1));
    free(lasts);
    int shift = 0;
    for (; middle > 0; middle >>= 1)
        shift++;
    for (;; shift++) {
        if (shift > 58)
            REFUSE;
        Py_ssize_t groups = 1;
        for (Py_ssize_t i = 1; i < bars && groups <= most; i++)
            groups += apart(start, end, i, shift);
        if (groups <= most)
            break;
    }
    Py_ssize_t made = 0;
    int64_t longest = 0;
    for (Py_ssize_t i = 0; i < bars; i++) {
        int64_t took = end[i] - start[i], own = ((took < LONGEST ? took : LONGEST) << NAME_BITS) + name[i];
        if (i == 0 || apart(start, end, i, shift)) {
            out_start[made] = start[i];
            out_count[made] = out_busy[made] = 0;
            longest = INT64_MIN;
            made++;
        }
        if (own > longest)
            longest = own;
        out_end[made - 1] = end[i];
        out_name[made - 1] = longest & (((int64_t)1 << NAME_BITS) - 1);
        out_count[made - 1] += number[i];
        out_busy[made - 1] += busy[i];
    }
    GIVE_NUMBER(made);
}

/* ---- integers in fewer bytes ---- */

/* The bytes that hold every number from `least` to `most`: 1, 2 or 4; 0 where they need 8. */
static Py_ssize_t bytes_for(int64_t least, int64_t most) {
    return least >= INT8_MIN && most <= INT8_MAX     ? 1
           : least >= INT16_MIN && most <= INT16_MAX ? 2
           : least >= INT32_MIN && most <= INT32_MAX ? 4
                                                     : 0;
}

/* narrow(column): its numbers in the fewest bytes, or the differences of rows below each other where those need fewer
 * than 8: (bytes of a number, whether they are differences, all of them). None where neither fits. */
static PyObject *narrow(ARGUMENTS) {
    TAKE("l");
    const int64_t *from = data[0];
    Py_ssize_t length = lengths[0], width = 1;
    Py_buffer *view = &taken.views[0];
    for (int i = 1; i < view->ndim; i++)
        width *= view->shape[i];
    if (view->ndim < 1 || length < 1)
        REFUSE;
    int64_t least = from[0], most = from[0], lowest = 0, highest = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        least = from[i] < least ? from[i] : least;
        most = from[i] > most ? from[i] : most;
    }
    Py_ssize_t size = bytes_for(least, most), behind_first = 0;
    if (size == 0) {
        behind_first = width;
        for (Py_ssize_t i = width; i < length; i++) { /* wraps around where it overflows, and so does the sum */
            int64_t step = (int64_t)((uint64_t)from[i] - (uint64_t)from[i - width]);
            lowest = step < lowest ? step : lowest;
            highest = step > highest ? step : highest;
        }
        if ((size = bytes_for(lowest, highest)) == 0)
            REFUSE;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, (length - behind_first) * size);
    if (packed == NULL) {
        give_back(&taken);
        return NULL;
    }
    void *to = PyBytes_AS_STRING(packed);
    for (Py_ssize_t i = behind_first, at = 0; i < length; i++, at++) {
        uint64_t before = behind_first ? (uint64_t)from[i - width] : 0;
        int64_t value = (int64_t)((uint64_t)from[i] - before);
        if (size == 1)
            ((int8_t *)to)[at] = (int8_t)value;
        else if (size == 2)
            ((int16_t *)to)[at] = (int16_t)value;
        else
            ((int32_t *)to)[at] = (int32_t)value;
    }
    give_back(&taken);
    return Py_BuildValue("(nON)", size, behind_first ? Py_True : Py_False, packed);
}

/* widen(packed, bytes of a number, width, out): what `narrow` packed; differences are added to the row above, where the
 * caller has put the first, in rows of `width` numbers; 0 where they are none. */
static PyObject *widen(ARGUMENTS) {
    if (count != 4 || !PyBytes_Check(arguments[0]))
        Py_RETURN_NONE;
    Py_ssize_t size = PyLong_AsSsize_t(arguments[1]), width = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    const void *from = PyBytes_AS_STRING(arguments[0]);
    Py_ssize_t bytes = PyBytes_GET_SIZE(arguments[0]);
    arguments += 3;
    count -= 3;
    TAKE("L");
    int64_t *to = data[0];
    if ((size != 1 && size != 2 && size != 4) || width < 0 || (lengths[0] - width) * size != bytes)
        REFUSE;
    for (Py_ssize_t at = 0; at < lengths[0] - width; at++) {
        int64_t value = size == 1   ? ((const int8_t *)from)[at]
                        : size == 2 ? ((const int16_t *)from)[at]
                                    : ((const int32_t *)from)[at];
        to[at + width] = width ? (int64_t)((uint64_t)to[at] + (uint64_t)value) : value;
    }
    GIVE_NUMBER(lengths[0]);
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    METHOD(unite),     METHOD(intersect), METHOD(subtract),   METHOD(covered), METHOD(within),
    METHOD(holds),     METHOD(nest),      METHOD(innermost),  METHOD(outermost), METHOD(statistics),
    METHOD(kahan),     METHOD(running),   METHOD(hta_rows),   METHOD(join),
    METHOD(narrow),    METHOD(widen),
    METHOD(fewer),     METHOD(few),       METHOD(group),
    {"select", (PyCFunction)(void (*)(void))select_values, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_arrays",
    .m_doc = PyDoc_STR("Passes over columns, each with the result of the NumPy code beside its call."),
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__arrays(void) {
    if (PyType_Ready(&block_type) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", 2) < 0)
        Py_CLEAR(module);
    return module;
}
