/* Where a JSON value ends, checked by the rules of RFC 8259: what is not strictly valid is ODD.
 *
 * All functions read from `p` up to `end`, where a zero byte must stand: it is no part of any token, so that
 * loops need no other bound. They return the first byte behind what they read, or NULL and why.
 */
#ifndef TRACEOPS_JSON_H
#define TRACEOPS_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef enum {
    MORE,      /* the text ends inside the value: come again with more of it */
    ODD,       /* not what we read quickly: wrong JSON, or right JSON of an unusual kind */
    CLOSED,    /* the list of events has ended */
    NO_MEMORY,
} Status;

typedef const unsigned char *Text;

#define DEEPEST 64 /* brackets open at once: as many as there are bits in `objects` below */
#define LONGEST_NUMBER 400

static inline Text stop(Text p, Text end, Status *why) {
    *why = p >= end ? MORE : ODD;
    return NULL;
}

static inline Text skip_space(Text p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')
        p++;
    return p;
}

/* A bit in the high bit of each byte that may end a run of plain characters; exact in the lowest such byte. */
static inline uint64_t not_plain(uint64_t bytes) {
    const uint64_t ones = 0x0101010101010101u;
    uint64_t quote = bytes ^ (ones * '"'), escape = bytes ^ (ones * '\\');
    uint64_t control = (bytes - ones * 0x20) & ~bytes;
    return (((quote - ones) & ~quote) | ((escape - ones) & ~escape) | control | bytes) & (ones * 0x80);
}

static inline Text skip_plain(Text p, Text end) {
#if defined(__SSE2__) && defined(__GNUC__)
    const __m128i quote = _mm_set1_epi8('"'), escape = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    while (end - p >= 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, escape));
        found = _mm_or_si128(found, _mm_cmplt_epi8(bytes, space)); /* signed: from 0x80 on they are less too */
        int mask = _mm_movemask_epi8(found);
        if (mask)
            return p + __builtin_ctz((unsigned)mask);
        p += 16;
    }
#elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
    while (end - p >= 8) {
        uint64_t bytes;
        memcpy(&bytes, p, 8);
        uint64_t found = not_plain(bytes);
        if (found)
            return p + (__builtin_ctzll(found) >> 3);
        p += 8;
    }
#endif
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
        p++;
    return p;
}

/* The value of four hexadecimal digits, -1 if they are none. */
static inline int hex4(Text p) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i], lower = c | 0x20;
        int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Behind one escape that begins at `p`. Half a surrogate pair is ODD. */
static inline Text skip_escape(Text p, Text end, Status *why) {
    if (end - p < 12 && memchr(p, '"', (size_t)(end - p)) == NULL) {
        *why = MORE; /* twelve bytes hold the longest, \ud83d\ude00 */
        return NULL;
    }
    switch (p[1]) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return p + 2;
    case 'u': {
        int unit = end - p >= 6 ? hex4(p + 2) : -1;
        if (unit >= 0xd800 && unit < 0xdc00) {
            int low = end - p >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : -1;
            if (low >= 0xdc00 && low < 0xe000)
                return p + 12;
            break;
        }
        if (unit < 0 || (unit >= 0xdc00 && unit < 0xe000))
            break;
        return p + 6;
    }
    }
    *why = ODD;
    return NULL;
}

/* Behind one character of several UTF-8 bytes (Unicode 15, table 3-7). */
static inline Text skip_utf8(Text p, Text end, Status *why) {
    unsigned char first = p[0], low = 0x80, high = 0xbf;
    int following;
    if (first >= 0xc2 && first <= 0xdf)
        following = 1;
    else if (first >= 0xe0 && first <= 0xef) {
        following = 2;
        low = first == 0xe0 ? 0xa0 : 0x80;
        high = first == 0xed ? 0x9f : 0xbf;
    } else if (first >= 0xf0 && first <= 0xf4) {
        following = 3;
        low = first == 0xf0 ? 0x90 : 0x80;
        high = first == 0xf4 ? 0x8f : 0xbf;
    } else
        return stop(p, end, why);
    for (int i = 1; i <= following; i++, low = 0x80, high = 0xbf)
        if (p + i >= end || p[i] < low || p[i] > high)
            return stop(p + i, end, why);
    return p + 1 + following;
}

