/* Rings created by device commands (DEVX), as a GPU's kernels use them: memory registered for rings
 * and doorbell records, a doorbell page, a CQ, and two QPs connected with each other. This program
 * writes entries, records and doorbells and reads completions without a function of the library,
 * and checks the results byte by byte. */
#define _GNU_SOURCE
#include "verbs.h"

#include <endian.h>
#include <infiniband/mlx5dv.h>

/* A field: its first bit from the start of the mailbox or context, and its width. */
struct field {
    unsigned bit, bits;
};

#define F(name, bit, bits) static const struct field name = {bit, bits}
F(OPCODE, 0x00, 16);
F(OP_MOD, 0x30, 16);
F(NUMBER, 0x48, 24);
F(SYNDROME, 0x20, 32);

/* Fields of the context of a CQ, which is at byte 16. */
enum { CQC = 16, CQ_COMMAND = 272 };
F(CQ_SZ, 0x08, 3);
F(CQ_COLLAPSED, 0x0b, 1);
F(CQ_IGNORE_OVERRUN, 0x0e, 1);
F(CQ_RECORD_UMEM, 0x20, 32);
F(CQ_LOG_SIZE, 0x63, 5);
F(CQ_UAR, 0x68, 24);
F(CQ_EQN, 0xb8, 8);
F(CQ_RECORD_AT, 0x1c0, 64);
/* Fields of the command. */
F(CQ_UMEM_AT, 0x280, 64);
F(CQ_UMEM, 0x2c0, 32);

/* Fields of the context of a QP, which is at byte 24. */
enum { QPC = 24, QP_COMMAND = 272 };
F(QP_STATE, 0x00, 4);
F(QP_PM_STATE, 0x13, 2);
F(QP_PD, 0x28, 24);
F(QP_MTU, 0x40, 3);
F(QP_LOG_MSG, 0x43, 5);
F(QP_LOG_RQ, 0x49, 4);
F(QP_LOG_STRIDE, 0x4d, 3);
F(QP_LOG_SQ, 0x51, 4);
F(QP_UAR, 0x68, 24);
F(QP_USER_INDEX, 0x88, 24);
F(QP_REMOTE, 0xa8, 24);
F(QP_RLID, 0xf0, 16);
F(QP_ACK_TIMEOUT, 0x100, 5);
F(QP_SGID_INDEX, 0x108, 8);
F(QP_HOP_LIMIT, 0x118, 8);
F(QP_PORT, 0x1e8, 8);
F(QP_LOG_SRA, 0x388, 3);
F(QP_RETRIES, 0x38d, 3);
F(QP_RNR_RETRIES, 0x390, 3);
F(QP_SEND_PSN, 0x3c8, 24);
F(QP_SEND_CQ, 0x3e8, 24);
F(QP_LOG_RRA, 0x488, 3);
F(QP_ATOMIC_MODE, 0x48c, 4);
F(QP_RRE, 0x490, 1);
F(QP_RWE, 0x491, 1);
F(QP_RAE, 0x492, 1);
F(QP_MIN_RNR, 0x4a3, 5);
F(QP_RECEIVE_PSN, 0x4a8, 24);
F(QP_RECEIVE_CQ, 0x4e8, 24);
F(QP_RECORD_AT, 0x500, 64);
F(QP_RQ_TYPE, 0x565, 3);
F(QP_RECORD_UMEM, 0x720, 32);
enum { QP_RGID = 0x28 };
F(QP_UMEM_AT, 0x800, 64);
F(QP_UMEM, 0x840, 32);

/* Fields of the general capabilities, which are at byte 16. */
F(CAP_LOG_QP_SIZE, 0x88, 8);
F(CAP_PORT_TYPE, 0x1b6, 2);
F(CAP_IGNORE_OVERRUN, 0x220, 1);
F(CAP_LOG_BF, 0x26b, 5);
/* Fields of the capabilities of atomics. */
F(CAP_HOST_ORDER, 0x40, 2);
F(CAP_ATOMIC_SIZES, 0xb0, 16);

static void put(uint8_t *box, struct field f, uint64_t value)
{
    for (unsigned i = 0; i < f.bits; i++) {
        unsigned bit = f.bit + f.bits - 1 - i;
        uint8_t mask = 0x80 >> bit % 8;
        box[bit / 8] = value >> i & 1 ? box[bit / 8] | mask : box[bit / 8] & ~mask;
    }
}

