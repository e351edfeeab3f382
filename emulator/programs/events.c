/* Asynchronous events: the cause and the object of each, and the wait for their acknowledgement
 * when an object is destroyed.
 *
 * events         the events of QPs and CQs
 * events port    port 1 goes down and up again, by injected faults */
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char data[4096];

/* The next event, within 10 s. */
static struct ibv_async_event next_event(void)
{
    struct pollfd ready = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    if (poll(&ready, 1, 10000) != 1) {
        fprintf(stderr, "no event\n");
        exit(1);
    }
    CHECK(!ibv_get_async_event(context, &event));
    return event;
}

/* No other event was raised. */
static void no_event(void)
{
    struct pollfd ready = {.fd = context->async_fd, .events = POLLIN};
    CHECK(poll(&ready, 1, 20) == 0);
}

static void expect(enum ibv_event_type type, void *element)
{
    struct ibv_async_event event = next_event();
    if (event.event_type != type || (element && event.element.qp != element)) {
        fprintf(stderr, "%s of %p instead of %s of %p\n", ibv_event_type_str(event.event_type),
                (void *)event.element.qp, ibv_event_type_str(type), element);
        exit(1);
    }
    ibv_ack_async_event(&event);
}

static void expect_status(enum ibv_wc_status status)
{
    struct ibv_wc wc = completion(cq);
    if (wc.status != status) {
        fprintf(stderr, "%s instead of %s\n", ibv_wc_status_str(wc.status),
                ibv_wc_status_str(status));
        exit(1);
    }
}

/* Two QPs connected with each other. */
static void pair(struct ibv_qp *qp[2])
{
    for (int i = 0; i < 2; i++)
        qp[i] = make_qp(pd, cq);
    for (int i = 0; i < 2; i++)
        connect_qp(qp[i], qp[1 - i]->qp_num);
}

static void end(struct ibv_qp *qp[2])
{
    for (int i = 0; i < 2; i++)
        CHECK(!ibv_destroy_qp(qp[i]));
}

