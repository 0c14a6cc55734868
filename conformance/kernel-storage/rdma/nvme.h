/* Numbers of NVM Express and of its transport RDMA, as far as the host and the target here use them. */
#ifndef NVME_H
#define NVME_H

enum {
    /* Bytes of a command, of a completion, and of what Identify and Connect carry. */
    COMMAND = 64,
    RESPONSE = 16,
    IDENTIFY_DATA = 4096,
    CONNECT_DATA = 1024,
    /* Commands of a queue. */
    DEPTH = 32,
};

/* Opcodes: of I/O queues, of the admin queue, and of Fabrics commands with their types. */
enum { NVME_FLUSH = 0x00, NVME_WRITE = 0x01, NVME_READ = 0x02 };
enum { NVME_GET_LOG_PAGE = 0x02, NVME_IDENTIFY = 0x06, NVME_SET_FEATURES = 0x09, NVME_ASYNC_EVENT = 0x0c, NVME_KEEP_ALIVE = 0x18 };
enum { NVME_FABRICS = 0x7f, FABRICS_PROPERTY_SET = 0, FABRICS_CONNECT = 1, FABRICS_PROPERTY_GET = 4 };

/* Offsets of the properties CAP, VS, CC and CSTS. */
enum { PROPERTY_CAP = 0x00, PROPERTY_VS = 0x08, PROPERTY_CC = 0x14, PROPERTY_CSTS = 0x1c };

/* What Identify is about (CNS). */
enum { IDENTIFY_NAMESPACE = 0, IDENTIFY_CONTROLLER = 1, IDENTIFY_ACTIVE_NAMESPACES = 2, IDENTIFY_DESCRIPTORS = 3 };

/* SGL descriptor: keyed data block, by address; with the subtype of a key that the response invalidates. */
enum { SGL_KEYED = 0x40, SGL_INVALIDATE = 0x0f };

#endif
