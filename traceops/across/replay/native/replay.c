/* One replay of all ranks' steps: traceops/across/replay/simulate.py says what each name means, and has the same in
 * Python for where no compiler was. Both give the same nanoseconds. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const int64_t NEVER = INT64_MIN / 4; /* as traceops.measure.program has it */
static const int64_t KNOWN = INT64_MIN / 8; /* what is above it is a moment */
static const int64_t FAR = (int64_t)1 << 40;

/* One array of int64 that belongs to Python, of one dimension or two. */
typedef struct {
    Py_buffer view;
    Py_ssize_t count;
} Array;

static int64_t at(const Array *array, Py_ssize_t row) {
    return *(const int64_t *)((const char *)array->view.buf + row * array->view.strides[0]);
}

/* What a row has in the columns of a mask, or `part` of it, rounded as Python rounds. */
static int64_t in_columns(const Array *array, Py_ssize_t row, unsigned columns, double part) {
    const char *first = (const char *)array->view.buf + row * array->view.strides[0];
    int64_t sum = 0;
    for (Py_ssize_t column = 0; column < array->view.shape[1]; column++)
        if (columns >> column & 1)
            sum += *(const int64_t *)(first + column * array->view.strides[1]);
    return part == 1.0 ? sum : (int64_t)nearbyint(part * (double)sum);
}

/* The fields of RankNodes and of its HostWaits that a replay reads. */
enum { WORK, DELAY, AFTER, STANDS_AT, JOIN_NODE, JOINED_AT, JOIN_WORK, HOST, HOST_INPUT, SPENT, JOIN_SPENT, WAITS_BEFORE, NODE_FIELDS };
enum { WAIT_STANDS_AT = NODE_FIELDS, WAIT_WORK, WAIT_HOST, WAIT_HOST_INPUT, WAIT_SPENT, FIELDS };
static const char *const field_names[FIELDS] = {
    "work", "delay", "after", "stands_at", "join_node", "joined_at", "join_work", "host", "host_input", "spent",
    "join_spent", "waits_before", "stands_at", "work", "host", "host_input", "spent",
};
static PyObject *names[FIELDS], *waits_name;

typedef struct {
    Array fields[FIELDS], end_of, edges;
    int views; /* how many of them are held */
    unsigned without;
    int input_gone, host_gone;
    double part;
    int64_t lead, first_step;
    Py_ssize_t nodes, joins, waits, used; /* used: joins whose collective is there */
    int64_t *memory;
    int64_t *work, *launched, *joins_before;              /* of each node */
    int64_t *join_end, *join_work;                        /* of each join that is used, by the moment it is over */
    int64_t *held_up;                                     /* by the first joins, `held` of them known */
    int64_t *host;                                        /* of each node, less what is gone */
    int64_t *behind, *most;                               /* of each node: waits before its launch, and what held that up */
    int64_t *before, *ahead, *wait_joins, *held, *later;  /* of each wait; of the last two `waited` + 1 are known */
    Py_ssize_t held_known, waited;
    int waiting;
    int64_t waited_for;
} Rank;

static int take(Rank *rank, Array *array, PyObject *owner, PyObject *name, int dimensions) {
    PyObject *value = name == NULL ? Py_NewRef(owner) : PyObject_GetAttr(owner, name);
    if (value == NULL)
        return 0;
    int failed = PyObject_GetBuffer(value, &array->view, PyBUF_STRIDED_RO | PyBUF_FORMAT);
    Py_DECREF(value);
    if (failed)
        return 0;
    rank->views++;
    const char *format = array->view.format;
    if (array->view.ndim != dimensions || array->view.itemsize != 8 || format == NULL || (format[0] != 'l' && format[0] != 'q') ||
        (dimensions == 2 && array->view.shape[1] > 32)) {
        PyErr_SetString(PyExc_TypeError, "a replay wants arrays of int64");
        return 0;
    }
    array->count = array->view.shape[0];
    return 1;
}

/* In the order in which they are declared, so that `views` says which are held. */
static int take_all(Rank *rank, PyObject *nodes, PyObject *end_of, PyObject *edges) {
    for (int field = 0; field < NODE_FIELDS; field++)
        if (!take(rank, &rank->fields[field], nodes, names[field], field == SPENT || field == JOIN_SPENT ? 2 : 1))
            return 0;
    PyObject *waits = PyObject_GetAttr(nodes, waits_name);
    if (waits == NULL)
        return 0;
    int taken = 1;
    for (int field = NODE_FIELDS; taken && field < FIELDS; field++)
        taken = take(rank, &rank->fields[field], waits, names[field], field == WAIT_SPENT ? 2 : 1);
    Py_DECREF(waits);
    return taken && take(rank, &rank->end_of, end_of, NULL, 1) && take(rank, &rank->edges, edges, NULL, 1);
}

