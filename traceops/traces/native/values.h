/* Reads the values of an event's fields: text, numbers, times. What is right but unusual is ODD. */
#ifndef TRACEOPS_VALUES_H
#define TRACEOPS_VALUES_H

#include "json.h"

#include <float.h>
#include <math.h>

#define LATEST_NS ((int64_t)1 << 61) /* as kineto.py has them: garbage beyond is no time */
#define EXACT_FLOAT_US (((int64_t)1 << 43) - ((int64_t)1 << 40))

typedef struct {
    Text start, end;
    int plain; /* without escapes */
} Quoted;

typedef struct {
    int given, valid;
    int64_t ns;
} Time;

static inline Text read_string(Text p, Text end, Quoted *value, Status *why) {
    if (*p != '"')
        return stop(p, end, why);
    value->plain = 1;
    value->start = p + 1;
    value->end = string_end(p + 1, end, &value->plain, why);
    return value->end ? value->end + 1 : NULL;
}

static inline Text read_null(Text p, Text end, Status *why) { return literal_end(p, end, "null", why); }

/* Whether eight digits stand at `p`, and the number that they are: all at once. */
static inline int eight_digits(Text p, Text end, uint64_t *value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u;
    uint64_t word;
    if (end - p < 8)
        return 0;
    memcpy(&word, p, 8);
    if (((word & (ones * 0xf0)) | (((word + ones * 6) & (ones * 0xf0)) >> 4)) != ones * 0x33)
        return 0;
    word = ((word & (ones * 0x0f)) * (1 + (10 << 8))) >> 8; /* pairs of digits, then of these, then both halves */
    word = ((word & 0x00ff00ff00ff00ffu) * (1 + (100u << 16))) >> 16;
    *value = ((word & 0x0000ffff0000ffffu) * (1 + ((uint64_t)10000 << 32))) >> 32;
    return 1;
#else
    (void)p, (void)end, (void)value;
    return 0;
#endif
}

/* Behind the digits that stand at `p`; `*number` goes on with them, and overflows where they are too many. */
static inline Text read_digits(Text p, Text end, uint64_t *number) {
    for (uint64_t eight; eight_digits(p, end, &eight); p += 8)
        *number = *number * 100000000 + eight;
    for (; is_digit(*p); p++)
        *number = *number * 10 + (uint64_t)(*p - '0');
    return p;
}

/* An integer of up to 18 digits; null is -1. */
static inline Text read_int(Text p, Text end, int64_t *value, Status *why) {
    uint64_t plain = 0;
    Text behind = read_digits(p, end, &plain);
    if ((*behind == ',' || *behind == '\n' || *behind == '}') && behind > p && behind - p <= 18 && (*p != '0' || behind == p + 1)) {
        *value = (int64_t)plain;
        return behind;
    }
    *value = -1;
    if (*p == 'n')
        return read_null(p, end, why);
    Text start = p, after = number_end(p, end, why);
    if (after == NULL)
        return NULL;
    int negative = *p == '-';
    int64_t number = 0;
    for (p += negative; p < after && is_digit(*p); p++) {
        if (p - start >= 18 + negative)
            break;
        number = number * 10 + (*p - '0');
    }
    if (p != after) {
        *why = ODD;
        return NULL;
    }
    *value = negative ? -number : number;
    return after;
}

/* An integer, or text: what Python's int() makes of the text where that is plain, -1 where it is no number. */
static inline Text read_id(Text p, Text end, int64_t *value, Status *why) {
    if (*p != '"')
        return read_int(p, end, value, why);
    Quoted text;
    Text after = read_string(p, end, &text, why);
    if (after == NULL)
        return NULL;
    *value = -1;
    if (text.start == text.end)
        return after;
    for (Text c = text.start; text.plain && c < text.end; c++) {
        unsigned char lower = *c | 0x20;
        if (lower >= 'a' && lower <= 'z')
            return after;
    }
    Status unused;
    if (read_int(text.start, text.end + 1, value, &unused) != text.end || *text.start == 'n') {
        *why = ODD;
        return NULL;
    }
    return after;
}

/* Decimal digits of µs, with the fourth decimal rounding the third up, as digits_to_ns in kineto.py. */
static inline int exact_ns(int64_t whole, Text decimals, int count, int64_t *ns) {
    int64_t thousandths = 0;
    if (whole > LATEST_NS / 1000)
        return 0; /* whose product would overflow */
    for (int i = 0; i < 3; i++)
        thousandths = thousandths * 10 + (i < count ? decimals[i] - '0' : 0);
    *ns = whole * 1000 + thousandths + (count > 3 && decimals[3] >= '5');
    return *ns < LATEST_NS;
}

