// Flagged rooms: device memory of the receiver in which every 8 bytes have their own flag, so that a
// reader needs no word and no fence behind a payload. A line is flag(32) << 32 | data(32). The flag is
// the low half of the message's number. libmp/src/wire/flag.rs has the same format.
//
// The room of a slot has two lines of the head, then lines of the payload with 4 bytes each, an even
// number of them. The head has the length of the message, or one of two marks, and the high half of
// the number.
// - kLong | length: the payload is in the lines of another room, for longer messages.
// - kElsewhere | n: the sender copies the payload into the memory of the receive in n shares (mp_direct.cu,
//   mp_replay.cu). Two lines behind the head have the halves of the length; one line for each share shows that it
//   is in place.
#pragma once

#include "mp_copy.hpp"

namespace mp {

constexpr u32 kHeadLines = 2;
constexpr u32 kElsewhere = 1u << 31;
constexpr u32 kLong = 1u << 30;
constexpr u32 kLengthLines = 2;
// Bytes of payload that a room has at least (libmp/src/two_sided/channel/mod.rs).
constexpr u64 kLeastRoom = 64;

// In a dependent launch, a kernel that waits for words of peers: its first warp waits, and meanwhile
// the next one lets the next launch start behind the end of the earlier work. So at most two kernels
// of a stream are resident. All threads must then call gds::await_earlier_work before they use other
// memory.
GDS_DEVICE void start_next() {
    if (threadIdx.x < gds::warp_size()) return;
    gds::await_earlier_work();
    gds::launch_dependents();
}

// Number of looks at device memory between two at a word in host memory, which take a bus round trip.
#if defined(GDS_SOFT)
// A thread of the soft GPU looks again only when memory has changed.
constexpr u32 kLooks = 1;
#else
constexpr u32 kLooks = 64;
#endif

GDS_DEVICE u64 line(u32 flag, u32 data) { return static_cast<u64>(flag) << 32 | data; }
GDS_DEVICE u32 flag_of(u64 line) { return static_cast<u32>(line >> 32); }
GDS_DEVICE u32 data_of(u64 line) { return static_cast<u32>(line); }

// A message in a flagged room.
struct Room {
    u64 at;
    u32 low;
    u32 high;

    GDS_DEVICE u64* head() const { return word_at(at); }
    GDS_DEVICE u64* lines() const { return word_at(at) + kHeadLines; }
};

// Writes 8 bytes into two lines.
GDS_DEVICE void write_two(u64* at, u32 flag, u64 data) {
    gds::store_two_whole_sys(at, line(flag, static_cast<u32>(data)), line(flag, static_cast<u32>(data >> 32)));
}

GDS_DEVICE void write_head(const Room& r, u32 data) {
    gds::store_two_whole_sys(r.head(), line(r.low, data), line(r.low, r.high));
}

// Up to 8 bytes at `from`, of any alignment.
GDS_DEVICE u64 eight(const unsigned char* from, u64 n) {
    u64 data = 0;
    GDS_NO_UNROLL
    for (u64 i = 0; i < least(n, 8); i++) data |= static_cast<u64>(from[i]) << 8 * i;
    return data;
}

// As `eight`, with one load for a whole word: `from` is a multiple of 8.
GDS_DEVICE u64 load_eight(u64 from, u64 n) {
    return __builtin_expect(n >= 8, 1) ? *word_at(from) : eight(reinterpret_cast<const unsigned char*>(from), n);
}

// Writes `len` bytes of payload into lines, and flags without data behind them up to line `last`. Lines
// are written by twos.
GDS_DEVICE void write_lines(u64* lines, u32 flag, u64 from, u64 len, u64 last, Share s) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(from);
    auto store = [&](u64 i, u64 data) { write_two(lines + 2 * i, flag, data); };
    const u64 whole = (from & 7) == 0 ? len / 8 : 0, used = (len + 7) / 8;
    u64 i = s.first;
    // Four at once, so that the loads overlap.
    GDS_NO_UNROLL
    for (; i + 3ull * s.step < whole; i += 4ull * s.step) {
        const auto* v = reinterpret_cast<const u64*>(bytes);
        const u64 a = v[i], b = v[i + s.step], c = v[i + 2ull * s.step], d = v[i + 3ull * s.step];
        store(i, a);
        store(i + s.step, b);
        store(i + 2ull * s.step, c);
        store(i + 3ull * s.step, d);
    }
    const u64 most = used > (last + 1) / 2 ? used : (last + 1) / 2;
    GDS_NO_UNROLL
    for (; i < most; i += s.step) {
        u64 data = 0;
        if (i < whole) {
            data = reinterpret_cast<const u64*>(bytes)[i];
        } else if (i < used) {
            data = eight(bytes + 8 * i, len - 8 * i);
        }
        store(i, data);
    }
}

