// The soft GPU's device language: the declarations with which the host compiler builds a kernel.
//
// Kernels are C++17 functions run by the software GPU: blocks are tasks, the threads of a
// block are fibers, one of them runs at a time and only yields at a barrier, a warp
// operation, a spin, a sleep or a repeated read of a clock that did not advance. So:
//   - a loop that waits for another thread goes through GDS_SPIN_UNTIL (gds_device.hpp) or
//     contains __nanosleep; one that only reads memory never ends;
//   - shared memory is declared by GDS_SHARED or GDS_DYNAMIC_SHARED, not by __shared__;
//   - kernels throw nothing and hold no object with a needed destructor across a suspension:
//     a kernel that is aborted (process exit, a killed rank) is not unwound;
//   - kernels use no thread_local: between two steps a grid may move to another thread.
// Build with -std=c++17 -fno-exceptions, this folder on the include path, and link the
// softgpu crate, which defines the softgpu_* functions.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// The data of a thread that its kernel reads; `View` in src/kernel/abi.rs.
struct softgpu_view {
    uint3 thread_idx, block_idx, block_dim, grid_dim;
    unsigned lane;
    unsigned warp_size;
};

enum softgpu_yield_reason : uint32_t {
    SOFTGPU_SPIN = 0,        // the first check of a false condition
    SOFTGPU_SPIN_AGAIN = 1,  // a further check, without other work since the last
    SOFTGPU_SLEEP = 2,       // do not resume before the deadline
};

enum softgpu_barrier_kind : uint32_t {
    SOFTGPU_BARRIER = 0,
    SOFTGPU_BARRIER_OR = 1,
    SOFTGPU_BARRIER_AND = 2,
    SOFTGPU_BARRIER_COUNT = 3,
};

enum softgpu_warp_kind : uint32_t {
    SOFTGPU_WARP_SYNC = 0,
    SOFTGPU_WARP_BALLOT = 1,
    SOFTGPU_WARP_SHUFFLE = 2,
    SOFTGPU_WARP_SHUFFLE_UP = 3,
    SOFTGPU_WARP_SHUFFLE_DOWN = 4,
    SOFTGPU_WARP_SHUFFLE_XOR = 5,
};

extern "C" {
// The view of the running thread; the same for as long as the thread lives.
const softgpu_view* softgpu_self(void) noexcept __attribute__((const));
// Storage of the block for the call site `key`; dynamic shared memory.
void* softgpu_shared(const void* key, size_t size, size_t align) noexcept;
void* softgpu_dynamic_shared(void) noexcept;
// Suspensions. A deadline of 0 is none.
void softgpu_yield(uint32_t reason, uint64_t deadline_ns) noexcept;
uint32_t softgpu_barrier(uint32_t kind, uint32_t predicate) noexcept;
uint64_t softgpu_warp(uint32_t kind, uint64_t mask, uint64_t value, uint32_t lane, uint32_t width) noexcept;
[[noreturn]] void softgpu_trap(void) noexcept;
// System-visible memory and time.
void softgpu_store32(uint32_t* p, uint32_t value) noexcept;
void softgpu_store64(uint64_t* p, uint64_t value) noexcept;
void softgpu_store64_whole(uint64_t* p, uint64_t value) noexcept;
uint32_t softgpu_load32(const uint32_t* p) noexcept;
uint64_t softgpu_load64(const uint64_t* p) noexcept;
void softgpu_settle(const void* p, size_t size) noexcept;
void softgpu_fence(void) noexcept;
uint64_t softgpu_now_ns(void) noexcept;
uint64_t softgpu_clock_ns(void) noexcept;
}

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Blocks take turns on one thread, so no C++ storage class belongs to a block.
#define __shared__ use_GDS_SHARED_or_GDS_DYNAMIC_SHARED_instead

#define threadIdx (softgpu_self()->thread_idx)
#define blockIdx (softgpu_self()->block_idx)
#define blockDim (softgpu_self()->block_dim)
#define gridDim (softgpu_self()->grid_dim)
#define warpSize (static_cast<int>(softgpu_self()->warp_size))

