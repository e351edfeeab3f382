// The portable device layer: one kernel source for nvcc (sm_70 and later), for HIP (clang alone, hipcc) and
// for the soft GPU, also through NVRTC and HIPRTC.
//
//   struct Params { uint32_t* flag; uint32_t value; };
//   GDS_KERNEL(raise_flag, Params, p) {
//       if (threadIdx.x == 0) gds::store_release_sys(p.flag, p.value);
//   }
//
// GDS_KERNEL(name, Params, p)       defines a kernel that takes one struct by value
// GDS_MOST_THREADS(name, Params, n) the kernel runs in blocks of at most n threads; without it, the number
//                                   of its registers may allow fewer than the GPU does
// GDS_DEVICE                        before a function that kernels call
// GDS_SHARED(Type, name)            one object for the block, GDS_SHARED(float[64], tile)
// GDS_DYNAMIC_SHARED(Type, name)    a pointer to the block's dynamic shared memory
// GDS_SPIN_UNTIL(cond, timeout_ns)  waits; true if the condition held, false after the
//                                   timeout; a timeout of 0 is none
// GDS_NO_UNROLL                     before a loop with few turns: small code starts faster
// gds::load_acquire_sys(p)          32 or 64 bits; later accesses stay after it
// gds::load_relaxed_sys(p)          no order
// gds::store_relaxed_sys(p, v)      no order
// gds::store_whole_sys(p, v)        64 bits, no order, visible at once in both halves
// gds::load_two_relaxed_sys(p)      two of 64 bits, aligned to 16 bytes; each is loaded at once
// gds::store_two_whole_sys(p, a, b) two of 64 bits, aligned to 16 bytes; each is visible at once
// gds::store_release_sys(p, v)      earlier accesses stay before it
// gds::fence_sys()                  earlier accesses stay before later ones, system scope
// gds::fence_gpu()                  the same for observers of this GPU
// gds::add_relaxed_sys(p, v)        64 bits: an atomic add without order, whose old value is not returned
// gds::add_release_gpu(p, v)        as that; earlier accesses stay before it, for observers of fence_gpu
// gds::add_acq_rel_gpu(p, v)        32 bits: an atomic add between two such fences; returns the old value
// gds::warp_size()                  threads of a warp: 32 on CUDA, 32 or 64 on HIP and the soft GPU
// gds::sync_warp()                  earlier accesses of the threads of a warp stay before their later ones
// gds::globaltimer_ns()             a clock in nanoseconds, its start unknown
// gds::launch_dependents()          in a dependent launch: the next one may start
// gds::await_earlier_work()         in a dependent launch: the earlier work of the stream has ended
// Use gds::load_acquire_sys or atomics to read a word that gds::store_* has written. 64-bit
// atomics take gds::u64*, the type for which all compilers have them.
#pragma once

#if defined(__CUDACC_RTC__)
// Runtime compilers have no system headers.
#define GDS_DEVICE inline __device__
#elif defined(__CUDACC__)
#include <stdint.h>
#define GDS_DEVICE inline __device__
#elif defined(__HIPCC__) || defined(__HIPCC_RTC__)
#include "gds_hip.hpp"
#define GDS_DEVICE inline __device__
#else
#include "softgpu.hpp"
#define GDS_DEVICE inline
#define GDS_SOFT 1
#endif

#if defined(__CUDACC__)
#define GDS_CUDA 1
#elif defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define GDS_HIP 1
// The rate of wall_clock64(), hipDeviceAttributeWallClockRate; 100 MHz on the CDNA cards.
#ifndef GDS_HIP_WALL_CLOCK_KHZ
#define GDS_HIP_WALL_CLOCK_KHZ 100000ull
#endif
#endif

#if defined(GDS_MODULE)
// Modules of one program may have kernels of one name.
#define GDS_JOIN(name, module) name##_of_##module
#define GDS_EXPAND(name, module) GDS_JOIN(name, module)
#define GDS_SYMBOL(name) GDS_EXPAND(name, GDS_MODULE)
#else
#define GDS_SYMBOL(name) name
#endif

#if defined(GDS_SOFT)
#define GDS_KERNEL(name, Params, p)                                       \
    static inline void name##_body(const Params& p);                      \
    extern "C" void GDS_SYMBOL(name)(const void* params) noexcept {       \
        name##_body(*static_cast<const Params*>(params));                 \
    }                                                                     \
    extern "C" size_t GDS_SYMBOL(name##_params_size)() noexcept {         \
        return sizeof(Params);                                            \
    }                                                                     \
    static inline void name##_body([[maybe_unused]] const Params& p)