static void release(Rank *rank) {
    Array *arrays = rank->fields;
    for (int view = 0; view < rank->views; view++)
        PyBuffer_Release(view < FIELDS ? &arrays[view].view : view == FIELDS ? &rank->end_of.view : &rank->edges.view);
    free(rank->memory);
}

static int odd(const char *what) {
    PyErr_Format(PyExc_ValueError, "a replay cannot go by these %s", what);
    return 0;
}

/* Whether the arrays of a rank are as long as each other, and no index in them leads outside. */
static int fits(const Rank *rank, Py_ssize_t places) {
    const Array *own = rank->fields;
    static const int of_nodes[] = {DELAY, AFTER, STANDS_AT, HOST, HOST_INPUT, SPENT, WAITS_BEFORE};
    static const int of_joins[] = {JOINED_AT, JOIN_WORK, JOIN_SPENT};
    for (size_t i = 0; i < sizeof of_nodes / sizeof *of_nodes; i++)
        if (own[of_nodes[i]].count != rank->nodes)
            return odd("nodes");
    for (size_t i = 0; i < sizeof of_joins / sizeof *of_joins; i++)
        if (own[of_joins[i]].count != rank->joins)
            return odd("joins");
    for (int field = WAIT_STANDS_AT; field < FIELDS; field++)
        if (own[field].count != rank->waits)
            return odd("waits");
    for (Py_ssize_t node = 0; node < rank->nodes; node++)
        if (at(&own[AFTER], node) >= rank->end_of.count || at(&own[WAITS_BEFORE], node) < 0 ||
            at(&own[WAITS_BEFORE], node) > rank->waits)
            return odd("nodes");
    for (Py_ssize_t join = 0; join < rank->joins; join++)
        if (at(&own[JOIN_NODE], join) >= rank->end_of.count)
            return odd("joins");
    for (Py_ssize_t node = 0; node < rank->end_of.count; node++)
        if (at(&rank->end_of, node) >= places)
            return odd("ends");
    for (Py_ssize_t edge = 0; edge < rank->edges.count; edge++)
        if (at(&rank->edges, edge) < 0 || at(&rank->edges, edge) >= rank->nodes)
            return odd("edges");
    return rank->edges.count >= 2 ? 1 : odd("edges");
}

/* Sorts indexes by the moments that they stand for; those that are equal keep their order. */
static void sort(int64_t *indexes, int64_t *room, Py_ssize_t count, const Array *moments) {
    if (count < 2)
        return;
    Py_ssize_t half = count / 2, left = 0, right = half;
    sort(indexes, room, half, moments);
    sort(indexes + half, room, count - half, moments);
    if (at(moments, indexes[half - 1]) <= at(moments, indexes[half]))
        return;
    memcpy(room, indexes, (size_t)count * sizeof *room);
    for (Py_ssize_t place = 0; place < count; place++) {
        int from_left = left < half && (right == count || at(moments, room[left]) <= at(moments, room[right]));
        indexes[place] = room[from_left ? left++ : right++];
    }
}

