/* A halo exchange as applications with CUDA-aware MPI have it. halo.rs in this folder is its port,
 * and docs/porting.md explains it. The test examples/tests/porting.rs compiles this file. */
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <mpi.h>

enum { UP = 1, DOWN = 2 }; /* tags: rows that move to the rank above, and to the rank below */

/* Kernels: the cells without a neighbour in the halo, the cells along the edge, the time. */
void compute_interior(cudaStream_t, const uint64_t *from, uint64_t *to, int width, int rows);
void compute_edges(cudaStream_t, const uint64_t *from, uint64_t *to, int width, int rows);
void compute_time(cudaStream_t, uint64_t *time);

void run(uint64_t *strips[2], uint64_t *time, int width, int rows, int steps, cudaStream_t stream)
{
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int above = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    int below = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    size_t pitch = (size_t)width + 2;

    for (int n = 0; n < steps; n++) {
        uint64_t *from = strips[n % 2], *to = strips[(n + 1) % 2];
        uint64_t *first = from + pitch + 1, *last = from + (size_t)rows * pitch + 1;
        MPI_Request requests[4];

        cudaStreamSynchronize(stream); /* the edge rows are computed */
        MPI_Irecv(first - pitch, width, MPI_UINT64_T, above, DOWN, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(last + pitch, width, MPI_UINT64_T, below, UP, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(first, width, MPI_UINT64_T, above, UP, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(last, width, MPI_UINT64_T, below, DOWN, MPI_COMM_WORLD, &requests[3]);
        compute_interior(stream, from, to, width, rows);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        compute_edges(stream, from, to, width, rows);

        compute_time(stream, time);
        cudaStreamSynchronize(stream); /* the time is computed */
        MPI_Allreduce(MPI_IN_PLACE, time, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    }
}
