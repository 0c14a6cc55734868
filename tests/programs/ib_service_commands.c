// Commands of librdmacm 59 and later about services, of a library that is known by the function that librdmacm is known by: the
// release may be an older one.
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <string.h>
#include <unistd.h>

enum { RESOLVE_IB_SERVICE = RDMA_USER_CM_CMD_JOIN_MCAST + 1, QUERY_IB_SERVICE = RDMA_USER_CM_QUERY_GID + 1 };

// Opens the file of a channel, and an id on it; the descriptor, or -1.
int rdma_create_event_channel(uint32_t *id) {
    int count, fd = -1;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (devices && count) fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
    struct rdma_ucm_create_id_resp response;
    struct {
        struct rdma_ucm_cmd_hdr header;
        struct rdma_ucm_create_id body;
    } create = {{RDMA_USER_CM_CMD_CREATE_ID, sizeof create.body, sizeof response}, {.uid = 1, .response = (uintptr_t)&response}};
    create.body.ps = RDMA_PS_TCP, create.body.qp_type = 2;
    if (fd < 0 || write(fd, &create, sizeof create) != sizeof create) return -1;
    *id = response.id;
    return fd;
}

int bind_id(int fd, uint32_t id, const struct sockaddr_in *address) {
    struct {
        struct rdma_ucm_cmd_hdr header;
        struct rdma_ucm_bind_ip body;
    } bind = {{RDMA_USER_CM_CMD_BIND_IP, sizeof bind.body, 0}, {.id = id}};
    memcpy(&bind.body.addr, address, sizeof *address);
    return write(fd, &bind, sizeof bind) == sizeof bind ? 0 : -1;
}

// Asks for a service, by id where that is not zero, and by name where there is one.
int resolve_service(int fd, uint32_t id, uint64_t service, const char *name) {
    struct {
        struct rdma_ucm_cmd_hdr header;
        uint32_t id, reserved;
        uint64_t service;
        char name[64];
        uint32_t flags, reserved_too;
    } resolve = {{RESOLVE_IB_SERVICE, sizeof resolve - sizeof resolve.header, 0}, .id = id, .service = service};
    if (name) strncpy(resolve.name, name, sizeof resolve.name - 1);
    resolve.flags = (service ? 1 : 0) | (name ? 2 : 0);
    return write(fd, &resolve, sizeof resolve) == sizeof resolve ? 0 : -1;
}

// Waits for an event; its number, with its status.
int next_event(int fd, int *status) {
    struct rdma_ucm_event_resp response;
    struct {
        struct rdma_ucm_cmd_hdr header;
        struct rdma_ucm_get_event body;
    } get = {{RDMA_USER_CM_CMD_GET_EVENT, sizeof get.body, sizeof response}, {.response = (uintptr_t)&response}};
    struct pollfd polled = {fd, POLLIN, 0};
    if (poll(&polled, 1, -1) != 1 || write(fd, &get, sizeof get) != sizeof get) return -1;
    *status = response.status;
    return response.event;
}

// How many services were told; the first is stored.
int query_services(int fd, uint32_t id, uint8_t record[176]) {
    struct {
        uint32_t count, reserved;
        uint8_t records[6][176];
    } response = {0};
    struct {
        struct rdma_ucm_cmd_hdr header;
        struct rdma_ucm_query body;
    } query = {{RDMA_USER_CM_CMD_QUERY, sizeof query.body, sizeof response}, {(uintptr_t)&response, id, QUERY_IB_SERVICE}};
    if (write(fd, &query, sizeof query) != sizeof query) return -1;
    memcpy(record, response.records[0], 176);
    return response.count;
}
