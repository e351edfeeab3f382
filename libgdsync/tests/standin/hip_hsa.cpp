// The part of the HSA runtime that exports memory to NICs. STANDIN_HSA is the status of each export.
#include <fcntl.h>

#include <cstdlib>
#include <string>

#include "machine.hpp"

using namespace standin;

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 0x1001, kInvalidAllocation = 0x1004, kOutOfResources = 0x1008;

}  // namespace

STANDIN_API int hsa_amd_portable_export_dmabuf(const void* pointer, size_t len, int* file, u64* offset) {
    Lock lock;
    if (const char* status = getenv("STANDIN_HSA")) return atoi(status);
    if (file == nullptr || offset == nullptr || len == 0) return kInvalidArgument;
    const u64 address = reinterpret_cast<u64>(pointer);
    const Range* range = machine().find(address, 1);
    const bool device = range != nullptr && (range->kind == Kind::device || range->kind == Kind::mapped);
    if (!device || address + len > range->base + pages(range->len)) return kInvalidAllocation;
    *offset = address - range->base;
    // As with the real driver, the CPU cannot map the descriptor.
    const std::string path = "/proc/self/fd/" + std::to_string(arena_file());
    *file = open(path.c_str(), O_PATH | O_CLOEXEC);
    return *file < 0 ? kOutOfResources : kSuccess;
}
