/* Memory that is unmapped while it is registered is an error of the work that uses it, for every
 * kind of access, and never ends the process. */
#define _GNU_SOURCE
#include "verbs.h"

enum { SIZE = 1 << 20, LEN = 100000 };

static struct ibv_pd *pd;

static int failed;

static void expect(const char *what, struct side *s, enum ibv_wc_status status)
{
    struct ibv_wc wc = completion(s->cq);
    if (wc.status != status) {
        fprintf(stderr, "%s: %s instead of %s\n", what, ibv_wc_status_str(wc.status),
                ibv_wc_status_str(status));
        failed = 1;
    }
}

/* Memory that is mapped before the call, and not after it. No other memory is mapped at its
 * address. */
static char *there(int fd)
{
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void vanish(char *at, int fd)
{
    if (fd >= 0)
        CHECK(!ftruncate(fd, 0));
    else
        CHECK(mmap(at, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void try(int file)
{
    int fd = file ? memfd_create("data", 0) : -1;
    CHECK(!file || !ftruncate(fd, SIZE));
    char *here = there(-1), *gone = there(fd);
    struct ibv_mr *mr = ibv_reg_mr(pd, here, SIZE, ALL), *lost = ibv_reg_mr(pd, gone, SIZE, ALL);
    CHECK(mr && lost);
    vanish(gone, fd);
    CHECK(!ibv_reg_mr(pd, gone, SIZE, ALL) && errno == EFAULT);

    struct side a, b;
    make_pair(pd, 64, &a, &b);
    post(a.qp, IBV_WR_RDMA_WRITE, gone, LEN, lost->lkey, here, mr->rkey);
    expect("write from", &a, IBV_WC_LOC_PROT_ERR);
    end_side(&a);
    end_side(&b);

    make_pair(pd, 64, &a, &b);
    post(a.qp, IBV_WR_RDMA_WRITE, here, LEN, mr->lkey, gone, lost->rkey);
    expect("write to", &a, IBV_WC_REM_ACCESS_ERR);
    end_side(&a);
    end_side(&b);

    make_pair(pd, 64, &a, &b);
    post(a.qp, IBV_WR_RDMA_READ, here, LEN, mr->lkey, gone, lost->rkey);
    expect("read from", &a, IBV_WC_REM_ACCESS_ERR);
    end_side(&a);
    end_side(&b);

    make_pair(pd, 64, &a, &b);
    post(a.qp, IBV_WR_RDMA_READ, gone, LEN, lost->lkey, here, mr->rkey);
    expect("read to", &a, IBV_WC_LOC_PROT_ERR);
    end_side(&a);
    end_side(&b);

    make_pair(pd, 64, &a, &b);
    post_receive(b.qp, gone, SIZE, lost->lkey);
    post(a.qp, IBV_WR_SEND, here, LEN, mr->lkey, NULL, 0);
    expect("receive into", &b, IBV_WC_LOC_PROT_ERR);
    expect("send to it", &a, IBV_WC_REM_OP_ERR);
    end_side(&a);
    end_side(&b);

    /* Later work succeeds. */
    make_pair(pd, 64, &a, &b);
    memset(here, 7, LEN);
    post(a.qp, IBV_WR_RDMA_WRITE, here, LEN, mr->lkey, here + SIZE / 2, mr->rkey);
    expect("write", &a, IBV_WC_SUCCESS);
    CHECK(!memcmp(here, here + SIZE / 2, LEN));
    end_side(&a);
    end_side(&b);
    CHECK(!ibv_dereg_mr(lost) && !ibv_dereg_mr(mr));
}

int main(void)
{
    pd = ibv_alloc_pd(open_device());
    CHECK(pd);
    try(1);
    try(0);
    return failed;
}
