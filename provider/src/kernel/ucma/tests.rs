use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use urxe_ffi::ucma;

use super::{Command, abi};
use crate::cm::channel::Channel;
use crate::cm::event::{ConnParam, Event, Kind, Param};
use crate::cm::manager;
use crate::kernel::Errno;
use crate::kernel::memory::UserMemory;

/// Takes one answer.
#[derive(Default)]
struct Answer(Mutex<Vec<u8>>);

impl UserMemory for Answer {
    fn read(&self, _address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        buf.fill(1);
        Ok(())
    }

    fn write(&self, _address: u64, data: &[u8]) -> Result<(), Errno> {
        *self.0.lock().unwrap() = data.to_vec();
        Ok(())
    }
}

/// A command as librdmacm writes it.
fn command<T: abi::Abi>(number: u32, body: &T, room: u16) -> Vec<u8> {
    let body = abi::encode(body);
    let len = u16::try_from(body.len()).unwrap();
    [&number.to_ne_bytes()[..], &len.to_ne_bytes(), &room.to_ne_bytes(), body].concat()
}

fn run(channel: &Arc<Channel>, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let answer = Answer::default();
    Command::parse(bytes).unwrap().run(channel, &answer)?;
    Ok(answer.0.into_inner().unwrap())
}

/// A channel of the manager's, which does not wait. Nothing here needs a device.
fn open_channel() -> (Arc<Channel>, std::os::fd::OwnedFd) {
    let (channel, fd) = manager().open_channel().unwrap();
    // SAFETY: a flag of a descriptor that is open.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    (channel, fd)
}

fn create_id(channel: &Arc<Channel>, space: u16) -> Result<u32, Errno> {
    let cmd = ucma::rdma_ucm_create_id { uid: 42, response: 8, ps: space, qp_type: 2, reserved: [0; 5] };
    let answer = run(channel, &command(ucma::RDMA_USER_CM_CMD_CREATE_ID, &cmd, 4))?;
    Ok(abi::decode::<ucma::rdma_ucm_create_id_resp>(&answer).id)
}

fn destroy_id(channel: &Arc<Channel>, id: u32) -> Result<u32, Errno> {
    let cmd = ucma::rdma_ucm_destroy_id { response: 8, id, reserved: 0 };
    let answer = run(channel, &command(ucma::RDMA_USER_CM_CMD_DESTROY_ID, &cmd, 4))?;
    Ok(abi::decode::<ucma::rdma_ucm_destroy_id_resp>(&answer).events_reported)
}

#[test]
fn only_whole_commands_are_commands() {
    let cmd = ucma::rdma_ucm_destroy_id { response: 0, id: 1, reserved: 0 };
    let bytes = command(ucma::RDMA_USER_CM_CMD_DESTROY_ID, &cmd, 4);
    assert_eq!(Command::parse(&bytes).unwrap().number, ucma::RDMA_USER_CM_CMD_DESTROY_ID);
    for len in 0..bytes.len() {
        assert!(Command::parse(&bytes[..len]).is_none(), "{len} bytes");
    }
    assert!(Command::parse(&command(super::WRITE_CM_EVENT + 1, &cmd, 4)).is_none());
}

