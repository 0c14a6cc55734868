//! Limits of a device, as `ibv_query_device(3)` reports and the verbs enforce them.

/// Queue pairs in a process that may have descriptors enough for their numbers.
pub const MAX_QP: u32 = 65536;
/// Work requests in a queue.
pub const MAX_QP_WR: u32 = 32768;
/// Work queues in an indirection table.
pub const MAX_RWQ_IND_TABLE: u32 = 512;
/// Indirection tables.
pub const MAX_RWQ_IND_TABLES: u32 = 65536;
/// Scatter/gather elements of a work request, as on the kernel's rxe.
pub const MAX_SGE: u32 = 32;
/// Bytes of inline data.
pub const MAX_INLINE: u32 = 1024;
/// Bytes of inline data that a queue pair has without being asked: as on the kernel's rxe, what one scatter/gather
/// element takes (rdma-core's rdma_xclient sends so many).
pub const LEAST_INLINE: u32 = 16;
/// Shared receive queues in a process.
pub const MAX_SRQ: u32 = 65536;
/// Work requests in a shared receive queue.
pub const MAX_SRQ_WR: u32 = 32768;
/// Completion queues in a process.
pub const MAX_CQ: u32 = 65536;
/// Elements of a completion queue.
pub const MAX_CQE: u32 = 1 << 22;
/// Keys in a process, which regions and windows have between them.
pub const KEYS: u32 = (1 << 24) - 1;
/// Memory windows in a process.
pub const MAX_MW: u32 = 1 << 20;
/// Memory regions in a process.
pub const MAX_MR: u32 = KEYS - MAX_MW;
/// Bytes of device memory in a process.
pub const MAX_DM: u64 = 1 << 20;
/// Protection domains in a process.
pub const MAX_PD: u32 = 1 << 20;
/// Address handles in a process.
pub const MAX_AH: u32 = 1 << 20;
/// Completion counters in a process.
pub const MAX_COMP_CNTR: u32 = 65536;
/// Multicast groups in a process: each takes a socket.
pub const MAX_MCAST_GRP: u32 = 256;
/// Queue pairs in a process that may be attached to one group.
pub const MAX_MCAST_QP_ATTACH: u32 = 256;
/// READs and atomics outstanding, either way; as on the kernel's rxe.
pub const MAX_RD_ATOM: u8 = 128;
/// Bytes of a message (IBA 9.4.1).
pub const MAX_MSG: u32 = 1 << 31;
/// Rows of the GID table.
pub const GID_TABLE: u32 = 256;
/// Completion vectors: there is one source of events.
pub const COMP_VECTORS: i32 = 1;

/// IEEE OUI of locally assigned addresses (the U/L bit set): nobody's. Programs give 0 and 0xFFFFFF meanings of their
/// own (SPDK: "Soft-RoCE").
pub const VENDOR_ID: u32 = 0x02_75_72;
/// Objects of `ibv_create_counters`.
pub const MAX_FLOW_COUNTERS: u32 = 1 << 16;
/// Bytes of payload in a request of `IBV_WR_TSO`, as of Linux interfaces (`GSO_MAX_SIZE`).
pub const MAX_TSO: u32 = 1 << 16;
/// Bytes of its header: Ethernet with two tags, IPv6 with extensions, TCP with options.
pub const MAX_TSO_HEADER: u32 = 256;

/// "xe".
pub const VENDOR_PART_ID: u32 = 0x7865;
/// `vendor_id` and `vendor_part_id` of a ConnectX-5, which the personality `mlx5` has.
pub const CONNECTX_5: (u32, u32) = (0x02c9, 4119);

/// Bytes of a page, as this kernel maps memory: 4096 on x86-64; on aarch64 there are kernels with 16 and 64 KiB.
pub fn page() -> u64 {
    // SAFETY: no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0).max(4096)
}
