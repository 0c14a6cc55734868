/* Requests of an SMB2 client over SMB Direct, one at a time, as a guest without signing. */
#ifndef SMB2_H
#define SMB2_H

#include "smb-direct.h"

enum {
    SMB2_NEGOTIATE = 0,
    SMB2_SESSION_SETUP = 1,
    SMB2_TREE_CONNECT = 3,
    SMB2_CREATE = 5,
    SMB2_CLOSE = 6,
    SMB2_READ = 8,
    SMB2_WRITE = 9,
    SMB2_QUERY_DIRECTORY = 14,
};

enum { SMB2_HEADER = 64 };
/* Offsets in the header, and flags in it. */
enum { AT_CHARGE = 6, AT_STATUS = 8, AT_COMMAND = 12, AT_CREDITS = 14, AT_FLAGS = 16, AT_NEXT = 20, AT_MESSAGE = 24, AT_TREE = 36, AT_SESSION = 40 };
enum { FLAG_SIGNED = 8 };
enum { STATUS_PENDING = 0x103, STATUS_BUFFER_OVERFLOW = 0x80000005, STATUS_NO_MORE_FILES = 0x80000006, STATUS_MORE_PROCESSING = 0xc0000016, STATUS_END_OF_FILE = 0xc0000011 };

/* Offsets in the body of a READ and a WRITE request; all but the descriptors of the RDMA channel, which are 16 bytes each. */
enum { READ_LENGTH = 4, READ_CHANNEL = 36, READ_DESCRIPTORS = 44, READ_DESCRIPTORS_LENGTH = 46, READ_BODY = 48 };
enum { WRITE_DATA = 2, WRITE_LENGTH = 4, WRITE_CHANNEL = 32, WRITE_REMAINING = 36, WRITE_DESCRIPTORS = 40, WRITE_DESCRIPTORS_LENGTH = 42, WRITE_BODY = 48 };
enum { CHANNEL_NONE = 0, CHANNEL_RDMA = 1, CHANNEL_RDMA_INVALIDATE = 2, DESCRIPTOR = 16 };

struct smb2 {
    struct smb_direct *direct;
    uint64_t next_message, session;
    uint32_t tree;
    /* The request that is made, header included. */
    uint8_t request[SMB2_HEADER + MESSAGE / 4];
};

struct file {
    uint8_t id[16];
    uint64_t size;
};

/* Data of a READ or WRITE: where the RDMA channel finds it, or inside of the messages. */
struct channel {
    int kind;
    uint64_t address;
    uint32_t key;
};

/* Negotiates, sets a guest's session up, and connects to the share. Each function here exits the process when the server fails. */
struct smb2 *smb2_open(struct smb_direct *direct, const char *server, const char *share);
/* Opens a file, or makes it anew; an empty path is the share's root. */
struct file smb2_create(struct smb2 *smb2, const char *path, int anew);
void smb2_close(struct smb2 *smb2, const struct file *file);
/* Prints the names and sizes of what is in the share's root. */
void smb2_list(struct smb2 *smb2);
/* Data comes by the channel, or to `into`; the fragments of the response. */
int smb2_read(struct smb2 *smb2, const struct file *file, uint64_t at, uint32_t length, struct channel channel, uint8_t *into);
void smb2_write(struct smb2 *smb2, const struct file *file, uint64_t at, uint32_t length, struct channel channel, const uint8_t *from);

#endif
