// Registers services at subnet administration through libibumad, and asks for them by rdma_cm: by name, by id, and for one that is not
// there. Prints the events' numbers and statuses, and the services.
//
//     ib_service ADDRESS
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/umad.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rdma_create_event_channel(uint32_t *id);
int bind_id(int fd, uint32_t id, const struct sockaddr_in *address);
int resolve_service(int fd, uint32_t id, uint64_t service, const char *name);
int next_event(int fd, int *status);
int query_services(int fd, uint32_t id, uint8_t record[176]);

enum { SA = 3, SA_VERSION = 2, SET = 2, SERVICE = 0x31, LENGTH = 256, DATA = 56, GSI_KEY = 0x80010000 };

static int registered(uint8_t service, const char *name) {
    static int port = -1, agent, sm_lid;
    if (port < 0) {
        umad_port_t about;
        if (umad_init() < 0 || umad_get_port(NULL, 0, &about) < 0) return 0;
        sm_lid = about.sm_lid;
        port = umad_open_port(about.ca_name, about.portnum);
        agent = umad_register(port, SA, SA_VERSION, 0, NULL);
    }
    void *umad = umad_alloc(1, umad_size() + LENGTH);
    uint8_t *mad = umad_get_mad(umad);
    mad[0] = 1, mad[1] = SA, mad[2] = SA_VERSION, mad[3] = SET, mad[15] = service, mad[17] = SERVICE;
    // ServiceID, ServiceGID, ServiceP_Key, ServiceName.
    mad[55] = 1 | 2 | 4 | 1 << 6;
    mad[DATA + 7] = service, mad[DATA + 8] = 0xfe, mad[DATA + 9] = 0x80, mad[DATA + 24] = mad[DATA + 25] = 0xff;
    strcpy((char *)mad + DATA + 48, name);
    umad_set_addr(umad, sm_lid, 1, 0, GSI_KEY);
    umad_set_pkey(umad, 0);
    int length = LENGTH;
    return umad_send(port, agent, umad, LENGTH, 2000, 5) == 0 && umad_recv(port, umad, &length, -1) >= 0 && !mad[4] && !mad[5];
}

int main(int argc, char **argv) {
    if (argc < 2) return puts("ib_service ADDRESS"), 1;
    struct sockaddr_in address = {.sin_family = AF_INET};
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    if (!registered(7, "seven") || !registered(8, "seven") || !registered(9, "nine")) return puts("not registered"), 1;
    struct { uint64_t service; const char *name; } wanted[] = {{0, "seven"}, {9, NULL}, {0, "ten"}};
    for (int at = 0; at < 3; at++) {
        uint32_t id;
        int status, fd = rdma_create_event_channel(&id);
        if (fd < 0) return perror("channel"), 1;
        errno = 0;
        if (!resolve_service(fd, id, 1, NULL) || errno != EINVAL) return puts("not bound, and not refused"), 1;
        if (bind_id(fd, id, &address)) return perror("bind"), 1;
        if (resolve_service(fd, id, wanted[at].service, wanted[at].name)) return perror("resolve"), 1;
        int event = next_event(fd, &status);
        uint8_t record[176];
        int count = query_services(fd, id, record);
        printf("event %d status %d services %d: %u %s\n", event, status, count, record[7], (char *)record + 48);
    }
    return 0;
}
