/* A libcupti for tests: the records that a test asks for, in the layout of CUDA 13.0's cupti_activity.h. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*requested_fn)(uint8_t **, size_t *, size_t *);
typedef void (*completed_fn)(void *, uint32_t, uint8_t *, size_t, size_t);

enum { SIZE_KERNEL = 216, SIZE_COPY = 96, SIZE_SET = 88 };
static requested_fn requested;
static completed_fn completed;
static uint8_t *buffer;
static size_t room, used;
uint32_t fake_version = 130001, fake_refused_kind, fake_refusal, fake_enabled, fake_register, fake_flush;
uint64_t fake_now;
uint32_t fake_registrations, fake_buffers_out;

uint32_t cuptiGetVersion(uint32_t *version) { *version = fake_version; return 0; }
uint32_t cuptiGetTimestamp(uint64_t *now) { *now = fake_now; return 0; }
uint32_t cuptiActivityRegisterCallbacks(requested_fn a, completed_fn b) {
    if (fake_register != 0) return fake_register;
    requested = a, completed = b, fake_registrations++;
    return 0;
}
uint32_t cuptiActivityEnable(uint32_t kind) {
    if (kind == fake_refused_kind) return fake_refusal;
    fake_enabled |= 1u << kind;
    return 0;
}
uint32_t cuptiActivityDisable(uint32_t kind) { fake_enabled &= ~(1u << kind); return 0; }
uint32_t cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    if (buffer != NULL) {
        completed(NULL, 0, buffer, room, used);
        fake_buffers_out--;
    }
    buffer = NULL, used = room = 0;
    return fake_flush;
}
uint32_t cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    (void)context, (void)stream;
    *dropped = 0;
    return 0;
}

static size_t size_of(uint32_t kind) { return kind == 1 ? SIZE_COPY : kind == 2 ? SIZE_SET : SIZE_KERNEL; }
uint32_t cuptiActivityGetNextRecord(uint8_t *data, size_t valid, void **record) {
    uint8_t *next = data;
    if (*record != NULL) {
        uint32_t kind;
        memcpy(&kind, *record, 4);
        next = (uint8_t *)*record + size_of(kind);
    }
    if (next >= data + valid) return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED */
    *record = next;
    return 0;
}

/* What the device did: recorded where its kind is enabled. */
void fake_ran(uint32_t kind, uint64_t start, uint64_t end, const char *name, uint32_t stream, uint32_t correlation,
              uint64_t size) {
    size_t bytes = size_of(kind);
    if (!(fake_enabled & (1u << kind))) return;
    if (buffer != NULL && used + bytes > room) cuptiActivityFlushAll(0);
    if (buffer == NULL) {
        size_t most;
        requested(&buffer, &room, &most);
        used = 0, fake_buffers_out++;
    }
    uint8_t *at = buffer + used;
    uint32_t device = 1, grid[3] = {(uint32_t)size, 1, 1};
    memset(at, 0xEE, bytes);
    memcpy(at, &kind, 4), memcpy(at + 16, &start, 8), memcpy(at + 24, &end, 8);
    if (kind == 10) {
        memcpy(at + 40, &device, 4), memcpy(at + 48, &stream, 4), memcpy(at + 52, grid, 12);
        memcpy(at + 92, &correlation, 4), memcpy(at + 104, &name, 8);
    } else {
        at[4] = 8; /* kind of copy: device to device */
        memcpy(at + 8, &size, 8), memcpy(at + 32, &device, 4), memcpy(at + 40, &stream, 4);
        memcpy(at + 44, &correlation, 4);
    }
    used += bytes;
}

/* One subscriber; the driver of the fake is this library too. */
typedef void (*call_fn)(void *, uint32_t, uint32_t, const void *);
static call_fn subscribed;
uint32_t fake_subscribers, fake_finalized, fake_enabled_call;
uint32_t cuptiSubscribe(void **subscriber, call_fn call, void *user) {
    (void)user;
    if (fake_subscribers > 0) return 39; /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED */
    *subscriber = &subscribed, subscribed = call, fake_subscribers = 1;
    return 0;
}
uint32_t cuptiUnsubscribe(void *subscriber) {
    if (subscriber != &subscribed || fake_subscribers == 0) return 1;
    fake_subscribers = 0;
    return 0;
}
uint32_t cuptiEnableCallback(uint32_t on, void *subscriber, uint32_t domain, uint32_t id) {
    (void)subscriber;
    fake_enabled_call = on ? domain << 16 | id : 0;
    return 0;
}
uint32_t cuptiFinalize(void) { fake_finalized++; return 0; }
int cuDriverGetVersion(int *version) {
    *version = 13000;
    for (uint32_t site = 0; site < 2; site++)
        if (fake_subscribers > 0 && fake_enabled_call == (1u << 16 | 2u)) subscribed(NULL, 1, 2, &site);
    return 0;
}
