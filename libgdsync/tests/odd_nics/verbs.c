/* A libibverbs without a kernel, for NICs that do what virtual ones do not. The variable ODD_NICS
 * names them, between commas; how a name begins says what is odd about it:
 *
 *   closed   it cannot be opened: EACCES
 *   mute     queries of its ports fail
 *   iwarp    on Ethernet, without an identifier of RoCE v2
 *   roce     on RoCE, and its port has a local identifier nevertheless, as some drivers say
 *   short    as roce, and its completion queues have at most 32 entries
 *   gone     as roce, until the first send: then the kernel takes it from the process
 *   fatal    as roce, until the first receive: then it reports a fatal error, and completes nothing
 *   qperr    as roce; the queue pair of the first receive has a fatal error
 *   cqerr    as roce; the completion queue of the first receive has an error
 *   path     as roce; the queue pair of the first receive loses its path
 *   port     as roce; its port goes down at the first receive
 *   flap     as roce; its port goes down at the first receive, and up again
 *   hang     as roce; a change of a queue pair to the error state never returns
 *
 * The variable ODD_LOG names a file to which each change of a queue pair is written.
 * A queue pair or completion queue that ends before its events are acknowledged ends the process.
 * Requests are accepted and never completed, but flushed when their queue pair is put in error.
 * A queue pair of more requests than its completion queue has entries ends the process. Structures
 * are those of rdma-core's verbs.h, up to the last field that is used. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device {
    void *ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};

struct context {
    struct device *device;
    void *ops[32];
    int cmd_fd, async_fd, vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
    /* Behind the public fields. */
    int lost, channel[2], raised, events;
};

enum { POLL_CQ = 11, REQ_NOTIFY_CQ = 12, POST_SEND = 25, POST_RECV = 26 };

