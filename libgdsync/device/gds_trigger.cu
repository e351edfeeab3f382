// Kernels that post the next requests and wait for the next completions, without constants: if
// they are launched again, for example by a graph, they continue. Each takes a block of 32 threads.
#include "gds_queue.hpp"

namespace gds {

constexpr u32 kQueues = 8;

// libgdsync/src/kernels/params.rs has the same layouts.
struct Trigger {
    u32 count;
    u32 reserved;
    struct {
        u64 state;
        u32 entries;
        u32 receive;
    } queues[kQueues];
};

struct Waits {
    u32 count;
    u32 reserved;
    struct {
        u64 state;
        u64 skip;
    } waiters[kQueues];
};

static_assert(sizeof(Trigger) == 136 && sizeof(Waits) == 136, "layout");

}  // namespace gds

GDS_KERNEL(gds_trigger, gds::Trigger, p) {
    const unsigned lane = threadIdx.x;
    gds::Bell bell{};
    if (lane < p.count) {
        const auto* queue = reinterpret_cast<const gds::QueueState*>(p.queues[lane].state);
        const gds::u32 entries = p.queues[lane].entries;
        bell = p.queues[lane].receive != 0 ? gds::receive_bell_of(queue, entries) : gds::bell_of(queue, entries);
        gds::store_release_sys(reinterpret_cast<gds::u32*>(bell.record), bell.record_value);
        gds::fence_sys();
    }
    // Queues may share a doorbell. If two threads store into one word at once, one store is lost.
    GDS_NO_UNROLL
    for (unsigned turn = 0; turn < p.count; turn++) {
        if (turn == lane && bell.doorbell != 0) {
            gds::store_relaxed_sys(reinterpret_cast<gds::u64*>(bell.doorbell), bell.doorbell_value);
        }
        gds::sync_warp();
    }
}

GDS_KERNEL(gds_wait, gds::Waits, p) {
    const unsigned lane = threadIdx.x;
    if (lane < p.count) {
        const auto& w = p.waiters[lane];
        gds::wait(gds::completion_wait(reinterpret_cast<gds::WaiterState*>(w.state), w.skip, true));
    }
}
