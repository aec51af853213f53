#include "events.h"

#include "values.h"

#include <stdlib.h>

#define LONGEST_NS ((int64_t)1 << 56) /* as times.py has it */
#define LEAST_FRAME_NS 500000         /* as frames.py has it */
#define MODULE "nn.Module: "          /* as frames.py has it */

/* What the column `shape` takes of an event's arguments: the last of these that it has. */
typedef enum { NO_SHAPE, CALL_SIZE, BYTES, GRID, DIMS } Shape;

typedef struct {
    Quoted phase, name, cat;
    Text texts[NARROW_COLUMNS], ends[NARROW_COLUMNS]; /* the JSON of SHAPE to CONCRETE, NULL if there is none */
    int32_t guessed[NARROW_COLUMNS]; /* as `strings_guess` has it */
    Shape shape;
    Time ts, dur;
    int64_t pid, tid, stream, correlation, external, sequence;
    int collective;
} Event;

static int is(Text key, size_t length, const char *name, size_t name_length) {
    return length == name_length && memcmp(key, name, name_length) == 0;
}
#define IS(name) is(key, length, name, sizeof name - 1)

/* At the value of the next key, which must not be escaped: nobody would know it. */
static Text read_key(Text p, Text end, Quoted *key, Status *why) {
    if ((p = read_string(p, end, key, why)) == NULL)
        return NULL;
    p = skip_space(p);
    return *p == ':' && key->plain ? skip_space(p + 1) : stop(p, end, why);
}

/* At the next key of the object, or behind it if that was its `last` value. */
static Text behind_value(Text p, Text end, int *last, Status *why) {
    p = skip_space(p);
    *last = *p == '}';
    if (*last)
        return p + 1;
    return *p == ',' ? skip_space(p + 1) : stop(p, end, why);
}

static Text read_args(Text p, Text end, const Events *events, Event *event, Status *why) {
    int last;
    event->stream = event->correlation = event->external = event->sequence = -1;
    memset(event->texts, 0, sizeof event->texts);
    event->shape = NO_SHAPE;
    event->collective = 0;
    if (*p == 'n')
        return read_null(p, end, why);
    if (*p != '{')
        return stop(p, end, why);
    p = skip_space(p + 1);
    if (*p == '}')
        return p + 1;
    for (;;) {
        Quoted quoted;
        if ((p = read_key(p, end, &quoted, why)) == NULL)
            return NULL;
        Text key = quoted.start, value = p;
        size_t length = (size_t)(quoted.end - key);
        if (IS("stream"))
            p = read_id(p, end, &event->stream, why);
        else if (IS("correlation"))
            p = read_int(p, end, &event->correlation, why);
        else if (IS("External id"))
            p = read_id(p, end, &event->external, why);
        else if (IS("Sequence number"))
            p = read_id(p, end, &event->sequence, why);
        else if (IS("Collective name")) {
            event->collective = *p != 'n';
            p = *p == 'n' ? read_null(p, end, why) : read_string(p, end, &quoted, why);
        } else {
            Shape shape = IS("Input Dims") ? DIMS
                          : IS("grid")     ? GRID
                          : IS("bytes")    ? BYTES
                          : IS("size")     ? CALL_SIZE
                                           : NO_SHAPE;
            int column = shape != NO_SHAPE ? SHAPE
                         : IS("Input type")      ? TYPES
                         : IS("Input Strides")   ? STRIDES
                         : IS("Concrete Inputs") ? CONCRETE
                                                 : NAME;
            size_t size;
            int32_t guess = column != NAME && *p == '[' ? strings_guess(&events->strings[column], p, end, &size) : 0;
            p = guess ? p + size : value_end(p, end, why);
            if (p != NULL && column != NAME && (column != SHAPE || shape >= event->shape)) {
                if (column == SHAPE)
                    event->shape = shape;
                event->guessed[column] = guess;
                event->texts[column] = value;
                event->ends[column] = p;
            }
        }
        if (p == NULL || (p = behind_value(p, end, &last, why)) == NULL || last)
            return p;
    }
}

/* A string without escapes, at a glance where it is the one that was expected. */
static inline Text read_text(Text p, Text end, const Events *events, int column, Quoted *value, Event *event, Status *why) {
    size_t length;
    int32_t guess = *p == '"' ? strings_guess(&events->strings[column], p + 1, end, &length) : 0;
    event->guessed[column] = 0;
    if (guess == 0 || p[1 + length] != '"')
        return read_string(p, end, value, why);
    event->guessed[column] = guess;
    value->plain = 1;
    value->start = p + 1;
    value->end = p + 1 + length;
    return value->end + 1;
}

/* What stands in `p` as written here. */
static inline int stands(Text p, Text end, const char *text, size_t length) {
    return (size_t)(end - p) >= length && memcmp(p, text, length) == 0;
}

