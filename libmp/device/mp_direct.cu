// The kernels of a message by mapped memory that is written into the memory of its receive: the
// receiver's stream names this memory, and the sender's kernel waits for the name and copies. Any number
// of blocks for each message.
#include "mp_flag.hpp"
#include "mp_tasks.hpp"

namespace mp {

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
struct Direct {
    Credit slot;
    u64 place;
    u64 found;
    u64 ready;
    u64 info;
    u64 lost;
    u64 from;
    u64 len;
    u64 room;
    u64 lines;
    u64 room_lines;
    u64 pair;
    u64 result;
    u64 error;
    u64 report;
    u64 number;
    u64 shares;
};

struct Name {
    u64 place;
    u64 to;
    u64 len;
    u64 key;
    u64 lost;
    u64 number;
    u64 report;
};

struct Await {
    Credit slot;
    u64 report;
};

struct Relay {
    u64 place;
    u64 ready;
    u64 info;
    u64 number;
    u64 report;
};

static_assert(sizeof(Direct) == 160 && sizeof(Name) == 56 && sizeof(Relay) == 40 && sizeof(Await) == 40, "layout");

// Number of looks for a receive before its message is announced.
#if defined(GDS_SOFT)
constexpr u32 kPatience = 1;
#else
constexpr u32 kPatience = 2 * kLooks;
#endif

// The memory of a receive.
struct Place {
    u64 to;
    u64 room;
    u32 key;
};

// The place that a kernel of the receiver has stored in device memory of this rank, in lines: the halves
// of its address, those of its length, the high half of the number, and its key.
GDS_DEVICE bool place_in_lines(u64 lines, u64 number, Place& found) {
    const u64* at = word_at(lines);
    // The loads overlap.
    const gds::Two to = gds::load_two_relaxed_sys(at), len = gds::load_two_relaxed_sys(at + 2);
    const gds::Two last = gds::load_two_relaxed_sys(at + 4);
    const u32 low = static_cast<u32>(number), high = static_cast<u32>(number >> 32);
    if (!have(to, low) || !have(len, low) || !have(last, low) || data_of(last.low) != high) return false;
    found = {data_of(to), data_of(len), data_of(last.high)};
    return true;
}

struct Answer {
    Departure departure;
    u64 to;
};

// The place and the ready word in host memory: of a receive that the CPU has posted, of one that has
// ended, and the failure of a lost peer.
GDS_DEVICE bool place_in_words(const Direct& p, Answer& found) {
    const u32 seq = static_cast<u32>(p.number);
    const u64 w = gds::load_acquire_sys(word_at(p.ready));
    if (!reached(w, seq)) return false;
    const Departure d = answer(w, seq, p.len);
    found = {d, d.status == kSuccess ? *word_at(p.info) : 0};
    return true;
}

// Stores a place in lines.
GDS_DEVICE void name_place(u64 lines, u64 number, u64 to, u64 room, u64 key) {
    const u32 low = static_cast<u32>(number);
    write_two(word_at(lines), low, to);
    write_two(word_at(lines) + 2, low, room);
    write_two(word_at(lines) + 4, low, key << 32 | number >> 32);
}

// Waits until the receive is posted. The first block also looks at the words in host memory, and stores
// what it finds there in lines for the others: many loads of host memory take long. If no receive is
// posted, it announces the message, so that a receive that is too short for it ends.
GDS_DEVICE Answer await_place(const Direct& p, bool first) {
    Answer found{};
    Place place{};
    u32 looks = 0, turns = 0;
    bool by_words = false;
    auto posted = [&] {
        const bool named = place_in_lines(p.place, p.number, place);
        if (named || (!first && place_in_lines(p.found, p.number, place))) {
            found = {{p.len > place.room ? kTruncated : kSuccess, false}, place.to};
            return true;
        }
        if (!first || ++looks % kLooks != 0) return false;
        return by_words = place_in_words(p, found);
    };
    // A receive that is posted meanwhile needs no announcement, which is a store to host memory.
    GDS_SPIN_UNTIL(posted() || (first && ++turns >= kPatience), 0);
    if (found.departure.status == 0) {
        bool here = false;
        // The slot of a receive that is posted is free, though the credit may come later. The failure of a
        // lost peer ends the second wait as well.
        if (await_credit(p.slot, [&] { return here = posted(); }) && !here) {
            gds::store_whole_sys(word_at(p.pair), compose(static_cast<u32>(p.number), kAnnounce, p.len));
        }
        if (!here) GDS_SPIN_UNTIL(posted(), 0);
    }
    // Without success, the other blocks find no room.
    if (by_words && p.shares > 1) name_place(p.found, p.number, found.to, found.to != 0 ? p.len : 0, 0);
    return found;
}

// How a message to a peer that was given up ends: its memory may have another use.
GDS_DEVICE Departure lost(const Direct& p) {
    const Word word{0, kFailed, gds::load_acquire_sys(word_at(p.lost))};
    return {failure(word), true};
}

// The request ends with a failure. A receive that waits for the words finds them.
GDS_DEVICE void fail(const Direct& p, const Departure& d) {
    if (!d.silent) {
        const u64 w = compose(static_cast<u32>(p.number), kTooLong, p.len);
        gds::store_whole_sys(word_at(p.pair), w);
        gds::store_whole_sys(word_at(p.pair) + 1, w);
    }
    finish(p.result, p.error, d.status, p.len);
}

// Writes the head of the room, the length, and flags up to line `p.lines`: by all threads of a block.
GDS_DEVICE void show(const Direct& p, const Room& r, u32 shares) {
    if (threadIdx.x == 0) write_elsewhere(r, p.len, shares);
    GDS_NO_UNROLL
    for (u64 i = kLengthLines + shares + threadIdx.x; i < p.lines; i += blockDim.x) {
        gds::store_whole_sys(r.lines() + i, line(r.low, 0));
    }
}

GDS_DEVICE void direct(const Direct& p) {
    // Another task of the launch has more shares.
    if (blockIdx.x >= p.shares) return;
    GDS_SHARED(Answer, answer);
    start_next();
    const bool first = blockIdx.x == 0;
    const u32 shares = static_cast<u32>(p.shares);
    if (threadIdx.x == 0) answer = await_place(p, first);
    if (blockDim.x > 1) __syncthreads();
    gds::await_earlier_work();
    const Departure d = answer.departure;
    const u64 to = answer.to;
    // Behind the earlier work: the loss of the peer may have ended that. Each thread looks, without a barrier.
    auto here = [&] { return d.status == kSuccess && gds::load_relaxed_sys(word_at(p.lost)) == 0; };
    const Room r{p.room, static_cast<u32>(p.number), static_cast<u32>(p.number >> 32)};
    bool all_good = true;
    const u32 done = for_shares(shares, [&](Share share, u32 i) {
        const bool good = copy_if(to, p.from, p.len, share, here);
        all_good = blockDim.x > 1 ? __syncthreads_or(!good) == 0 : good;
        if (!all_good) return;
        if (i == 0) show(p, r, shares);
        if (threadIdx.x != 0) return;
        gds::fence_sys();
        gds::store_whole_sys(r.lines() + kLengthLines + i, line(r.low, 0));
    });
    // The next task of the block stores the answer again.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    // A loss may be seen by some of the blocks alone.
    if (!all_good && (first || d.status == kSuccess)) {
        fail(p, d.status == kSuccess ? lost(p) : d);
        // A reader of the report finds the result.
        gds::fence_sys();
    }
    report(p.report, done);
}

// Names the memory of a receive to kernels of the sender.
GDS_DEVICE void name(const Name& p) {
    gds::launch_dependents();
    gds::await_earlier_work();
    if (threadIdx.x != 0) return;
    if (gds::load_acquire_sys(word_at(p.lost)) == 0) name_place(p.place, p.number, p.to, p.len, p.key);
    // Another stream may name the next receive of the slot behind the report.
    gds::fence_sys();
    report(p.report, 1);
}

// Waits for the credit of a message whose puts follow.
GDS_DEVICE void await(const Await& p) {
    if (threadIdx.x != 0) return;
    await_credit(p.slot, [] { return false; });
    report(p.report, 1);
}

// Waits for a place in lines, and stores it as the place and the ready word in host memory, for a message
// whose work requests a kernel completes. The words may come first.
GDS_DEVICE void relay(const Relay& p) {
    if (threadIdx.x != 0) return;
    const u32 seq = static_cast<u32>(p.number);
    Place place{};
    bool named = false;
    u32 looks = 0;
    auto posted = [&] {
        if ((named = place_in_lines(p.place, p.number, place))) return true;
        if (++looks % kLooks != 0) return false;
        return reached(gds::load_acquire_sys(word_at(p.ready)), seq);
    };
    GDS_SPIN_UNTIL(posted(), 0);
    report(p.report, 1);
    if (!named) return;
    // As Place::encode writes it (libmp/src/wire/record.rs): the address, the first key, and that there is
    // one.
    *word_at(p.info) = place.to;
    auto* fields = reinterpret_cast<u32*>(p.info);
    fields[2] = place.key;
    fields[6] = 1;
    gds::store_release_sys(word_at(p.ready), compose(seq, kReady, place.room));
}

template <u32 Capacity>
using Directs = Tasks<Direct, Capacity>;
template <u32 Capacity>
using Names = Tasks<Name, Capacity>;

static_assert(sizeof(Directs<8>) == 1288 && sizeof(Directs<25>) == 4008, "layout");
static_assert(sizeof(Names<8>) == 456 && sizeof(Names<73>) == 4096, "layout");

}  // namespace mp

GDS_KERNEL(mp_direct, mp::Direct, p) { mp::direct(p); }
GDS_KERNEL(mp_direct_all_8, mp::Directs<8>, p) { mp::share_all<mp::direct>(p); }
GDS_KERNEL(mp_direct_all_25, mp::Directs<25>, p) { mp::share_all<mp::direct>(p); }
GDS_KERNEL(mp_name, mp::Name, p) { mp::name(p); }
GDS_KERNEL(mp_name_all_8, mp::Names<8>, p) { mp::run_all<mp::name>(p); }
GDS_KERNEL(mp_name_all_73, mp::Names<73>, p) { mp::run_all<mp::name>(p); }
GDS_KERNEL(mp_await, mp::Await, p) { mp::await(p); }
GDS_KERNEL(mp_relay, mp::Relay, p) { mp::relay(p); }
