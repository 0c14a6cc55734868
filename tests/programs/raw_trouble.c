/* Raw packet queue pairs when things go wrong: "down", the interface goes down and up; "blocked", the interface is slower than
 * the program (the caller has limited it); "closed", the program closes descriptors that are not its own; "none", no receives
 * are posted; "overrun", more frames come than the ring holds. The second argument is the command urxe. Prints "ok". */
#include "raw_ethernet.h"

#include <net/if.h>
#include <netpacket/packet.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
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
        CHECK(counter("urxe0", "raw_tx_lost") == round + 1u);
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

/* Frames for which no receive is posted are lost, and counted. */
static void none(void)
{
    /* As few as `settle` has room for. */
    enum { FRAMES = 10 };
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    for (int i = 0; i < FRAMES; i++)
        send_frame(&end, here, 60);
    settle(&end);
    CHECK(counter("urxe0", "raw_rx_no_receive") == FRAMES && counter("urxe0", "raw_rx_lost") == 0 && counter("urxe0", "raw_tx_lost") == 0);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

/* More than the ring has slots on lo, whose frames may be long. */
enum { FLOOD = 500 };

/* Receives while another process sends: it stops until all frames have come, and gets those that the ring has held. The others
 * are counted, though no frame comes behind them. */
static void overrun(void)
{
    open_device();
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    for (uint64_t i = 0; i < 16; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    CHECK(kill(getpid(), SIGSTOP) == 0);
    unsigned long received = 0, lost = 0;
    double begun = now();
    while (received + lost < FLOOD) {
        struct ibv_wc wc[16];
        int found = ibv_poll_cq(end.recv_cq, 16, wc);
        CHECK(found >= 0 && now() - begun < 120);
        for (int n = 0; n < found; n++, received++) {
            CHECK(wc[n].status == IBV_WC_SUCCESS && wc[n].byte_len == 60);
            post_recv(&end, wc[n].wr_id, SLOT * (1 + wc[n].wr_id), SLOT);
        }
        if (found == 0)
            lost = counter("urxe0", "raw_rx_lost") + counter("urxe0", "raw_rx_no_receive");
    }
    CHECK(received > 0 && received + lost == FLOOD && counter("urxe0", "raw_rx_lost") > 0);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
    close_device();
}

/* Sends frames, each when the one before has come. */
static void flood(void)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(0x88b5));
    struct sockaddr_ll lo = {.sll_family = AF_PACKET, .sll_protocol = htons(0x88b5), .sll_ifindex = (int)if_nametoindex("lo")};
    CHECK(fd >= 0 && lo.sll_ifindex && bind(fd, (struct sockaddr *)&lo, sizeof lo) == 0);
    static uint8_t sent[60], received[60];
    memory = sent;
    frame(here, sizeof sent);
    for (int i = 0; i < FLOOD; i++) {
        CHECK(send(fd, sent, sizeof sent, 0) == sizeof sent);
        CHECK(recv(fd, received, sizeof received, 0) == sizeof received);
    }
    CHECK(close(fd) == 0);
}

/* Runs the receiver in a process of its own. */
static void overrun_by_another(void)
{
    pid_t receiver = fork();
    CHECK(receiver >= 0);
    if (receiver == 0) {
        /* A stopped process would stay when this one fails. */
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        overrun();
        exit(0);
    }
    int status;
    CHECK(waitpid(receiver, &status, WUNTRACED) == receiver && WIFSTOPPED(status));
    flood();
    CHECK(kill(receiver, SIGCONT) == 0 && waitpid(receiver, &status, 0) == receiver);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    urxe = argv[2];
    if (strcmp(argv[1], "overrun") == 0) {
        overrun_by_another();
        puts("ok");
        return 0;
    }
    open_device();
    if (strcmp(argv[1], "down") == 0)
        down();
    else if (strcmp(argv[1], "blocked") == 0)
        blocked();
    else if (strcmp(argv[1], "none") == 0)
        none();
    else
        closed();
    close_device();
    puts("ok");
    return 0;
}
