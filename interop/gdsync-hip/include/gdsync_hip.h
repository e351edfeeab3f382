/* A C interface to gdsync for programs that use HIP: messages between two buffers, on a stream of the
 * program. Each function returns 0, or -1 after an error, which gdsync_hip_error describes. It is tested
 * on a stand-in for HIP and has not run on an AMD GPU. */
#ifndef GDSYNC_HIP_H
#define GDSYNC_HIP_H

#include <hip/hip_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream, two buffers, and two connected queue pairs of a virtual NIC. */
typedef struct gdsync_hip_pair gdsync_hip_pair;

/* Makes a pair on the GPU `device`. The stream, which is not a default stream, and the `len` bytes (1 to
 * 2^32 - 1) at `from` and at `to` belong to the program: memory of hipMalloc, hipExtMallocWithFlags or
 * hipHostMalloc, in ranges that do not overlap. They stay valid until gdsync_hip_close returns 0. One thread
 * at a time uses a pair. After an error there is no pair, and the library no longer uses stream and
 * buffers, unless the error says that they are in use after 20 s. */
int gdsync_hip_open(int device, hipStream_t stream, void *from, void *to, size_t len,
                    gdsync_hip_pair **pair);

/* Enqueues a message on the stream: after the work that is on the stream, the GPU sends the bytes at
 * `from`; work that is enqueued later sees them at `to`. The call fails if too many messages (about 250)
 * are enqueued and not executed, or if too many streams wait. After an error nothing is enqueued, and
 * the call may be repeated; if HIP has failed, each later call fails too. */
int gdsync_hip_send(gdsync_hip_pair *pair);

/* Waits, at most 20 s for each, until the stream has executed all messages and the library no longer uses
 * stream and buffers, and frees the pair. After an error the pair is not freed, and the call may be
 * repeated. NULL is no pair, and the call returns 0. */
int gdsync_hip_close(gdsync_hip_pair *pair);

/* The last error of the calling thread; "" if there was none. The text is valid until the thread's next
 * call. */
const char *gdsync_hip_error(void);

#ifdef __cplusplus
}
#endif

#endif
