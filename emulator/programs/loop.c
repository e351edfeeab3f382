/* Two QPs of one device exchange SENDs, WRITEs, READs and atomics of all sizes. The program checks
 * every received byte, and the bytes around it. A seed determines the messages.
 *
 * loop [-u] [-l] [-n rounds] [-s seed]
 *     -u   unreliable connections: received messages must be correct
 *     -l   the wire loses and duplicates: messages of unreliable connections may be lost
 * loop -d status -t timeout -r retries
 *     one WRITE that must end with this status after (retries + 1) timeouts, plus at most 1 s
 * loop -d status -w
 *     writes until one ends with this status */
#define _GNU_SOURCE
#include "verbs.h"

#include <arpa/inet.h>

enum {
    BATCH = 8,
    MOST = 200000,           /* the longest message */
    SHORT = 16384,           /* the longest on an unreliable connection */
    MARGIN = 64,             /* bytes around it that must not change */
    ROOM = MARGIN + MOST + MARGIN,
    RECEIVES = 16,
    BLANK = 0x5a,
};

struct mode {
    enum ibv_qp_type type;
    uint8_t timeout, retries;
    int lossy;
};

static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* Numbers from a seed, one after the other. */
static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint32_t below(uint64_t *state, uint32_t limit)
{
    return draw(state) % limit;
}

static uint32_t size(uint64_t *state, uint32_t most)
{
    static const uint32_t limits[] = {1, 64, 4096, 65537, MOST + 1};
    uint32_t limit = limits[below(state, 5)];
    return below(state, limit < most + 1 ? limit : most + 1);
}

static void fill(char *at, uint32_t len, uint64_t seed)
{
    while (len) {
        uint64_t word = draw(&seed);
        uint32_t n = len < 8 ? len : 8;
        memcpy(at, &word, n);
        at += n, len -= n;
    }
}

