/* In front of libc: a host that is short of what sockets need. For LD_PRELOAD.
 *
 * SHORT_BUFFER=BYTES  every receive buffer is so small
 * SHORT_SEND=N        every Nth sendmsg finds no buffer (ENOBUFS)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

static int number(const char *name)
{
	const char *text = getenv(name);

	return text ? atoi(text) : 0;
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	int (*next)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
	int bytes = number("SHORT_BUFFER");

	if (bytes && level == SOL_SOCKET && (option == SO_RCVBUF || option == SO_RCVBUFFORCE))
		return next(fd, level, option, &bytes, sizeof(bytes));
	return next(fd, level, option, value, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static atomic_int calls;
	ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
	int every = number("SHORT_SEND");

	if (every && atomic_fetch_add(&calls, 1) % every == every - 1) {
		errno = ENOBUFS;
		return -1;
	}
	return next(fd, message, flags);
}