// Shows a message that is copied to the memory of its receive in so many shares.
GDS_DEVICE void write_elsewhere(const Room& r, u64 len, u32 shares) {
    write_two(r.lines(), r.low, len);
    write_head(r, kElsewhere | shares);
}

// The word of the message in the room, if it has arrived, and else 0. The whole number is compared, so
// memory of any age is no message. Of a message in the memory of its receive, this is the length; its
// bytes are in place behind `await_blocks`.
GDS_DEVICE u64 word_in_room(const Room& r) {
    const gds::Two head = gds::load_two_relaxed_sys(r.head());
    if (flag_of(head.low) != r.low || head.high != line(r.low, r.high)) return 0;
    const u32 data = data_of(head.low);
    if ((data & kElsewhere) == 0) {
        return compose(r.low, (data & kLong) != 0 ? kLongRoom : kFlagged, data & ~kLong);
    }
    const gds::Two len = gds::load_two_relaxed_sys(r.lines());
    if (flag_of(len.low) != r.low || flag_of(len.high) != r.low) return 0;
    return compose(r.low, kPlaced, static_cast<u64>(data_of(len.high)) << 32 | data_of(len.low));
}

// Waits until the lines of all blocks of the sender show that their parts are in place. `stop` ends
// the wait; false: it did, or the room has fewer lines than the sender claims. Each load acquires what its block of the
// sender has written; behind a barrier, the threads of this block have the whole message.
template <class Stop>
GDS_DEVICE bool await_blocks(const Room& r, u64 room_lines, Share s, Stop stop) {
    const u32 blocks = data_of(gds::load_relaxed_sys(r.head())) & ~kElsewhere;
    if (blocks > room_lines - kLengthLines) return false;
    const u64* lines = r.lines() + kLengthLines;
    bool stopped = false;
    GDS_NO_UNROLL
    for (u32 i = s.first; i < blocks && !stopped; i += s.step) {
        GDS_SPIN_UNTIL(flag_of(gds::load_acquire_sys(lines + i)) == r.low || (stopped = stop()), 0);
    }
    return !stopped;
}

// What the kernel of a sender waits for. libmp/src/kernels/params.rs has the same layout, and describes
// the fields.
struct Credit {
    u64 credit;
    u64 known;
    u64 taken;
    u64 before;
};

// Credits beside each other that a kernel reads from the receiver at once, by loads that overlap, and keeps.
constexpr u32 kCredits = 16;

// The credit for a message: its low bits count the shares of a message that was read (mp_unpack.hpp).
GDS_DEVICE u64 credit_of(u64 number) { return number << 6; }

// Whether a credit, or a number, is for message `before` or a later one.
GDS_DEVICE bool covers(u64 credit, u64 before) { return static_cast<long long>(credit - before) >= 0; }

// Whether the receiver's credit for the slot has come. If so, also keeps those of the slots beside it, which
// the next messages need: a read of the receiver's memory takes longer than one of this rank's.
GDS_DEVICE bool fetch_credit(const Credit& p) {
    const u64 within = p.credit & (sizeof(u64) * kCredits - 1);
    const u64* from = word_at(p.credit - within);
    gds::Two w[kCredits / 2];
    // The loads overlap.
    for (u32 i = 0; i < kCredits / 2; i++) w[i] = gds::load_two_relaxed_sys(from + 2 * i);
    bool has = false;
    for (u32 i = 0; i < kCredits / 2; i++) {
        has |= 2 * i * sizeof(u64) == within && covers(w[i].low, credit_of(p.before));
        has |= (2 * i + 1) * sizeof(u64) == within && covers(w[i].high, credit_of(p.before));
    }
    if (!has) return false;
    u64* to = word_at(p.known - within);
    // Another kernel may keep later ones at the same time. An earlier credit is read again.
    for (u32 i = 0; i < kCredits / 2; i++) gds::store_two_whole_sys(to + 2 * i, w[i].low, w[i].high);
    return true;
}

