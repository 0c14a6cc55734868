use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use urxe_wire::Gid;
use urxe_wire::cm::{IpHeader, IpPair, MESSAGE_LEN, Message, ServiceId, TransportService};

use super::Manager;
use super::channel::Channel;
use super::event::{ConnParam, Event, Kind, Param};
use super::id::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, Id, State};
use super::ids::{Ids, LAST_HANDLE};
use super::messages::addressee;
use super::port_space::PortSpace;
use crate::kernel::Errno;
use urxe_runtime::fork::Generation;

fn event(handle: u32, kind: Kind) -> Event {
    let param = Param::Conn(ConnParam::default());
    Event { handle, counted_by: handle, uid: 1, kind, status: 0, param, private_data: Vec::new(), ece: (0, 0) }
}

fn is_readable(fd: &impl AsRawFd) -> bool {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry; does not wait.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}

#[test]
fn a_channel_is_readable_while_it_holds_events() {
    let (channel, application) = Channel::new().unwrap();
    assert!(!is_readable(&application));
    channel.push(event(1, Kind::AddrResolved));
    channel.push(event(2, Kind::RouteResolved));
    assert!(is_readable(&application));
    assert_eq!(channel.pop().unwrap().handle, 1);
    assert!(is_readable(&application));
    assert_eq!(channel.pop().unwrap().handle, 2);
    assert!(!is_readable(&application) && channel.pop().is_none());
}