static uint64_t get(const uint8_t *box, struct field f)
{
    uint64_t value = 0;
    for (unsigned bit = f.bit; bit < f.bit + f.bits; bit++)
        value = value << 1 | (box[bit / 8] >> (7 - bit % 8) & 1);
    return value;
}

enum { PAGE = 4096, LOG_SQ = 4, LOG_RQ = 2, LOG_CQ = 6, STRIDE = 64 };
/* Offsets in the registered memory. */
enum {
    CQ_AT = 0,
    CQ_DB = PAGE,
    RINGS_AT = 2 * PAGE,
    RING = (STRIDE << LOG_RQ) + (64 << LOG_SQ),
    RECORDS_AT = 4 * PAGE,
    ROOM = 5 * PAGE,
    DATA = 1 << 16,
};

static struct ibv_context *context;
static struct mlx5dv_devx_uar *uar;
static struct mlx5dv_devx_umem *umem;
static uint8_t *room, *data;
static struct ibv_mr *mr;
static struct ibv_port_attr port;
static union ibv_gid gid;

struct cq {
    struct mlx5dv_devx_obj *object;
    uint32_t number, next;
    int collapsed;
};

struct qp {
    struct mlx5dv_devx_obj *object;
    uint32_t number;
    uint8_t *receives, *sends;
    volatile uint32_t *record;
    uint16_t sent, received;
};

static void query_device(void)
{
    uint8_t in[16] = {0}, out[16 + 4096] = {0};
    put(in, OPCODE, 0x100);
    put(in, OP_MOD, 1);
    CHECK(!mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out));
    CHECK(get(out + 16, CAP_LOG_QP_SIZE) >= LOG_SQ);
    CHECK(get(out + 16, CAP_PORT_TYPE) == (port.link_layer == IBV_LINK_LAYER_ETHERNET));
    CHECK(get(out + 16, CAP_IGNORE_OVERRUN) && get(out + 16, CAP_LOG_BF) == 9);
    put(in, OP_MOD, 3 << 1 | 1);
    CHECK(!mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out));
    CHECK(get(out + 16, CAP_HOST_ORDER) == 1 && get(out + 16, CAP_ATOMIC_SIZES) == 8);
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        memset(in, 0, sizeof in);
        put(in, OPCODE, 0x760);
        put(in, (struct field){0x40, 16}, 3);
        put(in, (struct field){0x5c, 4}, 1);
        CHECK(!mlx5dv_devx_general_cmd(context, in, sizeof in, out, 48));
        CHECK(!memcmp(out + 16, &gid, 16));
    }
}

static int create_cq(struct cq *cq, uint32_t eqn, unsigned size, unsigned at)
{
    uint8_t in[CQ_COMMAND] = {0}, out[16] = {0};
    put(in, OPCODE, 0x400);
    put(in, CQ_UMEM, umem->umem_id);
    put(in, CQ_UMEM_AT, CQ_AT + at);
    put(in + CQC, CQ_SZ, size);
    put(in + CQC, CQ_COLLAPSED, cq->collapsed);
    put(in + CQC, CQ_IGNORE_OVERRUN, 1);
    put(in + CQC, CQ_LOG_SIZE, cq->collapsed ? 2 : LOG_CQ - 1);
    put(in + CQC, CQ_UAR, uar->page_id);
    put(in + CQC, CQ_EQN, eqn);
    put(in + CQC, CQ_RECORD_UMEM, umem->umem_id);
    put(in + CQC, CQ_RECORD_AT, CQ_DB + (cq->collapsed ? 64 : 0));
    cq->object = mlx5dv_devx_obj_create(context, in, sizeof in, out, sizeof out);
    if (!cq->object)
        return (int)get(out, SYNDROME);
    cq->number = get(out, NUMBER);
    return 0;
}

