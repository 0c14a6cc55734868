#![no_main]
//! The commands that librdmacm writes to "the kernel", in any order, with any fields: to ids that exist, so that
//! connections come about, over the loopback interface.

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use urxe::kernel::ucma::{Channel, close_channel, handle_write, open_channel};
use urxe_ffi::ucma as u;
use urxe_fuzz::memory::{BASE, Memory};

/// Room for the longest answer.
const ROOM: usize = 1024;

/// A command as `rdma/rdma_user_cm.h` has it: its number, its length, where its id is, and where the address of the answer.
struct Shape {
    number: u32,
    len: usize,
    id: Option<usize>,
    response: Option<usize>,
}

const fn first(offsets: &[usize]) -> Option<usize> {
    match offsets {
        [first, ..] => Some(*first),
        [] => None,
    }
}

macro_rules! shape {
    ($number:ident, $name:ident $(, id $id:ident)? $(, response $response:ident)?) => {
        Shape {
            number: u::$number,
            len: size_of::<u::$name>(),
            id: first(&[$(core::mem::offset_of!(u::$name, $id))?]),
            response: first(&[$(core::mem::offset_of!(u::$name, $response))?]),
        }
    };
}

const SHAPES: &[Shape] = &[
    shape!(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id, response response),
    shape!(RDMA_USER_CM_CMD_DESTROY_ID, rdma_ucm_destroy_id, id id, response response),
    shape!(RDMA_USER_CM_CMD_BIND_IP, rdma_ucm_bind_ip, id id),
    shape!(RDMA_USER_CM_CMD_BIND, rdma_ucm_bind, id id),
    shape!(RDMA_USER_CM_CMD_RESOLVE_IP, rdma_ucm_resolve_ip, id id),
    shape!(RDMA_USER_CM_CMD_RESOLVE_ADDR, rdma_ucm_resolve_addr, id id),
    shape!(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route, id id),
    shape!(RDMA_USER_CM_CMD_QUERY_ROUTE, rdma_ucm_query, id id, response response),
    shape!(RDMA_USER_CM_CMD_QUERY, rdma_ucm_query, id id, response response),
    shape!(RDMA_USER_CM_CMD_CONNECT, rdma_ucm_connect, id id),
    shape!(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen, id id),
    shape!(RDMA_USER_CM_CMD_ACCEPT, rdma_ucm_accept, id id),
    shape!(RDMA_USER_CM_CMD_REJECT, rdma_ucm_reject, id id),
    shape!(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect, id id),
    shape!(RDMA_USER_CM_CMD_INIT_QP_ATTR, rdma_ucm_init_qp_attr, id id, response response),
    shape!(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event, response response),
    shape!(RDMA_USER_CM_CMD_SET_OPTION, rdma_ucm_set_option, id id, response optval),
    shape!(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify, id id),
    shape!(RDMA_USER_CM_CMD_MIGRATE_ID, rdma_ucm_migrate_id, id id, response response),
    shape!(RDMA_USER_CM_CMD_JOIN_IP_MCAST, rdma_ucm_join_ip_mcast, id id, response response),
    shape!(RDMA_USER_CM_CMD_JOIN_MCAST, rdma_ucm_join_mcast, id id, response response),
    shape!(RDMA_USER_CM_CMD_LEAVE_MCAST, rdma_ucm_destroy_id, id id, response response),
];

/// Addresses that mean something, as `sockaddr_in` and `sockaddr_in6`; the fuzzer chooses among two ports.
fn address(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let port: u16 = *u.choose(&[0, 7001, 7002])?;
    let [high, low] = port.to_be_bytes();
    Ok(if u.ratio(3, 4)? {
        let last = u.int_in_range(0..=1)?;
        vec![2, 0, high, low, 127 * last, 0, 0, last]
    } else {
        let mut v6 = vec![10, 0, high, low, 0, 0, 0, 0];
        v6.extend([0; 15]);
        v6.push(u.int_in_range(0..=1)?);
        v6
    })
}

