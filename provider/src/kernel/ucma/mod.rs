//! The kernel's side of the rdma_cm ABI (`rdma/rdma_user_cm.h`, version 4): commands that librdmacm writes to
//! `/dev/infiniband/rdma_cm`.
//!
//! A command is `rdma_ucm_cmd_hdr` and a structure; answers go to the address in it. A structure may be shorter than
//! ours, for fields were added at the end: what is missing is zero. [`hook`] brings the commands here.

mod abi;
pub mod hook;
mod names;
mod query;
mod wait;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use urxe_ffi::{uapi, ucma};

use super::Errno;
use super::memory::UserMemory;
pub use crate::cm::channel::Channel;
use crate::cm::manager;
use crate::cm::membership::Role;
use crate::device;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Commands that the headers of Linux 6.1 do not have yet (6.17).
const RESOLVE_IB_SERVICE: u32 = ucma::RDMA_USER_CM_CMD_JOIN_MCAST + 1;
const WRITE_CM_EVENT: u32 = ucma::RDMA_USER_CM_CMD_JOIN_MCAST + 2;

/// Size of `rdma_ucm_cmd_hdr`.
const HEADER: usize = size_of::<ucma::rdma_ucm_cmd_hdr>();

/// A new event channel, and the end of it that is the application's.
pub fn open_channel() -> Result<(Arc<Channel>, OwnedFd), Errno> {
    manager().open_channel()
}

/// The end of a channel, and of its ids.
pub fn close_channel(channel: &Arc<Channel>) {
    manager().close_channel(channel);
}

/// Executes a command that was written to the file of a channel. The command's addresses are in `memory`.
pub fn handle_write(channel: &Arc<Channel>, memory: &dyn UserMemory, bytes: &[u8]) -> Result<usize, Errno> {
    let command = Command::parse(bytes).ok_or(EINVAL)?;
    let done = command.run(channel, memory);
    if let (Err(errno), Some(function)) = (done, command.function()) {
        urxe_diag::explain::cm_failed(function, errno.0);
    }
    if command.may_send() {
        manager().look();
    }
    done.map(|()| bytes.len())
}

/// A command: its number, its structure, and how long an answer may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'a> {
    pub(crate) number: u32,
    body: &'a [u8],
    room: usize,
}

