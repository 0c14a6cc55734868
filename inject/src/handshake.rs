//! How both ends get to know each other.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant as Moment};

use urxe_engine::cm::{Disconnect, Event, MAX_RETRIES, RESPONSE_TIMEOUT, Verdict};
use urxe_wire::cm::{CmMad, Ids, IpHeader, IpPair, Message, Path, Rep, Req, ServiceId, TransportService};
use urxe_wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, Transport};

use crate::Error;
use crate::peer::{Peer, Target};

/// A handshake, and this end's part in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// Client of `ibv_rc_pingpong` and its like.
    PingPong(SocketAddr),
    /// Server of such a program, on this TCP port.
    PingPongListen(u16),
    /// `rdma_connect(3)` to this address and port.
    Cm(SocketAddr),
    /// `rdma_listen(3)` on this port.
    CmListen(u16),
}

/// `0000:000000:000000:` and the GID, with a NUL behind it (`pp_client_exch_dest` of rdma-core's rc_pingpong.c).
const LINE: usize = 52;
/// How long a wait for datagrams of rdma_cm lasts, before events are looked at again.
const STEP: Duration = Duration::from_millis(50);
/// Least timeout for an end that has had a connection: on a busy machine it has not seen the end of that one yet.
const NEXT: Duration = Duration::from_secs(10);

