/* Handlers of SIGSEGV that a program installs after it has registered memory: they handle the program's faults, in every way,
 * and none of the device's.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static char *volatile stack;
static char *nothing;
static void *volatile fault_at;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s (errno %d)\n", what, errno);
        exit(1);
    }
}

static void handler(int number, siginfo_t *info, void *context)
{
    char here;
    (void)context;
    faults += number == SIGSEGV;
    fault_at = info->si_addr;
    stack = &here;
    siglongjmp(back, 1);
}

static void simple(int number)
{
    faults += number == SIGSEGV;
    siglongjmp(back, 1);
}

/* Touches what is not there. */
static void fault(void)
{
    int before = faults;
    if (!sigsetjmp(back, 1))
        *(volatile char *)nothing = 1;
    check(faults == before + 1, "a fault of the program is not handled");
}

/* How a child ends that faults. */
static int ending(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        *(volatile char *)nothing = 1;
        _exit(0);
    }
    check(waitpid(child, &status, 0) == child, "waitpid");
    return status;
}

struct device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

/* Connects the queue pair to itself. */
static void connect_to_self(struct device *device)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    check(!ibv_modify_qp(device->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = device->qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.hop_limit = 64;
    check(!ibv_query_gid(device->context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
    check(!ibv_modify_qp(device->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 18;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    check(!ibv_modify_qp(device->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void open_device(struct device *device)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(list && list[0], "no device");
    check((device->context = ibv_open_device(list[0])) != NULL, "ibv_open_device");
    ibv_free_device_list(list);
    check((device->pd = ibv_alloc_pd(device->context)) != NULL, "ibv_alloc_pd");
    check((device->cq = ibv_create_cq(device->context, 16, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    struct ibv_qp_init_attr init = {.send_cq = device->cq, .recv_cq = device->cq, .qp_type = IBV_QPT_RC};
    init.cap.max_send_wr = init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    check((device->qp = ibv_create_qp(device->pd, &init)) != NULL, "ibv_create_qp");
    connect_to_self(device);
}

/* Status of a WRITE to itself. */
static enum ibv_wc_status write_to_self(struct device *device, char *memory, struct ibv_mr *mr)
{
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
    wr.wr.rdma.rkey = mr->rkey;
    check(!ibv_post_send(device->qp, &wr, &bad), "ibv_post_send");
    struct ibv_wc wc;
    int polled;
    while (!(polled = ibv_poll_cq(device->cq, 1, &wc)))
        ;
    check(polled == 1, "ibv_poll_cq");
    return wc.status;
}

int main(void)
{
    struct device device;
    open_device(&device);
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    nothing = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED && nothing != MAP_FAILED, "mmap");
    struct ibv_mr *mr = ibv_reg_mr(device.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(mr != NULL, "ibv_reg_mr");
    check(write_to_self(&device, memory, mr) == IBV_WC_SUCCESS, "WRITE");

    /* Shown as it was installed. */
    struct sigaction wanted = {.sa_flags = SA_SIGINFO | SA_ONSTACK}, old;
    wanted.sa_sigaction = handler;
    sigaddset(&wanted.sa_mask, SIGUSR1);
    check(!sigaction(SIGSEGV, NULL, &old) && old.sa_handler == SIG_DFL, "the default is not shown");
    check(!sigaction(SIGSEGV, &wanted, &old) && old.sa_handler == SIG_DFL, "the default is not returned");
    check(!sigaction(SIGSEGV, NULL, &old), "sigaction");
    check(old.sa_sigaction == handler && old.sa_flags & SA_ONSTACK && old.sa_flags & SA_SIGINFO &&
              sigismember(&old.sa_mask, SIGUSR1) == 1 && sigismember(&old.sa_mask, SIGUSR2) == 0,
          "the handler is not shown");

    /* On its own stack, with the address, again and again. */
    static char alternate[65536];
    stack_t own = {.ss_sp = alternate, .ss_size = sizeof alternate};
    check(!sigaltstack(&own, NULL), "sigaltstack");
    for (int count = 0; count < 3; count++) {
        fault();
        check(fault_at == nothing, "si_addr");
        check(stack >= alternate && stack < alternate + sizeof alternate, "SA_ONSTACK");
    }

    /* signal(2), and back. */
    check(signal(SIGSEGV, simple) != SIG_ERR, "signal");
    fault();
    check(signal(SIGSEGV, SIG_DFL) == simple, "signal does not return the handler");
    int status = ending();
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the default does not end the program");

    /* Once. */
    wanted.sa_flags |= SA_RESETHAND;
    check(!sigaction(SIGSEGV, &wanted, NULL), "sigaction");
    fault();
    check(!sigaction(SIGSEGV, NULL, &old) && old.sa_handler == SIG_DFL, "SA_RESETHAND");

    /* And the device's faults are the device's. */
    wanted.sa_flags = SA_SIGINFO;
    check(!sigaction(SIGSEGV, &wanted, NULL), "sigaction");
    int before = faults;
    check(!munmap(memory, PAGE), "munmap");
    check(write_to_self(&device, memory, mr) == IBV_WC_LOC_PROT_ERR, "unmapped memory does not fail the request");
    check(faults == before, "the program was told of the device's fault");
    fault();
    puts("handled");
    return 0;
}
