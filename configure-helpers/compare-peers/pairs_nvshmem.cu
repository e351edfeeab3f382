// Latency of NVSHMEM's puts with a signal, enqueued on streams, between two GPUs; pairs_gpu.hpp
// describes the rounds. The receiver's stream waits for the signal.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "pairs_gpu.hpp"

struct Nvshmem {
    char *out = nullptr, *in = nullptr;

    Nvshmem(int rank, pairs::Shared& shared, size_t most, cudaStream_t stream) : peer_(1 - rank), stream_(stream) {
        nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
        static_assert(sizeof id <= sizeof shared.id);
        if (rank == 0) {
            if (nvshmemx_get_uniqueid(&id) != 0) pairs::fail("nvshmemx_get_uniqueid", "failed");
            memcpy(shared.id, &id, sizeof id);
        }
        shared.barrier();
        memcpy(&id, shared.id, sizeof id);
        nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
        if (nvshmemx_set_attr_uniqueid_args(rank, 2, &id, &attributes) != 0 ||
            nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0)
            pairs::fail("nvshmemx_init_attr", "failed");
        out = static_cast<char*>(nvshmem_malloc(most));
        in = static_cast<char*>(nvshmem_malloc(most));
        signal_ = static_cast<uint64_t*>(nvshmem_calloc(1, sizeof *signal_));
        if (out == nullptr || in == nullptr || signal_ == nullptr)
            pairs::fail("nvshmem_malloc", "no symmetric memory");
        nvshmem_barrier_all();
    }

    void send(size_t bytes) {
        nvshmemx_putmem_signal_on_stream(in, out, bytes, signal_, ++sent_, NVSHMEM_SIGNAL_SET, peer_, stream_);
    }
    void receive(size_t) { nvshmemx_signal_wait_until_on_stream(signal_, NVSHMEM_CMP_GE, ++received_, stream_); }

   private:
    int peer_;
    cudaStream_t stream_;
    uint64_t *signal_ = nullptr, sent_ = 0, received_ = 0;
};

int main(int argc, char** argv) { return pairs::main<Nvshmem>(argc, argv); }
