/* Ends ibv_rc_pingpong by exit(3) from a signal handler, EXIT_AFTER_MS milliseconds after its queue pair is ready to send. A library for LD_PRELOAD. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

static void end(int signal)
{
    (void)signal;
    exit(0);
}

static void arm(void)
{
    const char *after = getenv("EXIT_AFTER_MS");
    if (!after)
        return;
    signal(SIGALRM, end);
    int milliseconds = atoi(after);
    struct itimerval timer = {.it_value = {.tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    int (*next)(struct ibv_qp *, struct ibv_qp_attr *, int) = dlsym(RTLD_NEXT, "ibv_modify_qp");
    int result = next(qp, attr, mask);
    if (!result && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTS)
        arm();
    return result;
}
