// The kernels of messages in graphs. A circuit leads from one captured send to the captured receive that
// it matches. It has a few rooms in device memory of the receiver, and words in device memory of both ends.
// Each replay of a graph moves one message, whose number is in a word of the own end: the kernel that ends
// the message there adds 1 to it. Replays of a graph run one after the other, so this word needs no order
// beyond that of the kernels. A kernel that succeeds stores nothing to host memory.
#include "mp_parts.hpp"
#include "mp_unpack.hpp"

namespace mp {
namespace replay {

// Own words of an end of a circuit, in device memory. libmp/src/two_sided/circuits/memory.rs has the same
// layout.
struct Words {
    u64 number;  // of the message of the next replay
    u64 count;   // the shares of this message that are done, if several blocks take them
    u64 result;  // as Unpack::result, of the last message
    u64 lost;    // the status with which the peer was given up, or 0
};

// Words in host memory for all circuits of a peer. libmp/src/two_sided/circuits/memory.rs has the same layout.
struct Alarm {
    u64 stop;    // the library stores the status with which it has given the peer up
    u64 late;    // a kernel stores 1 when it has waited too long
    u64 failed;  // a kernel stores 1 when it has ended without its message
};

// libmp/src/kernels/params.rs has the same layouts, and describes the fields.
struct End {
    u64 words;
    u64 alarm;
    u64 error;
    u64 limit;
    u64 shares;
};

// The rooms of a circuit: a message is in that of the slot with its number, modulo `slots`.
struct Rooms {
    u64 first;
    u64 stride;
    u64 slots;
};

struct Write {
    End end;
    u64 credit;
    u64 from;
    u64 len;
    Rooms rooms;
};

struct Place {
    End end;
    u64 place;
    u64 to;
};

struct Copy {
    End end;
    u64 place;
    u64 from;
    u64 len;
    Rooms rooms;
};

struct Take {
    End end;
    Rooms rooms;
    u64 bytes;
    u64 to;
    u64 capacity;
    u64 credit;
};

static_assert(sizeof(Write) == 88 && sizeof(Place) == 56 && sizeof(Copy) == 88 && sizeof(Take) == 96, "layout");

GDS_DEVICE Words* words(const End& e) { return reinterpret_cast<Words*>(e.words); }
GDS_DEVICE Alarm* alarm(const End& e) { return reinterpret_cast<Alarm*>(e.alarm); }

// The number of the message of this replay. The kernel of the replay before has stored it.
GDS_DEVICE u64 number(const End& e) { return gds::load_relaxed_sys(&words(e)->number); }

GDS_DEVICE Room room(const Rooms& r, u64 number) {
    const u64 at = r.first + (number & (r.slots - 1)) * r.stride;
    return {at, static_cast<u32>(number), static_cast<u32>(number >> 32)};
}

// Looks at a room, a credit or a place between two at the words of a loss. A model defines fewer.
#if !defined(REPLAY_LOOKS)
#define REPLAY_LOOKS kLooks
#endif

// Whether the peer was given up. Only the first block looks at host memory, now and then; it stores what it finds in
// device memory, for the other blocks.
class Watch {
   public:
    GDS_DEVICE explicit Watch(const End& e) : end(e), leads(blockIdx.x == 0) {}

    GDS_DEVICE bool lost() {
        if (++looks % REPLAY_LOOKS != 0) return false;
        if (gds::load_acquire_sys(&words(end)->lost) != 0) return true;
        if (!leads) return false;
#if !defined(GDS_SOFT)
        if (end.limit != 0 && !late) {
            const u64 now = gds::globaltimer_ns();
            if (start == 0) start = now;
            if (now - start >= end.limit) report_late();
        }
#endif
        const u64 status = gds::load_acquire_sys(&alarm(end)->stop);
        if (status == 0) return false;
        gds::store_whole_sys(&words(end)->lost, status);
        return true;
    }

    // Waits until `arrived` holds, which may have side effects. False: the peer was given up before. What
    // the peer stored before that is seen: the condition is evaluated again behind the acquire of the loss.
    template <class Arrived>
    GDS_DEVICE bool wait(Arrived arrived) {
        bool stopped = false;
        spin([&] { return arrived() || (stopped = lost()); });
        return !stopped || arrived();
    }

