/* Runs scan_events.c where there is no libFuzzer: over files, over them with each allocation failing in turn, and over
 * mutations of them, the same ones each time. What it dies of lies in ./crash-input then.
 *
 *     replay [-n MUTATIONS] [-d DICTIONARY] FILE...
 */
#include "scan_events.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST ((size_t)1 << 16)

typedef struct {
    unsigned char *bytes;
    size_t length;
} Bytes;

typedef struct {
    Bytes *items;
    size_t count;
} List;

static Bytes running;

/* Sanitizers end with abort(), so that the handler below is called. */
const char *__asan_default_options(void) { return "abort_on_error=1"; }
const char *__ubsan_default_options(void) { return "abort_on_error=1:print_stacktrace=1"; }

static void keep_input(int signal_number) {
    FILE *file = fopen("crash-input", "wb");
    if (file != NULL) {
        fwrite(running.bytes, 1, running.length, file);
        fclose(file);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void quit(const char *what, const char *name) {
    fprintf(stderr, "replay: %s %s\n", what, name);
    exit(2);
}

static void append(List *list, const unsigned char *bytes, size_t length) {
    list->items = realloc(list->items, (list->count + 1) * sizeof *list->items);
    unsigned char *own = malloc(length + !length);
    if (list->items == NULL || own == NULL)
        quit("no memory for", "another file");
    memcpy(own, bytes, length);
    list->items[list->count++] = (Bytes){own, length};
}

static void read_input(List *inputs, const char *path) {
    static unsigned char buffer[LONGEST];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        quit("cannot read", path);
    append(inputs, buffer, fread(buffer, 1, sizeof buffer, file));
    fclose(file);
}

/* Lines such as "\x00\"" of a dictionary of libFuzzer. */
static void read_tokens(List *tokens, const char *path) {
    char line[4096];
    FILE *file = fopen(path, "r");
    if (file == NULL)
        quit("cannot read", path);
    while (fgets(line, sizeof line, file)) {
        unsigned char token[sizeof line];
        size_t length = 0;
        char *end = strrchr(line, '"');
        for (char *p = line + 1; *line == '"' && p < end; p++) {
            unsigned int code = (unsigned char)*p;
            if (*p == '\\' && p[1] == 'x' && sscanf(p + 2, "%2x", &code) == 1)
                p += 3;
            else if (*p == '\\')
                code = (unsigned char)*++p;
            token[length++] = (unsigned char)code;
        }
        if (length)
            append(tokens, token, length);
    }
    fclose(file);
}

static uint64_t state;

/* A number below `bound`, 0 for 0 (xorshift64*). */
static size_t below(size_t bound) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return bound ? (size_t)(state * 0x2545f4914f6cdd1du >> 33) % bound : 0;
}

/* Puts `length` bytes in place of `removed` at `at`, as far as there is room. */
static void put(Bytes *input, size_t at, size_t removed, const unsigned char *bytes, size_t length) {
    if (removed > input->length - at)
        removed = input->length - at;
    if (input->length - removed + length > LONGEST)
        return;
    memmove(input->bytes + at + length, input->bytes + at + removed, input->length - at - removed);
    if (length)
        memmove(input->bytes + at, bytes, length);
    input->length += length - removed;
}

static void mutate(Bytes *input, const List *inputs, const List *tokens) {
    unsigned char piece[256];
    for (size_t times = 1 + below(4); times > 0; times--) {
        size_t at = below(input->length + 1), left = input->length - at, length = below(left < 64 ? left + 1 : 64);
        const Bytes *other = &inputs->items[below(inputs->count)];
        switch (below(6)) {
        case 0: /* a bit */
            if (left)
                input->bytes[at] ^= (unsigned char)(1 << below(8));
            break;
        case 1: /* what is missing */
            put(input, at, length, NULL, 0);
            break;
        case 2: /* the same again, elsewhere */
            memcpy(piece, input->bytes + at, length);
            put(input, below(input->length + 1), 0, piece, length);
            break;
        case 3: /* of another file */
            at = below(other->length + 1);
            length = below(other->length - at < sizeof piece ? other->length - at + 1 : sizeof piece);
            put(input, below(input->length + 1), 0, other->bytes + at, length);
            break;
        default: /* a token */
            if (tokens->count) {
                const Bytes *token = &tokens->items[below(tokens->count)];
                put(input, at, below(2) * below(8), token->bytes, token->length);
            }
        }
    }
}

int main(int argc, char **argv) {
    static unsigned char buffer[LONGEST];
    unsigned long mutations = 0, failures = 0;
    List inputs = {0}, tokens = {0};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
            mutations = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "-d") == 0 && i + 1 < argc)
            read_tokens(&tokens, argv[++i]);
        else
            read_input(&inputs, argv[i]);
    if (inputs.count == 0)
        quit("no files given:", "replay [-n MUTATIONS] [-d DICTIONARY] FILE...");
    signal(SIGABRT, keep_input);
    for (size_t i = 0; i < inputs.count; i++) {
        running = inputs.items[i];
        LLVMFuzzerTestOneInput(running.bytes, running.length);
        if (running.length < CONTROL_BYTES)
            continue;
        const unsigned char *text = running.bytes + CONTROL_BYTES;
        size_t length = running.length - CONTROL_BYTES;
        int exact = running.bytes[0] & 1;
        size_t made = scan_events(text, length, exact, running.bytes[1], 0);
        for (size_t failing = 1; failing <= made; failing++, failures++)
            scan_events(text, length, exact, running.bytes[1], failing);
    }
    for (unsigned long i = 0; i < mutations; i++) {
        state = (i + 1) * 0x9e3779b97f4a7c15u;
        const Bytes *chosen = &inputs.items[below(inputs.count)];
        running = (Bytes){buffer, chosen->length};
        memcpy(buffer, chosen->bytes, chosen->length);
        mutate(&running, &inputs, &tokens);
        LLVMFuzzerTestOneInput(running.bytes, running.length);
    }
    printf("%zu files, %lu failing allocations, %lu mutations\n", inputs.count, failures, mutations);
    for (size_t i = 0; i < inputs.count; i++)
        free(inputs.items[i].bytes);
    for (size_t i = 0; i < tokens.count; i++)
        free(tokens.items[i].bytes);
    free(inputs.items);
    free(tokens.items);
    return 0;
}
