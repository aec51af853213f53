/* Pickles of torch's memory snapshots, read as packed rows: nothing in them is run, and few of their objects are kept.
 *
 * A pickle is a program of a few instructions. Those that make dicts, lists, tuples, texts and numbers are followed here;
 * at any other, and at a snapshot of another shape than torch writes, snapshot_read() gives UNUSUAL, and whoever called
 * judges the file with Python's own unpickler. */
#ifndef TRACEOPS_SNAPSHOT_H
#define TRACEOPS_SNAPSHOT_H

#include "strings.h"

enum { NOT_NEEDED, ALLOC, FREE_COMPLETED, OOM, SEGMENT_TAKEN, SEGMENT_GIVEN }; /* what an event did */

typedef enum { READ, UNUSUAL, CUT_OFF, NO_ROOM, FAILED } Outcome;

typedef struct {
    int64_t value;
    unsigned char tag;
} Value;

typedef struct {
    uint32_t first, count; /* rows of its items; of frames `first` is the place */
    unsigned char kind, best, used;
} List;

typedef struct {
    uint32_t row;
    unsigned char kind;
} Dict;

typedef struct {
    int64_t device, address, bytes;
    uint32_t first, count; /* blocks */
} Segment;

typedef struct {
    int64_t address, bytes; /* address: -1 where it is not said */
    int32_t place;
    unsigned char held;
} BlockRow;

typedef struct {
    uint32_t event;
    int64_t device_free;
} Shortage;

typedef struct Snapshot {
    /* Gives up to `room` bytes of the file at `to`: how many, 0 at its end, -1 where it failed. */
    int64_t (*more)(void *from, unsigned char *to, size_t room);
    /* The place of a frame: the text's number times 4, plus how good it is (less is better); -1 unusual, -2 failed. */
    int64_t (*place)(void *from, const struct Snapshot *snapshot, int32_t file, uint64_t line, int32_t name);
    void *from;

    Strings texts, frames; /* frames: their texts' numbers and lines, as bytes */
    int64_t *frame_places;
    size_t frame_places_room;

    unsigned char *actions; /* a row an event */
    int64_t *addresses, *sizes;
    int32_t *places; /* -1: no stack */
    size_t events, action_room, address_room, size_room, place_room;

    Shortage *shortages;
    BlockRow *blocks;
    Segment *segments;
    uint32_t *inner; /* lists of events, a device each */
    size_t shortage_count, shortage_room, block_count, block_room, segment_count, segment_room, inner_count, inner_room;

    Value *stack;
    size_t *marks;
    uint32_t *memo;
    List *lists;
    Dict *dicts;
    size_t depth, stack_room, mark_count, mark_room, memo_count, memo_room, list_count, list_room, dict_count, dict_room;

    unsigned char *buffer;
    size_t at, filled;
    uint32_t top_segments, top_traces; /* lists of the snapshot */
    int has_top, has_traces;
} Snapshot;

/* Reads it to its end. Needs `more`, `place`, `from` and the seeds of `texts` and `frames`, and zeros besides. */
Outcome snapshot_read(Snapshot *snapshot);
/* Gives back what only reading needs: what is left are rows, segments and `inner`. */
void snapshot_free_reading(Snapshot *snapshot);
void snapshot_free(Snapshot *snapshot);

#endif
