// Latency between two GPUs of this host, for the programs pairs_nccl.cu and pairs_nvshmem.cu: the
// same rounds and the same numbers of iterations as `mpbench latency --poster stream` and
// `mpbench ahead`.
//
//   PROGRAM WARM-UP BYTES:ITERATIONS..
//
// Two processes, one GPU each. Rank 0 sends and receives, rank 1 receives and sends, in the order of
// a stream. For each size, the program prints the bytes and two figures, in microseconds one way:
//   latency  the clock of the host, while it enqueues at most two batches of 64 rounds
//   ahead    the clock of the GPU: batches of 32 rounds behind a closed gate, median
// The received bytes are compared at the end of each size. A process that hangs is ended.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace pairs {

constexpr int kBatch = 64, kAhead = 32;
constexpr unsigned kLimit = 100;  // seconds

[[noreturn]] inline void fail(const char* what, const char* why) {
    fprintf(stderr, "%s: %s\n", what, why);
    _exit(1);
}

#define PAIRS_CUDA(call)                                                          \
    do {                                                                          \
        const cudaError_t result = (call);                                        \
        if (result != cudaSuccess) ::pairs::fail(#call, cudaGetErrorString(result)); \
    } while (0)

// Memory of both processes.
struct Shared {
    std::atomic<int> arrived;  // at barriers, counted up by both ranks
    char id[1024];             // what rank 0 makes for the library, valid behind the first barrier

    void barrier() {
        const int last = (arrived.fetch_add(1) / 2 + 1) * 2;
        while (arrived.load() < last) usleep(20);
    }
};

inline char payload(size_t i, int rank) { return static_cast<char>(7 * i + rank); }

// A rank. `Link` sends and receives `bytes` bytes on a stream:
//   Link(int rank, Shared&, size_t most, cudaStream_t), send(bytes), receive(bytes), out, in
template <class Link>
class Rank {
   public:
    Rank(int number, Shared& shared, size_t most)
        : number_(number), shared_(shared), stream_(make_stream()), link_(number, shared, most, stream_) {
        PAIRS_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&gate_), sizeof *gate_, cudaHostAllocMapped));
        *gate_ = 0;
        for (cudaEvent_t& event : events_) PAIRS_CUDA(cudaEventCreate(&event));
    }

    void measure(int warm_up, size_t bytes, int iterations) {
        std::vector<char> host(bytes);
        for (size_t i = 0; i < bytes; i++) host[i] = payload(i, number_);
        PAIRS_CUDA(cudaMemcpy(link_.out, host.data(), bytes, cudaMemcpyHostToDevice));
        PAIRS_CUDA(cudaMemset(link_.in, 0xee, bytes));
        PAIRS_CUDA(cudaDeviceSynchronize());
        shared_.barrier();
        enqueued(warm_up, bytes);
        shared_.barrier();
        const double latency = enqueued(iterations, bytes);
        std::vector<double> ahead;
        for (int done = 0; done < iterations; done += kAhead) ahead.push_back(behind_gate(bytes));
        std::nth_element(ahead.begin(), ahead.begin() + ahead.size() / 2, ahead.end());
        PAIRS_CUDA(cudaMemcpy(host.data(), link_.in, bytes, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < bytes; i++)
            if (host[i] != payload(i, !number_)) fail("comparison", "received bytes are wrong");
        shared_.barrier();
        if (number_ == 0) {
            printf("%zu %.4f %.4f\n", bytes, latency, ahead[ahead.size() / 2]);
            fflush(stdout);
        }
    }

   private:
    static cudaStream_t make_stream() {
        cudaStream_t stream;
        PAIRS_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return stream;
    }

    void round(size_t bytes) {
        if (number_ == 0) link_.send(bytes);
        link_.receive(bytes);
        if (number_ == 1) link_.send(bytes);
    }

    // Microseconds one way of `count` rounds, of which two batches are enqueued at a time.
    double enqueued(int count, size_t bytes) {
        const auto start = std::chrono::steady_clock::now();
        int batch = 0;
        for (int i = 1; i <= count; i++) {
            round(bytes);
            if (i % kBatch != 0 && i != count) continue;
            PAIRS_CUDA(cudaEventRecord(events_[batch % 2], stream_));
            if (batch > 0) PAIRS_CUDA(cudaEventSynchronize(events_[(batch - 1) % 2]));
            batch++;
        }
        PAIRS_CUDA(cudaStreamSynchronize(stream_));
        const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
        return time.count() / count / 2;
    }

    // Microseconds one way of a batch that is enqueued before the stream may start. One round
    // precedes it, in which the gates of the ranks open one after the other.
    double behind_gate(size_t bytes) {
        closed_++;
        const CUdeviceptr word = reinterpret_cast<CUdeviceptr>(gate_);
        if (cuStreamWaitValue32(stream_, word, closed_, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
            fail("cuStreamWaitValue32", "the driver refused it");
        round(bytes);
        PAIRS_CUDA(cudaEventRecord(events_[0], stream_));
        for (int i = 0; i < kAhead; i++) round(bytes);
        PAIRS_CUDA(cudaEventRecord(events_[1], stream_));
        shared_.barrier();
        __atomic_store_n(gate_, closed_, __ATOMIC_RELEASE);
        PAIRS_CUDA(cudaStreamSynchronize(stream_));
        float ms = 0;
        PAIRS_CUDA(cudaEventElapsedTime(&ms, events_[0], events_[1]));
        return 1000.0 * ms / kAhead / 2;
    }

    int number_;
    Shared& shared_;
    cudaStream_t stream_;
    Link link_;
    cudaEvent_t events_[2];
    unsigned* gate_ = nullptr;
    unsigned closed_ = 0;
};

template <class Link>
int main(int argc, char** argv) {
    std::vector<std::pair<size_t, int>> sizes;
    size_t most = 0;
    for (int i = 2; i < argc; i++) {
        size_t bytes = 0;
        int iterations = 0;
        if (sscanf(argv[i], "%zu:%d", &bytes, &iterations) != 2 || bytes == 0 || iterations < 1) break;
        sizes.emplace_back(bytes, iterations);
        most = std::max(most, bytes);
    }
    const int warm_up = argc > 1 ? atoi(argv[1]) : 0;
    if (warm_up < 1 || sizes.empty() || sizes.size() + 2 != static_cast<size_t>(argc)) {
        fprintf(stderr, "usage: %s WARM-UP BYTES:ITERATIONS..\n", argv[0]);
        return 2;
    }
    // A kernel that is loaded on its first launch, behind a stream that waits, never starts.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap", strerror(errno));
    Shared& shared = *new (memory) Shared();
    pid_t ranks[2];
    for (int number = 0; number < 2; number++) {
        ranks[number] = fork();
        if (ranks[number] < 0) fail("fork", strerror(errno));
        if (ranks[number] > 0) continue;
        alarm(kLimit);
        int gpus = 0;
        PAIRS_CUDA(cudaGetDeviceCount(&gpus));
        PAIRS_CUDA(cudaSetDevice(number % gpus));
        {
            Rank<Link> rank(number, shared, most);
            for (const auto& [bytes, iterations] : sizes) rank.measure(warm_up, bytes, iterations);
        }
        _exit(0);
    }
    int failed = 0;
    for (int left = 2; left > 0; left--) {
        int status = 0;
        const pid_t ended = wait(&status);
        if (status == 0) continue;
        failed = 1;
        // The other rank waits for this one.
        for (pid_t rank : ranks)
            if (rank != ended) kill(rank, SIGKILL);
    }
    return failed;
}

}  // namespace pairs
