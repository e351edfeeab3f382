/* Datagrams to a LID and to every GID of the port, answered to the source address in their headers;
 * and dropped datagrams. */
#define _GNU_SOURCE
#include "verbs.h"

enum { KEY = 0x11111111, ROOM = 40, LEN = 1000, HALF = 8192 };

static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *data;
static struct ibv_port_attr port;

struct station {
    struct ibv_qp *qp;
    /* The CQ of receives, and the CQ of sends. */
    struct ibv_cq *cq, *sent;
    char *in, *out;
};

static struct station make(int number, uint32_t key)
{
    struct station s = {.cq = ibv_create_cq(pd->context, 64, NULL, NULL, 0)};
    s.sent = ibv_create_cq(pd->context, 64, NULL, NULL, 0);
    CHECK(s.cq && s.sent);
    s.in = data + number * HALF;
    s.out = s.in + HALF / 2;
    struct ibv_qp_init_attr init = {
        .send_cq = s.sent,
        .recv_cq = s.cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UD,
    };
    s.qp = ibv_create_qp(pd, &init);
    CHECK(s.qp);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = key};
    CHECK(!ibv_modify_qp(s.qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(s.qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    CHECK(!ibv_query_qp(s.qp, &attr, IBV_QP_QKEY, &init));
    CHECK(attr.qkey == key && attr.qp_state == IBV_QPS_RTS);
    return s;
}

static void send_to(struct station *s, struct ibv_ah *ah, uint32_t qpn, uint32_t key)
{
    struct ibv_sge sge = {.addr = (uintptr_t)s->out, .length = LEN, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_IMM,
                             .imm_data = 0x12345678,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = key;
    CHECK(!ibv_post_send(s->qp, &wr, &bad));
    struct ibv_wc wc = completion(s->sent);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
}

static void receive(struct station *s, struct station *from)
{
    struct ibv_wc wc = completion(s->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
    CHECK(wc.byte_len == ROOM + LEN && wc.src_qp == from->qp->qp_num);
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x12345678);
    CHECK(wc.slid == port.lid);
    CHECK(!memcmp(s->in + ROOM, from->out, LEN));
    memset(s->in, 0, HALF / 2);
}

/* After this, every earlier datagram to this QP has arrived or is lost. */
static void pass(struct station *s, struct ibv_ah *ah)
{
    post_receive(s->qp, s->in, ROOM + LEN, mr->lkey);
    send_to(s, ah, s->qp->qp_num, KEY);
    receive(s, s);
}

/* A datagram and its answer; the destination of the answer is the source of the datagram. */
static void exchange(struct ibv_ah_attr *to)
{
    struct station a = make(0, KEY), b = make(1, KEY);
    memset(a.out, 'a', LEN);
    memset(b.out, 'b', LEN);
    struct ibv_ah *there = ibv_create_ah(pd, to);
    CHECK(there);
    post_receive(b.qp, b.in, ROOM + LEN, mr->lkey);
    send_to(&a, there, b.qp->qp_num, KEY);
    struct ibv_wc wc = completion(b.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && !!(wc.wc_flags & IBV_WC_GRH) == to->is_global);

    struct ibv_ah_attr back_attr = {0};
    CHECK(!ibv_init_ah_from_wc(pd->context, 1, &wc, (struct ibv_grh *)b.in, &back_attr));
    CHECK(back_attr.is_global == to->is_global && back_attr.port_num == 1);
    CHECK(port.link_layer != IBV_LINK_LAYER_INFINIBAND || back_attr.sl == to->sl);
    if (to->is_global) {
        /* Back to the same GID, from a GID of the same kind: both belong to this port. */
        CHECK(!memcmp(&back_attr.grh.dgid, &to->grh.dgid, 16));
        CHECK(back_attr.grh.sgid_index == to->grh.sgid_index);
    }
    struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)b.in, 1);
    CHECK(back);
    post_receive(a.qp, a.in, ROOM + LEN, mr->lkey);
    send_to(&b, back, a.qp->qp_num, KEY);
    receive(&a, &b);

    /* Without a receive, with a wrong Q_Key, to an unused QP number: dropped, and the next one
     * arrives. */
    send_to(&a, there, b.qp->qp_num, KEY);
    pass(&a, there);
    post_receive(b.qp, b.in, ROOM + LEN, mr->lkey);
    send_to(&a, there, b.qp->qp_num, KEY + 1);
    send_to(&a, there, b.qp->qp_num ^ 0x800, KEY);
    pass(&a, there);
    CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);
    send_to(&a, there, b.qp->qp_num, KEY);
    receive(&b, &a);
    /* With the highest bit set, the Q_Key of the sending QP is used. */
    post_receive(b.qp, b.in, ROOM + LEN, mr->lkey);
    send_to(&a, there, b.qp->qp_num, 1U << 31);
    receive(&b, &a);

    CHECK(!ibv_destroy_ah(there) && !ibv_destroy_ah(back));
    CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
    CHECK(!ibv_destroy_cq(a.cq) && !ibv_destroy_cq(b.cq));
    CHECK(!ibv_destroy_cq(a.sent) && !ibv_destroy_cq(b.sent));
}

int main(void)
{
    struct ibv_context *context = open_device();
    pd = ibv_alloc_pd(context);
    CHECK(pd);
    data = calloc(2, HALF);
    mr = ibv_reg_mr(pd, data, 2 * HALF, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    CHECK(!ibv_query_port(context, 1, &port));
    struct ibv_ah_attr to = {.dlid = port.lid, .port_num = 1, .sl = 3};
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND)
        exchange(&to);
    for (int i = 0; i < port.gid_tbl_len; i++) {
        to.is_global = 1;
        to.grh.sgid_index = i;
        to.grh.hop_limit = 64;
        to.grh.flow_label = 0x12345;
        CHECK(!ibv_query_gid(context, 1, i, &to.grh.dgid));
        exchange(&to);
    }
    CHECK(!ibv_dereg_mr(mr));
    CHECK(!ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
    free(data);
    return 0;
}
