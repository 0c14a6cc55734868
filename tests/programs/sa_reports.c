// Subscribes to traps of subnet administration by libibumad, with an agent that takes reports and nothing else, and prints each
// report: "subscribed", then lines "trap NUMBER guid GUID".
//
//     sa_reports TRAP...
#include <infiniband/umad.h>
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SA = 3, SA_VERSION = 2, GET = 1, SET = 2, REPORT = 6, RESPONSE = 0x80, CLASS_PORT_INFO = 1, INFORM_INFO = 3 };
enum { LENGTH = 256, DATA = 56, GSI_KEY = 0x80010000 };

static int port, agent;
static void *umad;
static uint8_t *mad;

static void put16(int at, uint16_t value) {
    mad[at] = value >> 8, mad[at + 1] = value;
}

static int send_to(int lid, int timeout) {
    umad_set_addr(umad, lid, 1, 0, GSI_KEY);
    umad_set_pkey(umad, 0);
    return umad_send(port, agent, umad, LENGTH, timeout, 5);
}

static void begin(int method, int attribute) {
    memset(umad, 0, umad_size() + LENGTH);
    mad[0] = 1, mad[1] = SA, mad[2] = SA_VERSION, mad[3] = method;
    mad[15] = attribute;
    put16(16, attribute);
}

static int receive(int timeout) {
    int length = LENGTH;
    return umad_recv(port, umad, &length, timeout) < 0 || umad_status(umad) ? -1 : mad[3];
}

// A response; -1 without one. Reports that come before are none of it.
static int ask(int lid) {
    uint8_t transaction = mad[15];
    if (send_to(lid, 2000) < 0) return -1;
    for (;;) {
        int method = receive(60000);
        if (method < 0) return -1;
        if (method != REPORT && mad[15] == transaction) return mad[4] << 8 | mad[5];
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    umad_port_t about;
    if (umad_init() < 0 || umad_get_port(NULL, 0, &about) < 0) return puts("no port"), 1;
    int sm_lid = about.sm_lid;
    port = umad_open_port(about.ca_name, about.portnum);
    long methods[16 / sizeof(long)] = {0};
    methods[0] = 1 << REPORT;
    agent = umad_register(port, SA, SA_VERSION, 0, methods);
    if (port < 0 || agent < 0) return puts("no agent"), 1;
    umad = umad_alloc(1, umad_size() + LENGTH);
    mad = umad_get_mad(umad);
    // An agent that takes reports only leaves questions to the administration that is there.
    begin(GET, CLASS_PORT_INFO);
    if (ask(sm_lid) != 0) return puts("no ClassPortInfo"), 1;
    for (int at = 1; at < argc; at++) {
        begin(SET, INFORM_INFO);
        put16(DATA + 16, 0xffff);
        mad[DATA + 22] = mad[DATA + 23] = 1;
        put16(DATA + 24, 0xffff);
        put16(DATA + 26, atoi(argv[at]));
        mad[DATA + 30] = 1, mad[DATA + 31] = 18;
        mad[DATA + 33] = 0xff, put16(DATA + 34, 0xffff);
        int status = ask(sm_lid);
        if (status != 0) return printf("not subscribed: %#x\n", status), 1;
    }
    puts("subscribed");
    for (;;) {
        if (receive(-1) != REPORT) continue;
        uint64_t guid;
        memcpy(&guid, mad + DATA + 24, sizeof guid);
        printf("trap %d guid 0x%016llx\n", mad[DATA + 4] << 8 | mad[DATA + 5], (unsigned long long)be64toh(guid));
        mad[3] = REPORT | RESPONSE;
        int lid = be16toh(umad_get_mad_addr(umad)->lid);
        if (send_to(lid, 0) < 0) return puts("no answer"), 1;
    }
}
