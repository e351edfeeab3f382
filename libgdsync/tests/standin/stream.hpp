// What the streams of both drivers share.
#pragma once

#include "machine.hpp"

namespace standin {

// A span of memory of the device, of the driver, or of the host.
struct Span {
    char* at;
    bool pageable;
    bool host;
};

int own_stream(Machine& m, void* handle, Stream** out);
int any_stream(Machine& m, void* handle, Stream** out);
int span(const Machine& m, u64 address, u64 len, bool device_only, Span* out);
int copy(const char* name, u64 to, u64 from, size_t len, void* handle, bool to_device, bool from_device);
Command copy_rows(Span target, size_t target_pitch, Span source, size_t source_pitch, size_t width, size_t height);

// The stand-in's address of a word of `range` that a stream of `context` may use, or null. All
// contexts of a device may use its device memory; pinned memory only if it was allocated so.
char* usable(const Range& range, const Context* context, u64 address);

// Counts a memory operation that has run. False if a test loses the device with it.
bool one_operation(Machine& m);

}  // namespace standin
