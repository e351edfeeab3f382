// The sender's half of a message whose destination or length is known only on the stream. It runs
// after the wait for the receiver's answer and before the doorbell: it patches the work requests and
// writes the message's stamp. One block of any number of threads for each message.
#include "mp_tasks.hpp"

namespace mp {

// The addresses of fields of one prepared work request; 0: the field is not changed.
struct Patch {
    u64 control;
    u64 remote_address;
    u64 remote_key;
    u64 length;
    u64 address;
};

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
template <u32 Capacity>
struct Stamp {
    u64 ready;
    u64 info;
    u64 stamp;
    u64 length;
    u64 offset;
    u64 size;
    u64 source;
    u64 result;
    u64 error;
    u64 stamp_control;
    u64 chunk;
    u32 chunks;
    u32 seq;
    Patch patch[Capacity];
};

// The memory of the receiver, in the format that accompanies the ready word.
struct Info {
    u64 addr;
    u32 rkey;
    u32 reserved;
};

static_assert(sizeof(Stamp<1>) == 136 && sizeof(Stamp<16>) == 736 && sizeof(Info) == 16, "layout");

GDS_DEVICE void patch32(u64 field, u32 value) {
    if (field != 0) gds::store_relaxed_sys(reinterpret_cast<u32*>(field), swap_bytes(value));
}

GDS_DEVICE void patch64(u64 field, u64 value) {
    if (field == 0) return;
    gds::store_relaxed_sys(word_at(field), swap_bytes(value));
}

// Turns a request into a NOP: the opcode is the lowest byte of the first dword.
GDS_DEVICE void silence(u64 control) { reinterpret_cast<unsigned char*>(control)[3] = 0; }

template <u32 Capacity>
GDS_DEVICE Departure departure(const Stamp<Capacity>& p, u64 offset, u64 len) {
    const u32 own = len > p.size || offset > p.size - len ? kLocalLength : kSuccess;
    if (p.ready == 0) return {own, false};
    const Departure d = answer(gds::load_acquire_sys(word_at(p.ready)), p.seq, len);
    return d.silent || own == kSuccess ? d : Departure{own, false};
}

template <u32 Capacity>
GDS_DEVICE void stamp(const Stamp<Capacity>& p) {
    const u64 len = p.length != 0 ? own_word(p.length) : p.size;
    const u64 offset = p.offset != 0 ? own_word(p.offset) : 0;
    const Departure d = departure(p, offset, len);
    const bool good = d.status == kSuccess;
    Info info{};
    if (good && p.ready != 0) info = *reinterpret_cast<const Info*>(p.info);
    GDS_NO_UNROLL
    for (u32 i = threadIdx.x; i < p.chunks; i += blockDim.x) {
        const Patch& patch = p.patch[i];
        const u64 from = i * p.chunk;
        if (!good || len <= from) {
            silence(patch.control);
            continue;
        }
        if (p.ready != 0) {
            patch64(patch.remote_address, info.addr + from);
            patch32(patch.remote_key, info.rkey);
        }
        patch32(patch.length, static_cast<u32>(least(len - from, p.chunk)));
        patch64(patch.address, p.source + offset + from);
    }
    if (threadIdx.x == 0) {
        if (d.silent) {
            // The receive has ended: the stamp may be a later message's of the slot.
            silence(p.stamp_control);
        } else {
            const u32 sent = p.ready != 0 ? kDirect : kEager;
            const u32 kind = good ? sent : static_cast<u32>(kTooLong);
            const u64 word = compose(p.seq, kind, len);
            gds::store_relaxed_sys(word_at(p.stamp), word);
            gds::store_relaxed_sys(word_at(p.stamp) + 1, word);
        }
        if (!good) finish(p.result, p.error, d.status, len);
    }
    // All writes are visible before the doorbell that follows.
    gds::fence_sys();
}

template <u32 Capacity>
using Stamps = Tasks<Stamp<1>, Capacity>;

static_assert(sizeof(Stamps<8>) == 1096 && sizeof(Stamps<30>) == 4088, "layout");

}  // namespace mp

GDS_KERNEL(mp_stamp_1, mp::Stamp<1>, p) { mp::stamp(p); }
GDS_KERNEL(mp_stamp_16, mp::Stamp<16>, p) { mp::stamp(p); }
GDS_KERNEL(mp_stamp_all_8, mp::Stamps<8>, p) { mp::run_all<mp::stamp<1>>(p); }
GDS_KERNEL(mp_stamp_all_30, mp::Stamps<30>, p) { mp::run_all<mp::stamp<1>>(p); }