/* A complete event as kineto writes it, up to the value of its "args": one comparison a key. NULL for any other. */
static inline Text read_usual(Text p, Text end, const Events *events, Event *event) {
    Status unused;
#define PASS(text)                                                                                                     \
    do {                                                                                                               \
        if (p == NULL || !stands(p, end, text, sizeof text - 1))                                                       \
            return NULL;                                                                                               \
        p += sizeof text - 1;                                                                                          \
    } while (0)
    PASS("{\n    \"ph\": \"X\", \"cat\": ");
    event->phase.start = p - 11;
    event->phase.end = p - 10;
    event->phase.plain = 1;
    p = read_text(p, end, events, CAT, &event->cat, event, &unused);
    PASS(", \"name\": ");
    p = read_text(p, end, events, NAME, &event->name, event, &unused);
    PASS(", \"pid\": ");
    p = read_id(p, end, &event->pid, &unused);
    PASS(", \"tid\": ");
    p = read_id(p, end, &event->tid, &unused);
    PASS(",\n    \"ts\": ");
    p = read_time(p, end, events->exact, &event->ts, &unused);
    PASS(", \"dur\": ");
    p = read_time(p, end, events->exact, &event->dur, &unused);
    PASS(",\n    \"args\": ");
#undef PASS
    return p;
}

static void begin_event(Event *event) {
    memset(event, 0, sizeof *event);
    event->pid = event->tid = event->stream = event->correlation = event->external = event->sequence = -1;
}

static Text read_event(Text p, Text end, const Events *events, Event *event, Status *why) {
    int last;
    begin_event(event);
    Text args = read_usual(p, end, events, event);
    if (args != NULL) {
        if ((p = read_args(args, end, events, event, why)) == NULL || (p = behind_value(p, end, &last, why)) == NULL || last)
            return p;
    } else {
        begin_event(event);
        p = skip_space(p + 1);
        if (*p == '}')
            return p + 1;
    }
    for (;;) {
        Quoted quoted;
        if ((p = read_key(p, end, &quoted, why)) == NULL)
            return NULL;
        Text key = quoted.start;
        size_t length = (size_t)(quoted.end - key);
        if (IS("ph"))
            p = read_string(p, end, &event->phase, why);
        else if (IS("ts"))
            p = read_time(p, end, events->exact, &event->ts, why);
        else if (IS("dur"))
            p = read_time(p, end, events->exact, &event->dur, why);
        else if (IS("pid"))
            p = read_id(p, end, &event->pid, why);
        else if (IS("tid"))
            p = read_id(p, end, &event->tid, why);
        else if (IS("name"))
            p = read_text(p, end, events, NAME, &event->name, event, why);
        else if (IS("args"))
            p = read_args(p, end, events, event, why);
        else if (IS("cat")) {
            memset(&event->cat, 0, sizeof event->cat);
            p = *p == 'n' ? read_null(p, end, why) : read_text(p, end, events, CAT, &event->cat, event, why);
        } else
            p = value_end(p, end, why);
        if (p == NULL || (p = behind_value(p, end, &last, why)) == NULL || last)
            return p;
    }
}

/* Of JSON, or of a string without escapes: of what ends by itself. */
static inline int32_t number_of_text(Strings *strings, Text start, Text end, int32_t guess) {
    int32_t number = guess ? guess - 1 : strings_number(strings, start, (size_t)(end - start));
    if (number >= 0)
        strings_came(strings, number);
    return number;
}

static int32_t number_of(Events *events, int column, Quoted text, int32_t guess) {
    static const unsigned char nothing[1];
    if (text.start == NULL)
        return strings_number(&events->strings[column], nothing, 0);
    if (text.plain)
        return number_of_text(&events->strings[column], text.start, text.end, guess);
    size_t length = (size_t)(text.end - text.start);
    void *scratch = grown(events->scratch, &events->scratch_room, length, 1);
    if (scratch == NULL)
        return -1;
    events->scratch = scratch;
    return strings_number(&events->strings[column], scratch, unescape(text.start, text.end, scratch));
}

int events_reserve(Events *events, size_t more) {
    if (more > SIZE_MAX - events->rows)
        return 0;
    if (more <= events->room - events->rows)
        return 1;
    size_t room = events->room;
    for (int i = 0; i < WIDE_COLUMNS; i++) {
        room = events->room;
        int64_t *column = grown(events->wide[i], &room, events->rows + more, sizeof *column);
        if (column == NULL)
            return 0;
        events->wide[i] = column;
    }
    for (int i = 0; i < NARROW_COLUMNS; i++) {
        room = events->room;
        int32_t *column = grown(events->narrow[i], &room, events->rows + more, sizeof *column);
        if (column == NULL)
            return 0;
        events->narrow[i] = column;
    }
    events->room = room;
    return 1;
}

