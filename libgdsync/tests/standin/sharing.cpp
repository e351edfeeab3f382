// Memory that crosses processes: IPC handles, physical memory with its mappings, dma-buf.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "machine.hpp"

using namespace standin;

namespace {

constexpr u64 kGranularity = 2 << 20;
constexpr u32 kMagic = 0x49504353;

// The content of an IPC handle: a piece of a file of the exporting process.
struct Ticket {
    u32 magic;
    int pid, file;
    u64 offset, len, id;
    bool fine;
};
static_assert(sizeof(Ticket) <= sizeof(IpcHandle));

char* map(int file, u64 offset, u64 len, void* at, int rights) {
    const int fixed = at != nullptr ? MAP_FIXED : 0;
    void* got = mmap(at, len, rights, MAP_SHARED | fixed, file, static_cast<off_t>(offset));
    return got == MAP_FAILED ? nullptr : static_cast<char*>(got);
}

bool is_allocation(u32 type) { return type == kAllocationPinned || type == kAllocationUncached; }

}  // namespace

STANDIN_API int VENDOR(cuIpcGetMemHandle, hipIpcGetMemHandle)(IpcHandle* out, u64 address) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(address, 1);
        if (range == nullptr || range->kind != Kind::device) return kInvalidValue;
        const Ticket ticket{kMagic, getpid(), arena_file(), arena_offset(range->base), range->len, range->id, range->fine};
        memset(out, 0, sizeof *out);
        memcpy(out, &ticket, sizeof ticket);
        return kOk;
    }, address);
}

STANDIN_API int VENDOR(cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle)(u64* out, IpcHandle handle, unsigned flags) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
        Ticket ticket;
        memcpy(&ticket, &handle, sizeof ticket);
        if (flags != m.ipc_flag() || ticket.magic != kMagic) return kInvalidValue;
        if (ticket.pid == getpid()) return kInvalidContext;
        // The same handle again is the same mapping.
        const u64 key = ticket.id << 32 | static_cast<u32>(ticket.pid);
        for (auto& [base, range] : m.memory) {
            if (range.kind == Kind::ipc && range.id == key && range.context == current_context()) {
                range.references++;
                *out = base;
                return kOk;
            }
        }
        const std::string path = "/proc/" + std::to_string(ticket.pid) + "/fd/" + std::to_string(ticket.file);
        const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (file < 0) return kMapFailed;
        char* at = map(file, ticket.offset, pages(ticket.len), nullptr, PROT_READ | PROT_WRITE);
        close(file);
        if (at == nullptr) return kMapFailed;
        m.memory[bits(at)] = Range{bits(at), ticket.len, Kind::ipc, current_context(), false, at, key, 0};
        m.memory[bits(at)].fine = ticket.fine;
        *out = bits(at);
        return kOk;
    }, u64{flags});
}

STANDIN_API int VENDOR(cuIpcCloseMemHandle, hipIpcCloseMemHandle)(u64 address) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
        auto found = m.memory.find(address);
        if (found == m.memory.end() || found->second.kind != Kind::ipc) return kInvalidValue;
        const int code = settle(lock, current_call(), found->second.context);
        if (code != kOk || --found->second.references != 0) return code;
        munmap(found->second.alias, pages(found->second.len));
        m.memory.erase(address);
        return kOk;
    }, address);
}

STANDIN_API int VENDOR(cuMemGetAllocationGranularity, hipMemGetAllocationGranularity)(size_t* out, const AllocationProp* prop, int) {
    return call(__func__, Need::init, [&](Machine&, Lock&) -> int {
        if (!is_allocation(prop->type)) return kInvalidValue;
        *out = kGranularity;
        return kOk;
    });
}

STANDIN_API int VENDOR(cuMemCreate, hipMemCreate)(u64* out, size_t len, const AllocationProp* prop, unsigned long long flags) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        const bool right = is_allocation(prop->type) && prop->location.type == kLocationDevice && prop->location.id < m.devices;
        if (!right || flags != 0 || len == 0 || len % kGranularity != 0) return kInvalidValue;
        if ((prop->handle_types & ~kHandlePosixFd) != 0) return kNotSupported;
        const int file = memfd_create("standin-physical", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(len)) != 0) return kOutOfMemory;
        // The file carries the type to the processes that import it.
        const bool uncached = prop->type == kAllocationUncached;
        if (fchmod(file, uncached ? 0640 : 0600) != 0) return kOperatingSystem;
        *out = m.next_id++;
        m.physical[*out] = Physical{file, len, uncached};
        return kOk;
    }, u64{len}, u64{flags});
}

STANDIN_API int VENDOR(cuMemRelease, hipMemRelease)(u64 handle) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        auto found = m.physical.find(handle);
        if (found == m.physical.end()) return kInvalidValue;
        // Mapped memory stays mapped.
        close(found->second.file);
        m.physical.erase(found);
        return kOk;
    }, handle);
}

STANDIN_API int VENDOR(cuMemAddressReserve, hipMemAddressReserve)(u64* out, size_t len, size_t alignment, u64, unsigned long long flags) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        if (flags != 0 || len == 0 || len % kGranularity != 0) return kInvalidValue;
        const u64 to = alignment > kGranularity ? alignment : kGranularity;
        void* at = mmap(nullptr, len + to, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return kOutOfMemory;
        const u64 begin = (bits(at) + to - 1) / to * to;
        if (begin != bits(at)) munmap(at, begin - bits(at));
        munmap(reinterpret_cast<void*>(begin + len), bits(at) + to - begin);
        m.reserved[begin] = len;
        *out = begin;
        return kOk;
    }, u64{len}, u64{alignment});
}

