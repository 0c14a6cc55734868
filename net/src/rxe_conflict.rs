//! Conflict with the kernel's rxe over UDP port 4791.
//!
//! The rxe driver binds UDP port 4791 of *all* addresses of the network namespace, for itself alone
//! (`rxe_setup_udp_tunnel`, drivers/infiniband/sw/rxe/rxe_net.c). On an interface urxe cannot work then: packets to that port are
//! the kernel's. On `lo` all peers are processes of urxe, so another port will do, if all use the same.

use std::fs;
use std::path::Path;

/// Whether the kernel's rxe holds the port here. All processes of a network namespace come to the same answer.
pub(crate) fn rxe_has_the_port() -> bool {
    Path::new("/sys/module/rdma_rxe").exists()
        && ["/proc/net/udp", "/proc/net/udp6"]
            .iter()
            .any(|table| fs::read_to_string(table).is_ok_and(|table| has_unspecified(&table, urxe_wire::ROCE_PORT)))
}

/// Whether a socket of proc_net(5)'s table is bound to this port of all addresses.
fn has_unspecified(table: &str, port: u16) -> bool {
    let port = format!("{port:04X}");
    let locals = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)?.split_once(':'));
    locals.into_iter().any(|(address, bound)| bound == port && address.bytes().all(|byte| byte == b'0'))
}

#[cfg(test)]
mod tests {
    use super::has_unspecified;

    #[test]
    fn sockets_of_all_addresses() {
        let table = |local: &str| {
            format!(
                "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref\n\
                   312: {local} 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 447 2\n"
            )
        };
        assert!(has_unspecified(&table("00000000:12B7"), 4791));
        assert!(has_unspecified(&table("00000000000000000000000000000000:12B7"), 4791));
        assert!(!has_unspecified(&table("0100007F:12B7"), 4791));
        assert!(!has_unspecified(&table("00000000:12B8"), 4791));
        assert!(!has_unspecified("", 4791));
    }
}
