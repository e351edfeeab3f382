// Flagged rooms: memory in which every 8 bytes have their own flag, so that a reader needs no word
// and no fence behind a payload. A line is flag(32) << 32 | data(32). The flag is the low half of the
// message's number. Line 0 has the length of the message, line 1 the high half of the number, and
// the lines behind them have 4 bytes each of the payload. libmp/src/wire/flag.rs has the same format.
// A message whose payload is in the memory of its receive (mp_direct.cu) has the mark `kElsewhere` in
// place of its length; the two lines behind line 1 have the halves of the length.
#pragma once

#include "mp_copy.hpp"

namespace mp {

constexpr u32 kHeadLines = 2;
constexpr u32 kElsewhere = 1u << 31;

// In a dependent launch, a kernel that waits for words of peers: its first warp waits, and meanwhile
// the next one lets the next launch start behind the end of the earlier work. So at most two kernels
// of a stream are resident. All threads must then call gds::await_earlier_work before they use other
// memory.
GDS_DEVICE void start_next() {
    if (threadIdx.x < 32) return;
    gds::await_earlier_work();
    gds::launch_dependents();
}

// Number of looks at device memory between two at a word in host memory.
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

    GDS_DEVICE u64* head(u32 i) const { return word_at(at) + i; }
    GDS_DEVICE u64* payload(u64 i) const { return word_at(at) + kHeadLines + i; }
};

// Up to 4 bytes at `from`, of any alignment.
GDS_DEVICE u32 four(const unsigned char* from, u64 n) {
    u32 data = 0;
    GDS_NO_UNROLL
    for (u64 i = 0; i < least(n, 4); i++) data |= static_cast<u32>(from[i]) << 8 * i;
    return data;
}

// Writes a message of `len` bytes, and flags without data behind it up to line `lines`.
GDS_DEVICE void write_room(const Room& r, u64 from, u64 len, u64 lines, Share s) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(from);
    const auto* words = reinterpret_cast<const u32*>(from);
    const u64 whole = (from & 3) == 0 ? len / 4 : 0, used = (len + 3) / 4;
    GDS_NO_UNROLL
    for (u64 i = s.first; i < whole; i += s.step) {
        gds::store_whole_sys(r.payload(i), line(r.low, words[i]));
    }
    GDS_NO_UNROLL
    for (u64 i = whole + s.first; i < used; i += s.step) {
        gds::store_whole_sys(r.payload(i), line(r.low, four(bytes + 4 * i, len - 4 * i)));
    }
    GDS_NO_UNROLL
    for (u64 i = used + s.first; i < lines; i += s.step) gds::store_whole_sys(r.payload(i), line(r.low, 0));
    if (s.first == 0) {
        gds::store_whole_sys(r.head(0), line(r.low, static_cast<u32>(len)));
        gds::store_whole_sys(r.head(1), line(r.low, r.high));
    }
}

// The word of the message in the room, if it has arrived, and else 0. The whole number is compared, so
// memory of any age is no message.
GDS_DEVICE u64 word_in_room(const Room& r) {
    // The loads overlap.
    const u64 length = gds::load_relaxed_sys(r.head(0)), high = gds::load_relaxed_sys(r.head(1));
    if (flag_of(length) != r.low || high != line(r.low, r.high)) return 0;
    if (data_of(length) != kElsewhere) return compose(r.low, kFlagged, data_of(length));
    const u64 lower = gds::load_relaxed_sys(r.payload(0)), upper = gds::load_relaxed_sys(r.payload(1));
    if (flag_of(lower) != r.low || flag_of(upper) != r.low) return 0;
    // The payload was written before the lines.
    gds::fence_sys();
    return compose(r.low, kPlaced, static_cast<u64>(data_of(upper)) << 32 | data_of(lower));
}

// What the kernel of a sender waits for. libmp/src/kernels/params.rs has the same layout, and describes
// the fields.
struct Credit {
    u64 credit;
    u64 taken;
    u64 before;
    u64 after;
    u64 last;
};

GDS_DEVICE bool at_least(u64 word, u64 value) { return static_cast<long long>(word - value) >= 0; }

// Waits until the words of the message before are stored.
GDS_DEVICE void await_words_before(const Credit& p) {
    if (p.after != 0) GDS_SPIN_UNTIL(at_least(gds::load_acquire_sys(word_at(p.after)), p.last), 0);
}

// Waits until the slot is free. False: the library has released the wait, because the peer is lost.
GDS_DEVICE bool await_credit(const Credit& p) {
    const u32 before = static_cast<u32>(p.before);
    u32 looks = 0;
    u64 w = static_cast<u64>(before) << 48;
    auto credited = [&] {
        if (p.credit != 0) {
            if (at_least(gds::load_acquire_sys(word_at(p.credit)), p.before)) return true;
            if (looks++ % kLooks != 0) return false;
        }
        return reached(w = gds::load_acquire_sys(word_at(p.taken)), before);
    };
    if (p.taken != 0) GDS_SPIN_UNTIL(credited(), 0);
    // The number of the message before is in a failure that its receiver has stored.
    if (parse(w).kind == kFailed && parse(w).seq != (before & 0xffff)) return false;
    await_words_before(p);
    return true;
}

// Copies `len` bytes of the payload, from its byte `skip` on. `stop` ends the wait for a line; false:
// it did.
template <class Stop>
GDS_DEVICE bool read_room(const Room& r, u64 skip, u64 to, u64 len, Share s, Stop stop) {
    auto* bytes = reinterpret_cast<unsigned char*>(to);
    const u64 end = skip + len;
    GDS_NO_UNROLL
    for (u64 i = skip / 4 + s.first; i < (end + 3) / 4; i += s.step) {
        u64 v = 0;
        bool stopped = false;
        GDS_SPIN_UNTIL(flag_of(v = gds::load_relaxed_sys(r.payload(i))) == r.low || (stopped = stop()), 0);
        if (stopped) return false;
        // The bytes [4 i, 4 i + 4) of the payload, as far as they are requested.
        if (4 * i >= skip && 4 * i + 4 <= end && ((to + 4 * i - skip) & 3) == 0) {
            *reinterpret_cast<u32*>(bytes + (4 * i - skip)) = static_cast<u32>(v);
            continue;
        }
        GDS_NO_UNROLL
        for (u64 at = 4 * i; at < 4 * i + 4; at++) {
            if (at >= skip && at < end) bytes[at - skip] = static_cast<unsigned char>(v >> 8 * (at & 3));
        }
    }
    return true;
}

}  // namespace mp