// Waits until the slot is free; `stop` ends the wait too. False: the library has released the wait, because
// the peer is lost.
template <class Stop>
GDS_DEVICE bool await_credit(const Credit& p, Stop stop) {
    const u32 before = static_cast<u32>(p.before);
    u32 looks = 0;
    u64 w = static_cast<u64>(before) << 48;
    auto credited = [&] {
        if (p.credit != 0) {
            if (fetch_credit(p)) return true;
            if (++looks % kLooks != 0) return false;
        }
        return reached(w = gds::load_acquire_sys(word_at(p.taken)), before);
    };
    if (p.taken == 0 || (p.known != 0 && covers(gds::load_relaxed_sys(word_at(p.known)), credit_of(p.before)))) return true;
    GDS_SPIN_UNTIL(stop() || credited(), 0);
    // A failure with the number of the message before is its receiver's, and frees the slot. The library's has the
    // number of a later message.
    return !(parse(w).kind == kFailed && parse(w).seq != (before & 0xffff));
}

// Stores bytes [at, at + 8) of a payload, of which [skip, end) are copied to `to`.
GDS_DEVICE void store_eight(u64 to, u64 skip, u64 end, u64 at, u64 data) {
    auto* bytes = reinterpret_cast<unsigned char*>(to + at - skip);
    if (at >= skip && at + 8 <= end && (reinterpret_cast<u64>(bytes) & 7) == 0) {
        *reinterpret_cast<u64*>(bytes) = data;
        return;
    }
    GDS_NO_UNROLL
    for (u64 i = 0; i < 8; i++) {
        if (at + i >= skip && at + i < end) bytes[i] = static_cast<unsigned char>(data >> 8 * i);
    }
}

GDS_DEVICE bool have(const gds::Two& v, u32 flag) { return flag_of(v.low) == flag && flag_of(v.high) == flag; }

// Two lines that are of no message with this flag.
GDS_DEVICE gds::Two none(u32 flag) { return {line(~flag, 0), line(~flag, 0)}; }

GDS_DEVICE u64 data_of(const gds::Two& v) { return static_cast<u64>(data_of(v.high)) << 32 | data_of(v.low); }

// Copies `len` bytes of the payload, from its byte `skip` on. `ahead`: the first lines of this thread,
// if they were loaded before, else `none`; then `none`. `stop` ends the wait for a line; false: it did.
template <class Stop>
GDS_DEVICE bool read_lines(const u64* lines, u32 flag, u64 skip, u64 to, u64 len, Share s, gds::Two& ahead,
                           Stop stop) {
    const u64 end = skip + len, last = (end + 7) / 8;
    u64 i = skip / 8 + s.first;
    auto load = [&](u64 i) { return gds::load_two_relaxed_sys(lines + 2 * i); };
#if !defined(GDS_SOFT)
    // Whole words at aligned addresses. Four at once, so that the loads overlap.
    const u64 whole = skip == 0 && (to & 7) == 0 ? len / 8 : 0;
    if (have(ahead, flag) && i < whole) {
        word_at(to)[i] = data_of(ahead);
        i += s.step;
        ahead = none(flag);
    }
    GDS_NO_UNROLL
    for (; i + 3ull * s.step < whole; i += 4ull * s.step) {
        gds::Two a, b, c, d;
        bool all;
        do {
            a = load(i), b = load(i + s.step), c = load(i + 2ull * s.step), d = load(i + 3ull * s.step);
            all = have(a, flag) && have(b, flag) && have(c, flag) && have(d, flag);
        } while (!all && !stop());
        if (!all) return false;
        word_at(to)[i] = data_of(a);
        word_at(to)[i + s.step] = data_of(b);
        word_at(to)[i + 2ull * s.step] = data_of(c);
        word_at(to)[i + 3ull * s.step] = data_of(d);
    }
#endif
    GDS_NO_UNROLL
    for (; i < last; i += s.step) {
        gds::Two v = ahead;
        bool stopped = false;
        GDS_SPIN_UNTIL(have(v, flag) || have(v = load(i), flag) || (stopped = stop()), 0);
        if (stopped) return false;
        store_eight(to, skip, end, 8 * i, data_of(v));
        ahead = none(flag);
    }
    return true;
}

// A message is divided into shares: block i of a launch takes the shares i, i + blocks, ... `run` gets the
// threads of all shares, and the number of the share. Returns the number of shares of this block.
template <class Run>
GDS_DEVICE u32 for_shares(u32 shares, Run run) {
    u32 count = 0;
    GDS_NO_UNROLL
    for (u32 i = blockIdx.x; i < shares; i += gridDim.x) {
        run(Share{i * blockDim.x + threadIdx.x, shares * blockDim.x}, i);
        count++;
    }
    return count;
}

// Adds to a word in device memory that counts the shares that are done.
GDS_DEVICE void report(u64 at, u32 shares) {
    if (at != 0) atomicAdd(word_at(at), static_cast<u64>(shares));
}

}  // namespace mp