/* The closing quote of the string whose first character is at `p`; `plain` becomes 0 if it has escapes. */
static inline Text string_end(Text p, Text end, int *plain, Status *why) {
    for (;;) {
        p = skip_plain(p, end);
        if (*p == '"')
            return p;
        if (*p == '\\') {
            *plain = 0;
            p = skip_escape(p, end, why);
        } else if (*p >= 0x80)
            p = skip_utf8(p, end, why);
        else
            return stop(p, end, why);
        if (p == NULL)
            return NULL;
    }
}

static inline int is_digit(unsigned char c) { return (unsigned char)(c - '0') < 10; }

static inline Text number_end(Text p, Text end, Status *why) {
    Text start = p;
    if (*p == '-')
        p++;
    if (!is_digit(*p))
        return stop(p, end, why);
    if (*p == '0')
        p++;
    else
        while (is_digit(*p))
            p++;
    if (*p == '.') {
        p++;
        if (!is_digit(*p))
            return stop(p, end, why);
        while (is_digit(*p))
            p++;
    }
    if ((*p | 0x20) == 'e') {
        p++;
        if (*p == '+' || *p == '-')
            p++;
        if (!is_digit(*p))
            return stop(p, end, why);
        while (is_digit(*p))
            p++;
    }
    if (p - start > LONGEST_NUMBER) {
        *why = ODD;
        return NULL;
    }
    return p < end ? p : stop(p, end, why);
}

static inline Text literal_end(Text p, Text end, const char *word, Status *why) {
    for (; *word; word++, p++)
        if (*p != (unsigned char)*word)
            return stop(p, end, why);
    return p;
}

/* The colon behind a key is passed; the key's first character is at `p`. */
static inline Text key_end(Text p, Text end, Status *why) {
    int plain = 1;
    p = string_end(p, end, &plain, why);
    if (p == NULL)
        return NULL;
    p = skip_space(p + 1);
    return *p == ':' ? p + 1 : stop(p, end, why);
}

/* Behind the value that begins at `p`, of whatever kind and depth up to DEEPEST. */
static inline Text value_end(Text p, Text end, Status *why) {
    uint64_t objects = 0; /* the lowest bit is the innermost bracket: 1 for an object, 0 for an array */
    int depth = 0, plain = 1;
    for (;;) {
        p = skip_space(p);
        switch (*p) {
        case '"':
            p = string_end(p + 1, end, &plain, why);
            if (p == NULL)
                return NULL;
            p++;
            break;
        case '[':
        case '{': {
            int object = *p == '{';
            p = skip_space(p + 1);
            if (*p == (object ? '}' : ']')) {
                p++;
                break;
            }
            if (++depth > DEEPEST)
                return stop(p, end, why);
            objects = objects << 1 | (uint64_t)object;
            if (object) {
                if (*p != '"')
                    return stop(p, end, why);
                p = key_end(p + 1, end, why);
                if (p == NULL)
                    return NULL;
            }
            continue;
        }
        case 't':
            p = literal_end(p, end, "true", why);
            break;
        case 'f':
            p = literal_end(p, end, "false", why);
            break;
        case 'n':
            p = literal_end(p, end, "null", why);
            break;
        default:
            p = number_end(p, end, why);
        }
        if (p == NULL)
            return NULL;
        for (;;) { /* behind a value */
            if (depth == 0)
                return p;
            p = skip_space(p);
            if (*p == ',')
                break;
            if (*p != (objects & 1 ? '}' : ']'))
                return stop(p, end, why);
            objects >>= 1;
            depth--;
            p++;
        }
        p++;
        if (objects & 1) {
            p = skip_space(p);
            if (*p != '"')
                return stop(p, end, why);
            p = key_end(p + 1, end, why);
            if (p == NULL)
                return NULL;
        }
    }
}

#endif
