/* Feeds bytes to the compiled scanner as traceops/traces/scan.py does, and aborts where a result cannot be right.
 *
 * An input is three bytes and what stands behind `"traceEvents": [`. The lowest bit of the first says whether times
 * are exact; the second, how the text is cut into pieces; the lowest six bits of the third, which allocation fails
 * ('@' is none, 'A' the first). The text is read whole and in pieces; both must give the same columns, whatever
 * failed in between.
 */
#include "scan_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *scanner_malloc(size_t size);
static void *scanner_realloc(void *old, size_t size);
static void scanner_free(void *block);

#define malloc scanner_malloc
#define realloc scanner_realloc
#define free scanner_free
#include "../traceops/traces/native/strings.c"
#include "../traceops/traces/native/events.c"
#undef malloc
#undef realloc
#undef free

#define MOST_BYTES ((size_t)1 << 28) /* more is never needed for inputs this small */

static size_t allocations, failing, alive;

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "scan_events: wrong: %s\n", what);
        abort();
    }
}

/* The scanner's own allocations: counted, and failing on demand. */
static void *scanner_realloc(void *old, size_t size) {
    if (++allocations == failing || size > MOST_BYTES)
        return NULL;
    void *moved = realloc(old, size);
    check(moved != NULL, "no memory for the fuzzer itself");
    alive += old == NULL;
    return moved;
}

static void *scanner_malloc(size_t size) { return scanner_realloc(NULL, size); }

static void scanner_free(void *block) {
    alive -= block != NULL;
    free(block);
}

/* A copy in a block of exactly its size with the zero behind it, so that a sanitizer sees reads beyond. */
static unsigned char *copy_of(const unsigned char *text, size_t length) {
    unsigned char *block = malloc(length + 1);
    check(block != NULL, "no memory for the fuzzer itself");
    if (length)
        memcpy(block, text, length);
    block[length] = 0;
    return block;
}

static size_t piece_size(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return 1 + (*state >> 8) % ((size_t)1 << *state % 12);
}

/* Reads all of the text; `cuts` is 0 to read it whole. Returns how much of it is done with, and the last status. */
static size_t feed(Events *events, const unsigned char *text, size_t length, uint32_t cuts, Status *status) {
    size_t done = 0, known = 0;
    do {
        size_t left = known - done, more = cuts ? piece_size(&cuts) + (left > 256 ? left / 2 : 0) : length;
        known = more < length - known ? known + more : length;
        unsigned char *block = copy_of(text + done, known - done);
        for (size_t at = 0, size = known - done;;) {
            size_t consumed = SIZE_MAX;
            *status = events_take(events, block + at, size - at, &consumed);
            check(consumed <= size - at, "more is consumed than there is");
            at += consumed;
            done += consumed;
            if (*status == MORE) {
                check(at == size || block[at] == '{', "what is left is no event");
                break;
            }
            if (*status == CLOSED) {
                check(consumed > 0 && block[at - 1] == ']', "the list of events ends without a bracket");
                break;
            }
            if (*status == NO_MEMORY) {
                check(failing != 0 && allocations >= failing, "no memory, though no allocation failed");
                continue; /* the same again, now with memory */
            }
            check(*status == ODD && at < size, "what is odd is nothing");
            at++; /* where Python would read on */
            done++;
        }
        free(block);
    } while (*status != CLOSED && known < length);
    return done;
}

static void check_strings(Strings *strings) {
    size_t start = 0;
    for (int32_t i = 0; i < strings->count; i++) {
        check(start <= strings->ends[i] && strings->ends[i] <= strings->used, "a string lies outside");
        check(strings_number(strings, strings->bytes + start, strings->ends[i] - start) == i, "a string is there twice");
        start = strings->ends[i];
    }
    check(start == strings->used, "there are bytes of no string");
}

static void check_rows(const Events *events) {
    int64_t before = -1;
    check(events->rows <= events->room, "there are more rows than room");
    for (size_t row = 0; row < events->rows; row++) {
        int64_t index = events->wide[INDEX][row], ts = events->wide[TS][row], dur = events->wide[DUR][row];
        check(index > before && index < events->seen, "rows are out of order");
        check(ts > -LATEST_NS && ts < LATEST_NS && dur >= 0 && dur < LONGEST_NS, "a time is out of range");
        before = index;
        for (int i = 0; i < NARROW_COLUMNS; i++) {
            int32_t number = events->narrow[i][row];
            check(number >= (i >= SHAPE ? -1 : 0) && number < events->strings[i].count, "a string has no such number");
        }
    }
    size_t text = 0;
    int64_t last = -1; /* row of a collective; frames have none */
    for (size_t i = 0; i < events->kept_count; i++) {
        const Kept *own = &events->kept[i];
        check(own->start == text && own->end > own->start + 1 && own->end <= events->text_used, "a text lies outside");
        check(events->kept_text[own->start] == '{' && events->kept_text[own->end - 1] == '}', "no event");
        check(own->row == -1 || (own->row > last && (size_t)own->row < events->rows), "a collective has no row");
        last = own->row == -1 ? last : own->row;
        text = own->end;
    }
    check(text == events->text_used, "there is text of no event");
}

