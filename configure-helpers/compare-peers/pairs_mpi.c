/* Latency and bandwidth of an MPI library between two ranks, as `mpbench latency` and
 * `mpbench bandwidth` measure those of mp: the same rounds, the same numbers of iterations.
 *
 *   pairs_mpi latency|bandwidth BYTES WARM-UP ITERATIONS [WINDOW]
 *
 * `latency` prints half of a round trip in microseconds; rank 0 posts its receive before it sends.
 * `bandwidth` prints MB/s (10^6 bytes) of windows of messages, each answered by 4 bytes.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAYLOAD = 100, ANSWER = 101, MOST = 1024 };

static char *out, *in;
static int rank, bytes, window;

static void round_trip(void)
{
    if (rank == 0) {
        MPI_Request r[2];
        MPI_Irecv(in, bytes, MPI_CHAR, 1, PAYLOAD, MPI_COMM_WORLD, &r[0]);
        MPI_Isend(out, bytes, MPI_CHAR, 1, PAYLOAD, MPI_COMM_WORLD, &r[1]);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    } else {
        MPI_Recv(in, bytes, MPI_CHAR, 0, PAYLOAD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, bytes, MPI_CHAR, 0, PAYLOAD, MPI_COMM_WORLD);
    }
}

static void flow(void)
{
    static MPI_Request r[MOST];
    char answer[4] = {0};
    for (int i = 0; i < window; i++) {
        if (rank == 0)
            MPI_Isend(out, bytes, MPI_CHAR, 1, PAYLOAD, MPI_COMM_WORLD, &r[i]);
        else
            MPI_Irecv(in, bytes, MPI_CHAR, 0, PAYLOAD, MPI_COMM_WORLD, &r[i]);
    }
    MPI_Waitall(window, r, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(answer, 4, MPI_CHAR, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(answer, 4, MPI_CHAR, 0, ANSWER, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int latency = argc > 1 && strcmp(argv[1], "latency") == 0;
    window = argc > 5 ? atoi(argv[5]) : 64;
    if (size != 2 || argc < 5 || window < 1 || window > MOST) {
        if (rank == 0)
            fprintf(stderr, "usage: mpirun -n 2 pairs_mpi latency|bandwidth BYTES WARM-UP "
                            "ITERATIONS [WINDOW, at most %d]\n", MOST);
        MPI_Finalize();
        return 2;
    }
    bytes = atoi(argv[2]);
    int warm_up = atoi(argv[3]), iterations = atoi(argv[4]), wrong = 0;
    out = malloc(bytes);
    in = malloc(bytes);
    for (int i = 0; i < bytes; i++)
        out[i] = (char)(7 * i + rank);
    memset(in, 0xee, bytes);

    double start = 0;
    for (int i = 0; i < warm_up + iterations; i++) {
        if (i == warm_up) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        if (latency)
            round_trip();
        else
            flow();
    }
    double seconds = MPI_Wtime() - start;

    if (latency || rank == 1)
        for (int i = 0; i < bytes; i++)
            wrong |= in[i] != (char)(7 * i + !rank);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    if (rank == 0 && wrong)
        fprintf(stderr, "pairs_mpi: received bytes are wrong\n");
    if (rank == 0 && !wrong)
        printf("%.4f\n", latency ? seconds / iterations / 2 * 1e6
                                 : (double)bytes * window * iterations / seconds / 1e6);
    MPI_Finalize();
    return wrong;
}
