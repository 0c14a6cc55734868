/* A signal in the midst of the library: a filter of system calls (seccomp(2)) raises SIGSYS where it sends, and the handler sends instead of it. */
#pragma once
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <ucontext.h>

#if defined __x86_64__
static const int registers[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
#define ARGUMENT(context, nth) ((context)->uc_mcontext.gregs[registers[nth]])
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
#elif defined __aarch64__
#define ARGUMENT(context, nth) ((context)->uc_mcontext.regs[nth])
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#endif

static void check(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

/* Does what sendto(2) was to do, for the handler of SIGSYS that was given this context. Returns whether it could. */
static int send_instead(void *context)
{
    ucontext_t *at = context;
    struct iovec bytes = {(void *)(uintptr_t)ARGUMENT(at, 1), ARGUMENT(at, 2)};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)ARGUMENT(at, 4), .msg_namelen = ARGUMENT(at, 5)};
    ssize_t sent;
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    sent = sendmsg(ARGUMENT(at, 0), &message, ARGUMENT(at, 3));
    RESULT(at) = sent < 0 ? -errno : sent;
    return sent >= 0;
}

/* Raises SIGSYS at each sendto(2) of this thread from now on. */
static void trap_sends(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
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
