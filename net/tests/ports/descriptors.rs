//! An application that closes the port's descriptors and uses the numbers again.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::end::End;
use crate::namespace::alone;

/// Numbers of the IPv4 UDP sockets of the caller's network namespace, in which is nobody else.
fn udp_sockets() -> Vec<RawFd> {
    let table = fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let inodes: Vec<String> =
        table.lines().skip(1).map(|line| format!("socket:[{}]", line.split_whitespace().nth(9).unwrap())).collect();
    let numbers = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let link = fs::read_link(entry.as_ref().ok()?.path()).ok()?;
        let is_one = inodes.iter().any(|inode| link.as_os_str() == inode.as_str());
        is_one.then(|| entry.ok()?.file_name().to_str()?.parse().ok())?
    });
    numbers.collect()
}

fn put(file: &impl AsRawFd, under: RawFd) {
    // SAFETY: what the test is about: the number is the port's, which is not to use it any more.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), under) }, under);
}

/// Sockets of an application: no packet is taken from them, and none sent through them.
#[test]
fn sockets_under_closed_numbers_are_left_alone() {
    alone(|| {
        let (mut from, mut to) = (End::on("lo"), End::on("lo"));
        let route = from.route(1, to.qpn);
        let back = to.route(1, from.qpn);
        let sockets = udp_sockets();
        from.send(&route, to.qpn, 1, 64);
        from.until("a packet comes, or goes on to another process", |from| from.count("rx_datagrams") > 0);
        to.expect(1);
        to.send(&back, from.qpn, 2, 64);
        from.expect(1);

        let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.send_to(b"theirs", theirs.local_addr().unwrap()).unwrap();
        let epoll = OwnedFd::from(fs::File::open("/dev/null").unwrap());
        put(&epoll, from.port.epoll_fd());
        for number in &sockets {
            put(&theirs, *number);
        }
        for _ in 0..1000 {
            from.rx.woken();
            from.rx.receive(&from.port, 64, &mut |_| panic!("nothing is there for the port"));
            from.rx.receive(&from.port, 64, &mut |_| panic!("nor here"));
        }
        assert!(from.port.has_lost_descriptors());
        theirs.set_nonblocking(true).unwrap();
        let mut bytes = [0; 64];
        assert_eq!(theirs.recv(&mut bytes).map(|len| bytes[..len].to_vec()).unwrap(), b"theirs");

        let sent = from.count("tx_packets");
        from.send(&route, to.qpn, 3, 64);
        assert_eq!((from.count("tx_packets") - sent, from.count("tx_other")), (1, 1));
        for number in sockets {
            // SAFETY: a number of this test's, which the port leaves open.
            unsafe { libc::close(number) };
        }
    });
}