/// An event as librdmacm of rdma-core 60 and later writes it: its own, which tells that addresses are resolved.
#[test]
fn events_that_are_written_come_back() {
    let (channel, _fd) = open_channel();
    let id = create_id(&channel, 0x0106).unwrap();
    let write = |id: u32, event: u32| {
        let body: Vec<u8> = [id, 0, event, 7, 16, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let length = u16::try_from(body.len()).unwrap().to_ne_bytes();
        let bytes = [&super::WRITE_CM_EVENT.to_ne_bytes()[..], &length, &[0, 0], &body].concat();
        run(&channel, &bytes)
    };
    assert_eq!(write(id, 19), Ok(Vec::new()));
    assert_eq!(write(id, 9), Err(Errno(libc::EINVAL)), "none that only a kernel knows of");
    // The ids are the whole process's: any small number may be another test's.
    assert_eq!(write(u32::MAX, 18), Err(Errno(libc::ENOENT)));
    let cmd = ucma::rdma_ucm_get_event { response: 8 };
    let room = u16::try_from(size_of::<ucma::rdma_ucm_event_resp>()).unwrap();
    let answer = run(&channel, &command(ucma::RDMA_USER_CM_CMD_GET_EVENT, &cmd, room)).unwrap();
    let event: ucma::rdma_ucm_event_resp = abi::decode(&answer);
    assert_eq!((event.uid, event.id, event.event, event.status), (42, id, 19, 7));
    let at = std::mem::offset_of!(ucma::rdma_ucm_event_resp, param);
    assert_eq!(answer[at..at + 8], (1_u64 << 32 | 16).to_ne_bytes(), "what it carries");
    assert_eq!(destroy_id(&channel, id), Ok(1));
}

#[test]
fn only_a_bound_id_asks_for_services() {
    let (channel, _fd) = open_channel();
    let id = create_id(&channel, 0x0106).unwrap();
    let body = [&id.to_ne_bytes()[..], &[0; 76], &1_u32.to_ne_bytes(), &[0; 4]].concat();
    let bytes = [&super::RESOLVE_IB_SERVICE.to_ne_bytes()[..], &[88, 0, 0, 0], &body].concat();
    assert_eq!(run(&channel, &bytes), Err(Errno(libc::EINVAL)), "not bound to a device");
    let half = [&super::RESOLVE_IB_SERVICE.to_ne_bytes()[..], &[32, 0, 0, 0], &body[..32]].concat();
    assert_eq!(run(&channel, &half), Err(Errno(libc::EINVAL)), "half a command");
    assert_eq!(destroy_id(&channel, id), Ok(0));
}

#[test]
fn ids_come_and_go() {
    let (channel, _fd) = open_channel();
    let (first, second) = (create_id(&channel, 0x0106).unwrap(), create_id(&channel, 0x0111).unwrap());
    assert_ne!(first, second);
    assert_eq!(create_id(&channel, 0x0107), Err(Errno(libc::EINVAL)), "no such port space");
    assert_eq!(destroy_id(&channel, first), Ok(0));
    assert_eq!(destroy_id(&channel, first), Err(Errno(libc::ENOENT)));
    assert_eq!(destroy_id(&channel, second), Ok(0));
    manager().close_channel(&channel);
}

#[test]
fn a_channel_that_closes_takes_its_ids_along() {
    let ((channel, _fd), (other, _other)) = (open_channel(), open_channel());
    let id = create_id(&channel, 0x0106).unwrap();
    manager().close_channel(&channel);
    assert_eq!(destroy_id(&other, id), Err(Errno(libc::ENOENT)));
    manager().close_channel(&other);
}

#[test]
fn commands_that_come_too_early_are_refused() {
    let (channel, _fd) = open_channel();
    let id = create_id(&channel, 0x0106).unwrap();
    let resolve = ucma::rdma_ucm_resolve_route { id, timeout_ms: 1 };
    let early = run(&channel, &command(ucma::RDMA_USER_CM_CMD_RESOLVE_ROUTE, &resolve, 0));
    assert_eq!(early, Err(Errno(libc::EINVAL)));
    let disconnect = ucma::rdma_ucm_disconnect { id };
    let early = run(&channel, &command(ucma::RDMA_USER_CM_CMD_DISCONNECT, &disconnect, 0));
    assert_eq!(early, Err(Errno(libc::EINVAL)));
    let next = ucma::rdma_ucm_get_event { response: 8 };
    let none = run(&channel, &command(ucma::RDMA_USER_CM_CMD_GET_EVENT, &next, 512));
    assert_eq!(none, Err(Errno(libc::EAGAIN)));
    manager().close_channel(&channel);
}

#[test]
fn answers_are_as_long_as_there_is_room() {
    let (channel, _fd) = open_channel();
    let cmd = ucma::rdma_ucm_create_id { uid: 1, response: 8, ps: 0x0106, qp_type: 2, reserved: [0; 5] };
    for (room, len) in [(0, 0), (2, 2), (4, 4), (400, 4)] {
        assert_eq!(run(&channel, &command(ucma::RDMA_USER_CM_CMD_CREATE_ID, &cmd, room)).unwrap().len(), len);
    }
    manager().close_channel(&channel);
}

#[test]
fn options() {
    let (channel, _fd) = open_channel();
    let id = create_id(&channel, 0x0106).unwrap();
    let set = |level, optname, optlen| {
        let cmd = ucma::rdma_ucm_set_option { optval: 8, id, level, optname, optlen };
        run(&channel, &command(ucma::RDMA_USER_CM_CMD_SET_OPTION, &cmd, 0)).map(|_| ())
    };
    // RDMA_OPTION_ID: TOS, REUSEADDR, AFONLY, ACK_TIMEOUT.
    for (name, len) in [(0, 1), (1, 4), (2, 4), (3, 1)] {
        assert_eq!(set(0, name, len), Ok(()), "option {name}");
        assert_eq!(set(0, name, len - 1), Err(Errno(libc::EINVAL)), "option {name}, too short");
    }
    assert_eq!(set(0, 99, 4), Err(Errno(libc::ENOSYS)));
    assert_eq!(set(0, 0, 1 << 20), Err(Errno(libc::EINVAL)), "longer than any option");
    manager().close_channel(&channel);
}

#[test]
fn addresses_of_both_versions_survive() {
    for text in ["192.0.2.1:5", "[2001:db8::1]:7174", "[fe80::1%3]:1"] {
        let address: std::net::SocketAddr = text.parse().unwrap();
        let (bytes, len) = abi::bytes_of(Some(address));
        assert_eq!(len, if address.is_ipv4() { 16 } else { 28 });
        assert_eq!(abi::parse(&bytes), Ok(Some(address)));
    }
    assert_eq!(abi::parse(&abi::bytes_of(None).0), Ok(None));
    assert_eq!(abi::parse(&[27, 0, 0, 0]), Err(Errno(libc::ENODEV)), "AF_IB without a GID");
    assert_eq!(abi::parse(&[2, 0, 0, 0, 1]), Err(Errno(libc::EINVAL)), "an address cut short");
}

/// `sockaddr_ib` of a GID and a service id.
#[test]
fn gids_of_infiniband_lead_to_addresses() {
    let sockaddr = |gid: [u8; 16]| {
        let mut bytes = [0; 48];
        bytes[0] = 27;
        bytes[8..24].copy_from_slice(&gid);
        bytes[24..32].copy_from_slice(&[0, 0, 0, 0, 0x01, 0x3F, 0x1B, 0x58]);
        abi::parse(&bytes)
    };
    let own = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0x5E, 0xFE, 10, 77, 0, 1];
    assert_eq!(sockaddr(own), Ok(Some("10.77.0.1:7000".parse().unwrap())));
    let group = [0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0x0F, 7, 7, 7];
    assert_eq!(sockaddr(group), Ok(Some("239.7.7.7:7000".parse().unwrap())));
    assert_eq!(sockaddr([1; 16]), Err(Errno(libc::ENODEV)));
}

