// The usual way to take a message in: each thread of its blocks polls the head of the room and its own parts of the
// message, so that nothing but the copy of these parts is behind their arrival.
#pragma once

#include "mp_flag.hpp"

namespace mp {

// The functions take a receive as a class `Wanted`, whose members are computed when they are needed, because registers
// are scarce:
// - room(), and room_lines(): the lines of payload that it has;
// - lines(): those of the payload, in the room or in a long room; lines_len(): the bytes of payload that they hold;
// - mark(): that of the head of a message in these lines, kLong or 0;
// - shares(): the blocks that take the message in, at most those of the launch;
// - to(), capacity(): the memory of the receive.

// The threads that look for the lines of the blocks of a sender: at least as many as it has (Direct::MOST_SHARES).
constexpr u32 kMostBlocks = 64;

// Whether each thread has at most so many parts of 8 bytes of a message in lines.
template <class Wanted>
GDS_DEVICE bool has_parts(const Wanted& w, u32 parts) {
    return least(w.capacity(), w.lines_len()) <= 8ull * parts * w.shares() * blockDim.x;
}

// Takes in a message of which each thread looks for at most so many parts, or for the line of a block of the sender.
// `Large`: the message may be in the memory of the receive; one block takes it in. All that does not depend on the
// message is computed before the wait, because the sender's latency includes what is behind it. `wait` evaluates a
// condition until it holds. `stop`: whether the wait ends without the message; the argument says whether the head is
// here. `end` ends the share of this block, by its first thread: whether the message is in the memory of the receive,
// and its length. False: the message is another one, or the memory of the receive is not aligned.
template <bool Large, u32 Parts, class Wanted, class Wait, class Stop, class End>
GDS_DEVICE bool take_parts(const Wanted& w, Wait wait, Stop stop, End end) {
    GDS_SHARED(u32, other);
    volatile u32* stopped = &other;
    const Room r = w.room();
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 at = 8 * index, next = 8 * w.shares() * blockDim.x;
    const u64 to = w.to() + at;
    const u64* lines = w.lines() + 2 * index;
    const u64 high = line(r.low, r.high);
    // The first two lines of the payload have the length of a message elsewhere.
    const u64* shown = r.lines() + kLengthLines + index;
    // A head that claims more blocks than the room has lines for is left to the general way, which refuses it.
    const u64 threads = blockDim.x < kMostBlocks ? blockDim.x : kMostBlocks;
    const u32 most_blocks = static_cast<u32>(least(threads, w.room_lines() - kLengthLines));
    const bool looks = !Large || index < most_blocks;
    const bool shows = Large && looks;
    const u32 most = static_cast<u32>(least(least(w.capacity(), w.lines_len()), Large ? 8 * most_blocks : Parts * next));
    if (threadIdx.x == 0) *stopped = 0;
    if (blockDim.x > 1) __syncthreads();
    u32 blocks = 0, len = ~0u;
    u64 shown_line = line(~r.low, 0);
    gds::Two v[Parts];
    for (u32 i = 0; i < Parts; i++) v[i] = none(r.low);
    auto come = [&] {
        const gds::Two head = gds::load_two_relaxed_sys(r.head());
        for (u32 i = 0; i < Parts; i++) {
            const bool has = at + i * next < most || (Large && index == 0);
            if (has) v[i] = gds::load_two_relaxed_sys(lines + i * next / 4);
        }
        // Acquires what the block of the sender has written.
        if (shows) shown_line = gds::load_acquire_sys(shown);
        const bool here = flag_of(head.low) == r.low && head.high == high;
        if (Large && here && (data_of(head.low) & kElsewhere) != 0) {
            blocks = data_of(head.low) & ~kElsewhere;
            if (blocks > most_blocks) return true;
            if ((index >= blocks || flag_of(shown_line) == r.low) && (index != 0 || have(v[0], r.low))) return true;
        } else if (here) {
            // A message in other lines seems to be too long.
            len = data_of(head.low) ^ w.mark();
            bool all = true;
            for (u32 i = 0; i < Parts; i++) all &= at + i * next >= len || have(v[i], r.low);
            if (len > most || all) return true;
        }
        if (stop(here)) *stopped = 1;
        if (*stopped == 0) return false;
        len = ~0u;
        blocks = Large ? ~0u : 0;
        return true;
    };
    if (looks) wait(come);
    gds::await_earlier_work();
    const bool placed = Large && blocks != 0;
    bool good = !looks || (placed ? blocks <= most_blocks : len <= most && (to & 7) == 0);
    if (placed && index == 0) {
        good = good && data_of(v[0]) <= w.capacity();
    } else if (__builtin_expect(!placed && good && looks, 1)) {
        for (u32 i = 0; i < Parts; i++) {
            const u32 from = at + i * next;
            if (__builtin_expect(from + 8 <= len, 1)) {
                *word_at(to + i * next) = data_of(v[i]);
            } else if (from < len) {
                store_eight(w.to(), 0, len, from, data_of(v[i]));
            }
        }
    }
    const bool bad = blockDim.x > 1 ? __syncthreads_or(!good) != 0 : !good;
    if (__builtin_expect(bad, 0)) return false;
    if (threadIdx.x == 0) end(placed, placed ? data_of(v[0]) : len);
    return true;
}

// As `take_parts`, with at most two parts for each thread. `large`: the message may be in the memory of the receive.
template <class Wanted, class Wait, class Stop, class End>
GDS_DEVICE bool take_usual(const Wanted& w, bool large, Wait wait, Stop stop, End end) {
    return large             ? take_parts<true, 1>(w, wait, stop, end)
           : has_parts(w, 1) ? take_parts<false, 1>(w, wait, stop, end)
                             : take_parts<false, 2>(w, wait, stop, end);
}

}  // namespace mp