/* The same as NumPy gets it from the double: only where that is one exactly rounded division. */
static inline int float_ns(uint64_t digits, int count, int negative, Time *time) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10,
                                    1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (FLT_EVAL_METHOD != 0 || digits > (uint64_t)1 << 53 || count > 22)
        return 0; /* the old FPU of 32-bit x86 rounds twice */
    double whole, us = (double)digits / powers[count];
    time->valid = us < (double)LATEST_NS / 1000;
    if (time->valid) {
        double fraction = modf(us, &whole) * 1000.0;
        time->ns = (int64_t)whole * 1000 + (int64_t)rint(fraction);
        if (negative)
            time->ns = -time->ns;
    }
    return 1;
}

/* µs as int64 ns. */
static inline Text read_time(Text p, Text end, int exact, Time *time, Status *why) {
    time->given = time->valid = 0;
    time->ns = 0;
    if (*p == 'n')
        return read_null(p, end, why);
    time->given = 1;
    int negative = *p == '-', count = 0;
    ptrdiff_t length = 0;
    Text start = p, decimals = p;
    uint64_t digits = 0; /* all of them, if they are up to 19 */
    int64_t whole;
    p += negative;
    Text first = p;
    p = read_digits(p, end, &digits);
    length = p - first;
    if (length == 0 || length > 16 || (length > 1 && start[negative] == '0'))
        goto unusual;
    whole = (int64_t)digits;
    if (*p == '.' && is_digit(p[1]) && is_digit(p[2]) && is_digit(p[3]) && !is_digit(p[4]) && (p[4] | 0x20) != 'e'
        && whole < EXACT_FLOAT_US) { /* as kineto writes it */
        time->valid = 1;
        time->ns = whole * 1000 + (p[1] - '0') * 100 + (p[2] - '0') * 10 + (p[3] - '0');
        if (negative)
            time->ns = -time->ns;
        return p + 4;
    }
    if (*p == '.') {
        decimals = ++p;
        for (; is_digit(*p); p++, length++)
            digits = digits * 10 + (uint64_t)(*p - '0');
        if (p == decimals)
            goto unusual;
        count = (int)(p - decimals > LONGEST_NUMBER ? LONGEST_NUMBER : p - decimals);
    }
    if ((*p | 0x20) == 'e')
        goto unusual;
    if (exact || (count <= 3 && whole < EXACT_FLOAT_US)) {
        time->valid = exact_ns(whole, decimals, count, &time->ns);
        if (negative)
            time->ns = -time->ns;
        return p;
    }
    if (length <= 19 && float_ns(digits, count, negative, time))
        return p;
unusual:
    /* a number that goes on behind the text, or one for Python to read, or none at all */
    p = number_end(start, end, why);
    if (p != NULL)
        *why = ODD;
    return NULL;
}

static inline size_t put_utf8(unsigned char *to, unsigned int code) {
    if (code < 0x80) {
        to[0] = (unsigned char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (unsigned char)(0xc0 | code >> 6);
        to[1] = (unsigned char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (unsigned char)(0xe0 | code >> 12);
        to[1] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        to[2] = (unsigned char)(0x80 | (code & 0x3f));
        return 3;
    }
    to[0] = (unsigned char)(0xf0 | code >> 18);
    to[1] = (unsigned char)(0x80 | (code >> 12 & 0x3f));
    to[2] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
    to[3] = (unsigned char)(0x80 | (code & 0x3f));
    return 4;
}

/* A string that has passed `string_end`, its escapes resolved, to `to`, which is as long as the text. */
static inline size_t unescape(Text p, Text end, unsigned char *to) {
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    size_t used = 0;
    while (p < end) {
        if (*p != '\\') {
            to[used++] = *p++;
        } else if (p[1] == 'u') {
            unsigned int code = (unsigned int)hex4(p + 2);
            p += 6;
            if (code >= 0xd800 && code < 0xdc00) {
                code = 0x10000 + ((code - 0xd800) << 10) + ((unsigned int)hex4(p + 2) - 0xdc00);
                p += 6;
            }
            used += put_utf8(to + used, code);
        } else {
            const char *letter = strchr(letters, p[1]);
            to[used++] = letter ? (unsigned char)meant[letter - letters] : p[1];
            p += 2;
        }
    }
    return used;
}

#endif