#[test]
fn retry_counts_have_three_bits() {
    let mut param: ucma::rdma_ucm_conn_param = {
        // SAFETY: integers and arrays of such.
        unsafe { std::mem::zeroed() }
    };
    (param.retry_count, param.rnr_retry_count, param.private_data_len) = (15, 255, 3);
    param.private_data[..3].copy_from_slice(b"abc");
    let offer = abi::offer(&param, &ucma::rdma_ucm_ece { vendor_id: 0, attr_mod: 0 });
    assert_eq!((offer.param.retry_count, offer.param.rnr_retry_count), (7, 7));
    assert_eq!(offer.private_data, b"abc");
}

#[test]
fn events_carry_what_fits_of_private_data() {
    let param = Param::Conn(ConnParam { qp_num: 0x1234, responder_resources: 3, ..ConnParam::default() });
    for len in [0, 1, 148, 255, 300] {
        let private_data = vec![7; len];
        let (kind, status) = (Kind::Rejected, 28);
        let event = Event { handle: 5, counted_by: 5, uid: 6, kind, status, param, private_data, ece: (0, 0) };
        let resp = abi::event(&event);
        assert_eq!((resp.uid, resp.id, resp.event, resp.status), (6, 5, 8, 28));
        // SAFETY: any bytes are a value, and this is what was stored.
        let conn = unsafe { &resp.param.conn };
        assert_eq!(usize::from(conn.private_data_len), len.min(255));
        assert!(conn.private_data[..len.min(255)].iter().all(|byte| *byte == 7));
        assert_eq!((conn.qp_num, conn.responder_resources), (0x1234, 3));
    }
}
