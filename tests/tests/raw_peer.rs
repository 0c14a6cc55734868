//! A peer that is no urxe: a UDP socket of another host, which sends packets that no device would, and what is counted of them.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{Context, End, Op, Options, Remote, SendWr, Status};
use urxe_tests::{GID_IPV6, Host, World, in_world_with, own_counter, wait_until};
use urxe_wire::{
    Aeth, Bitmap, Bth, Credits, Ext, Header, Msn, Opcode, Operation, Psn, Qpn, RKey, Reth, SelectiveAck,
    SelectiveOffer, Syndrome, Transport, icrc,
};

/// The variable with a process on the other host.
const OTHER: &str = "TEST_OTHER_HOST";
/// Addresses of this host and of the other one. IPv6 has no identification, which the kernel would choose and the ICRC covers.
const OWN: &str = "[fd77::1]:4791";
const PEER: &str = "[fd77::2]:49153";
const PEER_GID: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const PEER_QPN: u32 = 0x12_3456;

/// Adds a host on a cable.
fn linked(world: &World) -> Result<Host> {
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    world.host().set_env(OTHER, &other.pid().to_string());
    Ok(other)
}

/// A queue pair, and the socket of the other host that it takes for its peer.
struct Raw {
    end: End,
    socket: UdpSocket,
    flow: icrc::Flow,
    rq_psn: Psn,
    sq_psn: Psn,
}

impl Raw {
    fn new() -> Result<Self> {
        let (own, peer): (SocketAddr, SocketAddr) = (OWN.parse()?, PEER.parse()?);
        let socket = on_other(|| Ok(UdpSocket::bind(peer)?))?;
        socket.connect(own)?;
        Self::of(&Context::open()?, socket)
    }

    /// A queue pair that the calling thread creates.
    fn of(context: &Arc<Context>, socket: UdpSocket) -> Result<Self> {
        // An ACK timeout of 0 never ends: this peer acknowledges when it likes.
        let options = Options { gid: GID_IPV6, timeout: 0, mtu: v::IBV_MTU_256, ..Options::default() };
        let end = End::new(context, &options)?;
        end.connect(PEER_QPN, PEER_GID, &options)?;
        let (own, peer): (SocketAddr, SocketAddr) = (OWN.parse()?, PEER.parse()?);
        let attr = end.qp.query()?.0;
        let (rq_psn, sq_psn) = (Psn::new(attr.rq_psn), Psn::new(attr.sq_psn));
        Ok(Self { end, socket, flow: icrc::Flow::new(peer, own), rq_psn, sq_psn })
    }

    fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth::new(opcode, Qpn::new(self.end.qp.number()), psn)
    }

    /// A packet from its BTH to its ICRC, of a payload that needs no padding.
    fn packet(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.extend(icrc::compute(&self.flow, 0, &bytes).to_le_bytes());
        bytes
    }

    fn send(&self, bth: Bth, ext: Ext, payload: &[u8]) -> Result<()> {
        self.socket.send(&self.packet(&Header::new(bth, ext), payload))?;
        Ok(())
    }

    /// Sends packets of one length in one run, which arrives as one.
    fn send_run(&self, packets: &[Vec<u8>]) -> Result<()> {
        let length = libc::c_int::try_from(packets.first().context("no packets")?.len())?;
        let (fd, size) = (self.socket.as_raw_fd(), libc::socklen_t::try_from(size_of_val(&length))?);
        // SAFETY: the option is an int that lives through the call.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const length).cast(), size) };
        ensure!(set == 0, "UDP_SEGMENT: {}", std::io::Error::last_os_error());
        self.socket.send(&packets.concat())?;
        Ok(())
    }

    fn send_selective_ack(&self, missing: Psn, bitmap: &[u8]) -> Result<()> {
        let ack = Ext::SelectiveAck(SelectiveAck { duplicates: 0 });
        self.send(self.bth(Opcode::SELECTIVE_ACK, missing), ack, bitmap)
    }
}

/// Runs `act` on the other host, in a thread of this process.
fn on_other<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace = File::open(format!("/proc/{}/ns/net", std::env::var(OTHER)?))?;
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            // SAFETY: a plain system call, about this thread.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            ensure!(entered == 0, "setns: {}", std::io::Error::last_os_error());
            act()
        });
        other.join().unwrap_or_else(|_| bail!("the thread panicked"))
    })
}

/// Waits until a counter of this process has a value, and fails if it gets larger.
fn wait_for(name: &str, value: u64) -> Result<()> {
    let mut last = 0;
    wait_until("packets are counted", || {
        last = own_counter(name)?;
        Ok(last >= value)
    })
    .with_context(|| format!("{name} is {last}, not {value}"))?;
    ensure!(last == value, "{name} is {last}, not {value}");
    Ok(())
}

