/* A set of byte strings, each numbered in the order of its first appearance. */
#ifndef TRACEOPS_STRINGS_H
#define TRACEOPS_STRINGS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char *bytes; /* all strings, one behind the other */
    size_t used, room;
    size_t *ends;      /* string i lies from ends[i - 1], or 0, to ends[i] */
    uint64_t *hashes;  /* of string i */
    int32_t *slots;    /* open addressing: the number of a string, -1 where free */
    size_t slot_count; /* a power of two, at least twice `count` */
    int32_t count, last; /* last: the number that was asked for before */
    size_t ends_room, hashes_room;
    uint64_t seeds[2]; /* of the hash: who cannot guess them cannot write texts that all collide */
} Strings;

/* The number of the string, which is added if it is new; -1 where there is no memory. */
int32_t strings_number(Strings *strings, const unsigned char *text, size_t length);
void strings_free(Strings *strings);

/* `data` with room for `wanted` items of `size` bytes, at least one; NULL, and `data` as it was, where there is no memory. */
void *grown(void *data, size_t *room, size_t wanted, size_t size);

#endif
