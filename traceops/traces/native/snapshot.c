#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

#define BUFFER ((size_t)1 << 18)
#define LONGEST_TEXT 4096 /* longer ones are skipped: none that is needed is */
#define MOST_BYTES ((int64_t)1 << 47) /* that a device has */
#define MOST_ASKED ((int64_t)1 << 62) /* that a program asks for by mistake */
#define MOST_OBJECTS ((size_t)1 << 29) /* of a kind: numbers of them have 29 bits in the memo */
#define NO_PLACE (-1)
#define UNNAMED 3 /* of a frame's place: nothing is worse */

enum { OTHER_VALUE, TEXT, LIST, DICT, NUMBER, NOTHING, LARGE };        /* the first four may be remembered */
enum { EMPTY, FRAMES, EVENTS, BLOCKS, SEGMENTS, TRACES, OTHER_ITEMS }; /* lists, by their items */
enum { NO_KEYS, FRAME, EVENT, BLOCK, SEGMENT, SNAPSHOT, OTHER_KEYS };  /* dicts, by their keys */

/* Texts that mean something, numbered in this order. */
enum {
    K_ACTION, K_ADDR, K_SIZE, K_FRAMES, K_DEVICE_FREE, K_FILENAME, K_LINE, K_NAME, K_STATE, K_ADDRESS, K_BLOCKS, K_TOTAL,
    K_DEVICE, K_SEGMENTS, K_TRACES, K_HISTORY, KEYS,
    A_ALLOC = KEYS, A_FREE, A_OOM, A_SEGMENT_ALLOC, A_SEGMENT_MAP, A_SEGMENT_FREE, A_SEGMENT_UNMAP,
    S_ALLOCATED, S_PENDING, S_AWAITING, KNOWN
};
static const char *const known[KNOWN] = {
    "action", "addr", "size", "frames", "device_free", "filename", "line", "name", "state", "address", "blocks",
    "total_size", "device", "segments", "device_traces", "history",
    "alloc", "free_completed", "oom", "segment_alloc", "segment_map", "segment_free", "segment_unmap",
    "active_allocated", "active_pending_free", "active_awaiting_free",
};

#define ROOM(array, room, wanted)                                                                                      \
    do {                                                                                                               \
        if ((wanted) > (room)) {                                                                                       \
            void *moved = grown((array), &(room), (wanted), sizeof *(array));                                          \
            if (moved == NULL)                                                                                         \
                return NO_ROOM;                                                                                        \
            (array) = moved;                                                                                           \
        }                                                                                                              \
    } while (0)
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        Outcome outcome = (call);                                                                                      \
        if (outcome != READ)                                                                                           \
            return outcome;                                                                                            \
    } while (0)

/* At least `wanted` bytes (at most LONGEST_TEXT) lie from `at` on. */
static Outcome need(Snapshot *s, size_t wanted) {
    if (s->filled - s->at >= wanted)
        return READ;
    memmove(s->buffer, s->buffer + s->at, s->filled - s->at);
    s->filled -= s->at;
    s->at = 0;
    while (s->filled < wanted) {
        int64_t got = s->more(s->from, s->buffer + s->filled, BUFFER - s->filled);
        if (got < 0)
            return FAILED;
        if (got == 0)
            return CUT_OFF;
        s->filled += (size_t)got;
    }
    return READ;
}

static Outcome skip(Snapshot *s, uint64_t length) {
    while (length > 0) {
        TRY(need(s, 1));
        size_t here = s->filled - s->at;
        if (here > length)
            here = (size_t)length;
        s->at += here;
        length -= here;
    }
    return READ;
}

/* The next `bytes` bytes, the lowest first. */
static Outcome unsigned_of(Snapshot *s, size_t bytes, uint64_t *number) {
    TRY(need(s, bytes));
    *number = 0;
    for (size_t i = 0; i < bytes; i++)
        *number |= (uint64_t)s->buffer[s->at + i] << 8 * i;
    s->at += bytes;
    return READ;
}