static int equal(const void *one, const void *other, size_t size) { return size == 0 || memcmp(one, other, size) == 0; }

static void check_same(const Events *one, const Events *other) {
    check(one->rows == other->rows && one->seen == other->seen, "pieces have other events");
    check(one->bad_times == other->bad_times && one->with_stack == other->with_stack, "pieces have other times or stacks");
    for (int i = 0; i < WIDE_COLUMNS; i++)
        check(equal(one->wide[i], other->wide[i], one->rows * sizeof(int64_t)), "pieces have other numbers");
    for (int i = 0; i < NARROW_COLUMNS; i++) {
        const Strings *a = &one->strings[i], *b = &other->strings[i];
        check(equal(one->narrow[i], other->narrow[i], one->rows * sizeof(int32_t)), "pieces number strings otherwise");
        check(a->count == b->count && a->used == b->used && equal(a->bytes, b->bytes, a->used) &&
                  equal(a->ends, b->ends, (size_t)a->count * sizeof *a->ends), "pieces have other strings");
    }
    check(one->kept_count == other->kept_count && one->text_used == other->text_used &&
              equal(one->kept_text, other->kept_text, one->text_used), "pieces keep other events");
    for (size_t i = 0; i < one->kept_count; i++)
        check(one->kept[i].row == other->kept[i].row, "pieces keep events of other rows");
}

/* Room for rows from elsewhere, which a sanitizer sees to be there; more than any memory has must be refused. */
static void check_reserve(Events *events, size_t more) {
    check(!events_reserve(events, SIZE_MAX) && !events_reserve(events, SIZE_MAX / 16), "there is room without end");
    check(events_reserve(events, more), "there is no room");
    for (int i = 0; more && i < WIDE_COLUMNS; i++)
        memset(events->wide[i] + events->rows, 0xff, more * sizeof(int64_t));
    for (int i = 0; more && i < NARROW_COLUMNS; i++)
        memset(events->narrow[i] + events->rows, 0xff, more * sizeof(int32_t));
}

/* Every string in the text, its escapes resolved into a block of exactly its size. */
static void check_unescape(const unsigned char *text, size_t length) {
    unsigned char *block = copy_of(text, length);
    for (Text p = block, end = block + length; (p = memchr(p, '"', (size_t)(end - p))) != NULL;) {
        int plain = 1;
        Status why = CLOSED;
        Text start = ++p, close = string_end(start, end, &plain, &why);
        if (close == NULL) {
            check(why == MORE || why == ODD, "a string ends for no reason");
            continue;
        }
        check(close < end && *close == '"', "a string ends without a quote");
        size_t size = (size_t)(close - start);
        unsigned char *resolved = malloc(size + !size);
        check(resolved != NULL, "no memory for the fuzzer itself");
        size_t used = unescape(start, close, resolved);
        check(plain ? used == size && equal(start, resolved, size) : used < size, "a string is of another length");
        for (Text c = resolved; c < resolved + used; c++)
            if (*c >= 0x80) {
                c = skip_utf8(c, resolved + used, &why);
                check(c-- != NULL, "a string is not UTF-8");
            }
        free(resolved);
        p = close + 1;
    }
    free(block);
}

size_t scan_events(const unsigned char *text, size_t length, int exact, uint32_t cuts, size_t failing_one) {
    Events whole = {.exact = exact}, pieces = {.exact = exact};
    Status whole_status, status;
    for (int i = 0; i < NARROW_COLUMNS; i++)
        pieces.strings[i].seeds[0] = pieces.strings[i].seeds[1] = cuts * 0x9e3779b97f4a7c15u;
    failing = 0;
    size_t whole_done = feed(&whole, text, length, 0, &whole_status);
    allocations = 0;
    failing = failing_one;
    size_t done = feed(&pieces, text, length, cuts + 1, &status);
    size_t made = allocations;
    failing = 0;
    check(done == whole_done && status == whole_status, "pieces end elsewhere");
    check_rows(&whole);
    check_same(&whole, &pieces);
    for (int i = 0; i < NARROW_COLUMNS; i++)
        check_strings(&pieces.strings[i]);
    check_reserve(&pieces, length % 100);
    check_reserve(&whole, 0);
    events_free(&whole);
    events_free(&pieces);
    check(alive == 0, "memory is lost");
    check_unescape(text, length);
    return made;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    if (size >= CONTROL_BYTES)
        scan_events(data + CONTROL_BYTES, size - CONTROL_BYTES, data[0] & 1, data[1], data[2] & 0x3f);
    return 0;
}
