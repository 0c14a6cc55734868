//! Links that come up after the port was opened, and that go down.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use urxe_net::{Interface, LinkEvent, Port};
use urxe_wire::{Gid, Qpn};

use crate::end::{End, PATIENCE, destination};
use crate::namespace::{alone, ip};

/// A port is opened on an interface that is down, with an address or without any. It receives from when the link is up.
#[test]
fn a_port_opens_before_its_link_is_up() {
    for (before, after) in
        [(&["address add 10.7.0.1/24 dev v0"][..], &[][..]), (&[], &["address add 10.7.0.1/24 dev v0"])]
    {
        alone(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v1 up");
            before.iter().for_each(|line| ip(line));
            let [mut near, mut far] = [(); 2].map(|()| End::on("v0"));
            let gids = |end: &End| end.port.interface().gids().len();
            assert_eq!((gids(&near), near.port.interface().is_running()), (1 + before.len(), false));
            assert!(near.port.receive_buffer() > 0);
            ip("link set v0 up");
            after.iter().for_each(|line| ip(line));
            for end in [&mut near, &mut far] {
                end.until("the address is known", |end| gids(end) > 1 && end.port.interface().is_running());
                assert!(end.port.take_link_events().contains(&LinkEvent::Up));
            }
            let route = near.route(1, far.qpn);
            // One of the two owns the address, and forwards what is for the other; until it has heard of the other, it drops that.
            let start = Instant::now();
            let mut sent: Option<Instant> = None;
            let mut arrivals = Vec::new();
            while arrivals.is_empty() {
                if sent.is_none_or(|sent| sent.elapsed() >= Duration::from_millis(10)) {
                    near.send(&route, far.qpn, 0, 64);
                    sent = Some(Instant::now());
                }
                near.receive();
                arrivals.extend(far.receive());
                assert!(start.elapsed() < PATIENCE, "{:?} {:?}", near.counts(), far.counts());
            }
            assert_eq!(arrivals[0].number, 0);
        });
    }
}

/// The link goes down while packets are on their way, and the host has another way to the peer: they are lost, as on a card, and
/// do not leave by the other interface.
#[test]
fn packets_of_a_link_that_is_down_take_no_other_way() {
    alone(|| {
        for (name, address) in [("v0", "10.7.0.1/24"), ("w0", "10.8.0.1/24")] {
            ip(&format!("link add {name} type veth peer name {name}x"));
            ip(&format!("link set {name}x up"));
            ip(&format!("address add {address} dev {name}"));
            ip(&format!("link set {name} up"));
        }
        ip("route add default via 10.8.0.2 dev w0");
        ip("neighbor add 10.8.0.2 lladdr 02:00:00:00:00:09 dev w0");
        let mut end = End::on("v0");
        let own = end.port.interface().gids()[1];
        let peer = Gid::from(IpAddr::from([10, 7, 0, 2]));
        let route = end.port.route(&destination(own, peer, Qpn::new(0x111))).unwrap();
        // The kernel says so of a new link some time later.
        end.until("the port is up", |end| end.port.interface().is_running());
        ip("link set v0 down");
        end.until("the port is down", |end| !end.port.interface().is_running());
        let before = sent_by("w0");
        for number in 0..100 {
            end.send(&route, Qpn::new(0x111), number, 1000);
        }
        assert!(sent_by("w0") < before + 100, "packets left by w0");
        assert_eq!(end.count("tx_unreachable"), 100);
    });
}

/// Packets that an interface of the caller's network namespace has sent.
fn sent_by(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find(|line| line.trim().starts_with(&format!("{name}:"))).unwrap();
    line.split_whitespace().nth(10).unwrap().parse().unwrap()
}

/// Of two interfaces that a device is on, one goes down: packets from its address are lost and do not leave by the other, whose own
/// leave.
#[test]
fn packets_of_a_member_that_is_down_take_no_other_way() {
    alone(|| {
        for (name, host) in [("v0", 7), ("w0", 8)] {
            ip(&format!("link add {name} type veth peer name {name}x"));
            ip(&format!("link set {name}x up"));
            ip(&format!("address add 10.{host}.0.1/24 dev {name}"));
            ip(&format!("link set {name} up"));
        }
        ip("route add default via 10.8.0.2 dev w0");
        ip("neighbor add 10.8.0.2 lladdr 02:00:00:00:00:09 dev w0");
        let mut end = End::on("v0+w0");
        let address = |host| Gid::from(IpAddr::from([10, host, 0, 1]));
        let peer = |host| Gid::from(IpAddr::from([10, host, 0, 2]));
        let [down, up] =
            [7, 8].map(|host| end.port.route(&destination(address(host), peer(host), Qpn::new(0x111))).unwrap());
        let is_usable = |end: &End| end.port.interface().is_usable([10, 7, 0, 1].into());
        // The kernel says so of a new link some time later.
        end.until("both are up", |end| is_usable(end));
        ip("link set v0 down");
        end.until("one is down", |end| !is_usable(end));
        assert!(end.port.interface().is_up());
        let before = sent_by("w0");
        for number in 0..100 {
            end.queue(&down, Qpn::new(0x111), number, 1000);
        }
        end.send(&up, Qpn::new(0x111), 100, 1000);
        assert_eq!(end.count("tx_unreachable"), 100);
        let since = sent_by("w0") - before;
        assert!(since < 100, "{since} packets left by w0");
        // A way that is made now.
        let later = end.port.route(&destination(address(7), peer(7), Qpn::new(0x211))).unwrap();
        end.send(&later, Qpn::new(0x211), 0, 1000);
        assert_eq!(end.count("tx_unreachable"), 101);
        // One at a time: a busy processor drops those of a burst, and counts them as not sent.
        let mut number = 0;
        end.until("packets leave by w0", |end| {
            end.send(&up, Qpn::new(0x111), number, 1000);
            number += 1;
            sent_by("w0") >= before + 201
        });
        assert_eq!(end.count("tx_unreachable"), 101);
        ip("link set v0 up");
        end.until("packets leave by v0", |end| {
            let dropped = end.count("tx_unreachable");
            end.send(&down, Qpn::new(0x111), 0, 1000);
            end.count("tx_unreachable") == dropped
        });
    });
}

