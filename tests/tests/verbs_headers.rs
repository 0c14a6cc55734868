//! Flow label, traffic class and hop limit of an address vector appear in the packets: as UDP source port,
//! DSCP and ECN, TTL.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, GRH, Mouth, towards};
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::{Context, End, Errno, Op, Options, PATIENCE, SendWr, Status};
use urxe_tests::{GID_IPV4, GID_IPV6, in_world_over_udp};

/// The traffic class, the hop limit, and the UDP source port of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Headers {
    class: u8,
    hops: u8,
    port: u16,
}

impl Headers {
    /// Headers of a RoCE v2 packet to a queue pair.
    fn to(qpn: u32, packet: &[u8]) -> Option<Self> {
        let (class, hops, udp) = match packet.first()? >> 4 {
            4 => (*packet.get(1)?, *packet.get(8)?, packet.get(20..)?),
            6 => (packet.first()? << 4 | packet.get(1)? >> 4, *packet.get(7)?, packet.get(40..)?),
            _ => return None,
        };
        let number = |at: usize| Some(u16::from_be_bytes([*udp.get(at)?, *udp.get(at + 1)?]));
        let dest = u32::from_be_bytes([0, *udp.get(13)?, *udp.get(14)?, *udp.get(15)?]);
        (number(2)? == 4791 && dest == qpn).then_some(Self { class, hops, port: number(0)? })
    }
}

/// A socket that sees every packet of this network namespace, from the IP header on.
struct Sniffer(OwnedFd);

impl Sniffer {
    fn open() -> Result<Self> {
        const ETH_P_ALL: u16 = 3;
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(ETH_P_ALL.to_be())) };
        ensure!(fd >= 0, "a packet socket: {}", Errno::last());
        // SAFETY: new, and ours.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The headers of the next packet to a queue pair.
    fn next(&self, qpn: u32) -> Result<Headers> {
        let deadline = Instant::now() + PATIENCE;
        let mut packet = vec![0; 1 << 16];
        while Instant::now() < deadline {
            if !urxe_tests::verbs::is_readable(self.0.as_raw_fd(), Duration::from_millis(100)) {
                continue;
            }
            // SAFETY: all-zero is a value of this plain C struct.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut from_length = libc::socklen_t::try_from(size_of_val(&from))?;
            // SAFETY: room of these lengths.
            let length = unsafe {
                let (packet, room) = (packet.as_mut_ptr().cast(), packet.len());
                libc::recvfrom(self.0.as_raw_fd(), packet, room, 0, (&raw mut from).cast(), &raw mut from_length)
            };
            let length = usize::try_from(length)?;
            // On `lo` each packet is seen twice: as it goes, and as it comes.
            if from.sll_pkttype == libc::PACKET_OUTGOING
                && let Some(headers) = Headers::to(qpn, &packet[..length])
            {
                return Ok(headers);
            }
        }
        bail!("no packet to {qpn:#x}")
    }
}

/// The UDP source port of a flow label, as the kernel has it (`rdma_flow_label_to_udp_sport` in `<rdma/ib_verbs.h>`).
fn port_of(label: u32) -> u16 {
    let (low, high) = (label & 0x03fff, label & 0xfc000);
    u16::try_from((low ^ (high >> 14)) | 0xc000).expect("14 bits, and 0xc000")
}

const LABEL: u32 = 0xabcde;
const CLASS: u8 = 0x6a;
const HOPS: u8 = 33;

fn expected() -> Headers {
    Headers { class: CLASS, hops: HOPS, port: port_of(LABEL) }
}

fn set(attr: &mut v::ibv_ah_attr, label: u32) {
    (attr.grh.flow_label, attr.grh.traffic_class, attr.grh.hop_limit) = (label, CLASS, HOPS);
}

#[test]
fn of_address_handles() {
    in_world_over_udp(|| {
        let sniffer = Sniffer::open()?;
        let context = Context::open()?;
        for gid in [GID_IPV4, GID_IPV6] {
            let (near, far) = (Mouth::new(&context)?, Mouth::new(&context)?);
            let own = context.query_gid(1, i32::try_from(gid)?)?;
            let mut attr = towards(own, gid);
            set(&mut attr, LABEL);
            let ah = Ah::new(&near.pd, attr)?;
            far.listen(1, 64)?;
            near.say(Op::Send, b"labelled", &ah, far.qp.number())?;
            ensure!(sniffer.next(far.qp.number())? == expected(), "GID {gid}");
            // The receiver is told, too.
            let wc = far.cq.next()?;
            ensure!(wc.status == Status::SUCCESS && far.hear(8) == b"labelled", "{wc:?}");
            let header = far.room.pages().read(0, GRH);
            let (class, hops) = match gid {
                GID_IPV4 => (header[21], header[28]),
                _ => (header[0] << 4 | header[1] >> 4, header[7]),
            };
            ensure!((class, hops) == (CLASS, HOPS), "GID {gid}: {header:x?}");

            // Without a label the port is any of the range; labels are told apart, and equal ones are the same flow.
            let mut ports = Vec::new();
            for label in [0, 1, 2, 1] {
                set(&mut attr, label);
                let ah = Ah::new(&near.pd, attr)?;
                far.listen(2, 64)?;
                near.say(Op::Send, b"x", &ah, far.qp.number())?;
                ports.push(sniffer.next(far.qp.number())?.port);
                far.cq.next()?;
            }
            ensure!(ports[0] >= 0xc000 && ports[1..] == [port_of(1), port_of(2), port_of(1)], "{ports:x?}");
        }
        Ok(())
    });
}

#[test]
fn of_connected_queue_pairs() {
    in_world_over_udp(|| {
        let sniffer = Sniffer::open()?;
        let context = Context::open()?;
        for gid in [GID_IPV4, GID_IPV6] {
            let options = Options { gid, ..Options::default() };
            let (near, far) = (End::new(&context, &options)?, End::new(&context, &options)?);
            far.connect(near.qp.number(), near.gid(&options)?, &options)?;
            near.init(&options)?;
            let change = rtr(far.qp.number(), far.gid(&options)?, &options);
            near.qp.modify(&change.with(v::IBV_QP_AV, |attr| set(&mut attr.ah_attr, LABEL))).context("to RTR")?;
            near.qp.modify(&rts(&options))?;
            let (from, to) = (near.region(64)?, far.region(64)?);
            let wc = near.complete(&SendWr::new(Op::Write(to.at(0)), &[from.sge(0, 64)]))?;
            ensure!(wc.status == Status::SUCCESS && sniffer.next(far.qp.number())? == expected(), "GID {gid}: {wc:?}");
            // The other way nothing was said: ACKs have the defaults of the far end.
            let back = sniffer.next(near.qp.number())?;
            ensure!(back.class == 0 && back.hops == 64 && back.port >= 0xc000, "{back:x?}");
        }
        Ok(())
    });
}
