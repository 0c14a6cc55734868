/* Raw packet queue pairs when things go wrong: "down", the interface goes down and up; "blocked", the interface is slower than
 * the program (the caller has limited it); "closed", the program closes descriptors that are not its own. Prints "ok". */
#include "raw_ethernet.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void set_link(int up)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo"};
    CHECK(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0);
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    CHECK(ioctl(fd, SIOCSIFFLAGS, &request) == 0 && close(fd) == 0);
}

/* Frames are lost while the link is down, and come again; rules stay. */
static void down(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    for (int round = 0; round < 2; round++) {
        send_frame(&end, here, 60);
        CHECK(next(end.recv_cq).byte_len == 60);
        set_link(0);
        send_frame(&end, here, 61);
        CHECK(count(end.recv_cq) == 0);
        set_link(1);
    }
    send_frame(&end, here, 62);
    CHECK(next(end.recv_cq).byte_len == 62);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

/* Posts frames until the queue is full, or all of them; only the last is signaled. Returns how many were posted. */
static int fill(struct end *end, int most)
{
    frame(here, 1500);
    struct ibv_sge list = part(0, 1500);
    for (int posted = 0; posted < most; posted++) {
        struct ibv_send_wr *bad, wr = {.wr_id = 1000 + (uint64_t)posted, .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_SEND};
        wr.send_flags = posted == most - 1 ? IBV_SEND_SIGNALED : 0;
        int result = ibv_post_send(end->qp, &wr, &bad);
        CHECK(result == 0 || result == ENOMEM);
        if (result)
            return posted;
    }
    return most;
}

static struct end long_end(uint32_t requests)
{
    struct end end;
    CHECK((end.send_cq = end.recv_cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {
        .send_cq = end.send_cq,
        .recv_cq = end.send_cq,
        .qp_type = IBV_QPT_RAW_PACKET,
        .cap = {.max_send_wr = requests, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK((end.qp = ibv_create_qp(pd, &init)));
    CHECK(!move(end.qp, IBV_QPS_INIT, IBV_QP_PORT) && !move(end.qp, IBV_QPS_RTR, 0) && !move(end.qp, IBV_QPS_RTS, 0));
    return end;
}

static void finish_long(struct end *end)
{
    CHECK(ibv_destroy_qp(end->qp) == 0 && ibv_destroy_cq(end->send_cq) == 0);
}

/* What finds no room leaves later; a queue pair that waits for room can be destroyed, or reset. */
static void blocked(void)
{
    enum { MANY = 10000000, REQUESTS = 64 };
    for (int how = 0; how < 3; how++) {
        struct end end = long_end(REQUESTS);
        CHECK(fill(&end, MANY) < MANY);
        CHECK(how != 1 || move(end.qp, IBV_QPS_RESET, 0) == 0);
        CHECK(how != 2 || move(end.qp, IBV_QPS_ERR, 0) == 0);
        if (how == 2) {
            /* Some may have left meanwhile. */
            struct ibv_sge list = part(0, 60);
            CHECK(post_list(&end, &list, 1, 0) == 0);
            struct ibv_wc wc;
            do {
                wc = next(end.send_cq);
                CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
            } while (wc.wr_id != 7);
        }
        CHECK(count(end.send_cq) == 0);
        finish_long(&end);
    }
    struct end end = long_end(8192);
    double begun = now();
    CHECK(fill(&end, 8192) == 8192);
    struct ibv_wc wc;
    int found = ibv_poll_cq(end.send_cq, 1, &wc);
    /* They are two seconds of the interface, less what its socket takes: this program may come too late to see that they wait. */
    CHECK(found == 0 || (found == 1 && now() - begun > 0.5));
    if (found == 0)
        wc = next(end.send_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1000 + 8191);
    finish_long(&end);
}

/* The numbers of closed descriptors are the program's: nothing is written there, and nothing hangs. */
static void closed(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    post_recv(&end, 1, SLOT, SLOT);
    int last = dup(2), pair[2], own[64][2];
    CHECK(last > 2);
    for (int fd = 3; fd <= last + 64; fd++)
        close(fd);
    for (int i = 0; i < 64; i++) {
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) == 0);
        own[i][0] = pair[0];
        own[i][1] = pair[1];
    }
    send_frame(&end, here, 60);
    CHECK(count(end.recv_cq) == 0);
    CHECK(refusal(&end, &rule) == EBADF);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
    for (int i = 0; i < 64; i++)
        for (int side = 0; side < 2; side++) {
            char byte;
            CHECK(recv(own[i][side], &byte, 1, 0) < 0 && errno == EAGAIN);
        }
}

int main(int argc, char **argv)
{
    open_device();
    CHECK(argc == 2);
    if (strcmp(argv[1], "down") == 0)
        down();
    else if (strcmp(argv[1], "blocked") == 0)
        blocked();
    else
        closed();
    close_device();
    puts("ok");
    return 0;
}