/* A request that the responder refuses also raises an event. */
static void refused(int misaligned)
{
    struct ibv_qp *qp[2];
    pair(qp);
    if (misaligned) {
        post_atomic(qp[0], data, mr->lkey, data + 4, mr->rkey);
        expect_status(IBV_WC_REM_INV_REQ_ERR);
        expect(IBV_EVENT_QP_REQ_ERR, qp[1]);
    } else {
        post(qp[0], IBV_WR_RDMA_WRITE, data, 8, mr->lkey, data, mr->rkey ^ 0x100);
        expect_status(IBV_WC_REM_ACCESS_ERR);
        expect(IBV_EVENT_QP_ACCESS_ERR, qp[1]);
    }
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(qp[1], &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
    no_event();
    end(qp);
}

/* The first packet that arrives before the QP may send. */
static void established(void)
{
    struct ibv_qp *qp[2];
    for (int i = 0; i < 2; i++)
        qp[i] = make_qp(pd, cq);
    ready_qp(qp[1], qp[0]->qp_num);
    connect_qp(qp[0], qp[1]->qp_num);
    for (int i = 0; i < 2; i++) {
        post(qp[0], IBV_WR_RDMA_WRITE, data, 8, mr->lkey, data + 64, mr->rkey);
        expect_status(IBV_WC_SUCCESS);
    }
    expect(IBV_EVENT_COMM_EST, qp[1]);
    no_event();
    end(qp);
}

/* To SQD and back; the drain raises an event only if the program requests it. */
static void drained(void)
{
    struct ibv_qp *qp[2];
    pair(qp);
    for (int asked = 0; asked < 2; asked++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = asked};
        struct ibv_qp_init_attr init;
        CHECK(!ibv_modify_qp(qp[0], &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
        if (asked)
            expect(IBV_EVENT_SQ_DRAINED, qp[0]);
        no_event();
        CHECK(!ibv_query_qp(qp[0], &attr, IBV_QP_STATE, &init));
        CHECK(attr.qp_state == IBV_QPS_SQD && !attr.sq_draining);
        /* A request that is posted now waits. */
        struct ibv_wc wc;
        post(qp[0], IBV_WR_RDMA_WRITE, data, 8, mr->lkey, data + 64, mr->rkey);
        usleep(2000);
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
        attr.timeout = 10;
        CHECK(!ibv_modify_qp(qp[0], &attr, IBV_QP_TIMEOUT));
        attr.qp_state = IBV_QPS_RTS;
        CHECK(!ibv_modify_qp(qp[0], &attr, IBV_QP_STATE));
        expect_status(IBV_WC_SUCCESS);
    }
    end(qp);
}

/* More completions than a CQ has entries. */
static void overrun(void)
{
    struct ibv_cq *small = ibv_create_cq(context, 3, NULL, NULL, 0);
    CHECK(small);
    struct ibv_qp *a = make_qp(pd, small), *b = make_qp(pd, cq);
    connect_qp(a, b->qp_num);
    connect_qp(b, a->qp_num);
    for (int i = 0; i < 8; i++)
        post(a, IBV_WR_RDMA_WRITE, data, 8, mr->lkey, data + 64, mr->rkey);
    struct ibv_async_event event[2] = {next_event(), next_event()};
    int first = event[0].event_type != IBV_EVENT_CQ_ERR;
    CHECK(event[first].event_type == IBV_EVENT_CQ_ERR && event[first].element.cq == small);
    CHECK(event[!first].event_type == IBV_EVENT_QP_FATAL && event[!first].element.qp == a);
    for (int i = 0; i < 2; i++)
        ibv_ack_async_event(&event[i]);
    no_event();
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(small));
}

/* An SRQ with fewer receives than its limit, and the last receive of a QP on it. */
static void shared(void)
{
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
    CHECK(srq);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .srq = srq,
                                    .cap = {.max_send_wr = 4, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1};
    struct ibv_qp *b = ibv_create_qp(pd, &init), *a = make_qp(pd, cq);
    CHECK(b);
    connect_qp(a, b->qp_num);
    connect_qp(b, a->qp_num);
    for (int i = 0; i < 4; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)data, .length = 8, .lkey = mr->lkey};
        struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    }
    struct ibv_srq_attr limit = {.srq_limit = 3};
    CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
    no_event();
    for (int i = 0; i < 2; i++) {
        post(a, IBV_WR_SEND, data + 64, 8, mr->lkey, NULL, 0);
        expect_status(IBV_WC_SUCCESS);
        expect_status(IBV_WC_SUCCESS);
    }
    expect(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    no_event();
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(!ibv_modify_qp(b, &attr, IBV_QP_STATE));
    expect(IBV_EVENT_QP_LAST_WQE_REACHED, b);
    no_event();
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_srq(srq));
}

/* Objects that are destroyed with unread events: the destruction does not wait for those events,
 * and they are discarded. */
static void unread(void)
{
    struct ibv_qp *qp[2];
    pair(qp);
    post(qp[0], IBV_WR_RDMA_WRITE, data, 8, mr->lkey, data, mr->rkey ^ 0x100);
    expect_status(IBV_WC_REM_ACCESS_ERR);
    struct pollfd ready = {.fd = context->async_fd, .events = POLLIN};
    CHECK(poll(&ready, 1, 10000) == 1);
    end(qp);
    no_event();
}

static void port_flaps(void)
{
    struct ibv_port_attr port;
    struct ibv_async_event event = next_event();
    CHECK(event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 1);
    ibv_ack_async_event(&event);
    CHECK(!ibv_query_port(context, 1, &port));
    if (port.state != IBV_PORT_DOWN) {
        /* The port is up already, if the program was slow to get here. */
        struct pollfd ready = {.fd = context->async_fd, .events = POLLIN};
        CHECK(poll(&ready, 1, 1000) == 1);
    }
    struct ibv_qp *qp[2];
    pair(qp);
    post(qp[0], IBV_WR_RDMA_WRITE, data, 8, mr->lkey, data + 64, mr->rkey);
    event = next_event();
    CHECK(event.event_type == IBV_EVENT_PORT_ACTIVE && event.element.port_num == 1);
    ibv_ack_async_event(&event);
    CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    /* A retry delivers it. */
    expect_status(IBV_WC_SUCCESS);
    end(qp);
}

int main(int argc, char **argv)
{
    context = open_device();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, data, sizeof data, ALL);
    CHECK(pd && cq && mr);
    if (argc > 1 && !strcmp(argv[1], "port")) {
        port_flaps();
    } else {
        established();
        refused(0);
        refused(1);
        drained();
        overrun();
        shared();
        unread();
    }
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
    return 0;
}