impl<'a> Command<'a> {
    /// Parses a command: `None` if the header or the lengths are wrong (`ucma_write` of the kernel's ucma.c).
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header: ucma::rdma_ucm_cmd_hdr = abi::decode(bytes.get(..HEADER)?);
        let body = bytes.get(HEADER..)?;
        if header.cmd > WRITE_CM_EVENT || usize::from(header.in_) > body.len() {
            return None;
        }
        Some(Self { number: header.cmd, body, room: header.out.into() })
    }

    /// Whether a message to a peer, or to subnet administration, may come of it.
    pub(crate) const fn may_send(&self) -> bool {
        matches!(
            self.number,
            ucma::RDMA_USER_CM_CMD_CONNECT
                | ucma::RDMA_USER_CM_CMD_ACCEPT
                | ucma::RDMA_USER_CM_CMD_REJECT
                | ucma::RDMA_USER_CM_CMD_DISCONNECT
                | ucma::RDMA_USER_CM_CMD_DESTROY_ID
                | ucma::RDMA_USER_CM_CMD_JOIN_IP_MCAST
                | ucma::RDMA_USER_CM_CMD_JOIN_MCAST
                | ucma::RDMA_USER_CM_CMD_LEAVE_MCAST
        )
    }

    /// The function of librdmacm that writes the command, if its caller has made a mistake when it fails: events are waited
    /// for and ids are disconnected at both ends as a matter of course.
    const fn function(&self) -> Option<&'static str> {
        Some(match self.number {
            ucma::RDMA_USER_CM_CMD_CREATE_ID => "rdma_create_id",
            ucma::RDMA_USER_CM_CMD_BIND_IP | ucma::RDMA_USER_CM_CMD_BIND => "rdma_bind_addr",
            ucma::RDMA_USER_CM_CMD_RESOLVE_IP | ucma::RDMA_USER_CM_CMD_RESOLVE_ADDR => "rdma_resolve_addr",
            ucma::RDMA_USER_CM_CMD_RESOLVE_ROUTE => "rdma_resolve_route",
            ucma::RDMA_USER_CM_CMD_CONNECT => "rdma_connect",
            ucma::RDMA_USER_CM_CMD_LISTEN => "rdma_listen",
            ucma::RDMA_USER_CM_CMD_ACCEPT => "rdma_accept",
            ucma::RDMA_USER_CM_CMD_REJECT => "rdma_reject",
            ucma::RDMA_USER_CM_CMD_SET_OPTION => "rdma_set_option",
            ucma::RDMA_USER_CM_CMD_JOIN_IP_MCAST | ucma::RDMA_USER_CM_CMD_JOIN_MCAST => "rdma_join_multicast",
            _ => return None,
        })
    }

    /// A number of a structure that the headers do not have. What is missing is zero, as in any other.
    fn u32_at(&self, at: usize) -> Result<u32, Errno> {
        let bytes = self.body.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        if at == 0 && bytes.is_none() {
            return Err(EINVAL);
        }
        Ok(bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
    }

    fn answer<T: abi::Abi>(&self, memory: &dyn UserMemory, address: u64, answer: &T) -> Result<(), Errno> {
        let bytes = abi::encode(answer);
        memory.write(address, bytes.get(..self.room.min(bytes.len())).unwrap_or_default())
    }

    /// Does it.
    pub(crate) fn run(&self, channel: &Arc<Channel>, memory: &dyn UserMemory) -> Result<(), Errno> {
        let manager = manager();
        match self.number {
            ucma::RDMA_USER_CM_CMD_CREATE_ID => {
                let cmd: ucma::rdma_ucm_create_id = abi::decode(self.body);
                let id = manager.create_id(channel, cmd.uid, cmd.ps, cmd.qp_type)?;
                self.answer(memory, cmd.response, &ucma::rdma_ucm_create_id_resp { id })
            }
            ucma::RDMA_USER_CM_CMD_DESTROY_ID => {
                let cmd: ucma::rdma_ucm_destroy_id = abi::decode(self.body);
                let events_reported = manager.destroy_id(cmd.id)?;
                self.answer(memory, cmd.response, &ucma::rdma_ucm_destroy_id_resp { events_reported })
            }
            ucma::RDMA_USER_CM_CMD_BIND_IP => {
                let cmd: ucma::rdma_ucm_bind_ip = abi::decode(self.body);
                manager.bind(cmd.id, abi::ip_address(&cmd.addr)?.ok_or(Errno(libc::EAFNOSUPPORT))?)
            }
            ucma::RDMA_USER_CM_CMD_BIND => {
                let cmd: ucma::rdma_ucm_bind = abi::decode(self.body);
                if abi::is_any_ib(&cmd.addr) {
                    let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
                    // librdmacm, which only asks whether there is such a family, names no port.
                    return match abi::ib_port(&cmd.addr) {
                        port @ 1.. if device::is_infiniband() => manager.bind(cmd.id, any(port)),
                        _ => manager.bind_any_ib(cmd.id),
                    };
                }
                manager.bind(cmd.id, abi::storage_address(&cmd.addr)?.ok_or(Errno(libc::EAFNOSUPPORT))?)
            }
            ucma::RDMA_USER_CM_CMD_RESOLVE_IP => {
                let cmd: ucma::rdma_ucm_resolve_ip = abi::decode(self.body);
                let dst = abi::ip_address(&cmd.dst_addr)?.ok_or(EINVAL)?;
                manager.resolve_addr(cmd.id, abi::ip_address(&cmd.src_addr)?, dst)
            }
            ucma::RDMA_USER_CM_CMD_RESOLVE_ADDR => {
                let cmd: ucma::rdma_ucm_resolve_addr = abi::decode(self.body);
                let dst = abi::storage_address(&cmd.dst_addr)?.ok_or(EINVAL)?;
                let is_any = cmd.src_size == 0 || abi::is_any_ib(&cmd.src_addr);
                let src = if is_any { None } else { abi::storage_address(&cmd.src_addr)? };
                manager.resolve_addr(cmd.id, src, dst)
            }
            ucma::RDMA_USER_CM_CMD_RESOLVE_ROUTE => {
                let cmd: ucma::rdma_ucm_resolve_route = abi::decode(self.body);
                manager.resolve_route(cmd.id)
            }
            ucma::RDMA_USER_CM_CMD_QUERY_ROUTE => {
                let cmd: ucma::rdma_ucm_query = abi::decode(self.body);
                self.answer(memory, cmd.response, &abi::route(&manager.query(cmd.id)?))
            }
            ucma::RDMA_USER_CM_CMD_QUERY => self.query(memory),
            ucma::RDMA_USER_CM_CMD_CONNECT => {
                let cmd: ucma::rdma_ucm_connect = abi::decode(self.body);
                if cmd.conn_param.valid == 0 {
                    return Err(EINVAL);
                }
                manager.connect(cmd.id, &abi::offer(&cmd.conn_param, &cmd.ece))
            }
            ucma::RDMA_USER_CM_CMD_LISTEN => {
                let cmd: ucma::rdma_ucm_listen = abi::decode(self.body);
                manager.listen(cmd.id, cmd.backlog.cast_signed())
            }
            ucma::RDMA_USER_CM_CMD_ACCEPT => {
                let cmd: ucma::rdma_ucm_accept = abi::decode(self.body);
                let offer = (cmd.conn_param.valid != 0).then(|| abi::offer(&cmd.conn_param, &cmd.ece));
                manager.accept(cmd.id, cmd.uid, offer.as_ref())
            }
            ucma::RDMA_USER_CM_CMD_REJECT => {
                let cmd: ucma::rdma_ucm_reject = abi::decode(self.body);
                let data = cmd.private_data.get(..cmd.private_data_len.into()).ok_or(EINVAL)?;
                manager.reject(cmd.id, cmd.reason, data)
            }
            ucma::RDMA_USER_CM_CMD_DISCONNECT => {
                let cmd: ucma::rdma_ucm_disconnect = abi::decode(self.body);
                manager.disconnect(cmd.id)
            }
            ucma::RDMA_USER_CM_CMD_INIT_QP_ATTR => {
                let cmd: ucma::rdma_ucm_init_qp_attr = abi::decode(self.body);
                let attr = manager.qp_attr(cmd.id, cmd.qp_state)?;
                self.answer(memory, cmd.response, &abi::qp_attr(cmd.qp_state, &attr))
            }
            ucma::RDMA_USER_CM_CMD_GET_EVENT => {
                let cmd: ucma::rdma_ucm_get_event = abi::decode(self.body);
                let event = manager.next_event(channel)?;
                self.answer(memory, cmd.response, &abi::event(&event))
            }
            ucma::RDMA_USER_CM_CMD_SET_OPTION => {
                let cmd: ucma::rdma_ucm_set_option = abi::decode(self.body);
                let mut value = vec![0; usize::try_from(cmd.optlen).ok().filter(|len| *len <= 4096).ok_or(EINVAL)?];
                memory.read(cmd.optval, &mut value)?;
                manager.set_option(cmd.id, cmd.level, cmd.optname, &value)
            }
            ucma::RDMA_USER_CM_CMD_NOTIFY => {
                let cmd: ucma::rdma_ucm_notify = abi::decode(self.body);
                manager.notify(cmd.id, cmd.event)
            }
            ucma::RDMA_USER_CM_CMD_MIGRATE_ID => {
                let cmd: ucma::rdma_ucm_migrate_id = abi::decode(self.body);
                let events_reported = manager.migrate(cmd.id, channel)?;
                self.answer(memory, cmd.response, &ucma::rdma_ucm_migrate_resp { events_reported })
            }
            ucma::RDMA_USER_CM_CMD_JOIN_IP_MCAST => {
                let cmd: ucma::rdma_ucm_join_ip_mcast = abi::decode(self.body);
                let group = abi::ip_address(&cmd.addr)?.ok_or(EINVAL)?;
                let id = manager.join(cmd.id, cmd.uid, names::group_name(group), Role::Full)?;
                self.answer(memory, cmd.response, &ucma::rdma_ucm_create_id_resp { id })
            }
            ucma::RDMA_USER_CM_CMD_JOIN_MCAST => {
                let cmd: ucma::rdma_ucm_join_mcast = abi::decode(self.body);
                let group = names::storage_group(&cmd.addr)?;
                let id = manager.join(cmd.id, cmd.uid, group, names::role(cmd.join_flags)?)?;
                self.answer(memory, cmd.response, &ucma::rdma_ucm_create_id_resp { id })
            }
            ucma::RDMA_USER_CM_CMD_LEAVE_MCAST => {
                let cmd: ucma::rdma_ucm_destroy_id = abi::decode(self.body);
                let events_reported = manager.leave(cmd.id)?;
                self.answer(memory, cmd.response, &ucma::rdma_ucm_destroy_id_resp { events_reported })
            }
            RESOLVE_IB_SERVICE => manager.resolve_ib_service(self.u32_at(0)?, &names::wanted_service(self.body)?),
            WRITE_CM_EVENT => {
                // `struct rdma_ucm_write_cm_event`: id, reserved, event, status, and what the event carries.
                let arg = u64::from(self.u32_at(16)?) | u64::from(self.u32_at(20)?) << 32;
                manager.write_event(self.u32_at(0)?, self.u32_at(8)?, self.u32_at(12)?, arg)
            }
            // GET_OPTION has never been there.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn query(&self, memory: &dyn UserMemory) -> Result<(), Errno> {
        let cmd: ucma::rdma_ucm_query = abi::decode(self.body);
        let bytes = match cmd.option {
            query::IB_SERVICE => query::services(&manager().services(cmd.id)?, self.room)?,
            option => query::answer(option, &manager().query(cmd.id)?, self.room)?,
        };
        memory.write(cmd.response, bytes.get(..self.room.min(bytes.len())).unwrap_or_default())
    }
}

/// Sizes the kernel and librdmacm agree on.
const _: () = assert!(size_of::<uapi::ib_uverbs_cmd_hdr>() == HEADER);

#[cfg(test)]
mod tests;
