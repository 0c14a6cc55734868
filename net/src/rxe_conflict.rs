//! Conflict with the kernel's rxe over UDP port 4791.
//!
//! The rxe driver binds UDP port 4791 of *all* addresses of the network namespace, for itself alone
//! (`rxe_setup_udp_tunnel`, drivers/infiniband/sw/rxe/rxe_net.c). On an interface urxe cannot work then: packets to that port are
//! the kernel's. On `lo` all peers are processes of urxe, so another port will do, if all use the same.

use std::path::Path;

use crate::udp_sockets::UdpSockets;

/// Whether the kernel's rxe holds the port here. All processes of a network namespace come to the same answer.
pub(crate) fn rxe_has_the_port() -> bool {
    Path::new("/sys/module/rdma_rxe").exists() && UdpSockets::read().has_unspecified(urxe_wire::ROCE_PORT)
}