static Outcome push(Snapshot *s, unsigned char tag, int64_t value) {
    ROOM(s->stack, s->stack_room, s->depth + 1);
    s->stack[s->depth++] = (Value){value, tag};
    return READ;
}

static Outcome push_text(Snapshot *s, uint64_t length) {
    if (length > LONGEST_TEXT) {
        TRY(skip(s, length));
        return push(s, OTHER_VALUE, 0);
    }
    TRY(need(s, (size_t)length));
    int32_t number = strings_number(&s->texts, s->buffer + s->at, (size_t)length);
    if (number < 0)
        return NO_ROOM;
    if ((size_t)number >= MOST_OBJECTS)
        return UNUSUAL;
    s->at += (size_t)length;
    return push(s, TEXT, number);
}

/* A whole number of `length` bytes, the highest of which has the sign. LARGE: one from 2**63 to 2**64 - 1. */
static Outcome push_long(Snapshot *s, uint64_t length) {
    if (length == 9) {
        uint64_t low = 0, high = 0;
        TRY(unsigned_of(s, 8, &low));
        TRY(unsigned_of(s, 1, &high));
        return push(s, high == 0 && low >> 63 ? LARGE : OTHER_VALUE, (int64_t)low);
    }
    if (length > 8) {
        TRY(skip(s, length));
        return push(s, OTHER_VALUE, 0);
    }
    uint64_t number = 0;
    TRY(unsigned_of(s, (size_t)length, &number));
    if (length > 0 && length < 8 && number >> (8 * length - 1))
        number |= ~(uint64_t)0 << 8 * length;
    return push(s, NUMBER, (int64_t)number);
}

static Outcome push_list(Snapshot *s) {
    if (s->list_count >= MOST_OBJECTS)
        return UNUSUAL;
    ROOM(s->lists, s->list_room, s->list_count + 1);
    s->lists[s->list_count] = (List){0};
    return push(s, LIST, (int64_t)s->list_count++);
}

static Outcome push_dict(Snapshot *s) {
    if (s->dict_count >= MOST_OBJECTS)
        return UNUSUAL;
    ROOM(s->dicts, s->dict_room, s->dict_count + 1);
    s->dicts[s->dict_count] = (Dict){0};
    return push(s, DICT, (int64_t)s->dict_count++);
}

/* Remembers what lies on top under `number`. Only things that stay what they are: a number is never remembered. */
static Outcome put(Snapshot *s, uint64_t number) {
    if (s->depth == 0 || number > s->memo_count || number >= UINT32_MAX)
        return UNUSUAL;
    Value top = s->stack[s->depth - 1];
    if (top.tag > DICT)
        return UNUSUAL;
    if (number == s->memo_count) {
        ROOM(s->memo, s->memo_room, s->memo_count + 1);
        s->memo_count++;
    }
    s->memo[number] = (uint32_t)top.value << 2 | top.tag;
    return READ;
}

static Outcome get(Snapshot *s, uint64_t number) {
    if (number >= s->memo_count)
        return UNUSUAL;
    return push(s, s->memo[number] & 3, s->memo[number] >> 2);
}

/* The list gets a thing of this kind in this row, which lies behind those that it has. */
static void add_row(List *list, unsigned char kind, uint32_t row) {
    if (list->kind == EMPTY)
        *list = (List){row, 0, kind, 0, list->used};
    if (list->kind == kind && row == list->first + list->count)
        list->count++;
    else
        list->kind = OTHER_ITEMS;
}

