/* In front of libc: a host that is short of what sockets need. For LD_PRELOAD.
 *
 * SHORT_BUFFER=BYTES  every receive buffer is so small
 * SHORT_SEND=N        every Nth message finds no buffer to be sent from (ENOBUFS)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>

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

static int falls_short(void)
{
	static atomic_int calls;
	int every = number("SHORT_SEND");

	if (!every || atomic_fetch_add(&calls, 1) % every != every - 1)
		return 0;
	errno = ENOBUFS;
	return 1;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");

	return falls_short() ? -1 : next(fd, message, flags);
}

/* Not what processes of this host tell each other: a byte that wakes somebody needs next to no buffer. */
static int is_udp(int fd)
{
	int domain = 0;
	socklen_t length = sizeof(domain);

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
	return domain == AF_INET || domain == AF_INET6;
}

/* The way of packets. */
long syscall(long what, ...)
{
	long (*next)(long, ...) = dlsym(RTLD_NEXT, "syscall");
	long args[6];
	va_list list;

	va_start(list, what);
	for (int i = 0; i < 6; i++)
		args[i] = va_arg(list, long);
	va_end(list);
	if ((what == SYS_sendto || what == SYS_sendmsg || what == SYS_sendmmsg) && is_udp(args[0]) && falls_short())
		return -1;
	return next(what, args[0], args[1], args[2], args[3], args[4], args[5]);
}
