/* select(2) by poll(2), to be preloaded in front of librspreload.
 *
 * librspreload's own select answers for the wrong descriptor: it looks for the first number that stands for the rsocket
 * (rpoll_to_select of rdma-core's preload.c), and that is the rsocket's own, which is lower than the number that accept()
 * gave to the program. Its poll has no such search. */
#include <poll.h>
#include <sys/select.h>

static int asked(int fd, const fd_set *set) { return set && FD_ISSET(fd, set); }

static int answer(int fd, fd_set *set, int yes)
{
	if (set && !yes)
		FD_CLR(fd, set);
	return asked(fd, set);
}

int select(int count, fd_set *in, fd_set *out, fd_set *other, struct timeval *patience)
{
	struct pollfd polled[FD_SETSIZE];
	int used = 0, found = 0;

	for (int fd = 0; fd < count; fd++) {
		short events = (asked(fd, in) ? POLLIN : 0) | (asked(fd, out) ? POLLOUT : 0);
		if (events || asked(fd, other))
			polled[used++] = (struct pollfd){ .fd = fd, .events = events };
	}
	int ready = poll(polled, used, patience ? patience->tv_sec * 1000 + patience->tv_usec / 1000 : -1);
	if (ready < 0)
		return ready;
	for (int i = 0; i < used; i++) {
		found += answer(polled[i].fd, in, polled[i].revents & POLLIN);
		found += answer(polled[i].fd, out, polled[i].revents & POLLOUT);
		found += answer(polled[i].fd, other, polled[i].revents & ~(POLLIN | POLLOUT));
	}
	return found;
}
