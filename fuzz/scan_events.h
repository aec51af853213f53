/* What scan_events.c tests, for libFuzzer and for replay.c. */
#ifndef TRACEOPS_FUZZ_SCAN_EVENTS_H
#define TRACEOPS_FUZZ_SCAN_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#define CONTROL_BYTES 3

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* Reads `text` whole and in pieces, of which `cuts` below 2**32 - 1 says the sizes, while one allocation fails (0:
 * none). Returns how many allocations reading in pieces took; aborts where a result cannot be right. */
size_t scan_events(const unsigned char *text, size_t length, int exact, uint32_t cuts, size_t failing_one);

#endif