static Outcome append(Snapshot *s, List *list, Value value) {
    if (list->used)
        return UNUSUAL;
    if (value.tag == DICT) {
        Dict own = s->dicts[value.value];
        if (own.kind == FRAME) {
            int64_t place = s->frame_places[own.row];
            if (list->kind == EMPTY)
                *list = (List){(uint32_t)NO_PLACE, 0, FRAMES, UNNAMED, 0};
            if (list->kind != FRAMES)
                list->kind = OTHER_ITEMS;
            else if ((unsigned char)(place & 3) < list->best) {
                list->best = (unsigned char)(place & 3);
                list->first = (uint32_t)(place >> 2);
            }
            return READ;
        }
        static const unsigned char of_dict[] = {[EVENT] = EVENTS, [BLOCK] = BLOCKS, [SEGMENT] = SEGMENTS};
        if (own.kind == EVENT || own.kind == BLOCK || own.kind == SEGMENT) {
            add_row(list, of_dict[own.kind], own.row);
            return READ;
        }
    } else if (value.tag == LIST) {
        List *item = &s->lists[value.value];
        if ((item->kind == EMPTY || (item->kind == EVENTS && !item->used)) && item != list) {
            item->used = 1;
            ROOM(s->inner, s->inner_room, s->inner_count + 1);
            s->inner[s->inner_count] = (uint32_t)value.value;
            add_row(list, TRACES, (uint32_t)s->inner_count++);
            return READ;
        }
    }
    list->kind = OTHER_ITEMS;
    return READ;
}

static int is(const Value *value, unsigned char tag) { return value != NULL && value->tag == tag; }

static int is_bytes(const Value *value, int64_t most) {
    return is(value, NUMBER) && value->value >= 0 && value->value < most;
}

/* The place of a list of frames; no list, or an empty one, has none. */
static Outcome place_of(Snapshot *s, const Value *frames, int32_t *place) {
    *place = NO_PLACE;
    if (frames == NULL || frames->tag == NOTHING)
        return READ;
    if (frames->tag != LIST)
        return UNUSUAL;
    List *list = &s->lists[frames->value];
    if (list->kind != EMPTY && list->kind != FRAMES)
        return UNUSUAL;
    list->used = 1;
    if (list->kind == FRAMES)
        *place = (int32_t)list->first;
    return READ;
}

static Outcome make_frame(Snapshot *s, const Value *const *of, uint32_t *row) {
    if (!is(of[K_FILENAME], TEXT) || !is(of[K_NAME], TEXT))
        return UNUSUAL;
    /* torch writes -1 as if it had no sign */
    if (!is(of[K_LINE], LARGE) && !(is(of[K_LINE], NUMBER) && of[K_LINE]->value >= 0))
        return UNUSUAL;
    int64_t key[] = {of[K_FILENAME]->value, of[K_LINE]->value, of[K_NAME]->value};
    int32_t count = s->frames.count, number = strings_number(&s->frames, (const unsigned char *)key, sizeof key);
    if (number < 0)
        return NO_ROOM;
    if (number == count) {
        ROOM(s->frame_places, s->frame_places_room, (size_t)number + 1);
        int64_t place = s->place(s->from, s, (int32_t)key[0], (uint64_t)key[1], (int32_t)key[2]);
        if (place < 0)
            return place == -1 ? UNUSUAL : FAILED;
        s->frame_places[number] = place;
    }
    *row = (uint32_t)number;
    return READ;
}

static Outcome make_event(Snapshot *s, const Value *const *of, uint32_t *row) {
    if (!is(of[K_ACTION], TEXT) || s->events >= MOST_OBJECTS)
        return UNUSUAL;
    int action = NOT_NEEDED;
    switch (of[K_ACTION]->value) {
    case A_ALLOC: action = ALLOC; break;
    case A_FREE: action = FREE_COMPLETED; break;
    case A_OOM: action = OOM; break;
    case A_SEGMENT_ALLOC: case A_SEGMENT_MAP: action = SEGMENT_TAKEN; break;
    case A_SEGMENT_FREE: case A_SEGMENT_UNMAP: action = SEGMENT_GIVEN; break;
    }
    int32_t place;
    TRY(place_of(s, of[K_FRAMES], &place));
    int64_t address = 0, size = 0;
    if (action != NOT_NEEDED) {
        if (!is_bytes(of[K_SIZE], action == OOM ? MOST_ASKED : MOST_BYTES))
            return UNUSUAL;
        size = of[K_SIZE]->value;
    }
    if (action == ALLOC || action == FREE_COMPLETED) {
        if (!is(of[K_ADDR], NUMBER))
            return UNUSUAL;
        address = of[K_ADDR]->value;
    }
    if (action == OOM) {
        if (of[K_DEVICE_FREE] != NULL && !is_bytes(of[K_DEVICE_FREE], MOST_BYTES))
            return UNUSUAL;
        ROOM(s->shortages, s->shortage_room, s->shortage_count + 1);
        s->shortages[s->shortage_count++] =
            (Shortage){(uint32_t)s->events, of[K_DEVICE_FREE] == NULL ? 0 : of[K_DEVICE_FREE]->value};
    }
    ROOM(s->actions, s->action_room, s->events + 1);
    ROOM(s->addresses, s->address_room, s->events + 1);
    ROOM(s->sizes, s->size_room, s->events + 1);
    ROOM(s->places, s->place_room, s->events + 1);
    s->actions[s->events] = (unsigned char)action;
    s->addresses[s->events] = address;
    s->sizes[s->events] = size;
    s->places[s->events] = place;
    *row = (uint32_t)s->events++;
    return READ;
}

