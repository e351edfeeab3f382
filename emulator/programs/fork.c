/* A child inherits its parent's device file, but cannot use it; the child may open a device itself.
 * The parent continues unaffected. */
#include "verbs.h"
#include <signal.h>

static volatile sig_atomic_t faults;
static volatile int *volatile nowhere = (volatile int *)8;

static void on_fault(int signal)
{
    (void)signal;
    faults++;
    _exit(faults == 1 ? 7 : 8);
}

static void work(struct ibv_context *context)
{
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_qp *qp = make_qp(pd, cq);
    char *data = calloc(1, 8192);
    struct ibv_mr *mr = ibv_reg_mr(pd, data, 8192, ALL);
    CHECK(mr);
    connect_qp(qp, qp->qp_num);
    strcpy(data, "from here");
    post(qp, IBV_WR_RDMA_WRITE, data, 64, mr->lkey, data + 4096, mr->rkey);
    struct ibv_wc wc = completion(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(data + 4096, "from here"));
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
    free(data);
}

static int status_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int main(void)
{
    struct ibv_context *context = open_device();
    work(context);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct ibv_device_attr attr;
        CHECK(!ibv_alloc_pd(context));
        CHECK(errno == EIO);
        CHECK(ibv_query_device(context, &attr));
        work(open_device());
        _exit(3);
    }
    work(context);
    CHECK(status_of(child) == 3);

    /* The program's own handler of faults is called, with or without the library; without a handler
     * the program dies. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_handler = on_fault}, was;
        CHECK(!sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGSEGV, NULL, &was));
        CHECK(was.sa_handler == on_fault);
        *nowhere = 1;
        _exit(0);
    }
    CHECK(status_of(child) == 7);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        *nowhere = 1;
        _exit(0);
    }
    CHECK(status_of(child) == 1000 + SIGSEGV);
    CHECK(!ibv_close_device(context));
    return 0;
}