    // Evaluates a condition until it holds, which looks for a loss itself.
    template <class Over>
    GDS_DEVICE void spin(Over over) {
#if defined(GDS_SOFT)
        // A thread of the soft GPU runs only when memory has changed, or at its time limit.
        if (!GDS_SPIN_UNTIL(over(), leads ? end.limit : 0)) {
            report_late();
            GDS_SPIN_UNTIL(over(), 0);
        }
#else
        GDS_SPIN_UNTIL(over(), 0);
#endif
    }

   private:
    const End& end;
    const bool leads;
    u32 looks = 0;
    [[maybe_unused]] bool late = false;
    [[maybe_unused]] u64 start = 0;

    // The library gives the peer up, which ends the wait.
    GDS_DEVICE void report_late() {
        late = true;
        gds::store_release_sys(&alarm(end)->late, 1);
    }
};

// Ends the message of this replay, by one thread of each block, which has done so many shares. True: by this
// call, with success.
GDS_DEVICE bool end_replay(const End& e, u64 number, u32 done, bool bad, u64 len) {
    Words* own = words(e);
    const u32 shares = static_cast<u32>(e.shares);
    if (done != shares && !is_last(reinterpret_cast<u64>(&own->count), shares, done, bad)) return false;
    if (__builtin_expect(bad, 0)) {
        const u64 lost = gds::load_acquire_sys(&own->lost);
        const u32 status = lost != 0 ? static_cast<u32>(lost) : static_cast<u32>(kBadResponse);
        gds::store_release_sys(&alarm(e)->failed, 1);
        finish(reinterpret_cast<u64>(&own->result), e.error, status, 0);
        // The library finds both words when the stream has passed.
        gds::fence_sys();
        return false;
    }
    gds::store_whole_sys(&own->result, ended(kSuccess, len));
    gds::store_whole_sys(&own->number, number + 1);
    return true;
}

// The parts of a thread, of 8 bytes each, of a message that a sender writes in lines: at most two. Made before the
// kernel waits, so that addresses and conditions are in registers behind the wait.
struct Parts {
    const u64 index, at, next;
    const u64 from, len;
    u64* const lines;
    const bool all;  // no thread has more parts

    GDS_DEVICE Parts(u64 source, u64 bytes, u64* to, u32 shares)
        : index(blockIdx.x * blockDim.x + threadIdx.x),
          at(8 * index),
          next(8ull * shares * blockDim.x),
          from(source + at),
          len(bytes),
          lines(to + 2 * index),
          all(shares <= gridDim.x && (source & 7) == 0 && bytes <= 2 * next) {}