static Outcome make_block(Snapshot *s, const Value *const *of, uint32_t *row) {
    if (!is(of[K_STATE], TEXT) || !is_bytes(of[K_SIZE], MOST_BYTES) || of[K_HISTORY] != NULL || s->block_count >= MOST_OBJECTS)
        return UNUSUAL;
    if (of[K_ADDRESS] != NULL && (!is(of[K_ADDRESS], NUMBER) || of[K_ADDRESS]->value < 0))
        return UNUSUAL;
    int64_t state = of[K_STATE]->value;
    int32_t place;
    TRY(place_of(s, of[K_FRAMES], &place));
    ROOM(s->blocks, s->block_room, s->block_count + 1);
    s->blocks[s->block_count] = (BlockRow){
        of[K_ADDRESS] == NULL ? -1 : of[K_ADDRESS]->value, of[K_SIZE]->value, place,
        state == S_ALLOCATED || state == S_PENDING || state == S_AWAITING};
    *row = (uint32_t)s->block_count++;
    return READ;
}

static Outcome make_segment(Snapshot *s, const Value *const *of, uint32_t *row) {
    if (!is_bytes(of[K_TOTAL], MOST_BYTES) || !is(of[K_BLOCKS], LIST) || s->segment_count >= MOST_OBJECTS)
        return UNUSUAL;
    if ((of[K_DEVICE] != NULL && !is(of[K_DEVICE], NUMBER)) || (of[K_ADDRESS] != NULL && !is(of[K_ADDRESS], NUMBER)))
        return UNUSUAL;
    List *own = &s->lists[of[K_BLOCKS]->value];
    if ((own->kind != BLOCKS && own->kind != EMPTY) || (own->count && own->used))
        return UNUSUAL;
    own->used = 1;
    ROOM(s->segments, s->segment_room, s->segment_count + 1);
    s->segments[s->segment_count] = (Segment){
        of[K_DEVICE] == NULL ? 0 : of[K_DEVICE]->value, of[K_ADDRESS] == NULL ? 0 : of[K_ADDRESS]->value,
        of[K_TOTAL]->value, own->first, own->count};
    *row = (uint32_t)s->segment_count++;
    return READ;
}

static Outcome make_snapshot(Snapshot *s, const Value *const *of, uint32_t *row) {
    if (s->has_top || !is(of[K_SEGMENTS], LIST))
        return UNUSUAL;
    List *segments = &s->lists[of[K_SEGMENTS]->value];
    if (segments->kind != SEGMENTS && segments->kind != EMPTY)
        return UNUSUAL;
    segments->used = 1;
    s->top_segments = (uint32_t)of[K_SEGMENTS]->value;
    if (of[K_TRACES] != NULL && of[K_TRACES]->tag != NOTHING) {
        if (of[K_TRACES]->tag != LIST)
            return UNUSUAL;
        List *traces = &s->lists[of[K_TRACES]->value];
        if (traces->kind != TRACES && traces->kind != EMPTY)
            return UNUSUAL;
        traces->used = 1;
        s->top_traces = (uint32_t)of[K_TRACES]->value;
        s->has_traces = 1;
    }
    s->has_top = 1;
    *row = 0;
    return READ;
}

