//! The peer: one queue pair at an address of its own.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant as Moment};

use urxe_engine::cm::{Cm, Ends};
use urxe_engine::endpoint::{self, CqId, connected_attr};
use urxe_engine::{Endpoint, Instant, QpSetup, QpType, RecvWr, Sge, SgeList};
use urxe_net::RawPeer;
use urxe_wire::cm::CommId;
use urxe_wire::icrc::{self, Check, Flow};
use urxe_wire::packet::{Service, pad_count};
use urxe_wire::{
    Bth, Deth, Ext, Header, ICRC_LEN, Mtu, Opcode, Operation, Psn, QKey, Qpn, ROCE_PORT, Syndrome, Transport,
};

use crate::Error;
use crate::arrived::{Arrived, describe};
use crate::memory::{OpenMemory, PD};

/// Where receives go, above what programs have in their messages.
const RECEIVES_AT: u64 = 1 << 62;
/// Bytes of a receive.
const RECEIVE_LEN: u32 = 1 << 20;
/// Receives that wait.
const RECEIVES: u64 = 64;
/// Q_Key of UD queue pairs, that of the ping-pongs.
pub const UD_QKEY: QKey = QKey(0x1111_1111);
/// Packets that may be sent again.
const WINDOW: usize = 256;
/// The largest UDP datagram.
const DATAGRAM: usize = 65_535;

/// Settings of a peer.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The peer's address, which no other RoCE v2 process has: 127.0.0.2, or one of this host's.
    pub address: IpAddr,
    /// RC, UC or UD.
    pub transport: Transport,
    /// Payload of a packet.
    pub mtu: Mtu,
    /// Decides QPN, PSN and all that is random.
    pub seed: u64,
    /// Longest wait for the other end where that connects.
    pub wait: Duration,
    /// Private data of the program, in requests of rdma_cm (56 bytes at most) and replies (196).
    pub private_data: Vec<u8>,
}

/// The other end, as the handshake tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Address.
    pub address: IpAddr,
    /// Queue pair.
    pub qpn: Qpn,
    /// PSN of its first request.
    pub psn: Psn,
}

/// A number that another process, or the next run, does not have.
fn random() -> u32 {
    let bits = RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).unwrap_or(0)
}

/// Sees packets: the line to print, and whether the packet was sent.
pub type Tell<'a> = dyn FnMut(bool, &str) + 'a;

/// A queue pair of its own.
pub struct Peer<'a> {
    pub(crate) settings: Settings,
    net: RawPeer,
    endpoint: Endpoint<OpenMemory>,
    /// The endpoint's number for the queue pair.
    inner: Qpn,
    cq: CqId,
    /// The number that the other end knows. Below 256: numbers of urxe's processes begin there, and packets to theirs may go
    /// through shared memory.
    pub(crate) qpn: Qpn,
    pub(crate) first_psn: Psn,
    /// Next PSN of a request.
    pub psn: Psn,
    pub(crate) target: Option<Target>,
    pub(crate) cm: Cm,
    /// Name of the connection at this end. A CM takes the REQ of a name it knows for a duplicate, also while that connection is in
    /// TIME_WAIT (`cm_dup_req_handler` of Linux's drivers/infiniband/core/cm.c): each connection has another, from a random one on.
    pub(crate) comm_id: CommId,
    /// Port of requests that are accepted.
    pub(crate) cm_port: Option<u16>,
    /// Other end of the connection that is made or is there, by rdma_cm.
    pub(crate) cm_remote: Option<IpAddr>,
    /// Private data of the other end's program, by rdma_cm.
    pub(crate) private_data: Vec<u8>,
    gsi_psn: Psn,
    /// Packets of messages, of which a receiver that was not ready wants some again.
    window: VecDeque<(Psn, Vec<u8>)>,
    started: Moment,
    tell: Box<Tell<'a>>,
    buffer: Vec<u8>,
}

impl<'a> Peer<'a> {
    /// Takes the address.
    ///
    /// # Errors
    /// [`Error::Os`]: the address cannot be had.
    pub fn new(settings: Settings, tell: Box<Tell<'a>>) -> Result<Self, Error> {
        let address = settings.address;
        let net = RawPeer::bind(address).map_err(Error::os(format!(
            "UDP port {ROCE_PORT} of {address}, which has to be this host's and no other RoCE v2 process' (--address)"
        )))?;
        let mut endpoint = Endpoint::new(address, OpenMemory::default(), settings.seed);
        let cq = endpoint.create_cq(4096);
        let mut peer = Self {
            settings,
            net,
            endpoint,
            inner: Qpn::default(),
            cq,
            qpn: Qpn::default(),
            first_psn: Psn::default(),
            psn: Psn::default(),
            target: None,
            cm: Cm::new(),
            comm_id: CommId(random()),
            cm_port: None,
            cm_remote: None,
            private_data: Vec::new(),
            gsi_psn: Psn::default(),
            window: VecDeque::new(),
            started: Moment::now(),
            tell,
            buffer: vec![0; DATAGRAM],
        };
        peer.renew(0);
        Ok(peer)
    }