static void create_qp(struct qp *qp, unsigned which, uint32_t pd, uint32_t sends, uint32_t receives)
{
    uint8_t in[QP_COMMAND] = {0}, out[16] = {0};
    unsigned at = RINGS_AT + which * RING, record = RECORDS_AT + which * 64;
    put(in, OPCODE, 0x500);
    put(in, QP_UMEM, umem->umem_id);
    put(in, QP_UMEM_AT, at);
    put(in + QPC, QP_PM_STATE, 3);
    put(in + QPC, QP_PD, pd);
    put(in + QPC, QP_RQ_TYPE, receives ? 0 : 3);
    put(in + QPC, QP_LOG_RQ, receives ? LOG_RQ : 0);
    put(in + QPC, QP_LOG_STRIDE, receives ? 2 : 0);
    put(in + QPC, QP_LOG_SQ, LOG_SQ);
    put(in + QPC, QP_UAR, uar->page_id);
    put(in + QPC, QP_USER_INDEX, 0x70 + which);
    put(in + QPC, QP_SEND_CQ, sends);
    put(in + QPC, QP_RECEIVE_CQ, receives);
    put(in + QPC, QP_RECORD_UMEM, umem->umem_id);
    put(in + QPC, QP_RECORD_AT, record);
    qp->object = mlx5dv_devx_obj_create(context, in, sizeof in, out, sizeof out);
    CHECK(qp->object);
    qp->number = get(out, NUMBER);
    qp->receives = room + at;
    qp->sends = room + at + (receives ? STRIDE << LOG_RQ : 0);
    qp->record = (uint32_t *)(room + record);
}

static int modify(struct qp *qp, uint8_t *in, uint16_t opcode, uint8_t *out)
{
    put(in, OPCODE, opcode);
    put(in, NUMBER, qp->number);
    return mlx5dv_devx_obj_modify(qp->object, in, QP_COMMAND, out, 16);
}

static unsigned state(struct qp *qp)
{
    uint8_t in[16] = {0}, out[280] = {0};
    put(in, OPCODE, 0x50b);
    put(in, NUMBER, qp->number);
    CHECK(!mlx5dv_devx_obj_query(qp->object, in, sizeof in, out, sizeof out));
    CHECK(get(out + QPC, QP_LOG_SQ) == LOG_SQ);
    return get(out + QPC, QP_STATE);
}

static void connect_to(struct qp *qp, const struct qp *remote)
{
    uint8_t in[QP_COMMAND] = {0}, out[16] = {0};
    uint8_t *context = in + QPC;
    CHECK(state(qp) == 0);
    put(context, QP_RRE, 1);
    put(context, QP_RWE, 1);
    put(context, QP_RAE, 1);
    put(context, QP_ATOMIC_MODE, 1);
    put(context, QP_PM_STATE, 3);
    put(context, QP_PORT, 1);
    CHECK(!modify(qp, in, 0x502, out));
    CHECK(state(qp) == 1);

    /* A refused command returns its status, and changes nothing. */
    CHECK(modify(qp, in, 0x504, out) && out[0] == 0x10);
    CHECK(state(qp) == 1);

    memset(in, 0, sizeof in);
    put(context, QP_MTU, IBV_MTU_1024);
    put(context, QP_LOG_MSG, 30);
    put(context, QP_REMOTE, remote->number);
    put(context, QP_RECEIVE_PSN, remote->number & 0xfff);
    put(context, QP_MIN_RNR, 12);
    put(context, QP_LOG_RRA, 2);
    put(context, QP_PORT, 1);
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        memcpy(context + QP_RGID, &gid, 16);
        put(context, QP_SGID_INDEX, 3);
        put(context, QP_HOP_LIMIT, 64);
    } else {
        put(context, QP_RLID, port.lid);
    }
    CHECK(!modify(qp, in, 0x503, out));
    CHECK(state(qp) == 2);

    memset(in, 0, sizeof in);
    put(context, QP_SEND_PSN, qp->number & 0xfff);
    put(context, QP_LOG_SRA, 2);
    put(context, QP_RETRIES, 7);
    put(context, QP_RNR_RETRIES, 7);
    put(context, QP_ACK_TIMEOUT, 14);
    put(context, QP_PORT, 1);
    CHECK(!modify(qp, in, 0x504, out));
    CHECK(state(qp) == 3);
}

