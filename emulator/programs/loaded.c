/* An imitation of a machine whose kernel has RDMA: its sockets for RDMA work, and
 * /sys/class/infiniband has a device mlx5_7. The program finds the virtual device and no other, and
 * the library reports the hidden device. Needs root, to mount; exits with 77 if the mount is
 * refused. */
#define _GNU_SOURCE
#include "verbs.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { NETLINK_RDMA_SOCKET = 20 };

/* By a direct system call: the library interposes the functions of the C library. */
static void put(const char *dir, const char *file, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "/sys/class/%s", dir);
    for (char *end = path + strlen("/sys/class/"); *end; end++)
        if (*end == '/') {
            *end = 0;
            syscall(SYS_mkdir, path, 0755);
            *end = '/';
        }
    syscall(SYS_mkdir, path, 0755);
    strcat(strcat(path, "/"), file);
    int fd = syscall(SYS_openat, AT_FDCWD, path, 0101 /* to write, new */, 0644);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* From now on every system call for such a socket succeeds, without a socket. */
static void sockets_work(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETLINK_RDMA_SOCKET, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    CHECK(syscall(SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_RDMA_SOCKET) == 0);
}

int main(void)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/sys/class", "tmpfs", 0, NULL)) {
        perror("a file system of its own");
        return 77;
    }
    put("infiniband/mlx5_7", "node_type", "1: CA\n");
    put("infiniband/mlx5_7", "node_guid", "0000:0000:0000:0007\n");
    put("infiniband_verbs", "abi_version", "6\n");
    put("infiniband_verbs/uverbs0", "ibdev", "mlx5_7\n");
    put("infiniband_verbs/uverbs0", "dev", "231:192\n");
    put("infiniband_verbs/uverbs0", "abi_version", "1\n");
    sockets_work();

    CHECK(socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA_SOCKET) == -1 && errno == EPROTONOSUPPORT);
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1);
    CHECK(!strcmp(ibv_get_device_name(list[0]), "mlx5_0"));
    ibv_free_device_list(list);
    struct stat is;
    CHECK(!stat("/sys/class/infiniband/mlx5_0/ports/1", &is));
    CHECK(stat("/sys/class/infiniband/mlx5_7", &is) && errno == ENOENT);
    struct ibv_context *context = open_device();
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    CHECK(!ibv_close_device(context));
    return 0;
}
