/* Ends by exit(3) from a signal handler that interrupts rdma_connect, with the request sent: a filter of system calls (seccomp(2)) raises
 * SIGSYS where the library sends, and the handler sends instead of it.
 */
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#if defined __x86_64__
static const int registers[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
#define ARGUMENT(context, nth) ((context)->uc_mcontext.gregs[registers[nth]])
#elif defined __aarch64__
#define ARGUMENT(context, nth) ((context)->uc_mcontext.regs[nth])
#endif

static struct rdma_event_channel *channel;

static void check(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

/* Does what sendto(2) was to do, and ends the program. */
static void send_and_exit(int signal, siginfo_t *info, void *context)
{
    static int is_sent;
    ucontext_t *at = context;
    struct iovec bytes = {(void *)(uintptr_t)ARGUMENT(at, 1), ARGUMENT(at, 2)};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)ARGUMENT(at, 4), .msg_namelen = ARGUMENT(at, 5)};
    (void)signal;
    (void)info;
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    if (is_sent++ || sendmsg(ARGUMENT(at, 0), &message, ARGUMENT(at, 3)) < 0)
        _exit(2);
    exit(0);
}

/* Raises SIGSYS at each sendto(2) of this thread from now on. */
static void trap_sends(void)
{
    struct sigaction action = {.sa_sigaction = send_and_exit, .sa_flags = SA_SIGINFO};
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    check(!sigaction(SIGSYS, &action, NULL), "sigaction");
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
    check(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

static void expect(enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    check(!rdma_get_cm_event(channel, &event) && event->event == type, rdma_event_str(type));
    check(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7999)};
    struct rdma_conn_param param = {0};
    struct rdma_cm_id *listener, *id;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check((channel = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
    check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_bind_addr(listener, (void *)&address) && !rdma_listen(listener, 1), "rdma_listen");
    check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_resolve_addr(id, NULL, (void *)&address, 2000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    trap_sends();
    rdma_connect(id, &param);
    fputs("rdma_connect has sent nothing\n", stderr);
    _exit(3);
}
