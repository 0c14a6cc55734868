// Calls of threads that have the smallest stack there is (PTHREAD_STACK_MIN), and of signal handlers on a stack of 5 KiB and
// the processor's registers: each call has the result that it has on a large stack. The argument is a folder to work in.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static int dir = -1, above = -1;
static struct stat status;
static struct statfs file_system;
static char target[PATH_MAX];

// 0 and more: success.
static long end(long result)
{
    long errors = -errno;
    return result < 0 ? errors : 0;
}

static long opened(int fd)
{
    long result = end(fd);
    if (fd >= 0) close(fd);
    return result;
}

static long list(const char *path)
{
    DIR *listing = opendir(path);
    if (!listing) return -errno;
    long entries = 0;
    while (readdir(listing)) entries++;
    rewinddir(listing);
    while (readdir(listing)) entries++;
    closedir(listing);
    return entries;
}

// A length that is no address is none of anybody's business when there is no room for an address.
static long receive(void)
{
    int pair[2];
    char bytes[4];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return -errno;
    if (write(pair[0], "x", 1) != 1) return -errno;
    long received = recvfrom(pair[1], bytes, sizeof bytes, 0, NULL, (socklen_t *)0x10);
    close(pair[0]);
    close(pair[1]);
    return received;
}

static long call(int which)
{
    switch (which) {
    case 0: return list(".");
    case 1: return opened(open("../no-such", O_RDONLY));
    case 2: return opened(openat(dir, "file", O_RDONLY));
    case 3: return opened(openat(dir, "folder/../file", O_RDONLY));
    case 4: return end(unlinkat(dir, "no-such", 0));
    case 5: return end(unlinkat(dir, "folder/../no-such", 0));
    case 6: return end(stat("file", &status));
    case 7: return end(fstatat(dir, "folder/../file", &status, 0));
    case 8: return end(access("../no-such", R_OK));
    case 9: return end(readlinkat(dir, "link", target, sizeof target));
    case 10: return end(mkdirat(dir, "folder", 0700));
    case 11: return end(renameat(dir, "no-such", dir, "other"));
    case 12: return end(fchdir(dir));
    case 13: return end(chdir("."));
    case 14: return end(chmod("folder/../file", 0600));
    case 15: return end(statfs("folder/..", &file_system));
    case 16: return opened(syscall(SYS_openat, dir, "folder/../file", O_RDONLY, 0));
    case 17: return receive();
    case 18: return list("/sys/class");
    // The devices' files.
    case 19: return list("/sys/class/infiniband");
    case 20: return opened(open("/sys/class/infiniband/urxe0/device", O_PATH));
    case 21: return opened(open("/sys/class/infiniband/urxe0/../urxe0/node_guid", O_RDONLY));
    case 22: return opened(openat(above, "infiniband/urxe0/node_guid", O_RDONLY));
    case 23: return opened(openat(above, "net/../infiniband/urxe0/node_guid", O_RDONLY));
    case 24: return end(stat("/dev/infiniband/uverbs0", &status));
    case 25: return end(unlink("/dev/infiniband/uverbs0"));
    case 26: return end(rename("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"));
    case 27: return end(access("/dev/infiniband/no-such", R_OK));
    }
    return LONG_MAX;
}

static int which;
static long result;

static void *thread(void *nothing)
{
    errno = 0;
    result = call(which);
    return nothing;
}

static void handler(int signal)
{
    thread(NULL);
}

// On a stack with a margin below, which nobody may write to.
static long in_handler(void)
{
    enum { AT_MINSIGSTKSZ_NUMBER = 51, MARGIN = 65536 };
    size_t size = getauxval(AT_MINSIGSTKSZ_NUMBER) + 5120;
    unsigned char *memory = malloc(MARGIN + size);
    memset(memory, 0xaa, MARGIN + size);
    stack_t stack = {.ss_sp = memory + MARGIN, .ss_size = size}, none = {.ss_flags = SS_DISABLE};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL)) return -1;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigaltstack(&none, NULL);
    long beyond = 0;
    for (int i = 0; i < MARGIN && !beyond; i++) {
        if (memory[i] != 0xaa) beyond = MARGIN - i;
    }
    free(memory);
    return beyond;
}

int main(int count, char **words)
{
    int has_failed = 0;
    if (count != 2 || chdir(words[1]) || mkdir("small_stacks", 0700) || chdir("small_stacks") || mkdir("folder", 0700) || symlink("file", "link")) return 2;
    close(open("file", O_CREAT | O_RDWR, 0600));
    dir = open(".", O_PATH | O_DIRECTORY);
    above = open("/sys/class", O_PATH | O_DIRECTORY);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN)) return 2;
    for (which = 0; call(which) != LONG_MAX; which++) {
        errno = 0;
        long wanted = call(which);
        pthread_t id;
        if (pthread_create(&id, &attributes, thread, NULL)) return 2;
        pthread_join(id, NULL);
        if (result != wanted) has_failed = printf("call %d: %ld, not %ld\n", which, result, wanted);
        long beyond = in_handler();
        if (beyond) has_failed = printf("call %d: writes %ld bytes below a handler's stack\n", which, beyond);
        if (result != wanted) has_failed = printf("call %d: %ld in a handler, not %ld\n", which, result, wanted);
    }
    if (!has_failed) puts("all");
    return has_failed != 0;
}
