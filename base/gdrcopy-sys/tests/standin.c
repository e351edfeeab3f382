// A libgdrapi whose device memory is a shared file: the "device" accesses it at one address, a
// mapping at another. It refuses what is not whole GPU pages, and two calls at a time.
//
// BESIDE_CUDA: device memory is that of gdsync's stand-in for libcuda, and a mapping is the side of
// it that the stand-in itself uses.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 1 << 16, BYTES = 8 * PAGE };

struct gdr { int open; };
typedef struct { unsigned long h; } mh;
typedef struct {
    uint64_t va, mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, wc_mapping : 1;
    int mapping_type;
} info;
struct pin { uint64_t address; size_t size; void *mapped; size_t mapped_size; };

static struct gdr the_gdr;
static char *device;
static int memory = -1;
static int pins, maps, opens;
static atomic_int inside, collisions;

// What the next call of that name returns: "open" leaves it in errno.
static char failing[32];
static int failure;

static int enter(void) {
    if (atomic_fetch_add(&inside, 1)) atomic_fetch_add(&collisions, 1);
    sched_yield();
    return 0;
}
static int leave(const char *call, int code) {
    atomic_fetch_sub(&inside, 1);
    if (strcmp(failing, call)) return code;
    failing[0] = 0;
    return failure;
}
#define FAILS(call) (!strcmp(failing, call))

void *standin_device(void) {
    if (!device) {
        memory = memfd_create("device memory", 0);
        if (memory < 0 || ftruncate(memory, BYTES)) abort();
        // GPU addresses are aligned to GPU pages.
        char *room = mmap(0, BYTES + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) abort();
        char *aligned = (char *)(((uintptr_t)room + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
        device = mmap(aligned, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0);
        if (device == MAP_FAILED) abort();
    }
    return device;
}
#ifdef BESIDE_CUDA
static int in_device(uint64_t address, size_t size) { return address && size; }
static void *view(uint64_t address, size_t size) {
    void *cuda = dlopen(getenv("GDS_CUDA_LIB"), RTLD_NOW | RTLD_NOLOAD);
    void *(*alias)(uint64_t) = cuda ? dlsym(cuda, "standin_alias") : 0;
    return alias && size ? alias(address) : MAP_FAILED;
}
static void unview(void *at, size_t size) { (void)at, (void)size; }
#else
static int in_device(uint64_t address, size_t size) {
    uint64_t start = (uint64_t)standin_device();
    return address >= start && address + size <= start + BYTES;
}
static void *view(uint64_t address, size_t size) {
    uint64_t offset = address - (uint64_t)device;
    return mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, offset);
}
static void unview(void *at, size_t size) { munmap(at, size); }
#endif
void standin_fail(const char *call, int code) {
    strncpy(failing, call, sizeof failing - 1);
    failure = code;
}
int standin_opens(void) { return opens; }
int standin_pins(void) { return pins; }
int standin_maps(void) { return maps; }
int standin_collisions(void) { return atomic_load(&collisions); }

struct gdr *gdr_open(void) {
    enter();
    int code = leave("open", 0);
    if (code) { errno = code; return 0; }
    opens++;
    return &the_gdr;
}
int gdr_close(struct gdr *g) {
    enter();
    opens--;
    return leave("close", g == &the_gdr && !pins ? 0 : EBUSY);
}
int gdr_pin_buffer(struct gdr *g, unsigned long address, size_t size, uint64_t token,
                   uint32_t space, mh *handle) {
    enter();
    if (g != &the_gdr || token || space || address % PAGE || size % PAGE || !size ||
        !in_device(address, size))
        return leave("pin", EINVAL);
    if (FAILS("pin")) return leave("pin", 0);
    struct pin *pin = calloc(1, sizeof *pin);
    pin->address = address;
    pin->size = size;
    handle->h = (unsigned long)pin;
    pins++;
    return leave("pin", 0);
}
int gdr_unpin_buffer(struct gdr *g, mh handle) {
    enter();
    struct pin *pin = (struct pin *)handle.h;
    int code = pin->mapped ? EBUSY : 0;
    free(pin);
    pins--;
    return leave("unpin", code);
}
int gdr_get_callback_flag(struct gdr *g, mh handle, int *flag) {
    enter();
    *flag = FAILS("revoked");
    return leave("flag", 0);
}
int gdr_get_info_v2(struct gdr *g, mh handle, info *out) {
    enter();
    struct pin *pin = (struct pin *)handle.h;
    memset(out, 0, sizeof *out);
    out->va = FAILS("elsewhere") ? pin->address + 8 : pin->address;
    out->mapped_size = pin->size;
    out->page_size = PAGE;
    out->mapped = !!pin->mapped;
    out->wc_mapping = out->mapped;
    out->mapping_type = pin->mapped ? 1 : 0;
    return leave("info", 0);
}
int gdr_map(struct gdr *g, mh handle, void **pointer, size_t size) {
    enter();
    struct pin *pin = (struct pin *)handle.h;
    if (pin->mapped || size > pin->size) return leave("map", EINVAL);
    if (FAILS("map")) return leave("map", 0);
    void *at = view(pin->address, size);
    if (at == MAP_FAILED) return leave("map", errno);
    pin->mapped = *pointer = at;
    pin->mapped_size = size;
    maps++;
    return leave("map", 0);
}
int gdr_unmap(struct gdr *g, mh handle, void *pointer, size_t size) {
    enter();
    struct pin *pin = (struct pin *)handle.h;
    if (pin->mapped != pointer || pin->mapped_size != size) return leave("unmap", EINVAL);
    unview(pointer, size);
    pin->mapped = 0;
    maps--;
    return leave("unmap", 0);
}
int gdr_copy_to_mapping(mh handle, void *to, const void *from, size_t size) {
    enter();
    memcpy(to, from, size);
    return leave("to", 0);
}
int gdr_copy_from_mapping(mh handle, void *to, const void *from, size_t size) {
    enter();
    memcpy(to, from, size);
    return leave("from", 0);
}
void gdr_runtime_get_version(int *major, int *minor) { *major = 2; *minor = 6; }
int gdr_driver_get_version(struct gdr *g, int *major, int *minor) {
    enter();
    *major = 2;
    *minor = 5;
    return leave("version", 0);
}
#ifdef WITH_V2
int gdr_pin_buffer_v2(struct gdr *g, unsigned long address, size_t size, uint32_t flags,
                      mh *handle) {
    if (flags != 1) return EINVAL;
    return gdr_pin_buffer(g, address, size, 0, 0, handle);
}
#endif
