/* Latency and bandwidth of bare TCP sockets on the loopback interface, between two processes, as
 * pairs_mpi.c measures an MPI library: the same rounds, the same numbers of iterations. Receives
 * poll and do not sleep, as those of the libraries.
 *
 *   pairs_socket latency|bandwidth BYTES WARM-UP ITERATIONS [WINDOW]
 *
 * With GDS_OTHER_NETNS, the second process is in that network namespace, and connects to GDS_FIRST_ADDRESS.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int peer;

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void put(const char *from, size_t len)
{
    while (len > 0) {
        ssize_t n = send(peer, from, len, 0);
        check(n > 0, "send");
        from += n;
        len -= n;
    }
}

static void get(char *into, size_t len)
{
    while (len > 0) {
        ssize_t n = recv(peer, into, len, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            continue;
        check(n > 0, "recv");
        into += n;
        len -= n;
    }
}

int main(int argc, char **argv)
{
    int latency = argc > 1 && strcmp(argv[1], "latency") == 0, one = 1, wrong = 0, status = 0;
    if (argc < 5) {
        fprintf(stderr, "usage: pairs_socket latency|bandwidth BYTES WARM-UP ITERATIONS [WINDOW]\n");
        return 2;
    }
    size_t bytes = atol(argv[2]);
    int warm_up = atoi(argv[3]), iterations = atoi(argv[4]), window = argc > 5 ? atoi(argv[5]) : 64;
    char *out = malloc(bytes), *in = malloc(bytes), answer[4] = {0};

    const char *space = getenv("GDS_OTHER_NETNS"), *address = getenv("GDS_FIRST_ADDRESS");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    check(!space || (address && inet_aton(address, &at.sin_addr)), "GDS_FIRST_ADDRESS");
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &len) == 0, "getsockname");
    int child = fork();
    check(child >= 0, "fork");
    int rank = child == 0;
    if (rank) {
        check(!space || setns(open(space, O_RDONLY), CLONE_NEWNET) == 0, "GDS_OTHER_NETNS");
        peer = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(peer, (struct sockaddr *)&at, len) == 0, "connect");
    } else {
        peer = accept(listener, NULL, NULL);
        check(peer >= 0, "accept");
    }
    check(setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)(7 * i + rank);
    memset(in, 0xee, bytes);

    double start = 0;
    for (int i = 0; i < warm_up + iterations; i++) {
        if (i == warm_up)
            start = now();
        if (latency && rank == 0) {
            put(out, bytes);
            get(in, bytes);
        } else if (latency) {
            get(in, bytes);
            put(out, bytes);
        } else if (rank == 0) {
            for (int m = 0; m < window; m++)
                put(out, bytes);
            get(answer, 4);
        } else {
            for (int m = 0; m < window; m++)
                get(in, bytes);
            put(answer, 4);
        }
    }
    double seconds = now() - start;

    if (latency || rank == 1)
        for (size_t i = 0; i < bytes; i++)
            wrong |= in[i] != (char)(7 * i + !rank);
    if (rank == 1)
        return wrong;
    waitpid(child, &status, 0);
    wrong |= status != 0;
    if (wrong)
        fprintf(stderr, "pairs_socket: received bytes are wrong\n");
    else
        printf("%.4f\n", latency ? seconds / iterations / 2 * 1e6
                                 : (double)bytes * window * iterations / seconds / 1e6);
    return wrong;
}
