// A C++ program that uses HIP sends a message on its own stream: the GPU fills the buffer, sends it,
// and copies the received message to the host, in the order in which the program enqueued the
// operations.

#include <cstdio>
#include <vector>

#include <gdsync_hip.h>

constexpr size_t kLen = 4096;
constexpr int kMessages = 3;

#define HIP(call)                                                               \
    do {                                                                        \
        hipError_t code = (call);                                               \
        if (code != hipSuccess) {                                               \
            std::fprintf(stderr, "%s: %s\n", #call, hipGetErrorString(code));   \
            return 1;                                                           \
        }                                                                       \
    } while (0)

#define GDSYNC(call)                                                            \
    do {                                                                        \
        if ((call) != 0) {                                                      \
            std::fprintf(stderr, "%s: %s\n", #call, gdsync_hip_error());        \
            return 1;                                                           \
        }                                                                       \
    } while (0)

int main() {
    HIP(hipSetDevice(0));
    hipStream_t stream;
    HIP(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    void *from, *to, *host;
    HIP(hipMalloc(&from, kLen));
    HIP(hipMalloc(&to, kLen));
    HIP(hipHostMalloc(&host, kMessages * kLen, 0));

    gdsync_hip_pair *pair;
    GDSYNC(gdsync_hip_open(0, stream, from, to, kLen, &pair));
    for (int i = 0; i < kMessages; i++) {
        HIP(hipMemsetD8Async(from, 0x51 + i, kLen, stream));
        GDSYNC(gdsync_hip_send(pair));
        HIP(hipMemcpyAsync(static_cast<char *>(host) + i * kLen, to, kLen, hipMemcpyDefault, stream));
    }
    GDSYNC(gdsync_hip_close(pair));

    // The message was waited for, but not the last copy.
    hipError_t state;
    while ((state = hipStreamQuery(stream)) == hipErrorNotReady) {
    }
    HIP(state);
    const unsigned char *bytes = static_cast<unsigned char *>(host);
    for (size_t at = 0; at < kMessages * kLen; at++) {
        if (bytes[at] != 0x51 + at / kLen) {
            std::fprintf(stderr, "byte %zu of message %zu is %#x\n", at % kLen, at / kLen, bytes[at]);
            return 1;
        }
    }
    HIP(hipHostFree(host));
    HIP(hipFree(to));
    HIP(hipFree(from));
    HIP(hipStreamDestroy(stream));
    std::printf("%d messages of %zu bytes sent and received on a stream of HIP\n", kMessages, kLen);
    return 0;
}
