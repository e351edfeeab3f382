/* Inline scatter: completion entries contain small payloads if the library requests it, and the
 * payload is correct in both cases. The argument is the expected place: "entry" or "memory". */
#include "verbs.h"
#include <infiniband/mlx5dv.h>

enum { ROOM = 4096, MOST = 40 };

static unsigned char *data;

static void fill(int len)
{
    for (int i = 0; i < len; i++) {
        data[i] = (unsigned char)(i * 7 + len);
        data[ROOM + i] = 0xee;
    }
}

/* The entry of the next poll, and its last byte before the NIC writes it. */
struct awaited {
    volatile struct mlx5_cqe64 *entry;
    unsigned char before;
};

/* Must be called before the post of the request that completes. */
static struct awaited next_entry(struct ibv_cq *cq)
{
    struct mlx5dv_cq raw;
    struct mlx5dv_obj object = {.cq = {.in = cq, .out = &raw}};
    CHECK(!mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ));
    uint32_t consumed = be32toh(raw.dbrec[0]) & 0xffffff;
    char *at = (char *)raw.buf + (consumed & (raw.cqe_cnt - 1)) * raw.cqe_size;
    struct awaited next = {.entry = (struct mlx5_cqe64 *)at};
    next.before = next.entry->op_own;
    return next;
}

/* Waits for the entry, checks where the payload is, and lets the library poll it. */
static void take(struct ibv_cq *cq, struct awaited next, int len, int in_entry)
{
    volatile struct mlx5_cqe64 *entry = next.entry;
    time_t end = time(NULL) + 10;
    while (entry->op_own == next.before)
        CHECK(time(NULL) <= end);
    __sync_synchronize();
    int inside = len > 0 && len <= 32 && in_entry;
    CHECK(!!(entry->op_own & MLX5_INLINE_SCATTER_32) == inside);
    if (len > 0)
        CHECK((data[ROOM] == 0xee) == inside);
    struct ibv_wc wc = completion(cq);
    CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(wc.byte_len == (uint32_t)len);
    CHECK(!memcmp(data, data + ROOM, (size_t)len));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    int in_entry = !strcmp(argv[1], "entry");
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sends = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_cq *receives = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && sends && receives);
    struct ibv_qp_init_attr init = {
        .send_cq = sends,
        .recv_cq = receives,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    CHECK(!posix_memalign((void **)&data, 4096, 2 * ROOM));
    struct ibv_mr *mr = ibv_reg_mr(pd, data, 2 * ROOM, ALL);
    CHECK(mr);
    connect_qp(qp, qp->qp_num);
    for (int round = 0; round < 3; round++) {
        for (int len = 1; len <= MOST; len++) {
            fill(len);
            struct awaited next = next_entry(receives);
            post_receive(qp, data + ROOM, 64, mr->lkey);
            post(qp, IBV_WR_SEND, data, (uint32_t)len, mr->lkey, NULL, 0);
            take(receives, next, len, in_entry);
            CHECK(completion(sends).status == IBV_WC_SUCCESS);
            fill(len);
            next = next_entry(sends);
            post(qp, IBV_WR_RDMA_READ, data + ROOM, (uint32_t)len, mr->lkey, data, mr->rkey);
            take(sends, next, len, in_entry);
        }
    }
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(sends) && !ibv_destroy_cq(receives));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    return 0;
}