/// `+` may be in the name of an interface.
#[test]
fn an_interface_whose_name_looks_like_two() {
    alone(|| {
        ip("link add v0+v1 type veth peer name v0");
        assert_eq!(Interface::by_name("v0+v1").unwrap().name(), "v0+v1");
        let end = End::on("v0+v1");
        assert_eq!(end.port.interface().name(), "v0+v1");
        for list in ["v0+v0", "v0+lo"] {
            let error = Interface::by_name(list).unwrap_err().to_string();
            assert!(error.contains("joined"), "{error}");
        }
    });
}

/// Sockets that tell of interfaces, by bits of their type: all, and those that the receive side of a port watches.
const ALL: i32 = libc::SOCK_RAW;
const WATCHED: i32 = libc::SOCK_NONBLOCK;

/// Has the system refuse the calling thread netlink sockets with one of these bits in their type, with EMFILE. That cannot be taken
/// back.
fn refuse_netlink(types: i32) {
    let statement = |code: u32, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf: 0, k };
    let unless = |test, k, jf| libc::sock_filter { jf, ..statement(libc::BPF_JMP | test | libc::BPF_K, k) };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let give = |value| statement(libc::BPF_RET | libc::BPF_K, value);
    // The number of the system call, and the lower halves of its first two arguments, in `seccomp_data`.
    let low = if cfg!(target_endian = "little") { 16 } else { 20 };
    let mut filter = [
        load(0),
        unless(libc::BPF_JEQ, u32::try_from(libc::SYS_socket).unwrap(), 5),
        load(low),
        unless(libc::BPF_JEQ, libc::AF_NETLINK.cast_unsigned(), 3),
        load(low + 8),
        unless(libc::BPF_JSET, types.cast_unsigned(), 1),
        give(libc::SECCOMP_RET_ERRNO | libc::EMFILE.cast_unsigned()),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: no pointer involved; only the calling thread is concerned.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program outlives the call, which copies it.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(rc, 0, "a filter: {}", std::io::Error::last_os_error());
}

/// Runs `f` in a thread that gets no such sockets.
fn without_netlink<T: Send>(types: i32, f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_netlink(types);
            f()
        });
        thread.join().unwrap()
    })
}

/// Makes the link `v0`, which is down, with one IPv4 address and no IPv6, whose addresses are news some time later.
fn make_link_down() {
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip("link add v0 type veth peer name v1");
    ip("link set v1 up");
    ip("address add 10.7.0.1/24 dev v0");
}

/// Sends packets until one is not dropped because its link is down.
fn until_packets_leave(end: &mut End) {
    let own = end.port.interface().gids()[1];
    let peer = Gid::from(IpAddr::from([10, 7, 0, 2]));
    let route = end.port.route(&destination(own, peer, Qpn::new(0x111))).unwrap();
    end.until("packets leave", |end| {
        let before = end.count("tx_unreachable");
        end.send(&route, Qpn::new(0x111), 0, 64);
        end.count("tx_unreachable") == before
    });
}

/// The link comes up while the process has no descriptor to read the interface with: packets leave nevertheless, and the interface is
/// read some time later, though nothing changes any more.
#[test]
fn a_link_comes_up_that_cannot_be_read() {
    alone(|| {
        make_link_down();
        let mut end = End::on("v0");
        end.receive();
        ip("link set v0 up");
        let mut end = without_netlink(ALL, move || {
            until_packets_leave(&mut end);
            // What else is told of the link.
            let start = Instant::now();
            end.until("some time passes", |_| start.elapsed() > Duration::from_millis(200));
            assert!(!end.port.interface().is_running());
            end
        });
        end.until("the interface is read", |end| end.port.interface().is_running());
        assert!(end.port.take_link_events().contains(&LinkEvent::Up));
    });
}

/// The system does not tell of changes: packets leave when the link is up, which nobody notices.
#[test]
fn packets_leave_where_links_are_not_followed() {
    alone(|| {
        make_link_down();
        let interface = Interface::by_name("v0").unwrap();
        let mut end = End::of(without_netlink(WATCHED, || Port::open(interface).unwrap()));
        ip("link set v0 up");
        until_packets_leave(&mut end);
    });
}
