/* A set of byte strings, each numbered in the order of its first appearance. */
#ifndef TRACEOPS_STRINGS_H
#define TRACEOPS_STRINGS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GUESSES 2048

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
    uint32_t place;    /* in `guesses`, by the two strings that came last */
    int32_t guesses[GUESSES]; /* what came next there, plus 1; 0 for nothing */
} Strings;

/* The number of the string, which is added if it is new; -1 where there is no memory. */
int32_t strings_number(Strings *strings, const unsigned char *text, size_t length);
void strings_free(Strings *strings);

/* Traces repeat: the number plus 1 of the string that came behind the last two, if it stands at `text`, and its length;
 * else 0. Nothing is read for it but the string itself, so only what ends by itself may be told to `strings_came`. */
static inline int32_t strings_guess(const Strings *strings, const unsigned char *text, const unsigned char *end,
                                    size_t *length) {
    int32_t guess = strings->guesses[strings->place];
    if (guess == 0)
        return 0;
    size_t start = guess > 1 ? strings->ends[guess - 2] : 0;
    *length = strings->ends[guess - 1] - start;
    return *length < (size_t)(end - text) && memcmp(strings->bytes + start, text, *length) == 0 ? guess : 0;
}

/* Have `strings_guess` know that the string of this number came. */
static inline void strings_came(Strings *strings, int32_t number) {
    strings->guesses[strings->place] = number + 1;
    strings->place = (strings->place << 5 ^ (uint32_t)number) % GUESSES; /* older ones leave at the top */
}

/* `data` with room for `wanted` items of `size` bytes, at least one; NULL, and `data` as it was, where there is no memory. */
void *grown(void *data, size_t *room, size_t wanted, size_t size);

#endif
