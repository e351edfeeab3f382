// The words that ranks exchange, and the end of a request: the common part of the kernels of messages.
// A word is seq(16) << 48 | kind(4) << 44 | len(44). libmp/src/wire/word.rs has the same format,
// libgdsync/src/status.rs the statuses.
#pragma once

#include "gds_device.hpp"

namespace mp {

using gds::u32;
using gds::u64;

enum Kind : u32 {
    kEager = 1,     // the slot contains the payload
    kDirect = 2,    // the payload was written into the receive's memory
    kTooLong = 3,   // no payload: it is longer than the receive
    kAnnounce = 4,  // the sender waits for the memory of the receive (rendezvous)
    kReady = 5,     // the receive's memory: up to len bytes
    kRefused = 6,   // the receive has ended without the message
    kTaken = 7,     // the receiver has taken the payload
    kFlagged = 8,   // the flagged room contains the payload
    kPlaced = 9,    // as kDirect, from the flagged room: no word has it
    kLongRoom = 10, // as kFlagged, in the room for longer messages: no word has it
    kFailed = 15,   // len is a status
};

enum Status : u32 {
    kSuccess = 1,
    kLocalLength = 5,
    kBadResponse = 8,
    kTruncated = 18,
};

constexpr u64 kLenMask = (1ull << 44) - 1;

struct Word {
    u32 seq;
    u32 kind;
    u64 len;
};

GDS_DEVICE Word parse(u64 w) { return {static_cast<u32>(w >> 48), static_cast<u32>(w >> 44) & 0xf, w & kLenMask}; }

GDS_DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// A length that is too large is stored as the largest possible one.
GDS_DEVICE u64 compose(u32 seq, u32 kind, u64 len) {
    return static_cast<u64>(seq & 0xffff) << 48 | static_cast<u64>(kind) << 44 | least(len, kLenMask);
}

// Whether the word belongs to message `seq`; it has the low 16 bits of the number. The failure of a
// peer concerns every message.
GDS_DEVICE bool belongs(const Word& w, u32 seq) { return w.kind == kFailed || w.seq == (seq & 0xffff); }

// Whether the word is about message `seq` or a later one.
GDS_DEVICE bool reached(u64 w, u32 seq) {
    return static_cast<long long>(w - (static_cast<u64>(seq) << 48)) >= 0;
}

// The status in a word of kind kFailed; a status that is no failure is a bad response.
GDS_DEVICE u32 failure(const Word& w) {
    const u32 status = static_cast<u32>(w.len) & 0xffff;
    return status > kSuccess && status < 0x8000 ? status : static_cast<u32>(kBadResponse);
}

// The status of a send. `silent`: the receiver does not wait for its words.
struct Departure {
    u32 status;
    bool silent;
};

// What the receiver's ready word `w` answers to message `seq` of `len` bytes.
GDS_DEVICE Departure answer(u64 w, u32 seq, u64 len) {
    const Word r = parse(w);
    if (!belongs(r, seq)) {
        // The receive has ended, and a later one uses its slot.
        const bool later = static_cast<short>(r.seq - seq) > 0 && r.kind == kReady;
        return {static_cast<u32>(later ? kTruncated : kBadResponse), true};
    }
    switch (r.kind) {
        case kReady: return {static_cast<u32>(len > r.len ? kTruncated : kSuccess), false};
        case kRefused: return {kTruncated, true};
        case kFailed: return {failure(r), true};
        default: return {kBadResponse, true};
    }
}

// Fields of work requests are big-endian.
GDS_DEVICE u32 swap_bytes(u32 v) {
    return v >> 24 | (v >> 8 & 0xff00u) | (v << 8 & 0xff0000u) | v << 24;
}

GDS_DEVICE u64 swap_bytes(u64 v) {
    const u64 high = swap_bytes(static_cast<u32>(v)), low = swap_bytes(static_cast<u32>(v >> 32));
    return high << 32 | low;
}

GDS_DEVICE u64* word_at(u64 addr) { return reinterpret_cast<u64*>(addr); }

// A word written by earlier work of the stream.
GDS_DEVICE u64 own_word(u64 addr) {
#if defined(GDS_SOFT)
    return gds::load_acquire_sys(word_at(addr));
#else
    return *word_at(addr);
#endif
}

// The error word, if there is one, keeps the first failure: only a 0 becomes `status`.
GDS_DEVICE void note_failure(u64 error, u32 status) {
    if (error == 0) return;
    u32* at = reinterpret_cast<u32*>(error);
#if defined(GDS_SOFT)
    atomicCAS(at, 0u, status);
#elif defined(GDS_HIP)
    u32 expected = 0;
    __hip_atomic_compare_exchange_strong(at, &expected, status, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_SYSTEM);
#else
    atomicCAS_system(at, 0u, status);
#endif
}

// The result word of a request that has ended.
GDS_DEVICE u64 ended(u32 status, u64 len) { return static_cast<u64>(status) << 48 | least(len, kLenMask); }

// Ends the request: stores a failure in the error word first, then the result.
GDS_DEVICE void finish(u64 result, u64 error, u32 status, u64 len) {
    if (status != kSuccess) note_failure(error, status);
    gds::store_release_sys(word_at(result), ended(status, len));
}

}  // namespace mp
