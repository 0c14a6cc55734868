/* A program whose second registration fails, and that then ends in the way its argument names. */
#include <assert.h>
#include <infiniband/verbs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf back;
static char memory[4096];

static void go_back(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static void leave(int number) {
    (void)number;
    _exit(4);
}

static void crash_again(int number) {
    signal(number, SIG_DFL);
    raise(number);
}

static void kill_again(int number) {
    signal(number, SIG_DFL);
    kill(getpid(), number);
}

static void come_back(int number) {
    (void)number;
}

static void come_back_informed(int number, siginfo_t *info, void *context) {
    if (!context || info->si_signo != number) _exit(7);
}

static void end_well(int number) {
    (void)number;
    _exit(0);
}

/* A filter as sandboxes have it: who opens a file is killed. */
static int forbid_open(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_open
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open, 2, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* How a child ends. */
static int status_of(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child ? status : -1;
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
#define IS(name) (strcmp(way, name) == 0)
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *device = list && list[0] ? ibv_open_device(list[0]) : NULL;
    struct ibv_pd *pd = device ? ibv_alloc_pd(device) : NULL;
    if (!pd || !ibv_reg_mr(pd, memory, sizeof memory, 0)) return 9;
    if (IS("filtered") && forbid_open()) return 9;
    if (ibv_reg_mr(pd, memory, sizeof memory, 0)) return 9;
    fputs("after\n", stderr);

    if (IS("abort")) abort();
    if (IS("assert")) assert(!"ended");
    if (IS("_exit") || IS("filtered")) _exit(3);
    if (IS("_Exit")) _Exit(3);
    if (IS("quick_exit")) quick_exit(3);
    if (IS("fault")) *(volatile char *)(uintptr_t)(count - 2) = 1;
    if (IS("raise")) raise(SIGFPE);
    if (IS("sent")) kill(getpid(), SIGSEGV);
    if (IS("handler leaves")) signal(SIGABRT, leave), abort();
    if (IS("handler raises")) signal(SIGABRT, crash_again), abort();

    if (IS("handler kills")) signal(SIGABRT, kill_again), abort();
    if (IS("handler returns")) signal(SIGABRT, come_back), abort();
    if (IS("handler returns to assert")) signal(SIGABRT, come_back), assert(!"ended");
    if (IS("handler with information returns")) {
        struct sigaction action = {.sa_sigaction = come_back_informed, .sa_flags = SA_SIGINFO | SA_RESETHAND};
        sigaction(SIGABRT, &action, NULL), abort();
    }
    if (IS("killed by itself")) kill(getpid(), SIGKILL);
    if (IS("killed by a thread of its own")) pthread_kill(pthread_self(), SIGABRT);

    if (IS("handler ends well")) signal(SIGABRT, end_well), abort();
    if (IS("_exit well")) _exit(0);
    if (IS("_exit of a byte")) _exit(256);
    if (IS("abort survived") || IS("assert survived") || IS("fault survived")) {
        signal(SIGABRT, go_back);
        signal(SIGSEGV, go_back);
        if (!sigsetjmp(back, 1)) {
            assert(!IS("assert survived"));
            if (IS("fault survived")) *(volatile char *)(uintptr_t)(count - 2) = 1;
            abort();
        }
    }
    if (IS("raise ignored")) signal(SIGABRT, SIG_IGN), raise(SIGABRT);
    if (IS("child fails")) {
        pid_t child = fork();
        if (!child) abort();
        if (status_of(child) == 0) return 8;
        child = fork();
        if (!child) _exit(3);
        if (status_of(child) == 0) return 8;
        child = vfork();
        if (!child) _exit(127);
        if (status_of(child) == 0) return 8;
    }
    return 0;
}
