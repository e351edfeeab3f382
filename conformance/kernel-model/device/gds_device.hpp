// The device layer of kernels that run in the model: as gds_device.hpp of gdsync-build for GPUs, but
// each access to a word that others write is a call of src/lib.rs, with the order that it has on a GPU.
// A block has one thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define GDS_DEVICE inline
#define GDS_NO_UNROLL

#define GDS_KERNEL(name, Params, p)                                   \
    static inline void name##_body(const Params& p);                  \
    extern "C" void model_##name(const void* params) {                \
        name##_body(*static_cast<const Params*>(params));             \
    }                                                                 \
    static inline void name##_body([[maybe_unused]] const Params& p)

#define GDS_MOST_THREADS(name, Params, most) static_assert((most) > 0, "threads of a block")

#define GDS_SHARED(Type, name) ::gds::same<Type> name

#define GDS_SPIN_UNTIL(cond, timeout_ns) (::gds::spin_until([&]() -> bool { return static_cast<bool>(cond); }))

struct model_index {
    unsigned x, y, z;
};

constexpr model_index threadIdx{0, 0, 0}, blockDim{1, 1, 1};

extern "C" {
unsigned model_block(void);
unsigned model_blocks(void);
uint64_t model_load(const void* p, int acquires);
void model_store(void* p, uint64_t v);
uint64_t model_add(void* p, uint64_t v);
void model_fence(void);
[[noreturn]] void model_unknown(void);
}

#define blockIdx (model_index{model_block(), 0, 0})
#define gridDim (model_index{model_blocks(), 1, 1})

namespace gds {

using u32 = unsigned int;
using u64 = unsigned long long;

template <class T>
struct identity {
    using type = T;
};
template <class T>
using same = typename identity<T>::type;

template <class F>
GDS_DEVICE void spin_until(F cond) {
    while (!cond()) {
    }
}

GDS_DEVICE u64 load_acquire_sys(const u64* p) { return model_load(p, 1); }
GDS_DEVICE u64 load_relaxed_sys(const u64* p) { return model_load(p, 0); }
GDS_DEVICE void store_whole_sys(u64* p, u64 v) { model_store(p, v); }
GDS_DEVICE void store_relaxed_sys(u64* p, u64 v) { model_store(p, v); }
GDS_DEVICE void store_relaxed_sys(u32*, u32) { model_unknown(); }
GDS_DEVICE void fence_sys() { model_fence(); }
GDS_DEVICE void fence_gpu() { model_fence(); }
GDS_DEVICE void add_relaxed_sys(u64* p, u64 v) { model_add(p, v); }

GDS_DEVICE void add_release_gpu(u64* p, u64 v) {
    model_fence();
    model_add(p, v);
}

// Of the general receive, of graphs and of steps by several blocks: no model has them.
GDS_DEVICE u32 add_acq_rel_gpu(u32*, u32) { model_unknown(); }

GDS_DEVICE void store_release_sys(u64* p, u64 v) {
    model_fence();
    model_store(p, v);
}

struct Two {
    u64 low, high;
};

GDS_DEVICE Two load_two_relaxed_sys(const u64* p) {
    const u64 low = load_relaxed_sys(p);
    return {low, load_relaxed_sys(p + 1)};
}

GDS_DEVICE void store_two_whole_sys(u64* p, u64 low, u64 high) {
    // No order: the model has one of the two, and readers load them in the other one.
    model_store(p + 1, high);
    model_store(p, low);
}

// Of time limits: no model has them.
GDS_DEVICE u64 globaltimer_ns() { model_unknown(); }
GDS_DEVICE void launch_dependents() {}
GDS_DEVICE void await_earlier_work() {}
GDS_DEVICE u32 warp_size() { return 32; }
GDS_DEVICE void sync_warp() {}

}  // namespace gds

inline void __syncthreads() {}
inline int __syncthreads_or(int p) { return p; }

inline gds::u64 atomicAdd(gds::u64* p, gds::u64 v) { return model_add(p, v); }
// Of failures: no model has them.
inline gds::u32 atomicCAS_system(gds::u32*, gds::u32, gds::u32) { model_unknown(); }
