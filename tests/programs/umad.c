// Management datagrams of vendor class 0x32 through libibumad: a server that sends back what it gets, and a client.
//
//     umad serve COUNT                          answers so many messages
//     umad ask GID BYTES TIMEOUT_MS RETRIES     sends so many bytes of data, and prints what comes
//     umad register CLASS VERSION METHOD        registers for one method, and prints the result
//     umad hold CLASS VERSION METHOD            the same, and stays
//     umad register2 CLASS OUI FLAGS            registers by umad_register2, and prints the result
//     umad many FILES                           registers as many agents as each file takes, until SIGUSR1, and closes all
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <infiniband/umad.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CLASS = 0x32, HEADERS = 40, ROOM = 1 << 21 };
static uint8_t oui[3] = {0, 0x14, 5};

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    return 1;
}

static int serve(int port, void *umad, int count) {
    long methods[16 / sizeof(long)];
    memset(methods, 0xff, sizeof methods);
    int agent = umad_register_oui(port, CLASS, 1, oui, methods);
    if (agent < 0) return fail("register");
    printf("serving\n");
    for (int length; count > 0; count--) {
        // First with room for one datagram: of a longer message that says how long it is.
        length = 256;
        int from = umad_recv(port, umad, &length, -1);
        if (from < 0 && errno == ENOSPC) {
            printf("needs %d bytes\n", length);
            from = umad_recv(port, umad, &length, -1);
        }
        if (from != agent) return fail("receive");
        uint8_t *mad = umad_get_mad(umad);
        mad[3] |= 0x80;
        ((struct ib_user_mad *)umad)->addr.hop_limit = 64;
        if (umad_send(port, agent, umad, length, 0, 5) < 0) return fail("respond");
    }
    // Segments of the last answer leave as they are acknowledged.
    int length = 256;
    umad_recv(port, umad, &length, 300);
    return 0;
}

static int ask(int port, void *umad, char **args) {
    int bytes = atoi(args[1]), timeout = atoi(args[2]), retries = atoi(args[3]);
    int agent = umad_register_oui(port, CLASS, 1, oui, NULL);
    if (agent < 0) return fail("register");
    ib_mad_addr_t to = {.hop_limit = 64};
    if (inet_pton(AF_INET6, args[0], to.gid) != 1) return fail("GID");
    umad_set_addr(umad, 0, 1, 0, 0x80010000);
    umad_set_grh(umad, &to);
    ((struct ib_user_mad *)umad)->addr.gid_index = strstr(args[0], "::ffff:") ? 1 : 2; // umad_set_grh leaves it out
    uint8_t *mad = umad_get_mad(umad);
    uint8_t header[HEADERS] = {1, CLASS, 1, 1, [15] = 7, [24] = 1, 1, bytes > 216, [38] = 0x14, 5};
    memcpy(mad, header, HEADERS);
    for (int i = 0; i < bytes; i++) mad[HEADERS + i] = i % 251;
    if (umad_send(port, agent, umad, HEADERS + bytes, timeout, retries) < 0) return fail("send");
    int length = ROOM - umad_size();
    memset(umad, 0, ROOM);
    if (umad_recv(port, umad, &length, 30000) != agent) return fail("receive");
    int differs = 0;
    for (int i = 0; i < bytes && !umad_status(umad); i++) differs |= mad[HEADERS + i] != i % 251;
    printf("status %d mad status %d length %d %s\n", umad_status(umad), mad[4] << 8 | mad[5], length,
           differs ? "different" : "same");
    return 0;
}

static int reg(int port, char **args, int holds) {
    long methods[16 / sizeof(long)] = {1L << atoi(args[2])};
    int class = strtol(args[0], NULL, 0);
    int agent = class >= 0x30 && class < 0x50 ? umad_register_oui(port, class, 0, oui, methods)
                                              : umad_register(port, class, atoi(args[1]), 0, methods);
    printf("%s\n", agent < 0 ? strerror(errno) : "registered");
    if (holds) pause();
    return 0;
}

static int reg2(int port, char **args) {
    struct umad_reg_attr attr = {.mgmt_class = strtol(args[0], NULL, 0), .mgmt_class_version = 1,
        .oui = strtol(args[1], NULL, 0), .flags = atoi(args[2]), .method_mask = {2}};
    uint32_t agent;
    int error = umad_register2(port, &attr, &agent);
    printf("%s\n", error ? strerror(error) : "registered");
    return 0;
}

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}

static void wake(int signal) {
    (void)signal;
}

static int many(char *name, int files) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    sigset_t usual, blocked;
    signal(SIGUSR1, wake);
    sigemptyset(&blocked), sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, &usual);
    uint8_t others[3] = {0, 0x14, 6};
    int ports[files], agents = 0, before = descriptors();
    for (int file = 0; file < files; file++) {
        if ((ports[file] = umad_open_port(name, 1)) < 0) return fail("open");
        for (;;) {
            // Each has a method of its own.
            uint8_t methods[16] = {0};
            int method = 1 + agents % 127;
            methods[method / 8] = 1 << method % 8;
            if (umad_register_oui(ports[file], 0x30 + agents / 127 % 32, 0, others, (long *)methods) < 0) break;
            agents++;
        }
    }
    printf("%d agents, then %s\n", agents, strerror(errno));
    sigsuspend(&usual);
    for (int file = 0; file < files; file++) umad_close_port(ports[file]);
    printf("%d descriptors more\n", descriptors() - before);
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char names[UMAD_MAX_DEVICES][UMAD_CA_NAME_LEN];
    if (umad_init() < 0 || umad_get_cas_names(names, UMAD_MAX_DEVICES) < 1) return fail("no device");
    int port = umad_open_port(names[0], 1);
    void *umad = calloc(1, ROOM);
    if (port < 0 || !umad) return fail("open");
    int result = !strcmp(argv[1], "serve") ? serve(port, umad, atoi(argv[2]))
               : !strcmp(argv[1], "ask")   ? ask(port, umad, argv + 2)
               : !strcmp(argv[1], "many")  ? many(names[0], atoi(argv[2]))
               : !strcmp(argv[1], "register2") ? reg2(port, argv + 2)
                                           : reg(port, argv + 2, !strcmp(argv[1], "hold"));
    umad_close_port(port);
    return result;
}
