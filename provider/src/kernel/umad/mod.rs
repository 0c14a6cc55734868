//! The kernel's side of the user_mad ABI (`rdma/ib_user_mad.h`, version 5): what programs do with `/dev/infiniband/umadN`.
//!
//! A file has up to 32 agents. [`hook`] brings the calls of libibumad here; `mad` sends and receives.

mod abi;
pub mod hook;
pub(crate) mod issm;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use urxe_engine::mad::{Address, AgentId, Outgoing};
use urxe_net::Destination;
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp};

use super::Errno;
use super::memory::UserMemory;
use crate::device;
use crate::mad::inbox::{Content, HEADER, Header, Inbox};
use crate::verbs::shared_device::{OpenError, SharedDevice};
pub use abi::{ENABLE_PKEY, REGISTER_AGENT, REGISTER_AGENT_2, UNREGISTER_AGENT};
use abi::{OLD_HEADER, Registration, Sent};
use urxe_runtime::lock;
use urxe_runtime::subnet::lid_of_node;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Agents of a file (`IB_UMAD_MAX_AGENTS` of the kernel's user_mad.c).
const AGENTS: usize = 32;

/// An open `umadN`.
pub struct File {
    device: urxe_options::Device,
    inbox: Arc<Inbox>,
    control: Mutex<Control>,
}

#[derive(Default)]
struct Control {
    /// Opened with the first agent: listing and looking at files opens no sockets.
    shared: Option<Arc<SharedDevice>>,
    agents: [Option<AgentId>; AGENTS],
    /// Headers have a P_Key index.
    has_pkey: bool,
    is_used: bool,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("device", &self.device.name).finish_non_exhaustive()
    }
}

impl Control {
    fn header_len(&self) -> usize {
        if self.has_pkey { HEADER } else { OLD_HEADER }
    }
}

impl File {
    /// Opens the file of the device of this index; the flags are open(2)'s. Also returns the program's descriptor.
    ///
    /// # Errors
    /// ENXIO if there is no such device; what the system refuses.
    pub fn open(index: usize, flags: libc::c_int) -> Result<(Self, OwnedFd), Errno> {
        let device = device::all().into_iter().nth(index).ok_or(Errno(libc::ENXIO))?;
        let (inbox, fd) = Inbox::new(flags)?;
        Ok((Self { device, inbox: Arc::new(inbox), control: Mutex::default() }, fd))
    }

    /// Carries out an ioctl(2).
    ///
    /// # Errors
    /// Errors of `ib_umad_ioctl` of the kernel's user_mad.c.
    pub fn ioctl(&self, memory: &dyn UserMemory, request: u32, argument: u64) -> Result<(), Errno> {
        let mut control = lock(&self.control);
        match request {
            REGISTER_AGENT => {
                let mut bytes = [0; abi::REQUEST];
                memory.read(argument, &mut bytes)?;
                let registration = Registration::parse(&bytes).ok_or(EINVAL)?;
                self.register(&mut control, memory, &registration, argument, false)
            }
            REGISTER_AGENT_2 => {
                let mut bytes = [0; abi::REQUEST_2];
                memory.read(argument, &mut bytes)?;
                let registration = Registration::parse_2(&bytes).ok_or(EINVAL)?;
                self.register(&mut control, memory, &registration, argument, true)
            }
            UNREGISTER_AGENT => {
                let mut id = [0; 4];
                memory.read(argument, &mut id)?;
                let index = usize::try_from(u32::from_ne_bytes(id)).map_err(|_| EINVAL)?;
                let agent = control.agents.get_mut(index).and_then(Option::take).ok_or(EINVAL)?;
                if let Some(shared) = &control.shared {
                    shared.mads().unregister(agent);
                }
                Ok(())
            }
            ENABLE_PKEY if control.is_used => Err(EINVAL),
            ENABLE_PKEY => {
                control.has_pkey = true;
                Ok(())
            }
            _ => Err(Errno(libc::ENOTTY)),
        }
    }

    fn register(
        &self,
        control: &mut Control,
        memory: &dyn UserMemory,
        registration: &Registration,
        argument: u64,
        is_second: bool,
    ) -> Result<(), Errno> {
        let Registration { qpn, claim, rmpp_version, flags, has_bad_oui } = *registration;
        if qpn > 1 {
            return Err(EINVAL);
        }
        if flags & !abi::USER_RMPP != 0 {
            memory.write(argument + abi::FLAGS_2, &abi::USER_RMPP.to_ne_bytes())?;
            return Err(EINVAL);
        }
        let index = control.agents.iter().position(Option::is_none).ok_or(Errno(libc::ENOMEM))?;
        if has_bad_oui || rmpp_version > Rmpp::VERSION {
            return Err(EINVAL);
        }
        let is_subnet = claim.map(|claim| matches!(claim.class, Mad::CLASS_SUBN_LID | Mad::CLASS_SUBN_DIRECTED));
        let does_rmpp = rmpp_version != 0 && flags & abi::USER_RMPP == 0;
        let claim = match (qpn, is_subnet) {
            (0, Some(false)) | (1, Some(true)) => return Err(EINVAL),
            // Ethernet ports have no QP0. With LIDs, programs of InfiniBand may ask: nobody answers.
            (0, _) if !device::has_lids() => return Err(Errno(libc::EPROTONOSUPPORT)),
            (0, _) if !device::is_infiniband() => None,
            _ => claim,
        };
        let id = u32::try_from(index).map_err(|_| EINVAL)?;
        let mads = Arc::clone(self.shared(control)?.mads());
        let agent = mads.register(claim, does_rmpp, &self.inbox, id)?;
        if let Err(errno) = memory.write(argument, &id.to_ne_bytes()) {
            mads.unregister(agent);
            return Err(errno);
        }
        control.has_pkey |= is_second && !control.is_used;
        control.is_used = true;
        if let Some(slot) = control.agents.get_mut(index) {
            *slot = Some(agent);
        }
        Ok(())
    }