struct pd { struct context *context; uint32_t handle; };
struct mr { struct context *context; void *pd, *addr; size_t length; uint32_t handle, lkey, rkey; };
struct channel { struct context *context; int fd, refcnt; };
struct cq {
    struct context *context;
    void *channel, *cq_context;
    uint32_t handle;
    int cqe, unacknowledged;
    struct qp *qp;
};
struct qp {
    struct context *context;
    void *qp_context, *pd, *send_cq, *recv_cq, *srq;
    uint32_t handle, qp_num;
    int state, type, unacknowledged;
    /* What is posted, in its order, and how much of it was flushed. */
    uint64_t posted[1024];
    int end, flushed, in_error;
};
struct wc {
    uint64_t wr_id;
    int status, opcode;
    uint32_t numbers[5];
    unsigned flags;
    uint16_t pkey_index, slid;
    uint8_t sl, path_bits;
};
enum { CQ_ERR = 0, QP_FATAL = 1, PATH_MIG_ERR = 7, DEVICE_FATAL = 8, PORT_ACTIVE = 9, PORT_ERR = 10 };
struct event {
    union { struct cq *cq; struct qp *qp; int port; } element;
    int type;
};
struct way {
    uint8_t gid[16];
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
    uint64_t align[0];
};
struct path {
    struct way grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
struct qp_attr {
    int state, cur_state, mtu, mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest;
    unsigned access;
    uint32_t cap[5];
    struct path path, alt;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t notify, draining, max_rd, max_dest_rd, min_rnr_timer, port, timeout, retry_cnt, rnr_retry;
};
struct qp_init {
    void *qp_context;
    struct cq *send_cq, *recv_cq;
    void *srq;
    uint32_t max_send_wr, max_recv_wr;
};
struct port {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t caps, max_msg_sz, bad_pkey, bad_qkey;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl, sm_sl, timeout, init, width, speed, phys, link_layer, flags;
};
struct gid_entry { uint8_t gid[16]; uint32_t index, port, type, ifindex; };
struct limits {
    char firmware[64];
    uint64_t guids[4];
    uint32_t vendor[3];
    int max_qp, max_qp_wr;
    unsigned flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, ee[2];
    int max_qp_init_rd_atom, rest[16];
    uint16_t pkeys;
    uint8_t delay, ports;
};

static int is(const struct context *context, const char *kind) {
    return !strncmp(context->device->name, kind, strlen(kind));
}

static void *made(size_t size, struct context *context) {
    struct pd *made = calloc(1, size);
    made->context = context;
    return made;
}

static int poll_cq(struct cq *cq, int n, struct wc *wc) {
    struct qp *qp = cq->qp;
    int i = 0;
    for (; qp && qp->in_error && !is(qp->context, "fatal") && i < n && qp->flushed < qp->end; i++)
        wc[i] = (struct wc){.wr_id = qp->posted[qp->flushed++], .status = 5, .numbers[3] = qp->qp_num};
    return i;
}
static void post(struct qp *qp, const uint64_t *wr) {
    if (qp->end == 1024)
        abort();
    qp->posted[qp->end++] = *wr;
}
static int req_notify_cq(struct cq *cq, int solicited) { return 0; }
static void raise_event(struct context *context, int type, void *element, int port) {
    struct event event = {.type = type};
    if (element)
        event.element.qp = element;
    else
        event.element.port = port;
    if (write(context->events, &event, sizeof event) != sizeof event)
        abort();
}
static int post_recv(struct qp *qp, void *wr, void **bad) {
    struct context *context = qp->context;
    post(qp, wr);
    if (context->raised)
        return 0;
    context->raised = 1;
    if (is(context, "fatal"))
        raise_event(context, DEVICE_FATAL, NULL, 0);
    if (is(context, "qperr"))
        raise_event(context, QP_FATAL, qp, 0);
    if (is(context, "cqerr"))
        raise_event(context, CQ_ERR, qp->recv_cq, 0);
    if (is(context, "path"))
        raise_event(context, PATH_MIG_ERR, qp, 0);
    if (is(context, "port") || is(context, "flap"))
        raise_event(context, PORT_ERR, NULL, 1);
    if (is(context, "flap"))
        raise_event(context, PORT_ACTIVE, NULL, 1);
    return 0;
}
int ibv_get_async_event(struct context *context, struct event *event) {
    if (read(context->async_fd, event, sizeof *event) != sizeof *event)
        return -1;
    if (event->type == CQ_ERR)
        event->element.cq->unacknowledged++;
    else if (event->type == QP_FATAL || event->type == PATH_MIG_ERR)
        event->element.qp->unacknowledged++;
    return 0;
}
void ibv_ack_async_event(struct event *event) {
    if (event->type == CQ_ERR)
        event->element.cq->unacknowledged--;
    else if (event->type == QP_FATAL || event->type == PATH_MIG_ERR)
        event->element.qp->unacknowledged--;
}
static int post_send(struct qp *qp, void *wr, void **bad) {
    struct context *context = qp->context;
    post(qp, wr);
    if (is(context, "gone") && !context->lost) {
        context->lost = 1;
        /* A poll of the other end returns an error, as the kernel's does. */
        close(context->channel[0]);
    }
    return 0;
}

struct device **ibv_get_device_list(int *count) {
    struct device **list = calloc(16, sizeof *list);
    char *names = strdup(getenv("ODD_NICS") ? getenv("ODD_NICS") : ""), *rest = names, *name;
    int n = 0;
    while (n < 15 && (name = strsep(&rest, ",")) && *name) {
        list[n] = calloc(1, sizeof **list);
        strncpy(list[n++]->name, name, 63);
    }
    free(names);
    *count = n;
    return list;
}
void ibv_free_device_list(struct device **list) { free(list); }
const char *ibv_get_device_name(struct device *device) { return device->name; }
uint64_t ibv_get_device_guid(struct device *device) { return 1; }

static int may_fork;
int ibv_fork_init(void) {
    may_fork = 1;
    return 0;
}

struct context *ibv_open_device(struct device *device) {
    struct context *context = calloc(1, sizeof *context);
    context->device = device;
    if (is(context, "closed") || (is(context, "forks") && !may_fork)) {
        free(context);
        errno = EACCES;
        return NULL;
    }
    int events[2];
    if (pipe(events))
        abort();
    context->async_fd = events[0];
    context->events = events[1];
    context->ops[POLL_CQ] = poll_cq;
    context->ops[REQ_NOTIFY_CQ] = req_notify_cq;
    context->ops[POST_SEND] = post_send;
    context->ops[POST_RECV] = post_recv;
    return context;
}
int ibv_close_device(struct context *context) { return 0; }

int ibv_query_port(struct context *context, uint8_t number, struct port *port) {
    if (is(context, "mute"))
        return EIO;
    if (number != 1)
        return EINVAL;
    *port = (struct port){.state = 4, .max_mtu = 5, .active_mtu = 3, .gid_tbl_len = 1,
                          .max_msg_sz = 1 << 30, .pkey_tbl_len = 3, .lid = 1, .link_layer = 2};
    return 0;
}
int ibv_query_pkey(struct context *context, uint8_t port, int index, uint16_t *pkey) {
    /* In the order of bytes of the network: the default partition, an empty place, 0x8012. */
    static const uint8_t keys[3][2] = {{0xff, 0xff}, {0, 0}, {0x80, 0x12}};
    if (index < 0 || index > 2)
        return -1;
    memcpy(pkey, keys[index], 2);
    return 0;
}
int ibv_query_gid(struct context *context, uint8_t port, int index, uint8_t *gid) {
    memset(gid, 7, 16);
    return 0;
}
int _ibv_query_gid_ex(struct context *context, uint32_t port, uint32_t index,
                      struct gid_entry *entry, uint32_t flags, size_t size) {
    memset(entry, 0, size);
    memset(entry->gid, 7, 16);
    entry->type = is(context, "iwarp") ? 0 : 2;
    return 0;
}

int ibv_query_device(struct context *context, struct limits *limits) {
    memset(limits, 0, sizeof *limits);
    limits->max_qp_wr = 64;
    limits->max_sge = 30;
    limits->max_cqe = is(context, "short") ? 32 : 1024;
    limits->max_qp_rd_atom = limits->max_qp_init_rd_atom = 16;
    return 0;
}
struct pd *ibv_alloc_pd(struct context *context) { return made(sizeof(struct pd), context); }
int ibv_dealloc_pd(struct pd *pd) { free(pd); return 0; }
struct mr *ibv_reg_mr_iova(struct pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    static uint32_t key;
    struct mr *mr = made(sizeof *mr, pd->context);
    mr->lkey = mr->rkey = __atomic_add_fetch(&key, 1, __ATOMIC_RELAXED);
    return mr;
}
int ibv_dereg_mr(struct mr *mr) { free(mr); return 0; }

struct channel *ibv_create_comp_channel(struct context *context) {
    struct channel *channel = made(sizeof *channel, context);
    if (pipe(context->channel))
        abort();
    channel->fd = context->channel[1];
    return channel;
}
int ibv_destroy_comp_channel(struct channel *channel) {
    if (!channel->context->lost)
        close(channel->context->channel[0]);
    close(channel->fd);
    free(channel);
    return 0;
}
int ibv_get_cq_event(struct channel *channel, struct cq **cq, void **context) { return -1; }
void ibv_ack_cq_events(struct cq *cq, unsigned events) {}
struct cq *ibv_create_cq(struct context *context, int entries, void *own, void *channel, int v) {
    struct cq *cq = made(sizeof *cq, context);
    cq->cqe = entries;
    return cq;
}
int ibv_destroy_cq(struct cq *cq) {
    if (cq->unacknowledged)
        abort();
    free(cq);
    return 0;
}
struct qp *ibv_create_qp(struct pd *pd, struct qp_init *init) {
    static uint32_t number = 0x40;
    if (init->send_cq != init->recv_cq || init->max_send_wr + init->max_recv_wr > init->send_cq->cqe)
        abort();
    struct qp *qp = made(sizeof *qp, pd->context);
    qp->qp_num = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    qp->recv_cq = init->recv_cq;
    init->recv_cq->qp = qp;
    return qp;
}
static void write_down(const struct qp_attr *attr, int mask) {
    FILE *log = getenv("ODD_LOG") ? fopen(getenv("ODD_LOG"), "a") : NULL;
    if (!log)
        return;
    fprintf(log, "to %d:", attr->state);
    if (mask & 1 << 4)
        fprintf(log, " pkey_index %u", attr->pkey_index);
    if (mask & 1 << 7)
        fprintf(log, " sl %u tc %u flow %u hops %u", attr->path.sl, attr->path.grh.traffic_class,
                attr->path.grh.flow_label, attr->path.grh.hop_limit);
    if (mask & 1 << 15)
        fprintf(log, " rnr_timer %u", attr->min_rnr_timer);
    if (mask & 1 << 9)
        fprintf(log, " timeout %u", attr->timeout);
    if (mask & 1 << 10)
        fprintf(log, " retry %u", attr->retry_cnt);
    if (mask & 1 << 11)
        fprintf(log, " rnr_retry %u", attr->rnr_retry);
    fprintf(log, "\n");
    fclose(log);
}
int ibv_modify_qp(struct qp *qp, struct qp_attr *attr, int mask) {
    write_down(attr, mask);
    while (is(qp->context, "hang") && attr->state == 6)
        pause();
    if (qp->context->lost)
        return EIO;
    qp->in_error = attr->state == 6;
    if (attr->state == 0)
        qp->end = qp->flushed = 0;
    return 0;
}
int ibv_query_qp(struct qp *qp, struct qp_attr *attr, int mask, void *init) {
    attr->state = 6;
    return 0;
}
int ibv_destroy_qp(struct qp *qp) {
    if (qp->unacknowledged)
        abort();
    free(qp);
    return 0;
}
void *ibv_create_ah(struct pd *pd, void *attr) { return made(sizeof(struct pd), pd->context); }
int ibv_destroy_ah(void *ah) { free(ah); return 0; }