/* Keeps the text of an event: of the collective in `row`, or with row -1 of a Python frame. */
static int keep_text(Events *events, int64_t row, Text start, Text end) {
    size_t length = (size_t)(end - start);
    if (length > SIZE_MAX - events->text_used)
        return 0;
    void *text = grown(events->kept_text, &events->text_room, events->text_used + length, 1);
    if (text == NULL)
        return 0;
    events->kept_text = text;
    Kept *list = grown(events->kept, &events->kept_room, events->kept_count + 1, sizeof *list);
    if (list == NULL)
        return 0;
    events->kept = list;
    memcpy(events->kept_text + events->text_used, start, length);
    list[events->kept_count].row = row;
    list[events->kept_count].start = events->text_used;
    events->text_used += length;
    list[events->kept_count++].end = events->text_used;
    return 1;
}

/* Adds a row for a complete event with a usable time; 0 where there is no memory. */
static int add_row(Events *events, const Event *event, Text start, Text end) {
    int64_t index = events->seen;
    size_t row = events->rows;
    int complete = event->phase.start != NULL && event->phase.end - event->phase.start == 1 && *event->phase.start == 'X';
#define CAT_IS(text) is(event->cat.start, (size_t)(event->cat.end - event->cat.start), text, sizeof text - 1)
    if (event->cat.start == NULL)
        return 1;
    if (CAT_IS("python_function")) {
        events->with_stack = 1;
        size_t length = event->name.start == NULL ? 0 : (size_t)(event->name.end - event->name.start);
        int module = length >= sizeof MODULE - 1 && memcmp(event->name.start, MODULE, sizeof MODULE - 1) == 0;
        int kept = complete && event->ts.valid && event->dur.valid && event->dur.ns < LONGEST_NS
                   && (event->dur.ns >= LEAST_FRAME_NS || (module && event->dur.ns >= 0));
        return !kept || keep_text(events, -1, start, end);
    }
    if (!complete || CAT_IS("Trace"))
        return 1;
    if (!event->ts.valid || !event->dur.valid || event->dur.ns < 0 || event->dur.ns >= LONGEST_NS) {
        events->bad_times += event->dur.given;
        return 1;
    }
    if (!events_reserve(events, 1))
        return 0;
    int32_t name = number_of(events, NAME, event->name, event->guessed[NAME]);
    int32_t cat = number_of(events, CAT, event->cat, event->guessed[CAT]);
    for (int column = SHAPE; column < NARROW_COLUMNS; column++) {
        events->narrow[column][row] = -1;
        if (event->texts[column] == NULL)
            continue;
        int32_t number = number_of_text(&events->strings[column], event->texts[column], event->ends[column], event->guessed[column]);
        if ((events->narrow[column][row] = number) < 0)
            return 0;
    }
    if (name < 0 || cat < 0 || (event->collective && !keep_text(events, (int64_t)row, start, end)))
        return 0;
    events->wide[INDEX][row] = index;
    events->wide[TS][row] = event->ts.ns;
    events->wide[DUR][row] = event->dur.ns;
    events->wide[PID][row] = event->pid;
    events->wide[TID][row] = event->tid;
    events->wide[STREAM][row] = event->stream;
    events->wide[CORRELATION][row] = event->correlation;
    events->wide[EXTERNAL][row] = event->external;
    events->wide[SEQUENCE][row] = event->sequence;
    events->narrow[NAME][row] = name;
    events->narrow[CAT][row] = cat;
    events->rows++;
    return 1;
}

Status events_take(Events *events, const unsigned char *text, size_t length, size_t *consumed) {
    Text p = text, end = text + length;
    for (;;) {
        Status why;
        Event event;
        for (;; p++) {
            p = skip_space(p);
            if (*p != ',')
                break;
        }
        *consumed = (size_t)(p - text);
        if (*p == ']') {
            ++*consumed;
            return CLOSED;
        }
        if (*p != '{')
            return p == end ? MORE : ODD;
        Text after = read_event(p, end, events, &event, &why);
        if (after == NULL)
            return why;
        /* escapes in these are for a more patient reader: what they say decides about the event */
        if ((event.cat.start && !event.cat.plain) || (event.phase.start && !event.phase.plain))
            return ODD;
        if (!add_row(events, &event, p, after))
            return NO_MEMORY;
        events->seen++;
        p = after;
    }
}

void events_free(Events *events) {
    for (int i = 0; i < WIDE_COLUMNS; i++)
        free(events->wide[i]);
    for (int i = 0; i < NARROW_COLUMNS; i++) {
        free(events->narrow[i]);
        strings_free(&events->strings[i]);
    }
    free(events->kept);
    free(events->kept_text);
    free(events->scratch);
    memset(events, 0, sizeof *events);
}
