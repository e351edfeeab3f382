/* A send that invalidates a key of the receiver. */
#include "verbs.h"

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sends = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_cq *receives = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && sends && receives);
    struct ibv_qp *a = make_qp(pd, sends), *b = make_qp(pd, receives);
    connect_qp(a, b->qp_num);
    connect_qp(b, a->qp_num);
    char *data = calloc(1, 8192);
    struct ibv_mr *mr = ibv_reg_mr(pd, data, 4096, ALL);
    struct ibv_mr *lent = ibv_reg_mr(pd, data + 4096, 4096, ALL);
    CHECK(mr && lent);

    strcpy(data, "lent");
    post(a, IBV_WR_RDMA_WRITE, data, 5, mr->lkey, data + 4096, lent->rkey);
    CHECK(completion(sends).status == IBV_WC_SUCCESS);
    CHECK(!strcmp(data + 4096, "lent"));

    post_receive(b, data + 1024, 64, mr->lkey);
    struct ibv_sge sge = {.addr = (uintptr_t)data, .length = 5, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV}, *bad;
    wr.invalidate_rkey = lent->rkey;
    CHECK(!ibv_post_send(a, &wr, &bad));
    struct ibv_wc wc = completion(receives);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 5);
    CHECK(wc.wc_flags & IBV_WC_WITH_INV);
    CHECK(wc.invalidated_rkey == lent->rkey);
    CHECK(!strcmp(data + 1024, "lent"));
    CHECK(completion(sends).status == IBV_WC_SUCCESS);

    strcpy(data, "gone");
    post(a, IBV_WR_RDMA_WRITE, data, 5, mr->lkey, data + 4096, lent->rkey);
    CHECK(completion(sends).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(!strcmp(data + 4096, "lent"));
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
    CHECK(!ibv_destroy_cq(sends) && !ibv_destroy_cq(receives));
    CHECK(!ibv_dereg_mr(lent) && !ibv_dereg_mr(mr));
    CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    free(data);
    return 0;
}