#else
#if defined(GDS_HIP)
// The parameter is read where the launch has stored it. A parameter that is indexed would be copied to memory of
// each thread.
#define GDS_KERNEL(name, Params, p)                                                           \
    static GDS_DEVICE void name##_body(const Params& p);                                      \
    extern "C" __global__ void name(const Params) {                                           \
        name##_body(*(const Params*)__builtin_amdgcn_kernarg_segment_ptr());                  \
    }                                                                                         \
    static GDS_DEVICE void name##_body(const Params& p)
#else
#define GDS_KERNEL(name, Params, p) extern "C" __global__ void name(const Params p)
#endif
#define GDS_SHARED(Type, name) __shared__ ::gds::same<Type> name
#define GDS_DYNAMIC_SHARED(Type, name)                                          \
    extern __shared__ __align__(16) unsigned char gds_dynamic_shared_storage[]; \
    Type* name = reinterpret_cast<Type*>(gds_dynamic_shared_storage)
#endif

// In front of the kernel.
#if defined(GDS_SOFT)
#define GDS_MOST_THREADS(name, Params, most) static_assert((most) > 0, "threads of a block")
#else
#define GDS_MOST_THREADS(name, Params, most) extern "C" __global__ void __launch_bounds__(most) name(const Params p)
#endif

#if defined(GDS_SOFT)
#define GDS_NO_UNROLL
#else
#define GDS_NO_UNROLL _Pragma("unroll 1")
#endif

#define GDS_SPIN_UNTIL(cond, timeout_ns) \
    (::gds::spin_until([&]() -> bool { return static_cast<bool>(cond); }, (timeout_ns)))

namespace gds {

using u32 = unsigned int;
using u64 = unsigned long long;

template <class T>
struct identity {
    using type = T;
};
template <class T>
using same = typename identity<T>::type;

// The type of a word of this size, for every name that a platform uses.
template <class T>
struct word_check {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word has 32 or 64 bits");
};

template <class T>
GDS_DEVICE T load_acquire_sys(const T* p) {
    word_check<T>();
#if defined(GDS_SOFT)
    if constexpr (sizeof(T) == 4) {
        return static_cast<T>(softgpu_load32(reinterpret_cast<const uint32_t*>(p)));
    } else {
        return static_cast<T>(softgpu_load64(reinterpret_cast<const uint64_t*>(p)));
    }
#elif defined(GDS_HIP)
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    if constexpr (sizeof(T) == 4) {
        u32 v;
        asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return static_cast<T>(v);
    } else {
        u64 v;
        asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
        return static_cast<T>(v);
    }
#endif
}

template <class T>
GDS_DEVICE T load_relaxed_sys(const T* p) {
    word_check<T>();
#if defined(GDS_SOFT)
    return load_acquire_sys(p);
#elif defined(GDS_HIP)
    return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    if constexpr (sizeof(T) == 4) {
        u32 v;
        asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return static_cast<T>(v);
    } else {
        u64 v;
        asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
        return static_cast<T>(v);
    }
#endif
}

template <class T>
GDS_DEVICE void store_relaxed_sys(T* p, typename identity<T>::type v) {
    word_check<T>();
#if defined(GDS_SOFT)
    if constexpr (sizeof(T) == 4) {
        softgpu_store32(reinterpret_cast<uint32_t*>(p), static_cast<uint32_t>(v));
    } else {
        softgpu_store64(reinterpret_cast<uint64_t*>(p), static_cast<uint64_t>(v));
    }
#elif defined(GDS_HIP)
    __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    if constexpr (sizeof(T) == 4) {
        asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(static_cast<u32>(v)) : "memory");
    } else {
        asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"(static_cast<u64>(v)) : "memory");
    }
#endif
}

// CUDA C++, memory model, atomicity: a naturally aligned store of 8 bytes to device memory or to mapped
// host memory is atomic at system scope.
GDS_DEVICE void store_whole_sys(u64* p, u64 v) {
#if defined(GDS_SOFT)
    softgpu_store64_whole(reinterpret_cast<uint64_t*>(p), v);
#else
    store_relaxed_sys(p, v);
#endif
}

struct Two {
    u64 low, high;
};

// PTX ISA, memory consistency model, vector data types: a vector access is one of its elements each,
// without an order.
GDS_DEVICE Two load_two_relaxed_sys(const u64* p) {
#if defined(GDS_CUDA)
    Two v;
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(p) : "memory");
    return v;
#else
    return {load_relaxed_sys(p), load_relaxed_sys(p + 1)};
#endif
}

GDS_DEVICE void store_two_whole_sys(u64* p, u64 low, u64 high) {
#if defined(GDS_CUDA)
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(low), "l"(high) : "memory");
#else
    store_whole_sys(p, low);
    store_whole_sys(p + 1, high);
#endif
}

