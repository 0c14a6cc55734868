use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use urxe_wire::PKey;
use urxe_wire::cm::{CommId, IpHeader, IpPair, Message, ServiceId, SidrReq};

use super::channel::Channel;
use super::event::{ConnParam, Event, Kind, Param};
use super::id::{IBV_QPT_RC, Id, PortSpace, State};
use super::messages::addressee;
use crate::kernel::Errno;

fn event(handle: u32, kind: Kind) -> Event {
    let param = Param::Conn(ConnParam::default());
    Event { handle, counted_by: handle, uid: 1, kind, status: 0, param, private_data: Vec::new(), ece: (0, 0) }
}

fn is_readable(fd: &impl AsRawFd) -> bool {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry; does not wait.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}

/// Whether a reader of the application's end would find something there.
fn look(channel: &Channel) -> Result<(), Errno> {
    let mut byte = 0_u8;
    // SAFETY: room for one byte.
    let got = unsafe { libc::recv(channel.reader(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if got == 1 { Ok(()) } else { Err(Errno::last()) }
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

/// A request from somewhere to `to`.
fn request(space: u16, to: &str) -> (Message, [u8; 16]) {
    let to: SocketAddr = to.parse().unwrap();
    let from: IpAddr = if to.is_ipv4() { "192.0.2.9".parse().unwrap() } else { "2001:db8::9".parse().unwrap() };
    let mut private_data = [0; 216];
    IpHeader { src_port: 1, addresses: IpPair::new(from, to.ip()).unwrap() }
        .emit(private_data.first_chunk_mut().unwrap());
    let service_id = ServiceId::new(space, to.port()).0;
    let message = SidrReq { request_id: CommId(1), p_key: PKey::DEFAULT, service_id, private_data };
    (Message::SidrReq(message), urxe_net::gid_of(to.ip()))
}

/// The handle of whoever has the port that the request is for.
fn found(ids: Vec<(u32, Id)>, space: u16, to: &str) -> Option<u32> {
    let (message, local) = request(space, to);
    addressee(&HashMap::from_iter(ids), &message, local).map(|(handle, _)| handle)
}

#[test]
fn a_request_finds_its_listener() {
    let tcp = ServiceId::TCP;
    let one = |address| vec![(7, bound(address, State::Listen))];
    assert_eq!(found(one("192.0.2.1:5"), tcp, "192.0.2.1:5"), Some(7));
    assert_eq!(found(one("192.0.2.1:5"), tcp, "192.0.2.1:6"), None, "another port");
    assert_eq!(found(one("192.0.2.1:5"), tcp, "192.0.2.2:5"), None, "another address");
    assert_eq!(found(one("192.0.2.1:5"), ServiceId::UDP, "192.0.2.1:5"), None, "another port space");
    assert_eq!(found(one("0.0.0.0:5"), tcp, "192.0.2.1:5"), Some(7));
    assert_eq!(found(one("0.0.0.0:5"), tcp, "[2001:db8::1]:5"), None);
    assert_eq!(found(one("[::]:5"), tcp, "[2001:db8::1]:5"), Some(7));
    assert_eq!(found(one("[::]:5"), tcp, "192.0.2.1:5"), Some(7), "both versions, unless told otherwise");
    let mut only = bound("[::]:5", State::Listen);
    only.v6_only = true;
    assert_eq!(found(vec![(7, only)], tcp, "192.0.2.1:5"), None);
}

#[test]
fn who_listens_goes_before_who_is_only_bound() {
    let ids = vec![(1, bound("192.0.2.1:5", State::AddrBound)), (2, bound("0.0.0.0:5", State::Listen))];
    assert_eq!(found(ids, ServiceId::TCP, "192.0.2.1:5"), Some(2));
    let ids = vec![(1, bound("192.0.2.1:5", State::AddrBound)), (2, bound("192.0.2.1:5", State::Connect))];
    assert_eq!(found(ids, ServiceId::TCP, "192.0.2.1:5"), Some(1));
}

#[test]
fn a_request_must_have_come_where_it_says() {
    let (message, _) = request(ServiceId::TCP, "192.0.2.1:5");
    let ids = HashMap::from([(7, bound("0.0.0.0:5", State::Listen))]);
    let elsewhere = urxe_net::gid_of("192.0.2.2".parse().unwrap());
    assert!(addressee(&ids, &message, elsewhere).is_none());
}
