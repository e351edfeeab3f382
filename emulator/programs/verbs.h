/* Common functions of the small programs: a device, QPs connected with each other, and an exit with
 * a reason on an error. */
#ifndef VERBS_H
#define VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno)); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static inline struct ibv_context *open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

/* Makes a QP ready to receive from another QP of the same port. */
static inline void ready_qp(struct ibv_qp *qp, uint32_t remote)
{
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(qp->context, 1, &port));
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = remote;
    attr.min_rnr_timer = 12;
    attr.max_dest_rd_atomic = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = port.lid;
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = 3;
        attr.ah_attr.grh.hop_limit = 1;
        CHECK(!ibv_query_gid(qp->context, 1, 3, &attr.ah_attr.grh.dgid));
    }
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

/* Connects a QP with another QP of the same port. */
static inline void connect_qp(struct ibv_qp *qp, uint32_t remote)
{
    ready_qp(qp, remote);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* One of two connected QPs, with its own CQ. */
struct side {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
};

static inline void make_pair(struct ibv_pd *pd, int entries, struct side *a, struct side *b)
{
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? b : a;
        s->cq = ibv_create_cq(pd->context, entries, NULL, NULL, 0);
        CHECK(s->cq);
        s->qp = make_qp(pd, s->cq);
    }
    connect_qp(a->qp, b->qp->qp_num);
    connect_qp(b->qp, a->qp->qp_num);
}

static inline void end_side(struct side *s)
{
    CHECK(!ibv_destroy_qp(s->qp));
    CHECK(!ibv_destroy_cq(s->cq));
}

/* The next completion, within 10 s. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    time_t end = time(NULL) + 10;
    for (;;) {
        int n = ibv_poll_cq(cq, 1, &wc);
        CHECK(n >= 0);
        if (n)
            return wc;
        if (time(NULL) > end) {
            fprintf(stderr, "no completion\n");
            exit(1);
        }
    }
}

static inline void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, void *from, uint32_t len,
                        uint32_t lkey, void *to, uint32_t rkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = len, .lkey = lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)to;
    wr.wr.rdma.rkey = rkey;
    CHECK(!ibv_post_send(qp, &wr, &bad));
}

static inline void post_atomic(struct ibv_qp *qp, void *into, uint32_t lkey, void *at,
                               uint32_t rkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)into, .length = 8, .lkey = lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD}, *bad;
    wr.wr.atomic.remote_addr = (uintptr_t)at;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = 1;
    CHECK(!ibv_post_send(qp, &wr, &bad));
}

static inline void post_receive(struct ibv_qp *qp, void *into, uint32_t len, uint32_t lkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)into, .length = len, .lkey = lkey};
    struct ibv_recv_wr wr = {.wr_id = 77, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(!ibv_post_recv(qp, &wr, &bad));
}

#endif
