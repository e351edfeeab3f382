/* MRs on the memory behind a descriptor: a memory file, as a software GPU's memory is one. The
 * program checks addresses, offsets, a closed descriptor, a file that shrinks, and memory that
 * cannot be registered. */
#define _GNU_SOURCE
#include "verbs.h"

#include <fcntl.h>

enum { PAGE = 4096, SIZE = 16 * PAGE, LEN = 5 * PAGE };
/* The addresses of work requests need not be mapped addresses. */
static const uint64_t IOVA = 0x123456000;

static struct ibv_pd *pd;

static void expect(struct side *s, enum ibv_wc_status status)
{
    struct ibv_wc wc = completion(s->cq);
    if (wc.status != status) {
        fprintf(stderr, "%s instead of %s\n", ibv_wc_status_str(wc.status),
                ibv_wc_status_str(status));
        exit(1);
    }
}

/* Writes to an address of one MR from an address of another. */
static void copy(void *to, uint32_t rkey, void *from, uint32_t lkey, enum ibv_wc_status status)
{
    struct side a, b;
    make_pair(pd, 16, &a, &b);
    post(a.qp, IBV_WR_RDMA_WRITE, from, LEN, lkey, to, rkey);
    expect(&a, status);
    end_side(&a);
    end_side(&b);
}

static void refused(int fd, uint64_t offset, size_t len, uint64_t iova, int access, int why)
{
    errno = 0;
    CHECK(!ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, access));
    if (errno != why) {
        fprintf(stderr, "%s instead of %s\n", strerror(errno), strerror(why));
        exit(1);
    }
}

static int maps(void)
{
    FILE *all = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;
    CHECK(all);
    while (fgets(line, sizeof line, all))
        found += strstr(line, "memfd:gpu") != NULL;
    fclose(all);
    return found;
}

int main(void)
{
    pd = ibv_alloc_pd(open_device());
    CHECK(pd);
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    CHECK(fd >= 0 && !ftruncate(fd, SIZE));
    uint8_t *seen = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *here;
    CHECK(seen != MAP_FAILED && !posix_memalign((void **)&here, PAGE, SIZE));
    for (int i = 0; i < SIZE; i++)
        here[i] = (uint8_t)(i * 11 + i / 256);
    struct ibv_mr *own = ibv_reg_mr(pd, here, SIZE, ALL);
    CHECK(own && maps() == 1);

    /* From byte 100 of the third page on. */
    uint64_t offset = 2 * PAGE + 100, start = IOVA + 100;
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, offset, 8 * PAGE, start, fd, ALL);
    CHECK(mr && maps() == 2);
    copy((void *)(start + 300), mr->rkey, here, own->lkey, IBV_WC_SUCCESS);
    CHECK(!memcmp(seen + offset + 300, here, LEN) && !seen[offset + 299]);
    CHECK(!seen[offset + 300 + LEN]);

    refused(fd, offset, 8 * PAGE, IOVA, ALL, EINVAL);
    refused(fd, 0, SIZE + 1, 0, ALL, EINVAL);
    refused(fd, 0, 0, 0, ALL, EINVAL);
    refused(fd, 0, SIZE, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL);
    refused(-1, 0, SIZE, 0, ALL, EBADF);
    refused(1000, 0, SIZE, 0, ALL, EBADF);
    int ends[2];
    CHECK(!pipe(ends));
    refused(ends[0], 0, PAGE, 0, ALL, EOPNOTSUPP);

    /* The MR keeps the memory when the descriptor is closed, but not when the file shrinks. */
    int again = dup(fd);
    CHECK(again >= 0 && !close(fd));
    memset(here + LEN, 0, LEN);
    copy(here + LEN, own->rkey, (void *)(start + 300), mr->lkey, IBV_WC_SUCCESS);
    CHECK(!memcmp(here + LEN, here, LEN));
    CHECK(!ibv_dereg_mr(mr) && maps() == 1);

    /* A file that shrinks is an error of the work, at both ends. */
    mr = ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, again, ALL);
    CHECK(mr && !ftruncate(again, PAGE));
    copy(NULL, mr->rkey, here, own->lkey, IBV_WC_REM_ACCESS_ERR);
    copy(here, own->rkey, NULL, mr->lkey, IBV_WC_LOC_PROT_ERR);
    CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(own) && !ibv_dealloc_pd(pd));
    return 0;
}