STANDIN_API int VENDOR(cuMemAddressFree, hipMemAddressFree)(u64 address, size_t len) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        auto found = m.reserved.find(address);
        if (found == m.reserved.end() || found->second != len || m.overlapping(address, address + len) != nullptr) return kInvalidValue;
        munmap(reinterpret_cast<void*>(address), len);
        m.reserved.erase(found);
        return kOk;
    }, address, u64{len});
}

STANDIN_API int VENDOR(cuMemMap, hipMemMap)(u64 address, size_t len, size_t offset, u64 handle, unsigned long long flags) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        auto physical = m.physical.find(handle);
        auto after = m.reserved.upper_bound(address);
        if (flags != 0 || offset != 0 || physical == m.physical.end() || len > physical->second.len) return kInvalidValue;
        if (after == m.reserved.begin()) return kInvalidValue;
        const auto& [base, size] = *std::prev(after);
        if (address + len > base + size || m.overlapping(address, address + len) != nullptr) return kInvalidValue;
        char* alias = map(physical->second.file, 0, len, nullptr, PROT_READ | PROT_WRITE);
        if (alias == nullptr) return kMapFailed;
        if (map(physical->second.file, 0, len, reinterpret_cast<void*>(address), PROT_NONE) == nullptr) return kMapFailed;
        Context* context = current_context();
        m.memory[address] = Range{address, len, Kind::mapped, context, true, alias, m.next_id++, kAccessNone};
        m.memory[address].fine = physical->second.fine;
        return kOk;
    }, address, u64{len}, u64{offset}, handle);
}

STANDIN_API int VENDOR(cuMemUnmap, hipMemUnmap)(u64 address, size_t len) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        auto found = m.memory.find(address);
        if (found == m.memory.end() || found->second.kind != Kind::mapped || found->second.len != len) return kInvalidValue;
        m.unmapped.emplace_back(found->second.alias, len);
        void* at = mmap(reinterpret_cast<void*>(address), len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        m.memory.erase(found);
        return at == MAP_FAILED ? kMapFailed : kOk;
    }, address, u64{len});
}

STANDIN_API int VENDOR(cuMemSetAccess, hipMemSetAccess)(u64 address, size_t len, const AccessDesc* rights, size_t count) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        auto found = m.memory.find(address);
        if (found == m.memory.end() || found->second.kind != Kind::mapped || found->second.len != len || count == 0) return kInvalidValue;
        found->second.flags = rights[0].flags;
        const int open = rights[0].flags == kAccessReadWrite ? PROT_READ | PROT_WRITE : rights[0].flags == kAccessRead ? PROT_READ : PROT_NONE;
        mprotect(reinterpret_cast<void*>(address), len, open);
        return kOk;
    }, address, u64{len});
}

STANDIN_API int VENDOR(cuMemExportToShareableHandle, hipMemExportToShareableHandle)(void* out, u64 handle, int type, unsigned long long flags) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        auto found = m.physical.find(handle);
        if (found == m.physical.end() || flags != 0) return kInvalidValue;
        if (type != kHandlePosixFd) return kNotSupported;
        *static_cast<int*>(out) = fcntl(found->second.file, F_DUPFD_CLOEXEC, 0);
        return kOk;
    }, handle, static_cast<u64>(type));
}

STANDIN_API int VENDOR(cuMemImportFromShareableHandle, hipMemImportFromShareableHandle)(u64* out, void* os_handle, int type) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        if (type != kHandlePosixFd) return kNotSupported;
        const int file = fcntl(static_cast<int>(bits(os_handle)), F_DUPFD_CLOEXEC, 0);
        struct stat about;
        if (file < 0 || fstat(file, &about) != 0) return kInvalidValue;
        *out = m.next_id++;
        m.physical[*out] = Physical{file, static_cast<u64>(about.st_size), (about.st_mode & S_IRGRP) != 0};
        return kOk;
    }, static_cast<u64>(type));
}

STANDIN_API int VENDOR(cuMemGetHandleForAddressRange, hipMemGetHandleForAddressRange)(void* out, u64 address, size_t len, int type, unsigned long long flags) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
        if (m.attribute(VENDOR(kDmaBuf, kHipDmaBuf)) == 0) return kNotSupported;
        const Range* range = m.find(address, 1);
        if (type != kRangeHandleDmaBuf || flags > 1 || address % 4096 != 0 || len % 4096 != 0 || len == 0) return kInvalidValue;
        const bool device = range != nullptr && (range->kind == Kind::device || range->kind == Kind::mapped);
        if (!device || address + len > range->base + pages(range->len)) return kInvalidValue;
        // As with the real driver, the CPU cannot map the descriptor.
        const std::string path = "/proc/self/fd/" + std::to_string(arena_file());
        const int file = open(path.c_str(), O_PATH | O_CLOEXEC);
        *static_cast<int*>(out) = file;
        return file < 0 ? kOperatingSystem : kOk;
    }, address, u64{len}, static_cast<u64>(type));
}