    // Writes the head, by one thread, and the parts.
    GDS_DEVICE void write(const Room& r, u32 head) const {
        if (index == 0) write_head(r, head);
        const bool both = at + next < len;
        // The loads overlap.
        const u64 first = load_eight(from, len - least(at, len));
        const u64 second = both ? load_eight(from + next, len - at - next) : 0;
        if (at < len) write_two(lines, r.low, first);
        if (both) write_two(lines + next / 4, r.low, second);
    }
};

// The sender's kernel of a message whose lines have room.
GDS_DEVICE void write(const Write& p) {
    // Another task of the launch has more shares.
    if (blockIdx.x >= p.end.shares) return;
    GDS_SHARED(u32, open);
    start_next();
    const u64 n = number(p.end);
    const Room r = room(p.rooms, n);
    const Parts parts(p.from, p.len, r.lines(), static_cast<u32>(p.end.shares));
    if (threadIdx.x == 0) {
        // The message before in the slot.
        const u64 before = n - p.rooms.slots;
        auto taken = [&] { return covers(gds::load_acquire_sys(word_at(p.credit)), before); };
        open = Watch(p.end).wait(taken);
    }
    if (blockDim.x > 1) __syncthreads();
    gds::await_earlier_work();
    const bool good = open != 0;
    if (__builtin_expect(good && parts.all, 1)) {
        parts.write(r, static_cast<u32>(p.len));
        // As below.
        if (blockDim.x > 1) __syncthreads();
        if (threadIdx.x == 0) end_replay(p.end, n, 1, false, p.len);
        return;
    }
    if (good && blockIdx.x == 0 && threadIdx.x == 0) write_head(r, static_cast<u32>(p.len));
    const u32 done = for_shares(static_cast<u32>(p.end.shares), [&](Share all, u32) {
        if (good) write_lines(r.lines(), r.low, p.from, p.len, 0, all);
    });
    // All threads have read the source, and `open`, which the next task of the block stores again.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0) end_replay(p.end, n, done, !good, p.len);
}

// The receiver's kernel that shows the memory of a receive to the sender: the halves of its address, in two
// lines. The length is of the capture, and lines of the message before have another flag.
GDS_DEVICE void place(const Place& p) {
    gds::launch_dependents();
    gds::await_earlier_work();
    if (threadIdx.x != 0 || gds::load_acquire_sys(&words(p.end)->lost) != 0) return;
    const u32 low = static_cast<u32>(number(p.end));
    write_two(word_at(p.place), low, p.to);
}

// The sender's kernel of a message to the memory of its receive.
GDS_DEVICE void copy_to_place(const Copy& p) {
    if (blockIdx.x >= p.end.shares) return;
    GDS_SHARED(u64, to);
    start_next();
    const u32 shares = static_cast<u32>(p.end.shares);
    const u64 n = number(p.end);
    const Room r = room(p.rooms, n);
    if (threadIdx.x == 0) {
        gds::Two v = none(r.low);
        auto posted = [&] { return have(v = gds::load_two_relaxed_sys(word_at(p.place)), r.low); };
        to = Watch(p.end).wait(posted) ? data_of(v) : 0;
    }
    if (blockDim.x > 1) __syncthreads();
    gds::await_earlier_work();
    const u64 target = to;
    // The memory of a peer that was given up may have another use. Behind the earlier work: the loss may
    // have ended that. Each thread looks, without a barrier.
    auto here = [&] { return target != 0 && gds::load_relaxed_sys(&words(p.end)->lost) == 0; };
    bool all_good = true;
    const u32 done = for_shares(shares, [&](Share all, u32 share) {
        const bool good = copy_if(target, p.from, p.len, all, here);
        all_good = blockDim.x > 1 ? __syncthreads_or(!good) == 0 : good;
        if (!all_good || threadIdx.x != 0) return;
        // The receive is posted, so the messages before were taken.
        if (share == 0) write_elsewhere(r, p.len, shares);
        gds::fence_sys();
        gds::store_whole_sys(r.lines() + kLengthLines + share, line(r.low, 0));
    });
    // The next task of the block stores `to` again.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0) end_replay(p.end, n, done, !all_good, p.len);
}

// Returns the word of the message in the room to all threads; 0: the peer was given up before. Each thread
// meanwhile loads the two lines at `first`, unless this is null.
GDS_DEVICE u64 await_head(const End& e, const Room& r, [[maybe_unused]] const u64* first,
                          [[maybe_unused]] gds::Two& ahead) {
    GDS_SHARED(u64, seen);
    constexpr u64 kNone = ~0ull;
    Watch watch(e);
#if defined(GDS_SOFT)
    if (threadIdx.x == 0) {
        u64 w = 0;
        seen = watch.wait([&] { return (w = word_in_room(r)) != 0; }) ? w : kNone;
    }
#else
    volatile u64* shown = &seen;
    if (threadIdx.x == 0) *shown = 0;
    if (blockDim.x > 1) __syncthreads();
    GDS_NO_UNROLL
    do {
        if (first != nullptr) ahead = gds::load_two_relaxed_sys(first);
        if (threadIdx.x < gds::warp_size()) {
            if (threadIdx.x == 0) {
                u64 w = word_in_room(r);
                // What the peer stored before its loss is seen behind the acquire of the loss.
                if (w == 0 && watch.lost() && (w = word_in_room(r)) == 0) w = kNone;
                *shown = w;
            }
            gds::sync_warp();
        } else if (first != nullptr && have(ahead, r.low)) {
            break;
        }
    } while (*shown == 0);
#endif
    if (blockDim.x > 1) __syncthreads();
    return seen == kNone ? 0 : seen;
}

// A receive, for mp_parts.hpp.
struct Usual {
    const Take& p;
    u64 number;

