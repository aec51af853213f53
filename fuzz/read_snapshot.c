/* Feeds bytes to the compiled reader of memory snapshots, whole and in pieces, with allocations failing in turn, and
 * aborts where a result cannot be right. Stands for scan_events.c before replay.c and libFuzzer. */
#include "scan_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *reader_malloc(size_t size);
static void *reader_realloc(void *old, size_t size);
static void reader_free(void *block);

#define malloc reader_malloc
#define realloc reader_realloc
#define free reader_free
#include "../traceops/traces/native/strings.c"
#include "../traceops/traces/native/snapshot.c"
#undef malloc
#undef realloc
#undef free

static size_t allocations, failing, alive, asked;

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "read_snapshot: wrong: %s\n", what);
        abort();
    }
}

static void *reader_realloc(void *old, size_t size) {
    asked = size > asked ? size : asked;
    if (++allocations == failing)
        return NULL;
    void *moved = realloc(old, size);
    check(moved != NULL, "no memory for the fuzzer itself");
    alive += old == NULL;
    return moved;
}

static void *reader_malloc(size_t size) { return reader_realloc(NULL, size); }

static void reader_free(void *block) {
    alive -= block != NULL;
    free(block);
}

typedef struct {
    const unsigned char *bytes;
    size_t length, piece;
} File;

static int64_t more(void *of, unsigned char *to, size_t room) {
    File *file = of;
    size_t given = file->length < room ? file->length : room;
    if (file->piece && given > file->piece)
        given = file->piece;
    if (given)
        memcpy(to, file->bytes, given);
    file->bytes += given;
    file->length -= given;
    return (int64_t)given;
}

static int64_t place(void *of, const Snapshot *snapshot, int32_t file, uint64_t line, int32_t name) {
    (void)of, (void)line;
    check(file >= 0 && file < snapshot->texts.count && name >= 0 && name < snapshot->texts.count, "no such text");
    return (int64_t)file * 4 + (name & 3);
}

/* Every row that one thing names is there. */
static void check_rows(const Snapshot *s) {
    uint64_t sums = 0;
    for (size_t i = 0; i < s->inner_count; i++)
        check((size_t)s->inner[2 * i] + s->inner[2 * i + 1] <= s->events, "events that are not there");
    for (size_t i = 0; i < s->segment_count; i++)
        check((size_t)s->segments[i].first + s->segments[i].count <= s->block_count, "blocks that are not there");
    for (size_t i = 0; i < s->shortage_count; i++)
        check(s->shortages[i].event < s->events, "a shortage without its event");
    for (size_t i = 0; i < s->events; i++)
        sums += s->actions[i] + (uint64_t)s->addresses[i] + (uint64_t)s->sizes[i] + (uint64_t)s->places[i];
    for (size_t i = 0; i < s->block_count; i++)
        check(s->blocks[i].bytes >= 0 && s->blocks[i].held <= 1, "a block of no size");
    (void)sums;
}

size_t scan_events(const unsigned char *bytes, size_t length, int exact, uint32_t piece, size_t failing_one) {
    (void)exact;
    File file = {bytes, length, piece};
    Snapshot snapshot = {.more = more, .place = place, .from = &file};
    allocations = asked = 0;
    failing = failing_one;
    Outcome outcome = snapshot_read(&snapshot);
    check(outcome != FAILED, "failed, though reading does not");
    check(outcome != NO_ROOM || failing, "no memory, though no allocation failed");
    check(asked <= ((size_t)1 << 20) + 64 * length, "far more memory than the file has");
    snapshot_free_reading(&snapshot);
    if (outcome == READ)
        check_rows(&snapshot);
    snapshot_free(&snapshot);
    check(alive == 0, "memory is left");
    return allocations;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    if (size < CONTROL_BYTES)
        return 0;
    scan_events(data + CONTROL_BYTES, size - CONTROL_BYTES, 0, 0, 0);
    scan_events(data + CONTROL_BYTES, size - CONTROL_BYTES, 0, 1 + data[1], 0);
    scan_events(data + CONTROL_BYTES, size - CONTROL_BYTES, 0, 1 + data[1], data[2] & 63);
    return 0;
}
