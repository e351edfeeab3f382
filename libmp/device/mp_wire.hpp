// What the ranks tell each other in words, and how a request ends: what both kernels share.
// Words are seq(16) << 48 | kind(4) << 44 | len(44); the same format stands in
// libmp/src/wire/word.rs, the statuses in libgdsync/src/status.rs.
#pragma once

#include "gds_device.hpp"

namespace mp {

using gds::u32;
using gds::u64;

enum Kind : u32 {
    kEager = 1,     // the slot contains the payload
    kDirect = 2,    // the payload was written into the receive's memory
    kTooLong = 3,   // there is no payload: it would have been longer than the receive
    kAnnounce = 4,  // a sender without eager room asks for memory
    kReady = 5,     // the receive's memory: up to len bytes
    kRefused = 6,   // the receive has no memory for what was announced
    kTaken = 7,     // the payload was taken
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

// A length that does not fit is the greatest that does.
GDS_DEVICE u64 compose(u32 seq, u32 kind, u64 len) {
    return static_cast<u64>(seq & 0xffff) << 48 | static_cast<u64>(kind) << 44 | least(len, kLenMask);
}

// Whether the word belongs to message `seq`, whose number goes on after 16 bits. A peer that failed
// concerns every message that waits for it.
GDS_DEVICE bool belongs(const Word& w, u32 seq) { return w.kind == kFailed || w.seq == (seq & 0xffff); }

// Whether the word is about message `seq` or a later one.
GDS_DEVICE bool reached(u64 w, u32 seq) {
    return static_cast<long long>(w - (static_cast<u64>(seq) << 48)) >= 0;
}

// The status that a word of kind kFailed carries; kBadResponse in place of one without a failure.
GDS_DEVICE u32 failure(const Word& w) {
    const u32 status = static_cast<u32>(w.len) & 0xffff;
    return status > kSuccess && status < 0x8000 ? status : static_cast<u32>(kBadResponse);
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

// The first failure stays in the error word (if there is one): only a 0 becomes `status`.
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

// How a request ended, as its result says it.
GDS_DEVICE u64 ended(u32 status, u64 len) { return static_cast<u64>(status) << 48 | least(len, kLenMask); }

// The request has ended: a failure in the error word first, then the result.
GDS_DEVICE void finish(u64 result, u64 error, u32 status, u64 len) {
    if (status != kSuccess) note_failure(error, status);
    gds::store_release_sys(word_at(result), ended(status, len));
}

}  // namespace mp
