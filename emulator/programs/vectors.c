/* The entries that libmlx5 writes for a list of requests, read back from its rings and printed as
 * JSON: the known-answer vectors of mlx5-prm (base/mlx5-prm/tests/vectors/README.md has the
 * fields). The requests are written but not executed: plain memory replaces the doorbell pages, so
 * that no NIC receives the doorbells, and the program can read them. */
#include "verbs.h"
#include <infiniband/mlx5dv.h>

enum { PIECE = 0x100, TARGET = 0x8000, RECEIVES = 0x40000, BYTES = 0x80000, LID = 1, QKEY = 0x11111111 };

struct request {
    const char *name;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    uint32_t imm; /* as it is read */
    uint64_t compare_add, swap;
    int pieces;
    uint32_t len[4];
};

#define SIGNALED IBV_SEND_SIGNALED
static const struct request REQUESTS[] = {
    {"send_1sge_signaled", IBV_WR_SEND, SIGNALED, .pieces = 1, .len = {16}},
    {"send_3sge_signaled", IBV_WR_SEND, SIGNALED, .pieces = 3, .len = {16, 17, 18}},
    {"send_unsignaled", IBV_WR_SEND, 0, .pieces = 1, .len = {16}},
    {"send_solicited", IBV_WR_SEND, SIGNALED | IBV_SEND_SOLICITED, .pieces = 1, .len = {16}},
    {"send_fenced", IBV_WR_SEND, SIGNALED | IBV_SEND_FENCE, .pieces = 1, .len = {16}},
    {"send_imm", IBV_WR_SEND_WITH_IMM, SIGNALED, 0x01020304, .pieces = 1, .len = {16}},
    {"send_0sge", IBV_WR_SEND, SIGNALED, .pieces = 0},
    {"write_1sge", IBV_WR_RDMA_WRITE, SIGNALED, .pieces = 1, .len = {16}},
    {"write_2sge", IBV_WR_RDMA_WRITE, SIGNALED, .pieces = 2, .len = {16, 17}},
    {"write_4sge", IBV_WR_RDMA_WRITE, SIGNALED, .pieces = 4, .len = {16, 17, 18, 19}},
    {"write_unsignaled", IBV_WR_RDMA_WRITE, 0, .pieces = 1, .len = {16}},
    {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, SIGNALED, 0xa1b2c3d4, .pieces = 1, .len = {16}},
    {"read_1sge", IBV_WR_RDMA_READ, SIGNALED, .pieces = 1, .len = {16}},
    {"read_fenced", IBV_WR_RDMA_READ, SIGNALED | IBV_SEND_FENCE, .pieces = 1, .len = {16}},
    {"send_after_read_unfenced", IBV_WR_SEND, SIGNALED, .pieces = 1, .len = {16}},
    {"compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP, SIGNALED, .compare_add = 0x1122334455667788,
     .swap = 0x99aabbccddeeff00, .pieces = 1, .len = {8}},
    {"fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNALED, .compare_add = 5, .pieces = 1, .len = {8}},
};
static const uint32_t INLINE[] = {1, 4, 12, 16, 28, 29, 44, 60, 64, 100, 128};
static const struct request INLINE_TWO = {"write_inline_2sge", IBV_WR_RDMA_WRITE,
                                          SIGNALED | IBV_SEND_INLINE, .pieces = 2, .len = {10, 21}};
static const struct request DATAGRAM = {"ud_send", IBV_WR_SEND, SIGNALED, .pieces = 1, .len = {16}};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static uint8_t *memory;
static struct ibv_mr *mr;
static const char *separator = "";

static void print_hex(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        printf("%02x", bytes[i]);
}

/* A QP, its rings, and the memory that receives its doorbells in place of the NIC. */
struct rings {
    struct ibv_qp *qp;
    struct mlx5dv_qp is;
    uint32_t sent; /* basic blocks */
};

static void no_nic(struct mlx5dv_qp *is)
{
    long page = sysconf(_SC_PAGESIZE);
    void *at = (void *)((uintptr_t)is->bf.reg & -page);
    CHECK(mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void start_datagrams(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static struct rings make_rings(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 128, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 3,
                .max_inline_data = 128},
        .qp_type = type,
    };
    struct rings rings = {.qp = ibv_create_qp(pd, &init)};
    CHECK(rings.qp);
    /* The library accepts no request before the QP is in RTS. */
    if (type == IBV_QPT_RC)
        connect_qp(rings.qp, rings.qp->qp_num);
    else
        start_datagrams(rings.qp);
    struct mlx5dv_obj object = {.qp = {.in = rings.qp, .out = &rings.is}};
    CHECK(!mlx5dv_init_obj(&object, MLX5DV_OBJ_QP));
    CHECK(rings.is.sq.stride == 64 && rings.is.rq.stride == 64);
    no_nic(&rings.is);
    return rings;
}

/* The doorbell of the last post: libraries use the halves of a register in turn. */
static uint8_t *doorbell(struct rings *rings)
{
    static const uint8_t none[8];
    uint8_t *half = rings->is.bf.reg, *other = half + rings->is.bf.size;
    CHECK(!memcmp(half, none, 8) != !memcmp(other, none, 8));
    return memcmp(half, none, 8) ? half : other;
}

static void print_pieces(const struct ibv_sge *sges, int count, int with_data)
{
    printf("\"sge\":[");
    for (int i = 0; i < count; i++) {
        printf("%s{\"addr\":\"0x%llx\",\"length\":%u,\"lkey\":%u", i ? "," : "",
               (unsigned long long)sges[i].addr, sges[i].length, sges[i].lkey);
        if (with_data) {
            printf(",\"data\":\"");
            print_hex((uint8_t *)(uintptr_t)sges[i].addr, sges[i].length);
            printf("\"");
        }
        printf("}");
    }
    printf("]");
}

static void send(struct rings *rings, const struct request *request, struct ibv_ah *ah)
{
    struct ibv_sge sges[4];
    for (int i = 0; i < request->pieces; i++)
        sges[i] = (struct ibv_sge){(uintptr_t)memory + i * PIECE, request->len[i], mr->lkey};
    struct ibv_send_wr wr = {.sg_list = sges,
                             .num_sge = request->pieces,
                             .opcode = request->opcode,
                             .send_flags = request->flags,
                             .imm_data = htobe32(request->imm)},
                       *bad;
    int remote = request->opcode != IBV_WR_SEND && request->opcode != IBV_WR_SEND_WITH_IMM;
    uint64_t addr = remote ? (uintptr_t)memory + TARGET : 0;
    uint32_t rkey = remote ? mr->rkey : 0;
    if (ah) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = rkey = rings->qp->qp_num;
        wr.wr.ud.remote_qkey = QKEY;
    } else if (request->swap || request->compare_add) {
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = request->compare_add;
        wr.wr.atomic.swap = request->swap;
    } else {
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
    }
    memset(rings->is.bf.reg, 0, 2 * rings->is.bf.size);
    CHECK(!ibv_post_send(rings->qp, &wr, &bad));

    uint32_t record = be32toh(rings->is.dbrec[1]), index = rings->sent;
    uint8_t *ring = rings->is.sq.buf, *wqe = ring + index % rings->is.sq.wqe_cnt * 64;
    int ds = wqe[7] & 0x3f;
    CHECK(index + (record - index) <= rings->is.sq.wqe_cnt); /* no entry wraps */
    rings->sent = record;
    printf("%s\n{\"name\":\"%s\",\"qp_type\":\"%s\",\"qpn\":%u,\"wqe_index\":%u,\"opcode\":%d,"
           "\"send_flags\":%u,\"imm_be\":\"%08x\",\"remote_addr\":\"0x%llx\",\"rkey\":%u,"
           "\"compare_add\":\"0x%llx\",\"swap\":\"0x%llx\",",
           separator, request->name, ah ? "UD" : "RC", rings->qp->qp_num, index, request->opcode,
           request->flags, request->imm, (unsigned long long)addr, rkey,
           (unsigned long long)request->compare_add, (unsigned long long)request->swap);
    separator = ",";
    print_pieces(sges, request->pieces, request->flags & IBV_SEND_INLINE);
    printf(",\"wqe\":\"");
    print_hex(wqe, ds * 16);
    printf("\",\"ds\":%d,\"basic_blocks\":%u,\"doorbell_record_send\":%u,\"doorbell_qword\":\"", ds,
           record - index, record);
    print_hex(doorbell(rings), 8);
    printf("\"}");
}

static void receive(struct rings *rings, int index)
{
    struct ibv_sge sges[3];
    for (int i = 0; i <= index; i++)
        sges[i] = (struct ibv_sge){(uintptr_t)memory + RECEIVES + index * 0x1000 + i * 0x400,
                                   1024 - i, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = sges, .num_sge = index + 1}, *bad;
    CHECK(!ibv_post_recv(rings->qp, &wr, &bad));
    printf("%s\n{\"index\":%d,\"stride\":%u,", separator, index, rings->is.rq.stride);
    separator = ",";
    print_pieces(sges, index + 1, 0);
    printf(",\"wqe\":\"");
    print_hex((uint8_t *)rings->is.rq.buf + index * rings->is.rq.stride, rings->is.rq.stride);
    printf("\",\"doorbell_record_recv\":%u}", be32toh(rings->is.dbrec[0]));
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    CHECK(pd && cq);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int i = 0; i < BYTES; i++)
        memory[i] = 1 + 7 * i;
    mr = ibv_reg_mr(pd, memory, BYTES, ALL | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(mr);

    struct rings rc = make_rings(pd, cq, IBV_QPT_RC), ud = make_rings(pd, cq, IBV_QPT_UD);
    struct ibv_ah_attr path = {.dlid = LID, .port_num = 1};
    struct ibv_ah *ah = ibv_create_ah(pd, &path);
    CHECK(ah);
    printf("{\"made_by\":\"libmlx5 on libvmlx5.so, bytes read back from its rings\",\"send\":[");
    for (size_t i = 0; i < COUNT(REQUESTS); i++)
        send(&rc, &REQUESTS[i], NULL);
    for (size_t i = 0; i < COUNT(INLINE); i++) {
        char name[2][32];
        snprintf(name[0], sizeof *name, "send_inline_%u", INLINE[i]);
        snprintf(name[1], sizeof *name, "write_inline_%u", INLINE[i]);
        struct request request = {name[0], IBV_WR_SEND, SIGNALED | IBV_SEND_INLINE, .pieces = 1,
                                  .len = {INLINE[i]}};
        send(&rc, &request, NULL);
        request.name = name[1];
        request.opcode = IBV_WR_RDMA_WRITE;
        send(&rc, &request, NULL);
    }
    send(&rc, &INLINE_TWO, NULL);
    send(&ud, &DATAGRAM, ah);
    printf("],\"recv\":[");
    separator = "";
    for (int i = 0; i < 3; i++)
        receive(&rc, i);
    printf("]}\n");

    CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(ud.qp) && !ibv_destroy_qp(rc.qp));
    CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
    return 0;
}