namespace softgpu {

template <class T>
struct same {
    using type = T;
};

template <class T>
inline uint64_t to_bits(T v) {
    static_assert(sizeof(T) <= 8, "warp operations move at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return bits;
}

template <class T>
inline T from_bits(uint64_t bits) {
    T v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

// Applies `f` to *p atomically; returns what was there.
template <class T, class F>
inline T update(T* p, F f) {
    softgpu_settle(p, sizeof *p);
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        next = f(old);
    } while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

}  // namespace softgpu

// One object of `type` for the whole block: GDS_SHARED(float[256], tile). It is not initialised.
#define GDS_SHARED(Type, name)                                               \
    static const char name##_key = 0;                                        \
    auto& name = *static_cast<::softgpu::same<Type>::type*>(softgpu_shared(  \
        &name##_key, sizeof(::softgpu::same<Type>::type), alignof(::softgpu::same<Type>::type)))

// A pointer to the block's dynamic shared memory, of the size given at launch.
#define GDS_DYNAMIC_SHARED(Type, name) Type* name = static_cast<Type*>(softgpu_dynamic_shared())

// Barriers of the block. Threads that have returned do not count.
inline void __syncthreads() { softgpu_barrier(SOFTGPU_BARRIER, 0); }
inline int __syncthreads_or(int p) { return static_cast<int>(softgpu_barrier(SOFTGPU_BARRIER_OR, p != 0)); }
inline int __syncthreads_and(int p) { return static_cast<int>(softgpu_barrier(SOFTGPU_BARRIER_AND, p != 0)); }
inline int __syncthreads_count(int p) { return static_cast<int>(softgpu_barrier(SOFTGPU_BARRIER_COUNT, p != 0)); }

// Warp operations. Masks have 64 bits, as those of HIP, of which a warp of 32 uses the lower half. A shuffle from a
// lane outside the mask, or from an ended one, is undefined.
inline void __syncwarp(uint64_t mask = ~0ull) { softgpu_warp(SOFTGPU_WARP_SYNC, mask, 0, 0, 32); }
inline uint64_t __ballot_sync(uint64_t mask, int p) {
    return softgpu_warp(SOFTGPU_WARP_BALLOT, mask, p != 0, 0, 32);
}
inline int __any_sync(uint64_t mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(uint64_t mask, int p) { return __ballot_sync(mask, !p) == 0; }
// Threads run separately except in a warp operation: the active mask is the caller alone.
inline uint64_t __activemask() { return 1ull << softgpu_self()->lane; }

template <class T>
inline T __shfl_sync(uint64_t mask, T v, int lane, int width = warpSize) {
    return softgpu::from_bits<T>(softgpu_warp(SOFTGPU_WARP_SHUFFLE, mask, softgpu::to_bits(v),
                                              static_cast<uint32_t>(lane), static_cast<uint32_t>(width)));
}
template <class T>
inline T __shfl_up_sync(uint64_t mask, T v, unsigned delta, int width = warpSize) {
    return softgpu::from_bits<T>(
        softgpu_warp(SOFTGPU_WARP_SHUFFLE_UP, mask, softgpu::to_bits(v), delta, static_cast<uint32_t>(width)));
}
template <class T>
inline T __shfl_down_sync(uint64_t mask, T v, unsigned delta, int width = warpSize) {
    return softgpu::from_bits<T>(
        softgpu_warp(SOFTGPU_WARP_SHUFFLE_DOWN, mask, softgpu::to_bits(v), delta, static_cast<uint32_t>(width)));
}
template <class T>
inline T __shfl_xor_sync(uint64_t mask, T v, int lane_mask, int width = warpSize) {
    return softgpu::from_bits<T>(softgpu_warp(SOFTGPU_WARP_SHUFFLE_XOR, mask, softgpu::to_bits(v),
                                              static_cast<uint32_t>(lane_mask), static_cast<uint32_t>(width)));
}

// Atomics: on the memory itself, at once, sequentially consistent, also with the host.
template <class T>
inline T atomicAdd(T* p, typename softgpu::same<T>::type v) {
    return softgpu::update(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T>
inline T atomicExch(T* p, typename softgpu::same<T>::type v) {
    return softgpu::update(p, [v](T) { return v; });
}
template <class T>
inline T atomicMax(T* p, typename softgpu::same<T>::type v) {
    return softgpu::update(p, [v](T old) { return old < v ? v : old; });
}
template <class T>
inline T atomicMin(T* p, typename softgpu::same<T>::type v) {
    return softgpu::update(p, [v](T old) { return v < old ? v : old; });
}
template <class T>
inline T atomicOr(T* p, typename softgpu::same<T>::type v) {
    return softgpu::update(p, [v](T old) { return static_cast<T>(old | v); });
}
template <class T>
inline T atomicAnd(T* p, typename softgpu::same<T>::type v) {
    return softgpu::update(p, [v](T old) { return static_cast<T>(old & v); });
}
template <class T>
inline T atomicCAS(T* p, typename softgpu::same<T>::type expected, typename softgpu::same<T>::type v) {
    softgpu_settle(p, sizeof *p);
    __atomic_compare_exchange(p, &expected, &v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

// Threads of one GPU observe each other's stores at once here; only the system fence has an effect.
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { softgpu_fence(); }

inline void __nanosleep(unsigned ns) { softgpu_yield(SOFTGPU_SLEEP, softgpu_now_ns() + (ns != 0 ? ns : 1)); }
// Nanoseconds, since the soft GPU has no separate clock.
inline long long clock64() { return static_cast<long long>(softgpu_clock_ns()); }
[[noreturn]] inline void __trap() { softgpu_trap(); }

template <class T>
inline T __ldg(const T* p) {
    return *p;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