    /// Begins anew with another queue pair, for the `count`th connection.
    pub(crate) fn renew(&mut self, count: u32) {
        self.endpoint.destroy_qp(self.inner);
        let qp_type = match self.settings.transport {
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            _ => QpType::Rc,
        };
        // The CQ stays, without what the queue pair before left.
        while self.endpoint.poll_cq(self.cq).is_some() {}
        self.inner = self.endpoint.create_qp(&QpSetup::new(qp_type, PD, self.cq, self.cq));
        let seed = u32::try_from(self.settings.seed & 0xFFFF).unwrap_or(0).wrapping_add(count);
        self.qpn = Qpn::new(0x20 + seed % 0xC0);
        self.first_psn = Psn::new(seed.wrapping_mul(0x9E37) + 0x1000);
        self.psn = self.first_psn;
        self.target = None;
        self.window.clear();
        self.cm = Cm::new();
        self.cm_remote = None;
        self.private_data.clear();
        self.comm_id = CommId(self.comm_id.0.wrapping_add(1));
    }

    /// Memory that the other end reaches.
    #[must_use]
    pub const fn memory(&self) -> &OpenMemory {
        self.endpoint.memory()
    }

    /// The other end.
    ///
    /// # Errors
    /// [`Error::Invalid`] before a handshake.
    pub fn target(&self) -> Result<Target, Error> {
        self.target.ok_or_else(|| Error::Invalid("not connected: a handshake comes first".to_owned()))
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn ends(&self, remote: IpAddr) -> Ends {
        Ends { local: self.settings.address.into(), remote: remote.into() }
    }

    /// Prepares the queue pair for the other end.
    pub(crate) fn connect(&mut self, target: Target) -> Result<(), Error> {
        if target.address.is_ipv4() != self.settings.address.is_ipv4() {
            return Err(Error::Invalid(format!(
                "the program's address is {}, this peer's is {}: give the program a GID of the same IP version (-g N of the \
                 ping-pongs), or this peer another --address",
                target.address, self.settings.address
            )));
        }
        let now = self.now();
        let mut attr = connected_attr(target.qpn);
        (attr.rq_psn, attr.sq_psn, attr.path_mtu) = (target.psn, self.psn, self.settings.mtu);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.q_key) = (16, 16, UD_QKEY);
        let route = endpoint::Route { to: target.address, source_port: self.net.source().port() };
        self.endpoint
            .connect(now, self.inner, &attr, Some(route))
            .map_err(|error| Error::Invalid(format!("queue pair: {error}")))?;
        for slot in 0..RECEIVES {
            self.post_receive(slot);
        }
        self.target = Some(target);
        Ok(())
    }

    fn post_receive(&mut self, slot: u64) {
        let addr = RECEIVES_AT + slot * u64::from(RECEIVE_LEN);
        let buffers = SgeList::new(&[Sge { addr, length: RECEIVE_LEN, l_key: 1 }]);
        let now = self.now();
        // A queue pair in ERR takes none; that is told by what comes back.
        let _ = self.endpoint.post_recv(now, self.inner, RecvWr { wr_id: slot, buffers });
    }