    GDS_DEVICE Room room() const { return replay::room(p.rooms, number); }
    GDS_DEVICE u64 room_lines() const { return p.rooms.stride / sizeof(u64) - kHeadLines; }
    GDS_DEVICE const u64* lines() const { return room().lines(); }
    GDS_DEVICE u64 lines_len() const { return p.bytes; }
    GDS_DEVICE u32 mark() const { return 0; }
    GDS_DEVICE u32 shares() const { return static_cast<u32>(p.end.shares); }
    GDS_DEVICE u64 to() const { return p.to; }
    GDS_DEVICE u64 capacity() const { return p.capacity; }
};

// Ends the message at the receiver, by one thread of each block, as `end_replay`.
GDS_DEVICE void end_take(const Take& p, u64 number, bool placed, u32 done, bool bad, u64 len) {
    if (!end_replay(p.end, number, done, bad, len)) return;
    // A kernel of the sender polls this word in its own device memory. All threads have read the lines. The
    // sender of a message to the memory of its receive waits for the next place instead.
    if (!placed) gds::store_whole_sys(word_at(p.credit), number);
}

// The receiver's kernel: waits for the message and takes it in.
GDS_DEVICE void take(const Take& p) {
    if (blockIdx.x >= p.end.shares) return;
    start_next();
    const u64 n = number(p.end);
    const Room r = room(p.rooms, n);
    const u32 shares = static_cast<u32>(p.end.shares);
    const u64 most = least(p.capacity, p.bytes);
    const bool large = p.capacity > p.bytes;
    const Usual wanted{p, n};
    if (gridDim.x >= shares && (large ? shares == 1 : has_parts(wanted, 2))) {
        Watch watch(p.end);
        auto wait = [&](auto come) { watch.spin(come); };
        auto stop = [&](bool here) { return (threadIdx.x == 0 || here) && watch.lost(); };
        auto close = [&](bool placed, u64 len) { end_take(p, n, placed, 1, false, len); };
        if (take_usual(wanted, large, wait, stop, close)) return;
    }
    const u64 mine = blockIdx.x * blockDim.x + threadIdx.x;
    gds::Two ahead = none(r.low);
    const u64 w = await_head(p.end, r, 8 * mine < most ? r.lines() + 2 * mine : nullptr, ahead);
    gds::await_earlier_work();
    const Word word = parse(w);
    Watch watch(p.end);
    auto lost = [&] { return watch.lost(); };
    bool bad = true;
    u32 done = 0;
    if (__builtin_expect(word.kind == kFlagged && word.len <= most, 1)) {
        // Again behind the acquire of a loss: the peer may have stored all lines before that.
        GDS_NO_UNROLL
        for (u32 turn = 0; bad && turn < 2; turn++) {
            bad = false;
            done = for_shares(shares, [&](Share s, u32) {
                bad |= !read_lines(r.lines(), r.low, 0, p.to, word.len, s, ahead, lost);
            });
        }
    } else {
        for_shares(shares, [&](Share, u32) { done++; });
        if (word.kind == kPlaced && word.len <= p.capacity) {
            const Share all{threadIdx.x, blockDim.x};
            bad = blockIdx.x == 0;
            GDS_NO_UNROLL
            for (u32 turn = 0; bad && turn < 2; turn++) bad = !await_blocks(r, wanted.room_lines(), all, lost);
        }
    }
    bad = blockDim.x > 1 ? __syncthreads_or(bad) != 0 : bad;
    if (threadIdx.x == 0) end_take(p, n, word.kind == kPlaced, done, bad, word.len);
}

template <u32 Capacity>
using Writes = Tasks<Write, Capacity>;
template <u32 Capacity>
using Takes = Tasks<Take, Capacity>;

static_assert(sizeof(Writes<46>) == 4056 && sizeof(Takes<42>) == 4040, "layout");

}  // namespace replay
}  // namespace mp

GDS_KERNEL(mp_replay_write, mp::replay::Write, p) { mp::replay::write(p); }
GDS_KERNEL(mp_replay_write_all_8, mp::replay::Writes<8>, p) { mp::share_all<mp::replay::write>(p); }
GDS_KERNEL(mp_replay_write_all_46, mp::replay::Writes<46>, p) { mp::share_all<mp::replay::write>(p); }
GDS_KERNEL(mp_replay_place, mp::replay::Place, p) { mp::replay::place(p); }
GDS_KERNEL(mp_replay_copy, mp::replay::Copy, p) { mp::replay::copy_to_place(p); }
GDS_KERNEL(mp_replay_take, mp::replay::Take, p) { mp::replay::take(p); }
GDS_KERNEL(mp_replay_take_all_8, mp::replay::Takes<8>, p) { mp::share_all<mp::replay::take>(p); }
GDS_KERNEL(mp_replay_take_all_42, mp::replay::Takes<42>, p) { mp::share_all<mp::replay::take>(p); }
