// The sender's kernels of a message by mapped memory, from a stream, into the memory of its receive. One
// kernel does all of it, with a block for each message. For longer messages, one kernel waits until
// the receive is posted, with a block for each message. The next one copies, by any number of blocks;
// the last of them stores the words.
#include "mp_flag.hpp"
#include "mp_tasks.hpp"

namespace mp {

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
struct Direct {
    Credit slot;
    u64 place;
    u64 ready;
    u64 info;
    u64 go;
    u64 lost;
    u64 to;
    u64 from;
    u64 len;
    u64 room;
    u64 lines;
    u64 pair;
    u64 result;
    u64 error;
    u64 done;
    u64 serial;
    u64 number;
};

// What the kernel that waits leaves to the one that copies, and the number of blocks that have copied their part.
struct Go {
    u64 to;
    u32 status;
    u32 silent;
    u32 blocks;
    u32 reserved[3];
};

static_assert(sizeof(Direct) == 168 && sizeof(Go) == 32, "layout");

struct Place {
    Departure departure;
    u64 to;
};

// The place that a kernel of the receiver has stored in device memory of this rank, in lines: the halves
// of its address, those of its length, and the high half of the number.
GDS_DEVICE bool place_in_lines(const Direct& p, Place& found) {
    const u64* at = word_at(p.place);
    // The loads overlap.
    const u64 a = gds::load_relaxed_sys(at), b = gds::load_relaxed_sys(at + 1);
    const u64 c = gds::load_relaxed_sys(at + 2), d = gds::load_relaxed_sys(at + 3);
    const u64 e = gds::load_relaxed_sys(at + 4);
    const u32 low = static_cast<u32>(p.number), high = static_cast<u32>(p.number >> 32);
    const bool whole = flag_of(a) == low && flag_of(b) == low && flag_of(c) == low && flag_of(d) == low;
    if (!whole || e != line(low, high)) return false;
    const u64 room = static_cast<u64>(data_of(d)) << 32 | data_of(c);
    const u32 status = p.len > room ? kTruncated : kSuccess;
    found = {{status, false}, static_cast<u64>(data_of(b)) << 32 | data_of(a)};
    return true;
}

// The place and the ready word in host memory: of a receive that the CPU has posted, of one that has
// ended, and the failure of a lost peer.
GDS_DEVICE bool place_in_words(const Direct& p, Place& found) {
    const u32 seq = static_cast<u32>(p.number);
    const u64 w = gds::load_acquire_sys(word_at(p.ready));
    if (!reached(w, seq)) return false;
    const Departure d = answer(w, seq, p.len);
    found = {d, d.status == kSuccess ? *word_at(p.info) : 0};
    return true;
}

GDS_DEVICE void announce(const Direct& p) {
    gds::store_whole_sys(word_at(p.pair), compose(static_cast<u32>(p.number), kAnnounce, p.len));
}

// Waits until the receive is posted, and announces the message if it is not.
GDS_DEVICE Place await_place(const Direct& p) {
    Place found{};
    u32 looks = 0;
    auto posted = [&] {
        if (p.place != 0) {
            if (place_in_lines(p, found)) return true;
            if (looks++ % kLooks != 0) return false;
        }
        return place_in_words(p, found);
    };
    if (posted()) {
        await_words_before(p.slot);
    } else {
        // The failure of a lost peer ends the second wait as well.
        if (await_credit(p.slot)) {
            // The message before in the slot may be of an earlier kernel, whose words come first.
            if (p.slot.taken != 0) gds::await_earlier_work();
            announce(p);
        }
        GDS_SPIN_UNTIL(posted(), 0);
    }
    return found;
}

// The place, unless the peer was given up: the memory of its receives is then no longer theirs.
GDS_DEVICE Place unless_lost(const Direct& p, const Place& place) {
    if (place.departure.status != kSuccess || gds::load_acquire_sys(word_at(p.lost)) == 0) return place;
    return {{failure(parse(gds::load_acquire_sys(word_at(p.ready)))), true}, 0};
}

GDS_DEVICE void pass_on(const Direct& p) {
    if (threadIdx.x != 0) return;
    const Place found = await_place(p);
    gds::await_earlier_work();
    gds::launch_dependents();
    Go* go = reinterpret_cast<Go*>(p.go);
    go->to = found.to;
    go->status = found.departure.status;
    go->silent = found.departure.silent;
}

// Whether all blocks have copied their part, and this is the last: it sees what they have written.
GDS_DEVICE bool is_last(Go* go) {
    // The threads of the block have passed a barrier.
    gds::fence_sys();
    if (gridDim.x == 1) return true;
    if (atomicAdd(&go->blocks, 1u) != gridDim.x - 1) return false;
    go->blocks = 0;
    gds::fence_sys();
    return true;
}

// Shows the message to a kernel that polls the flagged room.
GDS_DEVICE void show(const Direct& p, u32 low, u32 high) {
    const Room r{p.room, low, high};
    gds::store_whole_sys(r.payload(0), line(low, static_cast<u32>(p.len)));
    gds::store_whole_sys(r.payload(1), line(low, static_cast<u32>(p.len >> 32)));
    gds::store_whole_sys(r.head(0), line(low, kElsewhere));
    gds::store_whole_sys(r.head(1), line(low, high));
    GDS_NO_UNROLL
    for (u64 i = 2; i < p.lines; i++) gds::store_whole_sys(r.payload(i), line(low, 0));
}

// Stores the words, behind the payload of all blocks.
GDS_DEVICE void end(const Direct& p, const Departure& d) {
    const u32 low = static_cast<u32>(p.number), high = static_cast<u32>(p.number >> 32);
    const bool good = d.status == kSuccess;
    if (good) show(p, low, high);
    if (!d.silent) {
        const u64 w = compose(low, good ? kDirect : kTooLong, p.len);
        gds::store_whole_sys(word_at(p.pair), w);
        gds::store_whole_sys(word_at(p.pair) + 1, w);
    }
    if (!good) finish(p.result, p.error, d.status, p.len);
    gds::store_release_sys(word_at(p.done), p.serial);
}

GDS_DEVICE void direct(const Direct& p) {
    GDS_SHARED(Place, place);
    start_next();
    if (threadIdx.x == 0) {
        place = unless_lost(p, p.to == 0 ? await_place(p) : Place{{kSuccess, false}, p.to});
    }
    if (blockDim.x > 1) __syncthreads();
    gds::await_earlier_work();
    const Departure d = place.departure;
    if (d.status == kSuccess) copy(place.to, p.from, p.len, {threadIdx.x, blockDim.x});
    // The next task of the block stores the place again.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    gds::fence_sys();
    end(p, d);
}

GDS_DEVICE void direct_large(const Direct& p) {
    gds::await_earlier_work();
    gds::launch_dependents();
    Go* go = reinterpret_cast<Go*>(p.go);
    Place place{{kSuccess, false}, p.to};
    if (p.to == 0) place = {{go->status, go->silent != 0}, go->to};
    // A block that finds the peer lost precedes the last one, which finds the same.
    place = unless_lost(p, place);
    const Departure d = place.departure;
    const Share all{blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
    if (d.status == kSuccess) copy(place.to, p.from, p.len, all);
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0 && is_last(go)) end(p, d);
}

template <u32 Capacity>
using Directs = Tasks<Direct, Capacity>;

static_assert(sizeof(Directs<8>) == 1352 && sizeof(Directs<24>) == 4040, "layout");

}  // namespace mp

GDS_KERNEL(mp_direct, mp::Direct, p) { mp::direct(p); }
GDS_KERNEL(mp_direct_all_8, mp::Directs<8>, p) { mp::run_all<mp::direct>(p); }
GDS_KERNEL(mp_direct_all_24, mp::Directs<24>, p) { mp::run_all<mp::direct>(p); }
GDS_KERNEL(mp_direct_large, mp::Direct, p) { mp::direct_large(p); }
GDS_KERNEL(mp_place, mp::Direct, p) { mp::pass_on(p); }
GDS_KERNEL(mp_place_all_8, mp::Directs<8>, p) { mp::run_all<mp::pass_on>(p); }
GDS_KERNEL(mp_place_all_24, mp::Directs<24>, p) { mp::run_all<mp::pass_on>(p); }
