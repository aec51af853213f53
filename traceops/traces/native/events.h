/* The complete events ("ph": "X") of trace JSON as columns, taken from the text piece by piece. */
#ifndef TRACEOPS_EVENTS_H
#define TRACEOPS_EVENTS_H

#include "json.h"
#include "strings.h"

#define LAYOUT 4 /* of the columns: counted up where they hold something else; columns.py takes this one only */

enum { INDEX, TS, DUR, PID, TID, STREAM, CORRELATION, EXTERNAL, SEQUENCE, WIDE_COLUMNS }; /* int64 */
enum { NAME, CAT, SHAPE, TYPES, STRIDES, CONCRETE, NARROW_COLUMNS };                      /* int32, into `strings` */

/* The text of an event: about a collective, for what its arguments say of it, or with row -1 a Python frame. */
typedef struct {
    int64_t row;
    size_t start, end; /* in `kept_text` */
} Kept;

typedef struct {
    int exact; /* times from their decimal digits, as they are too large for a double */
    int with_stack;
    int64_t seen, bad_times; /* events of all phases; complete events without a usable time */
    size_t rows, room;
    int64_t *wide[WIDE_COLUMNS];
    int32_t *narrow[NARROW_COLUMNS];
    Strings strings[NARROW_COLUMNS];
    Kept *kept;
    size_t kept_count, kept_room;
    unsigned char *kept_text, *scratch;
    size_t text_used, text_room, scratch_room;
} Events;

/* Reads events from `text`, behind whose `length` bytes a zero must stand; `*consumed` bytes are done with.
 *
 * CLOSED: they include the bracket that ends the list. MORE: what is left is the beginning of an event, or
 * nothing. ODD: what is left begins with something that only a more patient reader may understand.
 */
Status events_take(Events *events, const unsigned char *text, size_t length, size_t *consumed);

/* Room for `more` rows; 0 where there is no memory. */
int events_reserve(Events *events, size_t more);
void events_free(Events *events);

#endif
