/* All descriptors of a device file work, whatever call created them, until all of them are closed.
 * The number of a closed descriptor may belong to another file later. */
#define _GNU_SOURCE
#include "verbs.h"
#include <fcntl.h>
#include <rdma/ib_user_verbs.h>

/* Writes a command that queries a port, to any file. */
static int asks(int fd)
{
    struct {
        struct ib_uverbs_cmd_hdr hdr;
        struct ib_uverbs_query_port port;
    } ask = {0};
    struct ib_uverbs_query_port_resp answer = {0};
    ask.hdr.command = IB_USER_VERBS_CMD_QUERY_PORT;
    ask.hdr.in_words = sizeof ask / 4;
    ask.hdr.out_words = sizeof answer / 4;
    ask.port.response = (uintptr_t)&answer;
    ask.port.port_num = 1;
    return write(fd, &ask, sizeof ask) == sizeof ask && answer.state == IBV_PORT_ACTIVE;
}

int main(void)
{
    struct ibv_context *context = open_device();
    int fd = context->cmd_fd, null = open("/dev/null", O_WRONLY);
    CHECK(asks(fd) && null >= 0 && !asks(null));
    int copies[] = {
        dup(fd),
        dup2(fd, 60),
        dup3(fd, 61, O_CLOEXEC),
        fcntl(fd, F_DUPFD, 62),
        fcntl(fd, F_DUPFD_CLOEXEC, 80),
        fcntl(fcntl(fd, F_DUPFD, 90), F_DUPFD, 90),
    };
    for (unsigned i = 0; i < sizeof copies / sizeof *copies; i++)
        CHECK(copies[i] >= 0 && asks(copies[i]));
    CHECK(fcntl(copies[4], F_GETFD) == FD_CLOEXEC && fcntl(copies[3], F_GETFD) == 0);

    /* Closed descriptors are removed, one by one and in a range; the others stay. */
    CHECK(!close_range(60, 62, 0));
    for (int at = 60; at <= 62; at++) {
        CHECK(write(at, "", 1) == -1 && errno == EBADF);
        CHECK(dup2(null, at) == at && !asks(at));
    }
    CHECK(asks(copies[0]) && asks(copies[4]));
    CHECK(!close_range(80, 80, CLOSE_RANGE_CLOEXEC) && asks(80));
    CHECK(close_range(2, 1, 0) == -1 && errno == EINVAL && asks(fd));

    /* The last descriptor keeps the device file open. */
    CHECK(!ibv_close_device(context) && asks(80));
    closefrom(3);
    CHECK(write(80, "", 1) == -1 && errno == EBADF);
    null = open("/dev/null", O_WRONLY);
    CHECK(dup2(null, 80) == 80 && !asks(80));

    context = open_device();
    CHECK(asks(context->cmd_fd) && !ibv_close_device(context));
    return 0;
}
