//! Raw frames that wake a port, and those that nobody wants any more.

use std::os::fd::AsRawFd as _;

use urxe_net::raw::ProgramMaps;

use crate::end::End;
use crate::namespace::alone;

/// A program that takes every frame of queue 0: R1 = sockets; R2 = 0; R3 = `XDP_PASS`; R0 = `redirect_map`; exit.
fn everything(maps: ProgramMaps) -> Vec<u64> {
    let [a, b, c, d] = maps.sockets.to_ne_bytes();
    [
        [0x18, 0x11, 0, 0, a, b, c, d],
        [0; 8],
        [0xb7, 2, 0, 0, 0, 0, 0, 0],
        [0xb7, 3, 0, 0, 2, 0, 0, 0],
        [0x85, 0, 0, 0, 51, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ]
    .map(u64::from_ne_bytes)
    .into()
}

fn is_ready(end: &End, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd: end.port.epoll_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
}

/// A frame that is there when the last rule goes does not wake the port for ever, and is not there for the next rule.
fn frames_that_nobody_wants(by_xdp: bool) {
    alone(|| {
        let mut end = End::on("lo");
        let (tx, mut rx) = (end.port.open_raw_tx().unwrap(), end.port.open_raw_rx().unwrap());
        if by_xdp {
            rx.set_xdp(end.port.open_xdp(8).unwrap());
            rx.socket().set_program(Some(&everything)).unwrap();
        } else {
            rx.socket().set_filter(None).unwrap();
        }
        rx.watch(true).unwrap();
        end.receive();
        assert!(!is_ready(&end, 0));
        assert_eq!(tx.send([&[0x5a; 60][..]]).0, 1);
        assert!(is_ready(&end, 60_000) && rx.has_frames());
        rx.watch(false).unwrap();
        assert!(!is_ready(&end, 0) && rx.has_frames());
        rx.watch(true).unwrap();
        assert!(!is_ready(&end, 0) && !rx.has_frames());
        tx.send([&[0x5a; 60][..]]);
        assert!(is_ready(&end, 60_000));
        assert_eq!(rx.receive(8, |frame| assert_eq!(frame.bytes, [0x5a; 60])), 1);
    });
}

#[test]
fn frames_of_packet_sockets_that_nobody_wants() {
    frames_that_nobody_wants(false);
}

#[test]
#[ignore = "needs root: a user namespace cannot load programs of eBPF"]
fn frames_of_xdp_that_nobody_wants() {
    frames_that_nobody_wants(true);
}