/* The pairs of keys and values from `from` to the top of the stack go into the dict below them. */
static Outcome set_items(Snapshot *s, size_t from) {
    if (from == 0 || s->stack[from - 1].tag != DICT || (s->depth - from) % 2)
        return UNUSUAL;
    const Value *of[KEYS] = {NULL};
    int any = 0;
    for (size_t i = from; i < s->depth; i += 2)
        if (s->stack[i].tag == TEXT && s->stack[i].value < KEYS) {
            of[s->stack[i].value] = &s->stack[i + 1];
            any = 1;
        } else if (s->stack[i].tag == LIST || s->stack[i].tag == DICT)
            return UNUSUAL; /* no key can be that */
    size_t at = (size_t)s->stack[from - 1].value;
    unsigned char had = s->dicts[at].kind, kind = OTHER_KEYS;
    uint32_t row = 0;
    if (s->depth == from)
        return READ;
    if (had != NO_KEYS && (had != OTHER_KEYS || any))
        return UNUSUAL; /* it was looked at already */
    if (of[K_ACTION] != NULL) {
        kind = EVENT;
        TRY(make_event(s, of, &row));
    } else if (of[K_FILENAME] != NULL) {
        kind = FRAME;
        TRY(make_frame(s, of, &row));
    } else if (of[K_BLOCKS] != NULL) {
        kind = SEGMENT;
        TRY(make_segment(s, of, &row));
    } else if (of[K_SEGMENTS] != NULL) {
        kind = SNAPSHOT;
        TRY(make_snapshot(s, of, &row));
    } else if (of[K_STATE] != NULL) {
        kind = BLOCK;
        TRY(make_block(s, of, &row));
    }
    s->dicts[at] = (Dict){row, kind};
    s->depth = from;
    return READ;
}

static Outcome append_items(Snapshot *s, size_t from) {
    if (from == 0 || s->stack[from - 1].tag != LIST)
        return UNUSUAL;
    List *list = &s->lists[s->stack[from - 1].value];
    for (size_t i = from; i < s->depth; i++)
        TRY(append(s, list, s->stack[i]));
    s->depth = from;
    return READ;
}

/* What lies above the last mark, which goes. */
static Outcome from_mark(Snapshot *s, size_t *from) {
    if (s->mark_count == 0 || s->marks[s->mark_count - 1] > s->depth)
        return UNUSUAL;
    *from = s->marks[--s->mark_count];
    return READ;
}

/* `count` values become a tuple, in which nothing that is needed lies. What is in it may not change unseen. */
static Outcome make_tuple(Snapshot *s, size_t count) {
    if (count > s->depth || (s->mark_count > 0 && s->marks[s->mark_count - 1] > s->depth - count))
        return UNUSUAL;
    s->depth -= count;
    return push(s, OTHER_VALUE, 0);
}