/// Where addresses stand in a command.
fn addresses(number: u32) -> &'static [usize] {
    use core::mem::offset_of as at;
    match number {
        u::RDMA_USER_CM_CMD_BIND_IP => &[at!(u::rdma_ucm_bind_ip, addr)],
        u::RDMA_USER_CM_CMD_BIND => &[at!(u::rdma_ucm_bind, addr)],
        u::RDMA_USER_CM_CMD_RESOLVE_IP => &[at!(u::rdma_ucm_resolve_ip, dst_addr)],
        u::RDMA_USER_CM_CMD_RESOLVE_ADDR => &[at!(u::rdma_ucm_resolve_addr, dst_addr)],
        _ => &[],
    }
}

fn run(bytes: &[u8], channel: &Arc<Channel>) -> Result<()> {
    let mut u = Unstructured::new(bytes);
    let mut ids: Vec<u32> = Vec::new();
    while !u.is_empty() {
        let shape = u.choose(SHAPES)?;
        let mut body = vec![0; shape.len];
        if u.ratio(1, 2)? {
            for &at in addresses(shape.number) {
                let address = address(&mut u)?;
                body[at..at + address.len()].copy_from_slice(&address);
            }
        } else {
            u.fill_buffer(&mut body)?;
        }
        if shape.number == u::RDMA_USER_CM_CMD_CREATE_ID && u.ratio(7, 8)? {
            let space: u16 = *u.choose(&[0x106, 0x111, 0x13F, 0x2])?;
            let at = core::mem::offset_of!(u::rdma_ucm_create_id, ps);
            body[at..at + 2].copy_from_slice(&space.to_ne_bytes());
        }
        if let Some(at) = shape.id
            && !ids.is_empty()
            && u.ratio(15, 16)?
        {
            body[at..at + 4].copy_from_slice(&u.choose(&ids)?.to_ne_bytes());
        }
        if let Some(at) = shape.response
            && u.ratio(15, 16)?
        {
            body[at..at + 8].copy_from_slice(&BASE.to_ne_bytes());
        }
        let room: u16 = if u.ratio(7, 8)? { ROOM as u16 } else { u.arbitrary()? };
        // Now and then shorter than it says, and shorter than the structure.
        let given = if u.ratio(15, 16)? { body.len() } else { u.int_in_range(0..=body.len())? };
        let said: u16 = if u.ratio(15, 16)? { given as u16 } else { u.arbitrary()? };
        let mut bytes = shape.number.to_ne_bytes().to_vec();
        bytes.extend(said.to_ne_bytes());
        bytes.extend(room.to_ne_bytes());
        bytes.extend(&body[..given]);

        let memory = Memory(RefCell::new(vec![0; ROOM]));
        let done = handle_write(channel, &memory, &bytes);
        if let Ok(taken) = done {
            assert_eq!(taken, bytes.len());
            let answer = memory.0.borrow();
            let word = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap());
            match shape.number {
                u::RDMA_USER_CM_CMD_CREATE_ID => ids.push(word(0)),
                // A request to connect brings an id along.
                u::RDMA_USER_CM_CMD_GET_EVENT => ids.push(word(core::mem::offset_of!(u::rdma_ucm_event_resp, id))),
                _ => {}
            }
        }
        ids.retain(|id| *id != 0);
        ids.truncate(16);
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // While a channel is open, the device is: opening it for every input would be all that happens.
    static OPEN: OnceLock<std::os::fd::OwnedFd> = OnceLock::new();
    OPEN.get_or_init(|| open_channel().expect("descriptors are there").1);
    let (channel, application) = open_channel().expect("descriptors are there");
    // SAFETY: a descriptor that is open.
    unsafe { libc::fcntl(application.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    // Ends with the bytes.
    let _ = run(bytes, &channel);
    close_channel(&channel);
});