/* A signaled entry of the send queue: the control segment, and the segments after it. */
static void post_send(struct qp *qp, uint8_t opcode, const void *segments, unsigned count)
{
    uint8_t *entry = qp->sends + 64 * (qp->sent % (1 << LOG_SQ));
    uint32_t control[4] = {
        htobe32((uint32_t)qp->sent << 8 | opcode),
        htobe32(qp->number << 8 | (1 + count)),
        htobe32(8),
        0,
    };
    CHECK(count <= 3);
    memcpy(entry, control, 16);
    memcpy(entry + 16, segments, 16 * count);
    qp->sent++;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    qp->record[1] = htobe32(qp->sent);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint64_t bell;
    memcpy(&bell, entry, 8);
    *(volatile uint64_t *)uar->reg_addr = bell;
}

/* A segment with an address: remote, or local. */
struct segment {
    uint64_t first, second;
};

static struct segment remote_segment(const void *at)
{
    return (struct segment){htobe64((uintptr_t)at), htobe64((uint64_t)mr->rkey << 32)};
}

static struct segment data_segment(const void *at, uint32_t len)
{
    uint64_t first = htobe64((uint64_t)len << 32 | mr->lkey);
    return (struct segment){first, htobe64((uintptr_t)at)};
}

static void post_receive_of(struct qp *qp, const void *at, uint32_t len)
{
    struct segment one[2] = {data_segment(at, len), {htobe64(0x100), 0}};
    memcpy(qp->receives + STRIDE * (qp->received % (1 << LOG_RQ)), one, sizeof one);
    qp->received++;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    qp->record[0] = htobe32(qp->received);
}