impl Peer<'_> {
    /// Makes a connection, with a new queue pair; `count` is the number of connections before it. One that comes after others has ten
    /// seconds at least. An end that is silent till then is not to be asked anew: it might take the connection that was given up.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Silent`]: by the other end; [`Error::Os`].
    pub fn shake(&mut self, handshake: Handshake, count: u32, timeout: Duration) -> Result<(), Error> {
        self.renew(count);
        let timeout = if count == 0 { timeout } else { timeout.max(NEXT) };
        match handshake {
            Handshake::PingPong(server) => {
                let tcp = TcpStream::connect_timeout(&server, timeout)
                    .map_err(|error| Error::Refused(format!("connecting to {server} by TCP: {error}")))?;
                self.ping_pong(tcp, true, timeout)
            }
            Handshake::PingPongListen(port) => {
                let listener = TcpListener::bind(("0.0.0.0", port)).map_err(Error::os(format!("TCP port {port}")))?;
                let tcp = self.tcp_accept(&listener)?;
                self.ping_pong(tcp, false, timeout)
            }
            Handshake::Cm(server) => self.cm_connect(server, timeout),
            Handshake::CmListen(port) => self.cm_accept(port),
        }
    }

    /// Waits for a client.
    fn tcp_accept(&self, listener: &TcpListener) -> Result<TcpStream, Error> {
        listener.set_nonblocking(true).map_err(Error::os("accept"))?;
        let until = Moment::now() + self.settings.wait;
        loop {
            match listener.accept() {
                Ok((tcp, _)) => {
                    tcp.set_nonblocking(false).map_err(Error::os("accept"))?;
                    return Ok(tcp);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && Moment::now() < until => {
                    std::thread::sleep(STEP);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(Error::Silent(self.settings.wait, "a client of the TCP handshake".to_owned()));
                }
                Err(error) => return Err(Error::os("accept")(error)),
            }
        }
    }

    fn ping_pong(&mut self, mut tcp: TcpStream, is_client: bool, timeout: Duration) -> Result<(), Error> {
        let failed = |error| Error::Refused(format!("the handshake by TCP: {error}"));
        tcp.set_read_timeout(Some(timeout)).map_err(failed)?;
        let gid: String = crate::arrived::hex(&Gid::from(self.settings.address).octets());
        let mut own = format!("0000:{:06x}:{:06x}:{gid}", self.qpn.get(), self.psn.get()).into_bytes();
        own.resize(LINE, 0);
        if is_client {
            tcp.write_all(&own).map_err(failed)?;
        }
        let mut line = [0; LINE];
        tcp.read_exact(&mut line).map_err(failed)?;
        let target = parse_line(&line).ok_or_else(|| {
            Error::Refused(format!(
                "the handshake by TCP: {:?} is no line of a ping-pong",
                String::from_utf8_lossy(&line)
            ))
        })?;
        self.connect(target)?;
        if !is_client {
            tcp.write_all(&own).map_err(failed)?;
        }
        // The end of the client's part: "done"; ends that do not wait for it have closed already.
        if is_client {
            let _ = tcp.write_all(b"done\0");
        } else {
            let _ = tcp.read(&mut line);
        }
        Ok(())
    }

    fn cm_connect(&mut self, server: SocketAddr, timeout: Duration) -> Result<(), Error> {
        let (local, remote) = (self.settings.address, server.ip());
        let addresses = IpPair::new(local, remote)
            .ok_or_else(|| Error::Invalid(format!("{local} and {remote} are of two IP versions")))?;
        let mut private_data = [0; 92];
        if let Some((header, program)) = private_data.split_first_chunk_mut() {
            IpHeader { src_port: 0x7000, addresses }.emit(header);
            fill(program, &self.settings.private_data)?;
        }
        self.cm_remote = Some(remote);
        let ends = self.ends(remote);
        let service_id = ServiceId::new(ServiceId::TCP, server.port()).0;
        let req = self.request(service_id, private_data, ends.local, ends.remote);
        let now = self.now();
        self.cm.connect(now, ends, &req, 0).map_err(|error| Error::Invalid(error.to_string()))?;
        self.do_cm_timers()?;
        let until = Moment::now() + timeout;
        while Moment::now() < until {
            self.receive(Moment::now() + STEP)?;
            while let Some((_, event)) = self.cm.poll_event() {
                match event {
                    Event::Reply(rep) => return self.replied(remote, &rep),
                    Event::Rejected(rej) => {
                        return Err(Error::Refused(format!(
                            "{server} rejects the connection, reason {}",
                            rej.reason.0
                        )));
                    }
                    Event::Unreachable => return Err(no_answer_from(server, timeout)),
                    _ => {}
                }
            }
        }
        Err(no_answer_from(server, timeout))
    }

    /// Uses the connection, as the other end has accepted it.
    fn replied(&mut self, remote: IpAddr, rep: &Rep) -> Result<(), Error> {
        self.psn = rep.starting_psn;
        self.private_data = of_program_in_reply(rep).to_vec();
        self.connect(Target { address: remote, qpn: rep.qpn, psn: self.first_psn })?;
        self.cm.establish(self.comm_id).map_err(|_| is_over())?;
        self.do_cm_timers()
    }

    /// Waits for a request.
    fn cm_accept(&mut self, port: u16) -> Result<(), Error> {
        self.cm_port = Some(port);
        let until = Moment::now() + self.settings.wait;
        loop {
            if Moment::now() >= until {
                return Err(Error::Silent(self.settings.wait, format!("a client of rdma_cm, on port {port}")));
            }
            self.receive(Moment::now() + STEP)?;
            while let Some((id, event)) = self.cm.poll_event() {
                match event {
                    Event::Request(req) => {
                        let address = req.primary.local_gid.ip();
                        self.cm_remote = Some(address);
                        self.psn = req.starting_psn;
                        self.private_data = of_program_in_request(&req).to_vec();
                        self.connect(Target { address, qpn: req.qpn, psn: self.first_psn })?;
                        let rep = self.reply()?;
                        let now = self.now();
                        self.cm.accept(now, id, &rep, 0).map_err(|_| is_over())?;
                        self.do_cm_timers()?;
                    }
                    Event::Established(_) => return Ok(()),
                    Event::Unreachable => {
                        return Err(Error::Refused("the peer that asked for the connection is gone".to_owned()));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Tells the other end that the connection is over.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn disconnect(&mut self) -> Result<(), Error> {
        let now = self.now();
        if self.cm.disconnect(now, self.comm_id).is_ok() {
            self.do_cm_timers()?;
            self.is_disconnected(Moment::now() + Duration::from_secs(1))?;
        }
        Ok(())
    }

    /// Whether the other end has said by `until` that the connection is over.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn is_disconnected(&mut self, until: Moment) -> Result<bool, Error> {
        loop {
            while let Some((id, event)) = self.cm.poll_event() {
                if let Event::Disconnected(why, _) = event {
                    let now = self.now();
                    if why == Disconnect::Asked {
                        let _ = self.cm.disconnect(now, id);
                        self.do_cm_timers()?;
                    }
                    return Ok(true);
                }
            }
            if Moment::now() >= until {
                return Ok(false);
            }
            self.receive(Moment::now() + Duration::from_millis(2))?;
        }
    }

    /// Takes a datagram to QP1. Of a connection that is known, only its other end's counts.
    pub(crate) fn take_cm(&mut self, from: IpAddr, payload: &[u8]) -> Result<(), Error> {
        if self.cm_remote.is_some_and(|remote| remote != from) {
            return Ok(());
        }
        let Ok(mad) = CmMad::parse(payload) else { return Ok(()) };
        let (now, ends, wanted, comm_id) = (self.now(), self.ends(from), self.cm_port, self.comm_id);
        self.cm.handle(now, ends, &mad, &mut |message| match message {
            Message::Req(req) if ServiceId(req.service_id).parts().map(|(_, port)| port) == wanted => {
                Verdict::Take(comm_id)
            }
            _ => Verdict::Refuse,
        });
        self.do_cm_timers()
    }

    /// Sends what rdma_cm has to say now.
    pub(crate) fn do_cm_timers(&mut self) -> Result<(), Error> {
        let now = self.now();
        self.cm.handle_timeout(now);
        while let Some(transmit) = self.cm.poll_transmit() {
            self.send_mad(transmit.ends.remote.ip(), &transmit.payload)?;
        }
        Ok(())
    }

    fn request(&self, service_id: u64, private_data: [u8; 92], local_gid: Gid, remote_gid: Gid) -> Req {
        let service = match self.settings.transport {
            Transport::Uc => TransportService::Uc,
            _ => TransportService::Rc,
        };
        let primary = Path {
            local_lid: Lid::PERMISSIVE,
            remote_lid: Lid::PERMISSIVE,
            local_gid,
            remote_gid,
            packet_rate: 3,
            hop_limit: 64,
            ack_timeout: 17,
            ..Path::default()
        };
        Req {
            local_id: self.comm_id,
            vendor_id: 0,
            service_id,
            ca_guid: self.ca_guid(),
            q_key: QKey(0),
            qpn: self.qpn,
            responder_resources: 16,
            initiator_depth: 16,
            eecn: 0,
            remote_eecn: 0,
            remote_response_timeout: RESPONSE_TIMEOUT,
            service,
            flow_control: true,
            starting_psn: self.first_psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: 7,
            p_key: PKey::DEFAULT,
            path_mtu: self.settings.mtu,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: MAX_RETRIES,
            srq: false,
            primary,
            alternate: Path::default(),
            private_data,
        }
    }

    /// Another CA for each connection: QPNs come again after 192 connections, and a CM takes a known QPN of a CA for a stale
    /// connection (`cm_match_req` of Linux's drivers/infiniband/core/cm.c).
    fn ca_guid(&self) -> u64 {
        0x7572_7865 << 32 | u64::from(self.comm_id.0)
    }

    fn reply(&self) -> Result<Rep, Error> {
        let mut private_data = [0; 196];
        fill(&mut private_data, &self.settings.private_data)?;
        Ok(Rep {
            ids: Ids::default(),
            q_key: QKey(0),
            qpn: self.qpn,
            eecn: 0,
            starting_psn: self.first_psn,
            vendor_id: 0,
            responder_resources: 16,
            initiator_depth: 16,
            target_ack_delay: 15,
            failover_accepted: 0,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: self.ca_guid(),
            private_data,
        })
    }
}

/// The largest payload of packets that fit this many bytes of an interface.
#[must_use]
pub const fn mtu_of(bytes: u32) -> Option<Mtu> {
    match bytes {
        256 => Some(Mtu::Mtu256),
        512 => Some(Mtu::Mtu512),
        1024 => Some(Mtu::Mtu1024),
        2048 => Some(Mtu::Mtu2048),
        4096 => Some(Mtu::Mtu4096),
        _ => None,
    }
}

/// Several datagrams may have come at once: the last of them ends the connection.
fn is_over() -> Error {
    Error::Refused("the other end has ended the connection before it was used".to_owned())
}

/// Silence by rdma_cm: a process with the address would at least refuse.
fn no_answer_from(server: SocketAddr, timeout: Duration) -> Error {
    let ip = server.ip();
    Error::Silent(timeout, format!("{server} by rdma_cm: is a program with RDMA running at {ip}, and does it go on?"))
}

/// Private data of the program in a request: behind the addresses.
#[must_use]
pub fn of_program_in_request(req: &Req) -> &[u8] {
    req.private_data.get(IpHeader::LEN..).unwrap_or_default()
}

/// Private data of the program in a reply.
#[must_use]
pub const fn of_program_in_reply(rep: &Rep) -> &[u8] {
    &rep.private_data
}

/// Puts private data of the program into the room that a message has for it.
fn fill(room: &mut [u8], data: &[u8]) -> Result<(), Error> {
    let most = room.len();
    let too_long = || Error::Invalid(format!("{} bytes of private data, of which {most} have room here", data.len()));
    room.get_mut(..data.len()).ok_or_else(too_long)?.copy_from_slice(data);
    Ok(())
}

fn parse_line(line: &[u8]) -> Option<Target> {
    let text = std::str::from_utf8(line).ok()?.trim_end_matches('\0');
    let mut fields = text.split(':').skip(1);
    let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
    let (qpn, psn) = (number()?, number()?);
    let gid = fields.next().filter(|gid| gid.len() == 32 && gid.is_ascii())?;
    let mut octets = [0; 16];
    for (index, octet) in octets.iter_mut().enumerate() {
        *octet = u8::from_str_radix(gid.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(Target { address: Gid::new(octets).ip(), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}

#[cfg(test)]
mod tests;
