/* A C interface to gdsync for programs that use HIP: messages between two buffers, on a stream of the
 * program. Each function returns 0, or -1 after an error, which gdsync_hip_error describes. */
#ifndef GDSYNC_HIP_H
#define GDSYNC_HIP_H

#include <hip/hip_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream, two buffers, and two connected queue pairs of a virtual NIC. */
typedef struct gdsync_hip_pair gdsync_hip_pair;

/* Makes a pair on the GPU `device`. The stream and the `len` bytes at `from` and at `to` belong to the
 * program. They stay valid until gdsync_hip_close returns 0. One thread at a time uses a pair. */
int gdsync_hip_open(int device, hipStream_t stream, void *from, void *to, size_t len,
                    gdsync_hip_pair **pair);

/* Enqueues a message on the stream: after the work that is on the stream, the GPU sends the bytes at
 * `from`; work that is enqueued later sees them at `to`. */
int gdsync_hip_send(gdsync_hip_pair *pair);

/* Waits until the stream has executed all messages, and frees the pair. After an error the pair is
 * not freed, and the call may be repeated. */
int gdsync_hip_close(gdsync_hip_pair *pair);

/* The last error of the calling thread. The text is valid until the thread's next call. */
const char *gdsync_hip_error(void);

#ifdef __cplusplus
}
#endif

#endif