/* Waits for the next entry of a CQ. */
static const struct mlx5_cqe64 *next(struct cq *cq)
{
    uint32_t entries = 1 << (LOG_CQ - 1), at = cq->next++;
    const struct mlx5_cqe64 *cqe =
        (struct mlx5_cqe64 *)(room + CQ_AT + 64 * (at & (entries - 1)));
    time_t end = time(NULL) + 10;
    for (;;) {
        uint8_t last = *(const volatile uint8_t *)&cqe->op_own;
        if ((last & 1) == (at / entries & 1) && last >> 4 != 15)
            break;
        if (time(NULL) > end) {
            fprintf(stderr, "no completion\n");
            exit(1);
        }
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return cqe;
}

static int is(const struct mlx5_cqe64 *cqe, const struct qp *qp, unsigned opcode, uint16_t index)
{
    return cqe->op_own >> 4 == opcode && be16toh(cqe->wqe_counter) == index &&
           (be32toh(cqe->sop_drop_qpn) & 0xffffff) == qp->number;
}

/* A collapsed CQ reports its progress in its only entry. */
static void counted(unsigned at, uint16_t index)
{
    struct mlx5_cqe64 *cqe = (struct mlx5_cqe64 *)(room + at);
    time_t end = time(NULL) + 10;
    while (be16toh(*(volatile __be16 *)&cqe->wqe_counter) != index)
        CHECK(time(NULL) <= end);
    CHECK(cqe->op_own >> 4 == 0);
}

static void fill(uint8_t *at, unsigned len, unsigned seed)
{
    for (unsigned i = 0; i < len; i++)
        at[i] = (uint8_t)(seed + i * 7);
}

static void work(struct qp *a, struct qp *b, struct cq *cq)
{
    enum { LEN = 5000 };
    uint8_t *from = data, *to = data + DATA / 2;
    for (unsigned round = 0; round < 60; round++) {
        fill(from, LEN, round);
        struct segment write[2] = {remote_segment(to), data_segment(from, LEN)};
        post_send(a, 0x08, write, 2);
        CHECK(is(next(cq), a, 0, a->sent - 1));
        CHECK(!memcmp(from, to, LEN));

        fill(from, LEN, round + 100);
        post_receive_of(b, to, LEN);
        struct segment send = data_segment(from, LEN);
        post_send(a, 0x0a, &send, 1);
        const struct mlx5_cqe64 *one = next(cq), *two = next(cq);
        /* The order of the two is up to the device. */
        if (!is(one, a, 0, a->sent - 1)) {
            const struct mlx5_cqe64 *swap = one;
            one = two;
            two = swap;
        }
        CHECK(is(one, a, 0, a->sent - 1) && is(two, b, 2, b->received - 1));
        CHECK(be32toh(two->srqn_uidx) == 0x71 && be32toh(two->byte_cnt) == LEN);
        CHECK(!memcmp(from, to, LEN));

        uint64_t *word = (uint64_t *)to, *was = (uint64_t *)from;
        *word = 1000 + round;
        struct segment add[3] = {
            remote_segment(word), {htobe64(5), 0}, data_segment(was, 8)};
        post_send(b, 0x12, add, 3);
        CHECK(is(next(cq), b, 0, b->sent - 1));
        CHECK(*word == 1005 + round && *was == 1000 + round);
    }
}

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct mlx5dv_context_attr attr = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
    context = mlx5dv_open_device(list[0], &attr);
    CHECK(context);
    ibv_free_device_list(list);
    CHECK(!ibv_query_port(context, 1, &port));
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET)
        CHECK(!ibv_query_gid(context, 1, 3, &gid));
    query_device();

    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd);
    struct mlx5dv_pd number;
    struct mlx5dv_obj object = {.pd = {.in = pd, .out = &number}};
    CHECK(!mlx5dv_init_obj(&object, MLX5DV_OBJ_PD));
    CHECK(!posix_memalign((void **)&room, PAGE, ROOM));
    CHECK(!posix_memalign((void **)&data, PAGE, DATA));
    memset(room, 0, ROOM);
    for (unsigned i = 0; i < PAGE / 64; i++)
        room[CQ_AT + 64 * i + 63] = 0xf1;
    /* The program reads a collapsed CQ, in the second half of the page, by its count alone. */
    enum { COLLAPSED_AT = 64 << (LOG_CQ - 1) };
    memset(room + COLLAPSED_AT, 0xff, 64);
    mr = ibv_reg_mr(pd, data, DATA, ALL | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(mr);
    umem = mlx5dv_devx_umem_reg(context, room, ROOM, IBV_ACCESS_LOCAL_WRITE);
    CHECK(umem);
    uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    if (!uar)
        uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
    CHECK(uar && uar->page_id);
    uint32_t eqn;
    CHECK(!mlx5dv_devx_query_eqn(context, 0, &eqn));

    /* Entries of 128 bytes are refused, and the answer names the field. */
    struct cq cq = {0}, count = {.collapsed = 1};
    int syndrome = create_cq(&cq, eqn, 1, 0);
    CHECK(syndrome && !cq.object && (syndrome & 0xffff) == CQC * 8 + 8);
    CHECK(!create_cq(&cq, eqn, 0, 0));
    CHECK(!create_cq(&count, eqn, 0, COLLAPSED_AT));

    struct qp a = {0}, b = {0}, c = {0};
    create_qp(&a, 0, number.pdn, cq.number, cq.number);
    create_qp(&b, 1, number.pdn, cq.number, cq.number);
    create_qp(&c, 2, number.pdn, count.number, 0);
    connect_to(&a, &b);
    connect_to(&b, &a);
    connect_to(&c, &c);
    work(&a, &b, &cq);
    for (unsigned i = 0; i < 40; i++) {
        fill(data, 64, i);
        struct segment write[2] = {remote_segment(data + 64), data_segment(data, 64)};
        post_send(&c, 0x08, write, 2);
        counted(COLLAPSED_AT, c.sent - 1);
        CHECK(!memcmp(data, data + 64, 64));
    }

    /* To ERR and to RESET; then the objects are destroyed in order, and none is in use. */
    uint8_t in[QP_COMMAND] = {0}, out[16] = {0};
    CHECK(!modify(&a, in, 0x507, out) && state(&a) == 6);
    CHECK(!modify(&a, in, 0x50a, out) && state(&a) == 0);
    CHECK(mlx5dv_devx_obj_destroy(cq.object) && mlx5dv_devx_umem_dereg(umem));
    CHECK(!mlx5dv_devx_obj_destroy(a.object) && !mlx5dv_devx_obj_destroy(b.object));
    CHECK(!mlx5dv_devx_obj_destroy(c.object));
    CHECK(!mlx5dv_devx_obj_destroy(cq.object) && !mlx5dv_devx_obj_destroy(count.object));
    mlx5dv_devx_free_uar(uar);
    CHECK(!mlx5dv_devx_umem_dereg(umem));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    return 0;
}