static Outcome step(Snapshot *s, int *done) {
    uint64_t number = 0;
    size_t from = 0;
    TRY(need(s, 1));
    unsigned char code = s->buffer[s->at++];
    switch (code) {
    case 0x80: /* PROTO */
        TRY(unsigned_of(s, 1, &number));
        return number <= 5 ? READ : UNUSUAL;
    case 0x95: /* FRAME */ return unsigned_of(s, 8, &number);
    case '}': return push_dict(s);
    case ']': return push_list(s);
    case '(':
        ROOM(s->marks, s->mark_room, s->mark_count + 1);
        s->marks[s->mark_count++] = s->depth;
        return READ;
    case 'u': /* SETITEMS */
        TRY(from_mark(s, &from));
        return set_items(s, from);
    case 'e': /* APPENDS */
        TRY(from_mark(s, &from));
        return append_items(s, from);
    case 's': /* SETITEM */
    case 'a': /* APPEND */
        from = code == 's' ? 2 : 1;
        if (s->depth < from + 1 || (s->mark_count > 0 && s->marks[s->mark_count - 1] > s->depth - from - 1))
            return UNUSUAL;
        return code == 's' ? set_items(s, s->depth - from) : append_items(s, s->depth - from);
    case 't': /* TUPLE */
        TRY(from_mark(s, &from));
        return make_tuple(s, s->depth - from);
    case ')': return push(s, OTHER_VALUE, 0);
    case 0x85: case 0x86: case 0x87: return make_tuple(s, code - 0x84u);
    case 'N': return push(s, NOTHING, 0);
    case 0x88: case 0x89: return push(s, OTHER_VALUE, 0); /* true and false, which are no numbers here */
    case 'K': case 'M':
        TRY(unsigned_of(s, code == 'K' ? 1 : 2, &number));
        return push(s, NUMBER, (int64_t)number);
    case 'J': return push_long(s, 4);
    case 0x8a: /* LONG1 */
        TRY(unsigned_of(s, 1, &number));
        return push_long(s, number);
    case 'G':
        TRY(skip(s, 8));
        return push(s, OTHER_VALUE, 0);
    case 0x8c: case 'X': case 0x8d: /* texts */
        TRY(unsigned_of(s, code == 'X' ? 4 : code == 0x8c ? 1 : 8, &number));
        return push_text(s, number);
    case 'C': case 'B': case 0x8e: /* bytes */
        TRY(unsigned_of(s, code == 'B' ? 4 : code == 'C' ? 1 : 8, &number));
        TRY(skip(s, number));
        return push(s, OTHER_VALUE, 0);
    case 0x94: /* MEMOIZE */ return put(s, s->memo_count);
    case 'q': case 'r':
        TRY(unsigned_of(s, code == 'q' ? 1 : 4, &number));
        return put(s, number);
    case 'h': case 'j':
        TRY(unsigned_of(s, code == 'h' ? 1 : 4, &number));
        return get(s, number);
    case '.':
        *done = 1;
        return READ;
    default:
        return UNUSUAL;
    }
}

Outcome snapshot_read(Snapshot *s) {
    s->buffer = malloc(BUFFER);
    if (s->buffer == NULL)
        return NO_ROOM;
    for (int i = 0; i < KNOWN; i++)
        if (strings_number(&s->texts, (const unsigned char *)known[i], strlen(known[i])) != i)
            return NO_ROOM;
    for (int done = 0; !done;)
        TRY(step(s, &done));
    if (s->depth == 0 || s->mark_count || s->stack[s->depth - 1].tag != DICT ||
        s->dicts[s->stack[s->depth - 1].value].kind != SNAPSHOT)
        return UNUSUAL;
    /* `inner` becomes a pair of a first event and a number of them for each device */
    List traces = s->has_traces ? s->lists[s->top_traces] : (List){0};
    uint32_t *pairs = malloc((traces.count ? traces.count : 1) * 2 * sizeof *pairs);
    if (pairs == NULL)
        return NO_ROOM;
    for (uint32_t i = 0; i < traces.count; i++) {
        List own = s->lists[s->inner[traces.first + i]];
        pairs[2 * i] = own.first;
        pairs[2 * i + 1] = own.count;
    }
    free(s->inner);
    s->inner = pairs;
    s->inner_count = traces.count;
    List own = s->lists[s->top_segments];
    if (own.count)
        memmove(s->segments, s->segments + own.first, own.count * sizeof *s->segments);
    s->segment_count = own.count;
    return READ;
}

void snapshot_free_reading(Snapshot *s) {
    strings_free(&s->texts);
    strings_free(&s->frames);
    free(s->frame_places);
    free(s->stack);
    free(s->marks);
    free(s->memo);
    free(s->lists);
    free(s->dicts);
    free(s->buffer);
    s->frame_places = NULL, s->stack = NULL, s->marks = NULL, s->memo = NULL, s->lists = NULL, s->dicts = NULL;
    s->buffer = NULL;
}

void snapshot_free(Snapshot *s) {
    snapshot_free_reading(s);
    free(s->actions);
    free(s->addresses);
    free(s->sizes);
    free(s->places);
    free(s->shortages);
    free(s->blocks);
    free(s->segments);
    free(s->inner);
    memset(s, 0, sizeof *s);
}