static uint64_t now(void)
{
    struct timespec t;
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &t));
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static struct ibv_mr *memory(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    struct ibv_mr *mr = ibv_reg_mr(pd, at, len, ALL | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(mr);
    return mr;
}

static struct ibv_qp *create(const struct mode *mode)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 64, .max_recv_wr = RECEIVES, .max_send_sge = 2, .max_recv_sge = 1},
        .qp_type = mode->type,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void join(struct ibv_qp *qp, uint32_t remote, const struct mode *mode)
{
    int reliable = mode->type == IBV_QPT_RC;
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(pd->context, 1, &port));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = ALL | IBV_ACCESS_REMOTE_ATOMIC};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = remote,
                                .rq_psn = 0xfffff0,
                                .min_rnr_timer = 1,
                                .max_dest_rd_atomic = 4,
                                .ah_attr = {.port_num = 1, .dlid = port.lid}};
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = 3;
        attr.ah_attr.grh.hop_limit = 1;
        CHECK(!ibv_query_gid(pd->context, 1, 3, &attr.ah_attr.grh.dgid));
    }
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    CHECK(!ibv_modify_qp(
        qp, &attr, mask | (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .sq_psn = 0xfffff0,
                                .timeout = mode->timeout,
                                .retry_cnt = mode->retries,
                                .rnr_retry = 7,
                                .max_rd_atomic = 4};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    CHECK(!ibv_modify_qp(qp, &attr,
                         mask | (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                IBV_QP_MAX_QP_RD_ATOMIC
                                          : 0)));
}

static void receive(struct ibv_qp *qp, uint64_t id, struct ibv_mr *mr, char *at, uint32_t len)
{
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = len, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* A message: what it does, how much, from where, to where. */
struct message {
    enum ibv_wr_opcode op;
    uint32_t len, at;
    uint64_t seed;
    uint64_t before; /* of an atomic: what it must find */
};

static int is_atomic(enum ibv_wr_opcode op)
{
    return op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static int is_received(enum ibv_wr_opcode op)
{
    return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void fail(const struct message *m, const char *what)
{
    fprintf(stderr, "operation %d of %u bytes, contents %#llx: %s\n", m->op, m->len,
            (unsigned long long)m->seed, what);
    exit(1);
}

/* The bytes at `at` of a buffer are those of the message, and the bytes around it are unchanged. */
static void check(const struct message *m, const char *room, uint32_t at, uint32_t room_len)
{
    static char expected[ROOM];
    memset(expected, BLANK, room_len);
    fill(expected + at, m->len, m->seed);
    if (memcmp(room, expected, room_len))
        fail(m, "wrong bytes");
}

static void send_out(struct ibv_qp *qp, uint32_t id, const struct message *m, struct ibv_mr *local,
                     char *here, struct ibv_mr *remote, char *there)
{
    /* In two pieces, one of which may be empty. */
    uint32_t first = m->len / 3;
    struct ibv_sge sge[2] = {
        {.addr = (uintptr_t)here, .length = first, .lkey = local->lkey},
        {.addr = (uintptr_t)here + first, .length = m->len - first, .lkey = local->lkey}};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = 2, .opcode = m->op}, *bad;
    wr.imm_data = htonl(id);
    if (is_atomic(m->op)) {
        sge[0].length = 8;
        wr.num_sge = 1;
        wr.wr.atomic.remote_addr = (uintptr_t)there;
        wr.wr.atomic.rkey = remote->rkey;
        wr.wr.atomic.compare_add = m->op == IBV_WR_ATOMIC_CMP_AND_SWP ? m->before : m->seed;
        wr.wr.atomic.swap = m->seed;
    } else if (m->op != IBV_WR_SEND && m->op != IBV_WR_SEND_WITH_IMM) {
        wr.wr.rdma.remote_addr = (uintptr_t)there;
        wr.wr.rdma.rkey = remote->rkey;
    }
    CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Batches of messages over a reliable connection, in both directions. */
static void reliable(struct ibv_qp *qp[2], uint32_t rounds, uint64_t *state)
{
    static const enum ibv_wr_opcode ops[] = {
        IBV_WR_SEND,       IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,     IBV_WR_RDMA_READ,  IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_CMP_AND_SWP};
    struct ibv_mr *from = memory(BATCH * ROOM), *to = memory(BATCH * ROOM);
    struct ibv_mr *counter = memory(4096), *found = memory(4096);
    char *source = from->addr, *target = to->addr;
    uint64_t *value = counter->addr, *was = found->addr, expected = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        struct ibv_qp *a = qp[round & 1], *b = qp[~round & 1];
        struct message batch[BATCH];
        int received[BATCH], receives = 0, taken = 0;
        for (int i = 0; i < BATCH; i++) {
            struct message *m = &batch[i];
            *m = (struct message){.op = ops[below(state, 9)], .seed = draw(state)};
            m->len = is_atomic(m->op) ? 8 : size(state, MOST);
            m->at = MARGIN + below(state, MOST - m->len + 1);
            m->before = expected;
            if (m->op == IBV_WR_ATOMIC_FETCH_AND_ADD)
                expected += m->seed;
            else if (m->op == IBV_WR_ATOMIC_CMP_AND_SWP)
                expected = m->seed;
            fill(source + i * ROOM + m->at, m->len, m->seed);
            if (is_received(m->op))
                received[receives++] = i;
        }
        memset(target, BLANK, BATCH * ROOM);
        /* The receives may be posted late. */
        int late = below(state, 8) == 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; pass == late && i < receives; i++) {
                int n = received[i];
                receive(b, BATCH + n, to, target + n * ROOM + batch[n].at, batch[n].len);
            }
            for (int i = 0; pass != late && i < BATCH; i++) {
                struct message *m = &batch[i];
                char *here = source + i * ROOM + m->at, *there = target + i * ROOM + m->at;
                if (is_atomic(m->op))
                    send_out(a, i, m, found, (char *)(was + i), counter, (char *)value);
                else if (m->op == IBV_WR_RDMA_READ)
                    send_out(a, i, m, to, there, from, here);
                else
                    send_out(a, i, m, from, here, to, there);
            }
        }
        for (int i = 0, sent = 0; i < BATCH + receives; i++) {
            struct ibv_wc wc = completion(cq);
            struct message *m = &batch[wc.wr_id % BATCH];
            if (wc.status != IBV_WC_SUCCESS)
                fail(m, ibv_wc_status_str(wc.status));
            if (wc.wr_id < BATCH) {
                if ((int)wc.wr_id != sent++ || wc.qp_num != a->qp_num)
                    fail(m, "completed out of order");
                continue;
            }
            if ((int)wc.wr_id - BATCH != received[taken++] || wc.qp_num != b->qp_num)
                fail(m, "received out of order");
            if (wc.byte_len != m->len)
                fail(m, "received with another length");
            int imm = m->op != IBV_WR_SEND;
            if (imm != !!(wc.wc_flags & IBV_WC_WITH_IMM) ||
                (imm && ntohl(wc.imm_data) != wc.wr_id % BATCH))
                fail(m, "received with other immediate data");
        }
        for (int i = 0; i < BATCH; i++) {
            struct message *m = &batch[i];
            if (!is_atomic(m->op))
                check(m, target + i * ROOM, m->at, ROOM);
            else if (was[i] != m->before)
                fail(m, "an atomic found what was not there");
        }
        struct ibv_wc wc;
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    }
    if (*value != expected) {
        fprintf(stderr, "atomics ended in what was not there\n");
        exit(1);
    }
}

/* Messages over an unreliable connection. Each has a separate buffer, so that a late duplicate
 * changes no other message. */
static void unreliable(struct ibv_qp *qp[2], uint32_t count, uint64_t *state, int lossy)
{
    enum { PLACE = MARGIN + SHORT + MARGIN };
    struct ibv_mr *from = memory(count * (size_t)PLACE), *to = memory(count * (size_t)PLACE);
    struct ibv_mr *rooms = memory(RECEIVES * PLACE);
    struct message *all = calloc(count, sizeof *all);
    char *arrived = calloc(count, 1), *room = rooms->addr;
    CHECK(all && arrived);
    memset(to->addr, BLANK, to->length);
    memset(room, BLANK, rooms->length);
    for (int i = 0; i < RECEIVES; i++)
        receive(qp[1], count + i, rooms, room + i * PLACE + MARGIN, SHORT);
    uint32_t posted = 0, done = 0, got = 0;
    uint64_t last = now();
    for (;;) {
        uint32_t behind = lossy ? done : got < done ? got : done;
        if (posted < count && posted - behind < BATCH) {
            struct message *m = &all[posted];
            m->op = below(state, 2) ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
            m->len = size(state, SHORT);
            m->seed = draw(state);
            size_t at = posted * (size_t)PLACE + MARGIN;
            fill((char *)from->addr + at, m->len, m->seed);
            send_out(qp[0], posted++, m, from, (char *)from->addr + at, to, (char *)to->addr + at);
        }
        struct ibv_wc wc;
        int n = ibv_poll_cq(cq, 1, &wc);
        CHECK(n >= 0);
        if (n == 0) {
            uint64_t quiet = now() - last;
            if (posted == count && done == count && (got == count || lossy) &&
                quiet > (lossy ? 100000000 : 0))
                break;
            CHECK(quiet < 10000000000);
            continue;
        }
        last = now();
        if (wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
            exit(1);
        }
        if (wc.wr_id < count) {
            done++;
            continue;
        }
        uint32_t id = ntohl(wc.imm_data), slot = wc.wr_id - count;
        CHECK(id < posted && (wc.wc_flags & IBV_WC_WITH_IMM));
        struct message *m = &all[id];
        int sent = m->op == IBV_WR_SEND_WITH_IMM;
        if (wc.byte_len != m->len || (wc.opcode == IBV_WC_RECV) != sent)
            fail(m, "received as another");
        if (arrived[id] && !lossy)
            fail(m, "received twice");
        /* A truncated message may have left its first bytes after the last ones. */
        if (sent && lossy)
            memset(room + slot * PLACE + MARGIN + m->len, BLANK, SHORT - m->len);
        check(m, sent ? room + slot * PLACE : (char *)to->addr + id * (size_t)PLACE, MARGIN, PLACE);
        got += !arrived[id];
        arrived[id] = 1;
        memset(room + slot * PLACE, BLANK, PLACE);
        receive(qp[1], wc.wr_id, rooms, room + slot * PLACE + MARGIN, SHORT);
    }
    printf("%u of %u arrived\n", got, count);
    CHECK(got > count / 2);
}

/* Work that ends with a status other than success. */
static void doomed(struct ibv_qp *qp, const struct mode *mode, int status, int wait)
{
    struct ibv_mr *mr = memory(4096);
    struct ibv_wc wc;
    uint64_t start, took;
    do {
        start = now();
        post(qp, IBV_WR_RDMA_WRITE, mr->addr, 8, mr->lkey, (char *)mr->addr + 64, mr->rkey);
        wc = completion(cq);
        took = now() - start;
    } while (wait && wc.status == IBV_WC_SUCCESS);
    uint64_t least = (mode->retries + 1) * (4096ull << mode->timeout);
    printf("status %d after %.1f ms, of at least %.1f\n", wc.status, took / 1e6, least / 1e6);
    CHECK((int)wc.status == status);
    CHECK(took >= least && took < least + 1000000000);
}

int main(int argc, char **argv)
{
    struct mode mode = {.type = IBV_QPT_RC, .timeout = 10, .retries = 7};
    uint64_t seed = now() ^ (uint64_t)getpid() << 32;
    uint32_t rounds = 100;
    int status = 0, wait = 0, option;
    while ((option = getopt(argc, argv, "uln:s:d:t:r:w")) != -1) {
        switch (option) {
        case 'u': mode.type = IBV_QPT_UC; break;
        case 'l': mode.lossy = 1; break;
        case 'n': rounds = strtoul(optarg, NULL, 0); break;
        case 's': seed = strtoull(optarg, NULL, 0); break;
        case 'd': status = atoi(optarg); break;
        case 't': mode.timeout = atoi(optarg); break;
        case 'r': mode.retries = atoi(optarg); break;
        case 'w': wait = 1; break;
        default: return 2;
        }
    }
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    pd = ibv_alloc_pd(open_device());
    CHECK(pd);
    cq = ibv_create_cq(pd->context, 256, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_qp *qp[2] = {create(&mode), create(&mode)};
    for (int i = 0; i < 2; i++)
        join(qp[i], qp[1 - i]->qp_num, &mode);
    if (status)
        doomed(qp[0], &mode, status, wait);
    else if (mode.type == IBV_QPT_RC)
        reliable(qp, rounds, &seed);
    else
        unreliable(qp, rounds * BATCH, &seed, mode.lossy);
    for (int i = 0; i < 2; i++)
        CHECK(!ibv_destroy_qp(qp[i]));
    CHECK(!ibv_destroy_cq(cq));
    return 0;
}
