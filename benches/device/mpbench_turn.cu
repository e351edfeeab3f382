// A rank's turn: store the time, verify the received payload, write the payload to send. Every
// byte of both. benches/src/kernel.rs has the layouts of Turn and Tally too.
#include "pattern.hpp"

namespace mpbench {

// The result of verification; all turns of a run add to one.
struct Tally {
    u64 verified;  // bytes compared
    u64 wrong;     // bytes that differ
    u64 first;     // lowest tag << 32 | offset of a wrong byte, all ones if there is none
};

struct Turn {
    u64 arrived;     // payload to verify, 0: none
    u64 expect;      // its tag
    u64 leaving;     // payload to write, 0: none
    u64 tag;         // its tag
    u64 bytes;       // of each payload
    Tally* tally;
    u64* stamp;      // address for the time, 0: none
    u64 flip;        // offset at which one bit of the written payload is wrong, all ones: none
};

static_assert(sizeof(Turn) == 64 && sizeof(Tally) == 24, "layout");

// The words of this thread: each block has a stretch, which its threads interleave.
struct Share {
    u64 begin, end, step;
};

GDS_DEVICE Share share(u64 words) {
    const u64 stretch = (words + gridDim.x - 1) / gridDim.x;
    const u64 from = stretch * blockIdx.x;
    const u64 to = from + stretch < words ? from + stretch : words;
    return {from + threadIdx.x, to, blockDim.x};
}

// Step 0 is a step known at run time only: the compiler optimises step 1.
template <u64 Step>
GDS_DEVICE void fill(u64* to, u64 seed, const Share& s) {
    const u64 step = Step != 0 ? Step : s.step;
    for (u64 i = s.begin; i < s.end; i += step) to[i] = pattern_word(seed, i);
}

template <u64 Step>
GDS_DEVICE u64 difference(const u64* at, u64 seed, const Share& s) {
    const u64 step = Step != 0 ? Step : s.step;
    u64 bits = 0;
    for (u64 i = s.begin; i < s.end; i += step) bits |= at[i] ^ pattern_word(seed, i);
    return bits;
}

GDS_DEVICE unsigned char pattern_byte(u64 seed, u64 offset) {
    return static_cast<unsigned char>(pattern_word(seed, offset / 8) >> (8 * (offset % 8)));
}

GDS_DEVICE void verify_byte(const unsigned char* at, u64 seed, u64 offset, const Turn& t) {
    if (at[offset] == pattern_byte(seed, offset)) return;
    atomicAdd(&t.tally->wrong, 1);
    atomicMin(&t.tally->first, t.expect << 32 | offset);
}

GDS_DEVICE void verify(const Turn& t, const Share& s, bool tail) {
    const u64 seed = pattern_seed(t.expect);
    const u64* words = reinterpret_cast<const u64*>(t.arrived);
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(t.arrived);
    const u64 differs = s.step == 1 ? difference<1>(words, seed, s) : difference<0>(words, seed, s);
    if (differs != 0) {
        // Rare: byte by byte.
        for (u64 i = s.begin; i < s.end; i += s.step)
            for (u64 b = 0; b < 8; b++) verify_byte(bytes, seed, 8 * i + b, t);
    }
    u64 looked = s.begin < s.end ? 8 * ((s.end - s.begin + s.step - 1) / s.step) : 0;
    if (tail) {
        for (u64 o = t.bytes & ~7ull; o < t.bytes; o++) verify_byte(bytes, seed, o, t);
        looked += t.bytes & 7;
    }
    if (looked != 0) atomicAdd(&t.tally->verified, looked);
}

GDS_DEVICE void write(const Turn& t, const Share& s, bool tail) {
    const u64 seed = pattern_seed(t.tag);
    u64* words = reinterpret_cast<u64*>(t.leaving);
    unsigned char* bytes = reinterpret_cast<unsigned char*>(t.leaving);
    if (s.step == 1) {
        fill<1>(words, seed, s);
    } else {
        fill<0>(words, seed, s);
    }
    if (tail) {
        for (u64 o = t.bytes & ~7ull; o < t.bytes; o++) bytes[o] = pattern_byte(seed, o);
    }
    if (t.flip < t.bytes) {
        // The thread that wrote the byte flips its bit.
        const u64 word = t.flip / 8;
        const bool mine = t.flip >= (t.bytes & ~7ull)
                              ? tail
                              : word >= s.begin && word < s.end && (word - s.begin) % s.step == 0;
        if (mine) bytes[t.flip] ^= 1;
    }
}

}  // namespace mpbench

GDS_KERNEL(mpbench_turn, mpbench::Turn, t) {
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (first && t.stamp != nullptr) gds::store_relaxed_sys(t.stamp, gds::globaltimer_ns());
    const mpbench::Share share = mpbench::share(t.bytes / 8);
    if (t.arrived != 0) mpbench::verify(t, share, first);
    if (t.leaving != 0) mpbench::write(t, share, first);
}