GDS_DEVICE void fence_sys() {
#if defined(GDS_SOFT)
    softgpu_fence();
#elif defined(GDS_HIP)
    hip::release_sys();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

GDS_DEVICE void fence_gpu() {
#if defined(GDS_SOFT)
    softgpu_fence();
#elif defined(GDS_HIP)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    hip::drain();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

GDS_DEVICE void add_relaxed_sys(u64* p, u64 v) {
#if defined(GDS_CUDA)
    asm volatile("red.relaxed.sys.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#elif defined(GDS_HIP)
    __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    atomicAdd(p, v);
#endif
}

// A fence in front of an add without order takes longer: it also acquires.
GDS_DEVICE void add_release_gpu(u64* p, u64 v) {
#if defined(GDS_CUDA)
    asm volatile("red.release.gpu.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
    fence_gpu();
    add_relaxed_sys(p, v);
#endif
}

GDS_DEVICE u32 add_acq_rel_gpu(u32* p, u32 v) {
#if defined(GDS_CUDA)
    u32 before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
    return before;
#else
    fence_gpu();
    const u32 before = atomicAdd(p, v);
    fence_gpu();
    return before;
#endif
}

template <class T>
GDS_DEVICE void store_release_sys(T* p, typename identity<T>::type v) {
    word_check<T>();
#if defined(GDS_SOFT)
    softgpu_fence();
    store_relaxed_sys(p, v);
#elif defined(GDS_HIP)
    hip::release_sys();
    store_relaxed_sys(p, v);
#else
    if constexpr (sizeof(T) == 4) {
        asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(static_cast<u32>(v)) : "memory");
    } else {
        asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(static_cast<u64>(v)) : "memory");
    }
#endif
}

// PTX of an older target has these instructions as comments. The library removes the marks when it
// loads the text on a GPU of compute capability 9.0 or later (gpu/cuda/dependent.rs).
#if defined(GDS_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GDS_FROM_SM_90(text) asm volatile(text ::: "memory")
#elif defined(GDS_CUDA)
#define GDS_FROM_SM_90(text) asm volatile("/*sm_90 " text "*/" ::: "memory")
#else
#define GDS_FROM_SM_90(text)
#endif

GDS_DEVICE void launch_dependents() { GDS_FROM_SM_90("griddepcontrol.launch_dependents;"); }
GDS_DEVICE void await_earlier_work() { GDS_FROM_SM_90("griddepcontrol.wait;"); }

// A block of 32 threads is one warp everywhere, if a warp of 64 is half empty.
GDS_DEVICE u32 warp_size() {
#if defined(GDS_SOFT)
    return static_cast<u32>(warpSize);
#elif defined(GDS_HIP) && __has_builtin(__builtin_amdgcn_wavefrontsize)
    return __builtin_amdgcn_wavefrontsize();
#elif defined(GDS_HIP)
    return static_cast<u32>(warpSize);
#else
    return 32;
#endif
}

// The threads of a warp of HIP may run in lockstep: one that waits for a store of another one, outside of such a
// call or a loop that both are in, may never see it.
GDS_DEVICE void sync_warp() {
#if defined(GDS_HIP)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
    __syncwarp();
#endif
}

GDS_DEVICE u64 globaltimer_ns() {
#if defined(GDS_SOFT)
    return softgpu_clock_ns();
#elif defined(GDS_HIP)
#if __has_builtin(__builtin_readsteadycounter)
    const u64 ticks = __builtin_readsteadycounter();
#else
    const u64 ticks = static_cast<u64>(wall_clock64());
#endif
    const u64 khz = GDS_HIP_WALL_CLOCK_KHZ;
    return ticks / khz * 1000000ull + ticks % khz * 1000000ull / khz;
#else
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
#endif
}

// Waits until `cond()` holds; use GDS_SPIN_UNTIL. The clock is read before the condition, so
// the condition is evaluated once more after the timeout.
template <class F>
GDS_DEVICE bool spin_until(F cond, u64 timeout_ns) {
#if defined(GDS_SOFT)
    if (cond()) return true;
    const u64 start = timeout_ns != 0 ? softgpu_now_ns() : 0;
    const u64 deadline = timeout_ns > ~0ull - start ? ~0ull : start + timeout_ns;
    for (uint32_t reason = SOFTGPU_SPIN;; reason = SOFTGPU_SPIN_AGAIN) {
        softgpu_yield(reason, timeout_ns != 0 ? deadline : 0);
        const bool late = timeout_ns != 0 && softgpu_now_ns() >= deadline;
        if (cond()) return true;
        if (late) return false;
    }
#else
    // No pause: each load takes a bus round trip, and the loads of one warp delay no other work.
    if (timeout_ns == 0) {
        GDS_NO_UNROLL
        while (!cond()) {
        }
        return true;
    }
    const u64 start = globaltimer_ns();
    for (;;) {
        const bool late = globaltimer_ns() - start >= timeout_ns;
        if (cond()) return true;
        if (late) return false;
    }
#endif
}

}  // namespace gds