/// FECN in some packets of a run that arrives as one: each is counted, and no others.
#[test]
fn marks_in_headers_are_counted_packet_by_packet() {
    in_world_with(linked, || {
        const LENGTH: usize = 16;
        let raw = Raw::new()?;
        let region = raw.end.region(8 * LENGTH)?;
        let data = pattern(1, 8 * LENGTH);
        let remote = region.at(0);
        let write = Opcode::new(Transport::Rc, Operation::WriteOnly).context("RC has WRITE Only")?;
        let packet = |nth: usize| {
            let number = u32::try_from(nth)?;
            let (ack_req, fecn) = (nth == 7, nth == 2 || nth == 5);
            let bth = Bth { ack_req, fecn, ..raw.bth(write, raw.rq_psn.add(number)) };
            let va = remote.addr + (nth * LENGTH) as u64;
            let reth = Reth { va, r_key: RKey(remote.rkey), dma_len: u32::try_from(LENGTH)? };
            let payload = data.chunks(LENGTH).nth(nth).unwrap_or_default();
            Ok(raw.packet(&Header::new(bth, Ext::Reth(reth)), payload))
        };
        raw.send_run(&(0..8).map(packet).collect::<Result<Vec<_>>>()?)?;
        wait_until("all has come", || Ok(region.pages().read(0, 8 * LENGTH) == data))?;
        wait_for("rx_packets", 8)?;
        wait_for("np_ecn_marked_roce_packets", 2)?;
        let (runs, cnps) = (own_counter("rx_datagrams")?, own_counter("np_cnp_sent")?);
        ensure!(runs < 8, "{runs} runs: this shows nothing");
        ensure!((1..=2).contains(&cnps), "{cnps} CNPs");
        Ok(())
    });
}

/// Selective acknowledgements of a hostile peer change nothing, and each is counted.
#[test]
fn invalid_selective_acknowledgements_are_counted() {
    let selective = |world: &World| {
        world.host().set_env("URXE_SELECTIVE_REPEAT", "1");
        linked(world)
    };
    in_world_with(selective, || {
        const PACKETS: u32 = 4;
        let raw = Raw::new()?;
        let answer = Ext::SelectiveOffer(SelectiveOffer { answer: true, window: 64 });
        raw.send(raw.bth(Opcode::SELECTIVE_OFFER, Psn::new(0)), answer, &[])?;
        wait_for("sack_connections", 1)?;
        let region = raw.end.region(4 * 256)?;
        let to = Remote { addr: 0x1000, rkey: 7 };
        raw.end.qp.post_send(&SendWr::new(Op::Write(to), &[region.sge(0, 4 * 256)]))?;
        wait_until("the WRITE has left", || Ok(own_counter("tx_packets")? >= u64::from(PACKETS)))?;
        let bits = |behind: &[usize]| {
            let mut bitmap = vec![0; Bitmap::len_for(behind.iter().copied().max().unwrap_or_default())];
            behind.iter().for_each(|behind| Bitmap::set(&mut bitmap, *behind));
            bitmap
        };
        let first = raw.sq_psn;
        // Of what was never sent: by one bit, by many, by its own PSN. The last but one is longer than bitmaps are.
        let hostile = [
            (first, bits(&[4])),
            (first.add(1), bits(&[1, 2, 3])),
            (first, bits(&[1, 2048])),
            (first.add(PACKETS + 1), vec![]),
            (first.add(0x7F_FFFF), bits(&[1])),
            (first, vec![0xFF; 260]),
            (first, vec![0xFF; 8]),
        ];
        for (nth, (missing, bitmap)) in (1..).zip(&hostile) {
            raw.send_selective_ack(*missing, bitmap)?;
            wait_for("sack_invalid", nth).with_context(|| format!("{missing:?} {bitmap:02x?}"))?;
        }
        // Of what is long over.
        raw.send_selective_ack(first.add(0xFF_FFFF), &bits(&[2]))?;
        wait_for("drop_ghost_ack", 1)?;
        for (name, value) in [("sack_received", 0), ("sack_lost", 0), ("sack_invalid", hostile.len() as u64)] {
            wait_for(name, value)?;
        }
        // It goes on as if nothing had been.
        raw.send_selective_ack(first.add(1), &bits(&[1]))?;
        wait_for("sack_received", 1)?;
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
        let acknowledge = Opcode::new(Transport::Rc, Operation::Acknowledge).context("RC has ACKs")?;
        raw.send(raw.bth(acknowledge, first.add(PACKETS - 1)), Ext::Aeth(aeth), &[])?;
        let wc = raw.end.send_cq.next()?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        Ok(())
    });
}

/// A peer that has one source port for all of its queue pairs reaches those of all threads, whichever socket its packets come to.
#[test]
fn one_source_port_reaches_queue_pairs_of_all_threads() {
    in_world_with(linked, || {
        const ROUNDS: u32 = 100;
        let first = Raw::new()?;
        let context = first.end.pd.context();
        let other = || Raw::of(context, first.socket.try_clone()?);
        let second = thread::scope(|scope| scope.spawn(other).join().unwrap_or_else(|_| bail!("the thread panicked")))?;
        let raws = [first, second];
        let regions = raws.iter().map(|raw| raw.end.region(8)).collect::<Result<Vec<_>>>()?;
        let write = Opcode::new(Transport::Rc, Operation::WriteOnly).context("RC has WRITE Only")?;
        for round in 1..=ROUNDS {
            for (raw, region) in raws.iter().zip(&regions) {
                let remote = region.at(0);
                let bth = Bth { ack_req: true, ..raw.bth(write, raw.rq_psn.add(round - 1)) };
                let reth = Reth { va: remote.addr, r_key: RKey(remote.rkey), dma_len: 8 };
                raw.send(bth, Ext::Reth(reth), &u64::from(round).to_le_bytes())?;
            }
            for region in &regions {
                let come = || Ok(region.pages().read(0, 8) == u64::from(round).to_le_bytes());
                wait_until("the WRITE has come", come).with_context(|| format!("round {round}"))?;
            }
        }
        Ok(())
    });
}
