// The device language of HIP for gds_device.hpp. HIPRTC, and compilers that include HIP's headers, have it
// already. For plain clang (-nogpuinc, -nogpulib) this header declares, by builtins, what kernels may use:
// indices and dimensions, shared memory, barriers, atomics. There are no functions of mathematics: those are in
// HIP's device libraries.
#pragma once

#if defined(__CLANG_HIP_RUNTIME_WRAPPER_H__)
#include <hip/hip_runtime.h>
#elif !defined(__HIPCC_RTC__)
#define GDS_HIP_PLAIN 1

typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(most) __attribute__((amdgpu_flat_work_group_size(1, most)))

namespace gds {
namespace hip {

struct Three {
    unsigned x, y, z;
};

__device__ inline Three thread_index() {
    return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
__device__ inline Three block_index() {
    return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
__device__ inline Three block_size() {
    return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
            __builtin_amdgcn_workgroup_size_z()};
}
// LLVM, AMDGPU usage, code object V5: the hidden arguments begin with the numbers of blocks.
__device__ inline Three grid_size() {
    const auto* counts = (const unsigned*)__builtin_amdgcn_implicitarg_ptr();
    return {counts[0], counts[1], counts[2]};
}

template <class T>
struct same {
    using type = T;
};

}  // namespace hip
}  // namespace gds

#define threadIdx (::gds::hip::thread_index())
#define blockIdx (::gds::hip::block_index())
#define blockDim (::gds::hip::block_size())
#define gridDim (::gds::hip::grid_size())

// As in CUDA, these are atomic for this GPU, and order nothing.
#define GDS_HIP_ATOMIC(name, operation)                                                    \
    template <class T>                                                                     \
    __device__ inline T name(T* p, typename gds::hip::same<T>::type v) {                   \
        return operation(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);                \
    }
GDS_HIP_ATOMIC(atomicAdd, __hip_atomic_fetch_add)
GDS_HIP_ATOMIC(atomicExch, __hip_atomic_exchange)
GDS_HIP_ATOMIC(atomicMin, __hip_atomic_fetch_min)
GDS_HIP_ATOMIC(atomicMax, __hip_atomic_fetch_max)
GDS_HIP_ATOMIC(atomicAnd, __hip_atomic_fetch_and)
GDS_HIP_ATOMIC(atomicOr, __hip_atomic_fetch_or)
GDS_HIP_ATOMIC(atomicXor, __hip_atomic_fetch_xor)
#undef GDS_HIP_ATOMIC

template <class T>
__device__ inline T atomicCAS(T* p, typename gds::hip::same<T>::type expected, typename gds::hip::same<T>::type v) {
    __hip_atomic_compare_exchange_strong(p, &expected, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_AGENT);
    return expected;
}
#endif

namespace gds {
namespace hip {

// Waits until the earlier accesses of this wave have ended: loads and stores, and the writing back of caches.
__device__ inline void drain() {
#if defined(__GFX12__)
    asm volatile("s_wait_loadcnt 0x0\n\ts_wait_storecnt 0x0" ::: "memory");
#elif defined(__GFX10__) || defined(__GFX11__)
    asm volatile("s_waitcnt vmcnt(0)\n\ts_waitcnt_vscnt null, 0x0" ::: "memory");
#elif defined(__AMDGCN__)
    asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}

// Clang up to 22 leaves out the wait behind the writing back of the caches on gfx90a and gfx942 if it knows of no
// other access to wait for (LLVM, pull request 178316).
__device__ inline void release_sys() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
    drain();
}

// A release of the block alone does not wait for the stores of this wave (LLVM, pull request 160501). A fence of the
// system by a thread of another wave behind the barrier would then not cover them.
__device__ inline void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    drain();
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The predicates of all threads of the block. The first barrier separates this call from the one before.
__device__ inline unsigned votes(bool vote) {
    __attribute__((shared)) unsigned count;
    const unsigned at = __builtin_amdgcn_workitem_id_x() | __builtin_amdgcn_workitem_id_y() |
                        __builtin_amdgcn_workitem_id_z();
    barrier();
    if (at == 0) count = 0;
    barrier();
    if (vote) __hip_atomic_fetch_add(&count, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    barrier();
    return count;
}

}  // namespace hip
}  // namespace gds

#define __syncthreads() (::gds::hip::barrier())
#define __syncthreads_or(vote) (static_cast<int>(::gds::hip::votes((vote) != 0) != 0))
