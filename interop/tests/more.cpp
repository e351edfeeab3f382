// Functions of libcuda that cust and cudarc call and gdsync does not; they call the stand-in's own.
#include <cstddef>
#include <sched.h>

#define API extern "C" __attribute__((visibility("default")))

using Address = unsigned long long;

API int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t len, void* stream);
API int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t len, void* stream);
API int cuMemsetD8Async(Address to, unsigned char value, size_t len, void* stream);
API int cuMemHostAlloc(void** at, size_t len, unsigned flags);
API int cuStreamCreate(void** stream, unsigned flags);
API int cuStreamQuery(void* stream);
API int cuEventQuery(void* event);

constexpr int kNotReady = 600;

API int cuEventSynchronize(void* event) {
    int result;
    while ((result = cuEventQuery(event)) == kNotReady) sched_yield();
    return result;
}

API int cuStreamSynchronize(void* stream) {
    int result;
    while ((result = cuStreamQuery(stream)) == kNotReady) sched_yield();
    return result;
}

API int cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
    return cuStreamCreate(stream, flags);
}

API int cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return 0; }

// Called before any other stream exists.
API int cuCtxSynchronize() { return cuStreamSynchronize(nullptr); }

API int cuMemAllocHost_v2(void** at, size_t len) { return cuMemHostAlloc(at, len, 0); }

// A synchronous call runs on the default stream, and the call waits for it.
namespace {
int waited(int result) { return result != 0 ? result : cuStreamSynchronize(nullptr); }
}  // namespace

API int cuMemcpyDtoH_v2(void* to, Address from, size_t len) {
    return waited(cuMemcpyDtoHAsync_v2(to, from, len, nullptr));
}

API int cuMemcpyHtoD_v2(Address to, const void* from, size_t len) {
    return waited(cuMemcpyHtoDAsync_v2(to, from, len, nullptr));
}

API int cuMemsetD8_v2(Address to, unsigned char value, size_t len) {
    return waited(cuMemsetD8Async(to, value, len, nullptr));
}