    /// Sends bytes from the BTH to the padding, with the right ICRC changed by `damage`.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn send(&mut self, packet: &[u8], damage: u32) -> Result<(), Error> {
        let target = self.target()?;
        self.send_to(target.address, packet, damage)
    }

    fn send_to(&mut self, to: IpAddr, packet: &[u8], damage: u32) -> Result<(), Error> {
        let flow = Flow::new(self.net.source(), SocketAddr::new(to, ROCE_PORT));
        let icrc = icrc::compute(&flow, 0, packet) ^ damage;
        let bytes = [packet, &icrc.to_le_bytes()].concat();
        (self.tell)(true, &(describe(&bytes) + if damage == 0 { "" } else { " (wrong ICRC)" }));
        self.net.send(to, &bytes).map_err(Error::os(format!("sending to {to}")))
    }

    /// Headers of a packet to the other end; the payload is padded.
    pub(crate) fn build(&self, operation: Operation, ext: Ext, psn: Psn, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let target = self.target()?;
        let transport = self.settings.transport;
        let opcode = Opcode::new(transport, operation)
            .ok_or_else(|| Error::Invalid(format!("{transport:?} has no {operation:?}")))?;
        let mut bth = Bth::new(opcode, target.qpn, psn);
        bth.pad_count = pad_count(payload.len());
        bth.ack_req = transport == Transport::Rc && opcode.info().role == urxe_wire::opcode::Role::Request;
        let service = match transport {
            Transport::Ud => Service::Datagram(Deth { q_key: UD_QKEY, src_qp: self.qpn, lid_routed: false }),
            _ => Service::Connected,
        };
        let header = Header { bth, service, ext };
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(bth.pad_count), 0);
        Ok(bytes)
    }

    /// Sends a message by SEND, in as many packets as it needs.
    ///
    /// # Errors
    /// [`Error::Os`]; [`Error::Invalid`] if it is too long for UD.
    pub fn send_message(&mut self, message: &[u8]) -> Result<(), Error> {
        let mtu = self.settings.mtu.bytes();
        if self.settings.transport == Transport::Ud && message.len() > mtu {
            return Err(Error::Invalid(format!("a UD message of {} bytes: at most {mtu}", message.len())));
        }
        let count = message.len().div_ceil(mtu).max(1);
        for index in 0..count {
            let part = &message[index * mtu..message.len().min((index + 1) * mtu)];
            let operation = match (index == 0, index + 1 == count) {
                (true, true) => Operation::SendOnly,
                (true, false) => Operation::SendFirst,
                (false, true) => Operation::SendLast,
                (false, false) => Operation::SendMiddle,
            };
            let packet = self.build(operation, Ext::None, self.psn, part)?;
            self.send(&packet, 0)?;
            if self.window.len() == WINDOW {
                self.window.pop_front();
            }
            self.window.push_back((self.psn, packet));
            self.psn = self.psn.next();
        }
        Ok(())
    }

    /// Waits for a packet for the queue pair, and answers what is to be answered. `None` if nothing came until then.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn receive(&mut self, until: Moment) -> Result<Option<Arrived>, Error> {
        let mut is_first = true;
        loop {
            let left = until.saturating_duration_since(Moment::now());
            // Packets that are not for the queue pair do not put the end off.
            if left.is_zero() && !is_first {
                return Ok(None);
            }
            is_first = false;
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = self.net.receive(&mut buffer, left.min(Duration::from_millis(20)));
            let arrived = received.map(|it| it.map(|(len, from)| (buffer[..len].to_vec(), from)));
            self.buffer = buffer;
            self.do_cm_timers()?;
            match arrived.map_err(Error::os("receiving"))? {
                None => {}
                Some((bytes, from)) => {
                    if let Some(arrived) = self.take(bytes, from, until)? {
                        return Ok(Some(arrived));
                    }
                }
            }
        }
    }

    /// Takes a datagram; returns it if it is for the queue pair.
    fn take(&mut self, bytes: Vec<u8>, from: SocketAddr, until: Moment) -> Result<Option<Arrived>, Error> {
        let check = if bytes.len() < Bth::LEN + ICRC_LEN {
            Check::Bad
        } else {
            icrc::verify(&Flow::new(from, self.net.local()), 0, &bytes)
        };
        let arrived = Arrived { bytes, check };
        let told = arrived.text();
        let Some(dest) = arrived.packet().map(|packet| packet.header.bth.dest_qp) else {
            (self.tell)(false, &told);
            return Ok(None);
        };
        if dest == Qpn::GSI && check != Check::Bad {
            (self.tell)(false, &told);
            let payload = arrived.packet().map(|packet| packet.payload.to_vec()).unwrap_or_default();
            self.take_cm(from.ip(), &payload)?;
            return Ok(None);
        }
        if dest != self.qpn || check == Check::Bad || self.target.is_none_or(|target| target.address != from.ip()) {
            (self.tell)(false, &format!("{told} (not for this queue pair)"));
            return Ok(None);
        }
        (self.tell)(false, &told);
        let mut bytes = arrived.bytes.clone();
        bytes[5..8].copy_from_slice(&self.inner.get().to_be_bytes()[1..]);
        let origin = endpoint::Origin { from: from.ip(), to: self.settings.address, is_marked: false };
        let now = self.now();
        self.endpoint.handle_packet(now, &origin, &bytes);
        self.endpoint.handle_timeout(now);
        while let Some(datagram) = self.endpoint.poll_transmit(now) {
            (self.tell)(true, &describe(&datagram.bytes));
            self.net.send(datagram.to.ip(), &datagram.bytes).map_err(Error::os("answering"))?;
        }
        while let Some(cqe) = self.endpoint.poll_cq(self.cq) {
            // In ERR each receive that is posted completes at once, without end.
            if cqe.status == urxe_engine::WcStatus::Success {
                self.post_receive(cqe.wr_id);
            }
        }
        if let Some((psn, Syndrome::RnrNak(timer))) = arrived.acknowledgement() {
            std::thread::sleep(timer.duration().min(until.saturating_duration_since(Moment::now())));
            let again: Vec<_> = self
                .window
                .iter()
                .filter(|(sent, _)| sent.distance_from(psn) >= 0)
                .map(|(_, bytes)| bytes.clone())
                .collect();
            again.iter().try_for_each(|packet| self.send(packet, 0))?;
        }
        Ok(Some(arrived))
    }

    /// Sends a management datagram.
    pub(crate) fn send_mad(&mut self, to: IpAddr, payload: &[u8]) -> Result<(), Error> {
        let opcode = Opcode::new(Transport::Ud, Operation::SendOnly)
            .ok_or_else(|| Error::Invalid("UD has no SEND".to_owned()))?;
        let service = Service::Datagram(Deth { q_key: QKey::GSI, src_qp: Qpn::GSI, lid_routed: false });
        let header = Header { bth: Bth::new(opcode, Qpn::GSI, self.gsi_psn), service, ext: Ext::None };
        self.gsi_psn = self.gsi_psn.next();
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        self.send_to(to, &bytes, 0)
    }
}

#[cfg(test)]
mod tests;