    fn shared<'a>(&self, control: &'a mut Control) -> Result<&'a Arc<SharedDevice>, Errno> {
        if control.shared.is_none() {
            let opened = SharedDevice::open(&self.device.name, &self.device.netdev);
            control.shared = Some(opened.map_err(|error| match error {
                OpenError::System(errno) => errno,
                OpenError::Port(_) | OpenError::Settings(_) => Errno(libc::EPIPE),
            })?);
        }
        control.shared.as_ref().ok_or(Errno(libc::EPIPE))
    }

    /// Sends the message that was written, with its header.
    ///
    /// # Errors
    /// Errors of `ib_umad_write` of the kernel's user_mad.c.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let control = lock(&self.control);
        let header_len = control.header_len();
        let (header, message) = bytes.split_at_checked(header_len).ok_or(EINVAL)?;
        if message.len() < Rmpp::END {
            return Err(EINVAL);
        }
        let mut context: Header = [0; HEADER];
        for (to, from) in context.iter_mut().zip(header) {
            *to = *from;
        }
        let sent = Sent::parse(&context).ok_or(EINVAL)?;
        let agent = usize::try_from(sent.agent).ok().and_then(|index| control.agents.get(index).copied().flatten());
        let (Some(agent), Some(shared)) = (agent, &control.shared) else { return Err(EINVAL) };
        let to = sent.address(shared.device().net(), message.get(1).copied().unwrap_or_default())?;
        // GIDs of two IP versions do not reach each other (`rdma_create_user_ah`).
        let Address { local, remote, qpn, flow_label, traffic_class, hop_limit } = to;
        let way = Destination { local, remote, dest_qpn: qpn, flow_label, tclass: traffic_class, hop_limit };
        if lid_of_node(&remote).is_none() {
            shared.device().net().route(&way).map_err(|_| EINVAL)?;
        }
        let timeout = (sent.timeout_ms != 0).then(|| Duration::from_millis(sent.timeout_ms.into()));
        let mads = Arc::clone(shared.mads());
        drop(control);
        mads.send(agent, Outgoing { to, message: message.to_vec(), timeout, retries: sent.retries, context })?;
        Ok(bytes.len())
    }

    /// Reads the first message that waits. EAGAIN if there is none.
    ///
    /// # Errors
    /// EINVAL where not even the first datagram fits, ENOSPC where the rest does not: then that much is stored, and the
    /// header has the length of all. The message stays in both cases (`copy_recv_mad` of the kernel's user_mad.c).
    pub fn read(&self, to: &mut [u8]) -> Result<usize, Errno> {
        let (header_len, shared) = {
            let control = lock(&self.control);
            (control.header_len(), control.shared.clone())
        };
        if to.len() < header_len {
            return Err(EINVAL);
        }
        let shared = shared.ok_or(Errno(libc::EAGAIN))?;
        let port = shared.device().net();
        self.inbox.read(|packet| {
            let header = abi::header_of(packet, header_len, port);
            let body: &[u8] = match &packet.content {
                Content::Received { message, .. } => message,
                Content::TimedOut { header, .. } => header,
            };
            let first = body.get(..body.len().min(MAD_LEN)).unwrap_or_default();
            let (head, rest) = to.split_at_mut_checked(header_len).ok_or(EINVAL)?;
            if rest.len() < first.len() {
                return Err(EINVAL);
            }
            head.copy_from_slice(header.get(..header_len).ok_or(EINVAL)?);
            if let Some(room) = rest.get_mut(..body.len()) {
                room.copy_from_slice(body);
                return Ok(header_len + body.len());
            }
            rest.get_mut(..first.len()).ok_or(EINVAL)?.copy_from_slice(first);
            Err(Errno(libc::ENOSPC))
        })
    }

    /// Ends the file's agents: it is closed.
    pub fn close(&self) {
        let (agents, shared) = {
            let mut control = lock(&self.control);
            (std::mem::take(&mut control.agents), control.shared.take())
        };
        let Some(shared) = shared else { return };
        for agent in agents.into_iter().flatten() {
            shared.mads().unregister(agent);
        }
    }
}
