// Pinned memory of the host, as far as both drivers have it.
#include <sys/mman.h>

#include <cstring>

#include "machine.hpp"

namespace standin {
namespace {

constexpr u64 kPage = 4096;

u64 down(u64 v) { return v / kPage * kPage; }
u64 up(u64 v) { return down(v + kPage - 1); }

bool present(u64 begin, u64 end) {
    unsigned char state;
    for (u64 at = begin; at < end; at += kPage) {
        if (mincore(reinterpret_cast<void*>(at), kPage, &state) != 0) return false;
    }
    return true;
}

// Whether pinned memory shares a page with [begin, end).
bool pinned(const Machine& m, u64 begin, u64 end) {
    for (auto& [base, range] : m.memory) {
        const bool host = range.kind == Kind::host || range.kind == Kind::registered;
        if (host && down(base) < end && begin < up(base + range.len)) return true;
    }
    return false;
}

bool is_io(const Machine& m, u64 begin, u64 end) {
    for (auto& [base, len] : m.io_memory) {
        if (base <= begin && end <= base + len) return true;
    }
    return false;
}

}  // namespace

void* host_alloc(u64 len) {
    void* at = mmap(nullptr, up(len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    // The driver does not promise zeros.
    memset(at, 0xa5, up(len));
    return at;
}

void host_free(void* at, u64 len) { munmap(at, up(len)); }

int pinnable(const Machine& m, u64 begin, u64 end, bool io) {
    // Ordinary memory is not I/O memory, and the other way round.
    if (io != is_io(m, begin, end)) return kInvalidValue;
    if (pinned(m, down(begin), up(end))) return kHostMemoryAlreadyRegistered;
    return m.overlapping(begin, end) != nullptr || !present(down(begin), up(end)) ? kInvalidValue : kOk;
}

}  // namespace standin