/* How many of these sorted moments are no later than one. */
static Py_ssize_t up_to(const int64_t *indexes, Py_ssize_t count, const Array *moments, int64_t moment) {
    Py_ssize_t low = 0;
    while (low < count) {
        Py_ssize_t middle = low + (count - low) / 2;
        if (at(moments, indexes[middle]) <= moment)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* The launches and waits of a rank's host, in the order of `by_time`. */
static void prepare_waits(Rank *rank, const int64_t *by_time, const int64_t *joins) {
    const Array *own = rank->fields;
    int64_t *most_by_time = rank->held_up; /* not needed yet, and as long as nodes and joins */
    int64_t behind = 0, most = 0;
    for (Py_ssize_t place = 0; place < rank->nodes; place++) {
        int64_t node = by_time[place], before = at(&own[WAITS_BEFORE], node);
        if (place == 0 || before > behind)
            behind = before;
        /* What was launched before a wait, and stands behind what was launched after it, holds nothing up. */
        int64_t late = rank->host[node] > KNOWN ? rank->host[node] - rank->work[node] : NEVER;
        int64_t clipped = late <= KNOWN || before != behind ? -FAR : late < -FAR ? -FAR : late > FAR ? FAR : late;
        if (place == 0 || clipped + 2 * FAR * behind > most)
            most = clipped + 2 * FAR * behind;
        rank->behind[node] = behind;
        rank->most[node] = most_by_time[place] = most - 2 * FAR * behind;
    }
    for (Py_ssize_t wait = 0; wait < rank->waits; wait++) {
        int64_t stands_at = at(&own[WAIT_STANDS_AT], wait);
        Py_ssize_t place = up_to(by_time, rank->nodes, &own[STANDS_AT], stands_at) - 1;
        rank->before[wait] = rank->nodes == 0                                             ? 0
                             : place >= 0 && rank->behind[by_time[place]] == (int64_t)wait ? most_by_time[place]
                                                                                           : -FAR;
        int64_t work = at(&own[WAIT_WORK], wait), host = at(&own[WAIT_HOST], wait) + rank->lead;
        if (rank->without)
            work -= in_columns(&own[WAIT_SPENT], wait, rank->without, rank->part);
        if (rank->input_gone)
            host -= at(&own[WAIT_HOST_INPUT], wait);
        rank->ahead[wait] = work - host;
        rank->wait_joins[wait] = up_to(joins, rank->used, &own[JOINED_AT], stands_at);
    }
    rank->held[0] = rank->later[0] = 0;
}

static int prepare(Rank *rank) {
    const Array *own = rank->fields;
    size_t nodes = (size_t)rank->nodes, joins = (size_t)rank->joins, waits = (size_t)rank->waits;
    /* Six arrays of nodes, and with room to sort two more of nodes and joins; what holds a rank up needs one more. */
    int64_t *free_memory = rank->memory = malloc((6 * nodes + 2 * joins + 3 * (nodes + joins + 1) + 5 * (waits + 1)) * sizeof *free_memory);
    if (free_memory == NULL) {
        PyErr_NoMemory();
        return 0;
    }
#define PART(count) (free_memory += (count), free_memory - (count))
    rank->work = PART(nodes), rank->launched = PART(nodes), rank->joins_before = PART(nodes);
    rank->host = PART(nodes), rank->behind = PART(nodes), rank->most = PART(nodes);
    rank->join_end = PART(joins), rank->join_work = PART(joins);
    rank->held_up = PART(nodes + joins + 1);
    int64_t *order = PART(nodes + joins + 1), *room = PART(nodes + joins + 1);
    rank->before = PART(waits + 1), rank->ahead = PART(waits + 1), rank->wait_joins = PART(waits + 1);
    rank->held = PART(waits + 1), rank->later = PART(waits + 1);
#undef PART
    int64_t *by_time = order, *joined = order + nodes;
    for (Py_ssize_t join = 0; join < rank->joins; join++)
        if (at(&own[JOIN_NODE], join) >= 0) /* one for a node that is not there holds nothing up */
            joined[rank->used++] = join;
    sort(joined, room, rank->used, &own[JOINED_AT]);
    for (Py_ssize_t place = 0; place < rank->used; place++) {
        int64_t join = joined[place], node = at(&own[JOIN_NODE], join), work = at(&own[JOIN_WORK], join);
        if (rank->without)
            work -= in_columns(&own[JOIN_SPENT], join, rank->without, rank->part);
        rank->join_work[place] = work;
        rank->join_end[place] = at(&rank->end_of, node);
    }
    int known = 0;
    for (Py_ssize_t node = 0; node < rank->nodes; node++) {
        by_time[node] = node;
        rank->work[node] = at(&own[WORK], node);
        if (rank->without)
            rank->work[node] -= in_columns(&own[SPENT], node, rank->without, rank->part);
        rank->host[node] = at(&own[HOST], node) + rank->lead;
        if (rank->input_gone)
            rank->host[node] -= at(&own[HOST_INPUT], node);
        if (rank->host_gone)
            rank->host[node] = NEVER;
        known |= rank->host[node] > KNOWN;
    }
    sort(by_time, room, rank->nodes, &own[STANDS_AT]);
    int64_t behind = 0;
    Py_ssize_t over = 0;
    for (Py_ssize_t place = 0; place < rank->nodes; place++) {
        int64_t node = by_time[place];
        while (over < rank->used && at(&own[JOINED_AT], joined[over]) <= at(&own[STANDS_AT], node))
            over++;
        /* How far the launches before a node hold it up is known beforehand. */
        if (rank->host[node] > KNOWN && rank->host[node] - rank->work[node] > behind)
            behind = rank->host[node] - rank->work[node];
        rank->joins_before[node] = over;
        rank->launched[node] = rank->work[node] + behind;
    }
    rank->waiting = known && rank->waits > 0;
    if (rank->waiting)
        prepare_waits(rank, by_time, joined);
    rank->held_up[0] = 0;
    return 1;
}

/* How far the first joins hold the rank up, given the ends of the collectives before. */
static int64_t joined(Rank *rank, int64_t joins, const int64_t *ends, int64_t ended) {
    for (; rank->held_known < joins; rank->held_known++) {
        int64_t number = rank->join_end[rank->held_known], held = rank->held_up[rank->held_known];
        int64_t behind = 0 <= number && number < ended ? ends[number] - rank->join_work[rank->held_known] : 0;
        rank->held_up[rank->held_known + 1] = behind > held ? behind : held;
    }
    return rank->held_up[joins];
}

/* How far launches hold the rank up at a node, behind the waits before it. */
static int64_t launches(Rank *rank, int64_t node, const int64_t *ends, int64_t ended) {
    for (; rank->waited < rank->behind[node]; rank->waited++) {
        Py_ssize_t wait = rank->waited;
        int64_t held_up = joined(rank, rank->wait_joins[wait], ends, ended);
        int64_t launched = rank->before[wait] + rank->later[wait];
        int64_t held = launched > rank->held[wait] ? launched : rank->held[wait];
        int64_t later = rank->ahead[wait] + (held > held_up ? held : held_up);
        rank->held[wait + 1] = held;
        rank->later[wait + 1] = later > rank->later[wait] ? later : rank->later[wait];
    }
    int64_t held = rank->held[rank->behind[node]], launched = rank->most[node] + rank->later[rank->behind[node]];
    return held > launched ? held : launched;
}

/* When a node begins, given the ends of the collectives before it. */
static int64_t begin(Rank *rank, int64_t node, const int64_t *ends, int64_t ended) {
    int64_t launched = rank->waiting ? rank->work[node] + launches(rank, node, ends, ended) : rank->launched[node];
    int64_t moment = rank->work[node] + joined(rank, rank->joins_before[node], ends, ended);
    if (launched > moment)
        moment = launched;
    int64_t before = at(&rank->fields[AFTER], node), after = before >= 0 ? at(&rank->end_of, before) : -1;
    if (0 <= after && after < ended && ends[after] > moment)
        moment = ends[after];
    return moment + at(&rank->fields[DELAY], node);
}

/* When the host has launched what ends a step. */
static int64_t launched_at(const Rank *rank, Py_ssize_t edge) {
    int64_t node = at(&rank->edges, edge), waits = at(&rank->fields[WAITS_BEFORE], node);
    return rank->host[node] + (rank->waiting ? rank->later[waits < rank->waited ? waits : rank->waited] : 0);
}

/* By how much the host is further ahead of its rank at the first edge than at any other, ns: no more than what makes
 * the first step as long as it was measured. What ends the step before the first may have been launched before the
 * window: the shortest step before the next. */
static int64_t lost_lead(const Rank *rank, const int64_t *begins) {
    Py_ssize_t first = -1, before = -1, known = 0;
    int64_t shortest = INT64_MAX, ahead = INT64_MIN;
    for (Py_ssize_t edge = 0; edge < rank->edges.count; edge++) {
        int64_t host = launched_at(rank, edge);
        if (host <= KNOWN)
            continue;
        if (first < 0)
            first = edge;
        else if (host - launched_at(rank, before) < shortest)
            shortest = host - launched_at(rank, before);
        if (edge > 0 && begins[edge] - host > ahead)
            ahead = begins[edge] - host;
        before = edge;
        known++;
    }
    if (known < 2 || first > 1)
        return 0;
    int64_t launched = launched_at(rank, first) - (first ? shortest : 0);
    int64_t lost = begins[0] - launched - ahead, shorter = rank->first_step - (begins[1] - begins[0]);
    lost = shorter < lost ? shorter : lost;
    return lost > 0 ? lost : 0;
}

/* By how much it is further ahead at the last edge than at the second, ns: the first step has another lead. */
static int64_t gained_lead(const Rank *rank, const int64_t *begins) {
    int64_t first = 0, last = 0;
    Py_ssize_t known = 0;
    for (Py_ssize_t edge = 1; edge < rank->edges.count; edge++) {
        int64_t host = launched_at(rank, edge);
        if (host <= KNOWN)
            continue;
        last = begins[edge] - host;
        if (known++ == 0)
            first = last;
    }
    return known > 1 && last > first ? last - first : 0;
}

/* The collectives: `starts` where the members of each begin, who they are, and what each needs where not all the others,
 * from `need_starts` on; `together` of a collective whose members all end together. */
typedef struct {
    Array starts, ranks, nodes, need_starts, needs, together, transfer;
    int views;
} Collectives;

static void replay(Rank *ranks, const Collectives *all, int64_t *ends, int64_t *begins) {
    for (Py_ssize_t number = 0; number < all->transfer.count; number++) {
        int64_t from = at(&all->starts, number), to = at(&all->starts, number + 1), transfer = at(&all->transfer, number);
        int64_t last = from;
        for (int64_t member = from; member < to; member++) {
            begins[member] = begin(&ranks[at(&all->ranks, member)], at(&all->nodes, member), ends, from);
            if (begins[member] > begins[last])
                last = member;
        }
        int together = at(&all->together, number) != 0;
        for (int64_t member = from; member < to; member++) {
            if (!together) {
                int64_t needed = at(&all->need_starts, member), others = at(&all->need_starts, member + 1);
                last = from + at(&all->needs, needed);
                for (needed++; needed < others; needed++)
                    if (begins[from + at(&all->needs, needed)] > begins[last])
                        last = from + at(&all->needs, needed);
            }
            ranks[at(&all->ranks, last)].waited_for += begins[last] - begins[member];
            ends[member] = begins[last] + transfer;
        }
    }
}

static int take_collectives(Collectives *all, PyObject *flat, PyObject *transfer) {
    Array *arrays[] = {&all->starts, &all->ranks, &all->nodes, &all->need_starts, &all->needs, &all->together};
    Rank counted = {.views = 0};
    int taken = PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) == 6;
    if (!taken)
        PyErr_SetString(PyExc_TypeError, "a replay wants its collectives as six arrays");
    for (int i = 0; taken && i < 6; i++)
        taken = take(&counted, arrays[i], PyTuple_GET_ITEM(flat, i), NULL, 1);
    taken = taken && take(&counted, &all->transfer, transfer, NULL, 1);
    all->views = counted.views;
    return taken;
}

static void release_collectives(Collectives *all) {
    Array *arrays[] = {&all->starts, &all->ranks, &all->nodes, &all->need_starts, &all->needs, &all->together, &all->transfer};
    for (int view = 0; view < all->views; view++)
        PyBuffer_Release(&arrays[view]->view);
}

static int collectives_fit(const Collectives *all, const Rank *ranks, Py_ssize_t count) {
    Py_ssize_t members = all->ranks.count;
    if (all->starts.count != all->transfer.count + 1 || all->together.count != all->transfer.count ||
        all->nodes.count != members || all->need_starts.count != members + 1 || at(&all->starts, 0) != 0 ||
        at(&all->starts, all->transfer.count) != members)
        return odd("collectives");
    for (Py_ssize_t member = 0; member < members; member++) {
        int64_t rank = at(&all->ranks, member), node = at(&all->nodes, member);
        if (rank < 0 || rank >= count || node < 0 || node >= ranks[rank].nodes)
            return odd("members");
    }
    for (Py_ssize_t number = 0; number < all->transfer.count; number++) {
        int64_t from = at(&all->starts, number), to = at(&all->starts, number + 1);
        if (from > to)
            return odd("collectives");
        for (int64_t member = from; !at(&all->together, number) && member < to; member++) {
            int64_t needed = at(&all->need_starts, member), others = at(&all->need_starts, member + 1);
            if (needed < 0 || needed >= others || others > all->needs.count)
                return odd("needs");
            for (; needed < others; needed++)
                if (at(&all->needs, needed) < 0 || at(&all->needs, needed) >= to - from)
                    return odd("needs");
        }
    }
    return 1;
}

/* A rank from (nodes, end_of, edges, first_step, lead, without, input_gone, host_gone, part). */
static int rank_from(Rank *rank, PyObject *program, Py_ssize_t places) {
    PyObject *nodes, *end_of, *edges;
    long long first_step, lead;
    if (!PyArg_ParseTuple(program, "OOOLLIppd", &nodes, &end_of, &edges, &first_step, &lead, &rank->without,
                          &rank->input_gone, &rank->host_gone, &rank->part))
        return 0;
    rank->first_step = first_step, rank->lead = lead;
    if (!take_all(rank, nodes, end_of, edges))
        return 0;
    rank->nodes = rank->fields[WORK].count;
    rank->joins = rank->fields[JOIN_NODE].count;
    rank->waits = rank->fields[WAIT_WORK].count;
    return fits(rank, places) && prepare(rank);
}

/* (edges, waited_for, lost, gained) of ranks that were replayed. */
static PyObject *result_of(Rank *ranks, Py_ssize_t count, const int64_t *ends, Py_ssize_t members) {
    Py_ssize_t each = count ? ranks[0].edges.count : 0;
    PyObject *edges = PyByteArray_FromStringAndSize(NULL, count * each * (Py_ssize_t)sizeof(int64_t));
    PyObject *waited = PyList_New(count), *lost = PyList_New(count), *gained = PyList_New(count), *result = NULL;
    if (edges == NULL || waited == NULL || lost == NULL || gained == NULL)
        goto done;
    int64_t *begins = (int64_t *)PyByteArray_AS_STRING(edges);
    for (Py_ssize_t number = 0; number < count; number++, begins += each) {
        Rank *rank = &ranks[number];
        if (rank->edges.count != each) {
            odd("edges");
            goto done;
        }
        for (Py_ssize_t edge = 0; edge < each; edge++)
            begins[edge] = begin(rank, at(&rank->edges, edge), ends, members);
        PyObject *own[] = {PyLong_FromLongLong(rank->waited_for), PyLong_FromLongLong(lost_lead(rank, begins)),
                           PyLong_FromLongLong(gained_lead(rank, begins))};
        PyList_SET_ITEM(waited, number, own[0]);
        PyList_SET_ITEM(lost, number, own[1]);
        PyList_SET_ITEM(gained, number, own[2]);
        if (own[0] == NULL || own[1] == NULL || own[2] == NULL)
            goto done;
    }
    result = PyTuple_Pack(4, edges, waited, lost, gained);
done:
    Py_XDECREF(edges);
    Py_XDECREF(waited);
    Py_XDECREF(lost);
    Py_XDECREF(gained);
    return result;
}

static PyObject *replay_replay(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *programs, *flat, *transfer, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!OO", &PyList_Type, &programs, &flat, &transfer))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(programs);
    Collectives all = {.views = 0};
    Rank *ranks = calloc((size_t)count + 1, sizeof *ranks);
    int64_t *ends = NULL;
    if (ranks == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (!take_collectives(&all, flat, transfer))
        goto done;
    Py_ssize_t members = all.ranks.count;
    for (Py_ssize_t number = 0; number < count; number++)
        if (!rank_from(&ranks[number], PyList_GET_ITEM(programs, number), members))
            goto done;
    if (!collectives_fit(&all, ranks, count))
        goto done;
    ends = malloc((2 * (size_t)members + 1) * sizeof *ends);
    if (ends == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    replay(ranks, &all, ends, ends + members);
    result = result_of(ranks, count, ends, members);
done:
    for (Py_ssize_t number = 0; ranks != NULL && number < count; number++)
        release(&ranks[number]);
    release_collectives(&all);
    free(ends);
    free(ranks);
    return result;
}

static PyMethodDef methods[] = {
    {"replay", replay_replay, METH_VARARGS,
     PyDoc_STR("replay(programs, collectives, transfer) -> (edges, waited_for, lost, gained); see simulate.py.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceops.across.replay._replay",
    .m_doc = PyDoc_STR("One replay of all ranks' steps, in one pass over their collectives."),
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__replay(void) {
    for (int field = 0; field < FIELDS; field++)
        if (names[field] == NULL && (names[field] = PyUnicode_InternFromString(field_names[field])) == NULL)
            return NULL;
    if (waits_name == NULL && (waits_name = PyUnicode_InternFromString("waits")) == NULL)
        return NULL;
    return PyModule_Create(&module);
}
