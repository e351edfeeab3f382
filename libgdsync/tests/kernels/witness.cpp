// A kernel that records the words that it reads in memory shared with the library; its twin is
// `Params` in tests/common/witness.rs.
#include "gds_device.hpp"

struct Params {
    const gds::u32* error;
    const gds::u32* status;
    gds::u32* saw;
};

// Stores the queue pair's error word, the request's status word, and that it has run.
GDS_KERNEL(gds_test_witness, Params, p) {
    if (threadIdx.x == 0) {
        gds::store_relaxed_sys(p.saw, gds::load_acquire_sys(p.error));
        gds::store_relaxed_sys(p.saw + 1, gds::load_acquire_sys(p.status));
        gds::store_release_sys(p.saw + 2, 1);
    }
}
