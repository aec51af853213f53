#include "strings.h"

#include <stdlib.h>
#include <string.h>

void *grown(void *data, size_t *room, size_t wanted, size_t size) {
    if (wanted <= *room)
        return data;
    size_t more = *room < 32 ? 64 : *room * 2; /* what is not written to takes no memory */
    if (more < wanted)
        more = wanted;
    if (more > SIZE_MAX / 2 / size)
        return NULL;
    void *moved = realloc(data, more * size);
    if (moved != NULL)
        *room = more;
    return moved;
}

/* Both halves of the product in one. */
static uint64_t folded(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t a_high = a >> 32, a_low = a & 0xffffffffu, b_high = b >> 32, b_low = b & 0xffffffffu;
    uint64_t middle = a_high * b_low, other = a_low * b_high; /* without carries, which a hash can do without */
    return (a_low * b_low + (middle << 32) + (other << 32)) ^ (a_high * b_high + (middle >> 32) + (other >> 32));
#endif
}

static uint64_t hash_of(const Strings *strings, const unsigned char *text, size_t length) {
    uint64_t hash = strings->seeds[0] ^ length, factor = strings->seeds[1] ^ 0x9e3779b97f4a7c15u, word;
    if (length >= 32) { /* names of kernels are long: two products at a time */
        uint64_t other = factor ^ hash, second;
        for (; length >= 16; text += 16, length -= 16) {
            memcpy(&word, text, 8);
            memcpy(&second, text + 8, 8);
            hash = folded(hash ^ word, factor);
            other = folded(other ^ second, factor);
        }
        hash = folded(hash ^ other, factor);
    }
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = folded(hash ^ word, factor);
    }
    word = 0;
    if (length)
        memcpy(&word, text, length);
    return folded(hash ^ word, factor);
}

static int more_slots(Strings *strings) {
    size_t count = strings->slot_count ? strings->slot_count * 2 : 1024;
    if (count > SIZE_MAX / sizeof *strings->slots)
        return 0;
    int32_t *slots = malloc(count * sizeof *slots);
    if (slots == NULL)
        return 0;
    memset(slots, 0xff, count * sizeof *slots);
    for (int32_t i = 0; i < strings->count; i++) {
        size_t at = strings->hashes[i] & (count - 1);
        while (slots[at] >= 0)
            at = (at + 1) & (count - 1);
        slots[at] = i;
    }
    free(strings->slots);
    strings->slots = slots;
    strings->slot_count = count;
    return 1;
}

static int same(const Strings *strings, int32_t i, const unsigned char *text, size_t length) {
    size_t start = i ? strings->ends[i - 1] : 0;
    return strings->ends[i] - start == length && memcmp(strings->bytes + start, text, length) == 0;
}

static int add_string(Strings *strings, const unsigned char *text, size_t length, uint64_t hash) {
    size_t count = (size_t)strings->count;
    if (strings->count == INT32_MAX || length >= SIZE_MAX - strings->used)
        return 0;
    /* one byte more than needed, so that an empty string has a place too */
    void *bytes = grown(strings->bytes, &strings->room, strings->used + length + 1, 1);
    if (bytes == NULL)
        return 0;
    strings->bytes = bytes;
    void *ends = grown(strings->ends, &strings->ends_room, count + 1, sizeof *strings->ends);
    if (ends == NULL)
        return 0;
    strings->ends = ends;
    void *hashes = grown(strings->hashes, &strings->hashes_room, count + 1, sizeof *strings->hashes);
    if (hashes == NULL)
        return 0;
    strings->hashes = hashes;
    if (length)
        memcpy(strings->bytes + strings->used, text, length);
    strings->used += length;
    strings->ends[count] = strings->used;
    strings->hashes[count] = hash;
    strings->count++;
    return 1;
}

int32_t strings_number(Strings *strings, const unsigned char *text, size_t length) {
    if (strings->last < strings->count && same(strings, strings->last, text, length))
        return strings->last; /* many come several times in a row */
    if ((size_t)strings->count * 2 >= strings->slot_count && !more_slots(strings))
        return -1;
    uint64_t hash = hash_of(strings, text, length);
    size_t at = hash & (strings->slot_count - 1);
    for (; strings->slots[at] >= 0; at = (at + 1) & (strings->slot_count - 1)) {
        int32_t i = strings->slots[at];
        if (strings->hashes[i] == hash && same(strings, i, text, length))
            return strings->last = i;
    }
    if (!add_string(strings, text, length, hash))
        return -1;
    return strings->last = strings->slots[at] = strings->count - 1;
}

void strings_free(Strings *strings) {
    free(strings->bytes);
    free(strings->ends);
    free(strings->hashes);
    free(strings->slots);
    memset(strings, 0, sizeof *strings);
}
