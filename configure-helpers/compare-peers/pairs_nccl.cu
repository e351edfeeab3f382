// Latency of NCCL's send and receive between two GPUs; pairs_gpu.hpp describes the rounds.
#include <nccl.h>

#include "pairs_gpu.hpp"

#define PAIRS_NCCL(call)                                                          \
    do {                                                                          \
        const ncclResult_t result = (call);                                       \
        if (result != ncclSuccess) ::pairs::fail(#call, ncclGetErrorString(result)); \
    } while (0)

struct Nccl {
    char *out = nullptr, *in = nullptr;

    Nccl(int rank, pairs::Shared& shared, size_t most, cudaStream_t stream) : peer_(1 - rank), stream_(stream) {
        int gpus = 0;
        PAIRS_CUDA(cudaGetDeviceCount(&gpus));
        // NCCL refuses two ranks of one host on one GPU.
        if (gpus == 1) setenv("NCCL_HOSTID", rank == 0 ? "first" : "second", 1);
        ncclUniqueId id;
        static_assert(sizeof id <= sizeof shared.id);
        if (rank == 0) {
            PAIRS_NCCL(ncclGetUniqueId(&id));
            memcpy(shared.id, &id, sizeof id);
        }
        shared.barrier();
        memcpy(&id, shared.id, sizeof id);
        PAIRS_NCCL(ncclCommInitRank(&comm_, 2, id, rank));
        PAIRS_CUDA(cudaMalloc(reinterpret_cast<void**>(&out), most));
        PAIRS_CUDA(cudaMalloc(reinterpret_cast<void**>(&in), most));
    }

    void send(size_t bytes) { PAIRS_NCCL(ncclSend(out, bytes, ncclChar, peer_, comm_, stream_)); }
    void receive(size_t bytes) { PAIRS_NCCL(ncclRecv(in, bytes, ncclChar, peer_, comm_, stream_)); }

   private:
    int peer_;
    cudaStream_t stream_;
    ncclComm_t comm_ = nullptr;
};

int main(int argc, char** argv) { return pairs::main<Nccl>(argc, argv); }
