// Subnet management through libibmad: the node at the end of each directed route, and the port of a LID.
//
//     ibmad PATH...    such as 0, 0,1 and 0,1,2; or a LID
#include <infiniband/mad.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int of_path(struct ibmad_port *port, const char *path) {
    ib_portid_t to = {.drpath.drslid = 0xffff, .drpath.drdlid = 0xffff};
    if (str2drpath(&to.drpath, (char *)path, 0, 0) < 0) return 1;
    uint8_t info[IB_SMP_DATA_SIZE] = {0};
    if (!smp_query_via(info, &to, IB_ATTR_NODE_INFO, 0, 2000, port)) return 1;
    printf("%s type %u ports %u guid 0x%016llx\n", path, mad_get_field(info, 0, IB_NODE_TYPE_F),
           mad_get_field(info, 0, IB_NODE_NPORTS_F), (unsigned long long)mad_get_field64(info, 0, IB_NODE_GUID_F));
    return 0;
}

static int of_lid(struct ibmad_port *port, int lid) {
    ib_portid_t to;
    ib_portid_set(&to, lid, 0, 0);
    uint8_t info[IB_SMP_DATA_SIZE] = {0};
    if (!smp_query_via(info, &to, IB_ATTR_PORT_INFO, 1, 2000, port)) return 1;
    printf("lid %d state %u sm %u\n", mad_get_field(info, 0, IB_PORT_LID_F), mad_get_field(info, 0, IB_PORT_STATE_F),
           mad_get_field(info, 0, IB_PORT_SMLID_F));
    return 0;
}

int main(int argc, char **argv) {
    int classes[] = {IB_SMI_CLASS, IB_SMI_DIRECT_CLASS};
    struct ibmad_port *port = mad_rpc_open_port(NULL, 0, classes, 2);
    if (!port) return puts("no port"), 1;
    for (int at = 1; at < argc; at++) {
        int is_lid = !strchr(argv[at], ',') && strcmp(argv[at], "0");
        if (is_lid ? of_lid(port, atoi(argv[at])) : of_path(port, argv[at])) return printf("no answer from %s\n", argv[at]), 1;
    }
    mad_rpc_close_port(port);
    return 0;
}
