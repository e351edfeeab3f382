// Device memory: one file mapped twice. The CPU may access its device addresses only while a kernel
// runs, so that a library that reads or writes device memory by pointer dies at once; the stand-in
// itself uses the other mapping.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "machine.hpp"

namespace standin {
namespace {

constexpr u64 kSize = 4ull << 30;

struct Arena {
    int file;
    char* device;
    char* alias;
    // Free pieces: address, length.
    std::map<u64, u64> free;

    Arena() {
        file = memfd_create("standin-device", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, kSize) != 0) abort();
        auto map = [&](int rights) {
            void* at = mmap(nullptr, kSize, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
            if (at == MAP_FAILED) abort();
            return static_cast<char*>(at);
        };
        device = map(PROT_NONE);
        alias = map(PROT_READ | PROT_WRITE);
        free[0] = kSize;
    }
};

Arena& arena() {
    static Arena* a = new Arena;
    return *a;
}

}  // namespace

bool arena_alloc(u64 len, u64* address, char** alias) {
    Arena& a = arena();
    len = pages(len);
    for (auto piece = a.free.begin(); piece != a.free.end(); ++piece) {
        if (piece->second < len) continue;
        const u64 at = piece->first, rest = piece->second - len;
        a.free.erase(piece);
        if (rest != 0) a.free[at + len] = rest;
        *address = reinterpret_cast<u64>(a.device + at);
        *alias = a.alias + at;
        // The driver does not promise zeros.
        memset(*alias, 0xa5, len);
        return true;
    }
    return false;
}

void arena_free(u64 address, u64 len) {
    Arena& a = arena();
    u64 at = arena_offset(address);
    len = pages(len);
    fallocate(a.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), static_cast<off_t>(len));
    auto after = a.free.lower_bound(at);
    if (after != a.free.end() && after->first == at + len) {
        len += after->second;
        after = a.free.erase(after);
    }
    if (after != a.free.begin()) {
        auto before = std::prev(after);
        if (before->first + before->second == at) {
            before->second += len;
            return;
        }
    }
    a.free[at] = len;
}

void arena_open(bool open) {
    Arena& a = arena();
    mprotect(a.device, kSize, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

int arena_file() { return arena().file; }

u64 arena_offset(u64 address) { return address - reinterpret_cast<u64>(arena().device); }

}  // namespace standin