/// Whether a thread would find something where it waits.
fn look(channel: &Channel) -> Result<(), Errno> {
    let mut byte = 0_u8;
    let (socket, looks_only) = channel.waiting();
    let flags = libc::MSG_PEEK | if looks_only { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: room for one byte.
    let got = unsafe { libc::recv(socket, (&raw mut byte).cast(), 1, flags) };
    if got == 1 { Ok(()) } else { Err(Errno::last()) }
}

#[test]
fn a_channel_waits_as_its_file_is_set() {
    let (channel, application) = Channel::new().unwrap();
    // SAFETY: a flag of a descriptor that is open.
    unsafe { libc::fcntl(application.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(look(&channel), Err(Errno(libc::EAGAIN)));
    channel.push(event(1, Kind::Established));
    assert_eq!(look(&channel), Ok(()));
    drop(application);
    assert_eq!(look(&channel), Ok(()), "events outlive the descriptor they came through");
}

/// The kernel's file is no socket either: nfs-ganesha calls shutdown(2) for it.
#[test]
fn a_channel_cannot_be_shut_down() {
    let (channel, application) = Channel::new().unwrap();
    // SAFETY: no pointers involved.
    assert_eq!(unsafe { libc::shutdown(application.as_raw_fd(), libc::SHUT_RDWR) }, -1);
    assert_eq!(Errno::last(), Errno(libc::ENOTSOCK));
    assert!(!is_readable(&application));
    channel.push(event(1, Kind::Established));
    assert!(is_readable(&application));
    assert_eq!(channel.pop().unwrap().handle, 1);
}

#[test]
fn events_are_taken_out_of_the_middle() {
    let (channel, application) = Channel::new().unwrap();
    for handle in [1, 2, 1, 3] {
        channel.push(event(handle, Kind::ConnectRequest));
    }
    let out = channel.extract(|event| event.handle == 1);
    assert_eq!(out.len(), 2);
    assert_eq!([channel.pop().unwrap().handle, channel.pop().unwrap().handle], [2, 3]);
    assert!(!is_readable(&application));
}

/// An id bound to `address`.
fn bound(address: &str, state: State) -> Id {
    let (channel, _) = Channel::new().unwrap();
    let mut id = Id::new(Arc::new(channel), 1, PortSpace::Tcp, IBV_QPT_RC);
    (id.src, id.state) = (Some(address.parse().unwrap()), state);
    id
}

/// A request for a connection, or without `service` for datagrams, from somewhere to `to`.
fn request_for(service: Option<TransportService>, space: u16, to: &str) -> (Message, Gid) {
    let to: SocketAddr = to.parse().unwrap();
    let from: IpAddr = if to.is_ipv4() { "192.0.2.9".parse().unwrap() } else { "2001:db8::9".parse().unwrap() };
    let mut header = [0; IpHeader::LEN];
    IpHeader { src_port: 1, addresses: IpPair::new(from, to.ip()).unwrap() }.emit(&mut header);
    let service_id = ServiceId::new(space, to.port()).0;
    // The rest of a message means nothing here.
    let mut bytes = [0; MESSAGE_LEN];
    bytes[50] = 1 << 4;
    let message = match (service, Message::parse(0x10, &bytes), Message::parse(0x17, &bytes)) {
        (Some(service), Ok(Message::Req(mut req)), _) => {
            (req.service, req.service_id) = (service, service_id);
            req.private_data[..IpHeader::LEN].copy_from_slice(&header);
            Message::Req(req)
        }
        (None, _, Ok(Message::SidrReq(mut req))) => {
            req.service_id = service_id;
            req.private_data[..IpHeader::LEN].copy_from_slice(&header);
            Message::SidrReq(req)
        }
        _ => unreachable!("zeroes and an MTU are a request"),
    };
    (message, Gid::from(to.ip()))
}

fn request(space: u16, to: &str) -> (Message, Gid) {
    request_for(Some(TransportService::Rc), space, to)
}

/// Ids that have taken ports, with the handles 1, 2 and so on.
fn at_ports(list: impl IntoIterator<Item = Id>) -> Ids {
    let mut ids = Ids::default();
    for id in list {
        let handle = ids.insert(id).unwrap();
        ids.took_port(handle);
    }
    ids
}

/// The handle of whoever has the port that the request is for.
fn found(list: impl IntoIterator<Item = Id>, space: u16, to: &str) -> Option<u32> {
    let (message, local) = request(space, to);
    addressee(&at_ports(list), &message, local, false).map(|(handle, _)| handle)
}

#[test]
fn a_request_finds_its_listener() {
    let tcp = ServiceId::TCP;
    let one = |address| [bound(address, State::Listen)];
    assert_eq!(found(one("192.0.2.1:5"), tcp, "192.0.2.1:5"), Some(1));
    assert_eq!(found(one("192.0.2.1:5"), tcp, "192.0.2.1:6"), None, "another port");
    assert_eq!(found(one("192.0.2.1:5"), tcp, "192.0.2.2:5"), None, "another address");
    assert_eq!(found(one("192.0.2.1:5"), ServiceId::UDP, "192.0.2.1:5"), None, "another port space");
    assert_eq!(found(one("0.0.0.0:5"), tcp, "192.0.2.1:5"), Some(1));
    assert_eq!(found(one("0.0.0.0:5"), tcp, "[2001:db8::1]:5"), None);
    assert_eq!(found(one("[::]:5"), tcp, "[2001:db8::1]:5"), Some(1));
    assert_eq!(found(one("[::]:5"), tcp, "192.0.2.1:5"), Some(1), "both versions, unless told otherwise");
    let mut only = bound("[::]:5", State::Listen);
    only.v6_only = true;
    assert_eq!(found([only], tcp, "192.0.2.1:5"), None);
}

//= spec/connections.md#cm-015
//= type=test
//# A listener at a loopback address MUST be reached from its own host only.
#[test]
fn a_listener_at_a_loopback_address_is_for_its_own_host() {
    let (own, network) = (true, false);
    let found = |at: &str, v6_only, to: &str, from_this_host| {
        let mut id = bound(at, State::Listen);
        id.v6_only = v6_only;
        let (message, local) = request(ServiceId::TCP, to);
        addressee(&at_ports([id]), &message, local, from_this_host).is_some()
    };
    assert!(found("127.0.0.1:5", false, "192.0.2.1:5", own) && !found("127.0.0.1:5", false, "192.0.2.1:5", network));
    assert!(found("[::1]:5", false, "[2001:db8::1]:5", own) && !found("[::1]:5", false, "[2001:db8::1]:5", network));
    assert!(!found("127.0.0.1:5", false, "[2001:db8::1]:5", own), "another version");
    assert!(found("[::1]:5", false, "192.0.2.1:5", own), "a device may have addresses of one version only");
    assert!(!found("[::1]:5", true, "192.0.2.1:5", own));
    // A device on `lo` has the address itself: only requests to it are for the listener.
    let mut id = bound("127.0.0.1:5", State::Listen);
    id.device = Some(0);
    let (message, local) = request(ServiceId::TCP, "192.0.2.1:5");
    assert!(addressee(&at_ports([id]), &message, local, true).is_none());
}

#[test]
fn listening_ids_go_before_bound_ones() {
    let ids = [bound("192.0.2.1:5", State::AddrBound), bound("0.0.0.0:5", State::Listen)];
    assert_eq!(found(ids, ServiceId::TCP, "192.0.2.1:5"), Some(2));
    let ids = [bound("192.0.2.1:5", State::AddrBound), bound("192.0.2.1:5", State::Connect)];
    assert_eq!(found(ids, ServiceId::TCP, "192.0.2.1:5"), Some(1));
}

//= spec/connections.md#cm-014
//= type=test
//# A request for another service than the listener's MUST be refused.
#[test]
fn listeners_refuse_requests_for_other_services() {
    let services = [
        (Some(TransportService::Rc), IBV_QPT_RC),
        (Some(TransportService::Uc), IBV_QPT_UC),
        (Some(TransportService::Xrc), IBV_QPT_XRC_RECV),
        (None, IBV_QPT_UD),
    ];
    for (asked, _) in services.into_iter().chain([(Some(TransportService::Rd), 0)]) {
        let (message, local) = request_for(asked, ServiceId::TCP, "192.0.2.1:5");
        for (served, qp_type) in services {
            let mut id = bound("192.0.2.1:5", State::Listen);
            id.qp_type = qp_type;
            assert_eq!(
                addressee(&at_ports([id]), &message, local, false).is_some(),
                asked == served,
                "{asked:?}, {served:?}"
            );
        }
    }
}

#[test]
fn a_request_must_have_come_where_it_says() {
    let (message, _) = request(ServiceId::TCP, "192.0.2.1:5");
    let ids = at_ports([bound("0.0.0.0:5", State::Listen)]);
    let elsewhere = Gid::from(IpAddr::from([192, 0, 2, 2]));
    assert!(addressee(&ids, &message, elsewhere, true).is_none());
}

/// The table that librdmacm has for them is full, too.
#[test]
fn there_are_so_many_handles_and_no_more() {
    let (channel, _application) = Channel::new().unwrap();
    let channel = Arc::new(channel);
    let manager = Manager { generation: Generation::now(), state: Mutex::default() };
    let id = || Id::new(Arc::clone(&channel), 1, PortSpace::Tcp, IBV_QPT_RC);
    for handle in 1..LAST_HANDLE {
        assert_eq!(manager.state().ids.insert(id()), Some(handle));
    }
    let create = || manager.create_id(&channel, 1, ServiceId::TCP, IBV_QPT_RC);
    assert_eq!(create(), Ok(LAST_HANDLE));
    assert_eq!(create(), Err(Errno(libc::ENOMEM)));
    manager.destroy_id(7).unwrap();
    assert_eq!(create(), Ok(7));
}
