/* Ends ibv_rc_pingpong by exit(3) from a signal handler, EXIT_AFTER_MS milliseconds after its start. A library for LD_PRELOAD. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static void end(int signal)
{
    (void)signal;
    exit(0);
}

__attribute__((constructor)) static void arm(void)
{
    const char *after = getenv("EXIT_AFTER_MS");
    if (!after || strcmp(program_invocation_short_name, "ibv_rc_pingpong") != 0)
        return;
    signal(SIGALRM, end);
    int milliseconds = atoi(after);
    struct itimerval timer = {.it_value = {.tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}
