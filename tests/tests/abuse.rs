//! Strangers, floods, and a machine that misbehaves: whoever is not concerned notices nothing, and whoever is gets the
//! status that says what happened.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::{Context, Mr, Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{
    Perftest, PingPong, TIMEOUT, World, in_world, in_world_with, memory_of_our_own, own_counter, wait_until,
};
use urxe_wire::icrc::{self, Flow};
use urxe_wire::mad::field::Field;
use urxe_wire::mad::node::port_info;
use urxe_wire::mad::{MAD_LEN, Mad, smp, subnet_vendor};
use urxe_wire::packet::{Service, pad_count};
use urxe_wire::{Bth, Deth, Ext, Header, Opcode, Operation, PKey, Psn, QKey, Qpn, RKey, ROCE_PORT, Reth, Transport};

/// The PSN that both ends of a [`Pair`] begin with.
const FIRST_PSN: u32 = 0x00ff_fffd;

/// A stranger with a UDP socket, who knows how to write packets.
struct Stranger(UdpSocket);

impl Stranger {
    fn at(address: &str) -> Result<Self> {
        let socket = UdpSocket::bind((address, 0)).with_context(|| format!("bind {address}"))?;
        Ok(Self(socket))
    }

    /// Sends a packet with a right ICRC to the queue pair on 127.0.0.1 that it names.
    fn send(&self, bth: Bth, ext: Ext, payload: &[u8]) -> Result<()> {
        self.send_packet(Header::new(bth, ext), payload)
    }

    /// Sends a datagram from QP1 to QP0 or QP1.
    fn send_mad(&self, bth: Bth, q_key: QKey, payload: &[u8]) -> Result<()> {
        let service = Service::Datagram(Deth { q_key, src_qp: Qpn::GSI, lid_routed: false });
        self.send_packet(Header { bth, service, ext: Ext::None }, payload)
    }

    fn send_packet(&self, mut header: Header, payload: &[u8]) -> Result<()> {
        header.bth.pad_count = pad_count(payload.len());
        let mut packet = vec![0; header.len()];
        header.emit(&mut packet);
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + usize::from(header.bth.pad_count), 0);
        let to = SocketAddr::from(([127, 0, 0, 1], ROCE_PORT));
        let icrc = icrc::compute(&Flow::new(self.0.local_addr()?, to), 0, &packet);
        packet.extend_from_slice(&icrc.to_le_bytes());
        // A full receive buffer is the receiver's affair.
        let _ = self.0.send_to(&packet, to);
        Ok(())
    }
}

fn opcode(transport: Transport, operation: Operation) -> Result<Opcode> {
    Opcode::new(transport, operation).context("the transport has the operation")
}

/// The WRITE that a stranger wants to be carried out.
fn write(qpn: u32, psn: u32, mr: &Mr) -> Result<(Bth, Ext)> {
    let bth = Bth::new(opcode(Transport::Rc, Operation::WriteOnly)?, Qpn::new(qpn), Psn::new(psn));
    Ok((bth, Ext::Reth(Reth { va: mr.pages().addr(), r_key: RKey(mr.rkey()), dma_len: 8 })))
}

/// An exchange in which every packet counts.
fn works(pair: &Pair, local: &Mr, remote: &Mr) -> Result<()> {
    pair.far.qp.post_recv(&RecvWr::new(1, &[remote.sge(4096, 64)]))?;
    let wc = pair.near.complete(&SendWr::new(Op::Send, &[local.sge(0, 64)]).id(2))?;
    ensure!(wc.status == Status::SUCCESS, "the sender: {wc:?}");
    let wc = pair.far.recv_cq.next()?;
    ensure!(wc.status == Status::SUCCESS && wc.byte_len == 64, "the receiver: {wc:?}");
    Ok(())
}

//= spec/packets.md#pkt-013
//= type=test
//# A packet of another transport, partition or peer than the queue pair's MUST be dropped without an answer.
#[test]
fn strangers_change_nothing() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (local, remote) = (pair.near.region(8192)?, pair.far.region(8192)?);
        let qpn = pair.far.qp.number();
        // From an address that is not the peer's, everything else right.
        let stranger = Stranger::at("127.0.0.2")?;
        for step in 0..8 {
            let (bth, ext) = write(qpn, FIRST_PSN.wrapping_add(step) & 0x00ff_ffff, &remote)?;
            stranger.send(bth, ext, &[0xEE; 8])?;
        }
        // From the peer's address, but not what the queue pair takes.
        let forger = Stranger::at("127.0.0.1")?;
        let (bth, ext) = write(qpn, FIRST_PSN, &remote)?;
        forger.send(Bth { p_key: PKey(0x1234), ..bth }, ext, &[0xEE; 8])?;
        forger.send(Bth { opcode: opcode(Transport::Uc, Operation::WriteOnly)?, ..bth }, ext, &[0xEE; 8])?;
        forger.send(Bth { psn: Psn::new(FIRST_PSN - 1000), ..bth }, ext, &[0xEE; 8])?;
        for operation in [Operation::Acknowledge, Operation::ReadResponseOnly] {
            // Responses to requests that were never sent.
            let aeth = urxe_wire::Aeth::parse(&[0x1F, 0, 0, 1]).context("an ACK")?;
            forger.send(Bth { opcode: opcode(Transport::Rc, operation)?, ..bth }, Ext::Aeth(aeth), &[])?;
        }
        works(&pair, &local, &remote)?;
        ensure!(remote.pages().read(0, 8) == [0; 8], "a stranger has written");
        Ok(())
    });
}

#[test]
fn a_flood_to_nobody_disturbs_nobody() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (local, remote) = (pair.near.region(8192)?, pair.far.region(8192)?);
        let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let flood = scope.spawn(|| -> Result<()> {
                let stranger = Stranger::at("127.0.0.2")?;
                let bth = Bth::new(opcode(Transport::Rc, Operation::SendOnly)?, Qpn::new(0), Psn::new(0));
                while !over.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let qpn = u32::try_from(number.wrapping_mul(0x9E37_79B9) & 0x00ff_ffff)?;
                    stranger.send(Bth { dest_qp: Qpn::new(qpn), ..bth }, Ext::None, &[0; 512])?;
                    stranger
                        .0
                        .send_to(&number.to_ne_bytes(), ("127.0.0.1", ROCE_PORT))
                        .map(drop)
                        .or_else(|_| anyhow::Ok(()))?;
                }
                Ok(())
            });
            // Until it is a flood, and 500 times at least.
            let is_flood = || sent.load(Ordering::Relaxed) > 5000 || flood.is_finished();
            let exchanges =
                (0..).take_while(|&count| count < 500 || !is_flood()).try_for_each(|_| works(&pair, &local, &remote));
            over.store(true, Ordering::Relaxed);
            flood.join().map_err(|_| anyhow::anyhow!("the flood panicked"))??;
            exchanges
        })?;
        ensure!(sent.load(Ordering::Relaxed) > 5000, "this was no flood");
        Ok(())
    });
}

/// A management datagram with this header, and these bytes of data from `at` on.
fn mad(header: Mad, at: usize, data: &[u8]) -> [u8; MAD_LEN] {
    let mut datagram = [0; MAD_LEN];
    header.put(&mut datagram);
    datagram[at..at + data.len()].copy_from_slice(data);
    datagram
}

/// Announcement of the host 127.0.0.2: LID 2, a subnet manager of its own.
fn announcement() -> [u8; MAD_LEN] {
    const OWN: usize = 40;
    const INFO: usize = OWN + 16;
    let mut datagram = mad(Mad::new(subnet_vendor::CLASS, 1, Mad::METHOD_SEND, 0x10), 37, &subnet_vendor::OUI);
    Field::bytes(OWN, 8).put(&mut datagram, 0x0200_5efe_7f00_0002);
    for (field, value) in [
        (port_info::LID, 2),
        (port_info::SM_LID, 2),
        (port_info::CAPABILITY_MASK, port_info::IS_SM),
        (port_info::STATE, port_info::ACTIVE),
        (port_info::MTU_CAP, 5),
    ] {
        field.moved(INFO).put(&mut datagram, value);
    }
    datagram
}

/// `Set(PortInfo)` that locks the port of LID 1, for the subnet manager of LID 2.
fn lock() -> [u8; MAD_LEN] {
    let header = Mad::new(Mad::CLASS_SUBN_LID, 1, Mad::METHOD_SET, smp::Attribute::PortInfo as u16);
    let mut datagram = mad(Mad { attribute_modifier: 1, ..header }, 0, &[]);
    for (field, value) in [(port_info::LID, 1), (port_info::SM_LID, 2), (port_info::M_KEY, 0x1234)] {
        field.moved(smp::DATA).put(&mut datagram, value);
    }
    datagram
}

fn infiniband(world: &World) -> Result<()> {
    world.host().set_env("URXE_LINK_LAYER", "infiniband");
    Ok(())
}

/// Floods of datagrams to QP0 and QP1 of a port of InfiniBand, of every class and method, sound and not: nothing grows, and the port
/// answers.
#[test]
fn floods_of_management_datagrams_grow_nothing() {
    in_world_with(infiniband, || {
        let _context = Context::open()?;
        let strangers = (2..=9).map(|last| Stranger::at(&format!("127.0.0.{last}"))).collect::<Result<Vec<_>>>()?;
        let ud = opcode(Transport::Ud, Operation::SendOnly)?;
        let mut random = 1_u64;
        let mut flood = || {
            for (number, stranger) in (0..20_000).zip(strangers.iter().cycle()) {
                random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(number);
                let [a, b, c, d, e, f, ..] = random.to_be_bytes();
                let mut datagram = [f; MAD_LEN];
                for (to, from) in datagram[4..].iter_mut().zip(random.to_be_bytes().iter().cycle()) {
                    *to ^= from;
                }
                let classes = [1, 0x81, 3, 4, 7, 9, 0x32, subnet_vendor::CLASS, a];
                let methods = [1, 2, 3, 5, 6, 7, 0x12, 0x15, 0x81, 0x95, b];
                datagram[..4].copy_from_slice(&[
                    1,
                    classes[usize::from(c) % 9],
                    1 + d % 2,
                    methods[usize::from(e) % 11],
                ]);
                (datagram[16], datagram[17]) = (0, e % 0x40);
                datagram[37..40].copy_from_slice(&subnet_vendor::OUI);
                let (qpn, q_key) = if f % 2 == 0 { (Qpn::SMI, QKey(0)) } else { (Qpn::GSI, QKey::GSI) };
                stranger.send_mad(Bth::new(ud, qpn, Psn::new(0)), q_key, &datagram)?;
            }
            anyhow::Ok(())
        };
        flood()?;
        let before = memory_of_our_own()?;
        flood()?;
        let grown = memory_of_our_own()?.saturating_sub(before);
        ensure!(grown < 1 << 20, "{grown} bytes");
        // NodeInfo of the port, which the answers of others may come before.
        let answers = UdpSocket::bind(("127.0.0.2", ROCE_PORT))?;
        answers.set_read_timeout(Some(Duration::from_millis(100)))?;
        let header = Mad::new(Mad::CLASS_SUBN_LID, 1, Mad::METHOD_GET, smp::Attribute::NodeInfo as u16);
        let question = mad(Mad { transaction_id: 0x1234_5678, ..header }, 0, &[]);
        wait_until("an answer", || {
            strangers[0].send_mad(Bth::new(ud, Qpn::SMI, Psn::new(0)), QKey(0), &question)?;
            let mut packet = [0; 512];
            let came = answers.recv(&mut packet).unwrap_or_default();
            let is_it = |bytes: &[u8]| bytes.starts_with(&[1, 1, 1, 0x81]) && bytes[8..16] == question[8..16];
            Ok(packet[..came].windows(MAD_LEN).any(is_it))
        })
    });
}

/// Each datagram to QP0 and QP1 of a port of InfiniBand that is refused is counted, by its reason.
#[test]
fn refused_management_datagrams_are_counted() {
    in_world_with(infiniband, || {
        let _context = Context::open()?;
        let stranger = Stranger::at("127.0.0.2")?;
        let counted = |counter: &str, send: &dyn Fn() -> Result<()>| {
            let before = own_counter(counter)?;
            send()?;
            wait_until(counter, || Ok(own_counter(counter)? > before))
        };
        let bth = |qpn| Ok::<_, anyhow::Error>(Bth::new(opcode(Transport::Ud, Operation::SendOnly)?, qpn, Psn::new(0)));
        let (gsi, smi) = (bth(Qpn::GSI)?, bth(Qpn::SMI)?);
        let get = |class| Mad::new(class, 1, Mad::METHOD_GET, 0x11);
        let (vendor, by_lid) = (mad(get(0x32), 0, &[]), mad(get(Mad::CLASS_SUBN_LID), 0, &[]));
        // What is no management datagram, or not of this partition.
        counted("mad_malformed", &|| stranger.send_mad(gsi, QKey::GSI, &vendor[1..]))?;
        counted("mad_malformed", &|| stranger.send_mad(gsi, QKey::GSI, &mad(get(0x32), 0, &[9])))?;
        counted("bad_pkey", &|| stranger.send_mad(Bth { p_key: PKey(0x8001), ..gsi }, QKey::GSI, &vendor))?;
        counted("bad_qkey", &|| stranger.send_mad(gsi, QKey(0x1111_1111), &vendor))?;
        counted("bad_qkey", &|| stranger.send_mad(smi, QKey::GSI, &by_lid))?;
        let rc = opcode(Transport::Rc, Operation::SendOnly)?;
        counted("drop_transport", &|| stranger.send(Bth { opcode: rc, ..gsi }, Ext::None, &vendor))?;
        // Classes that nobody has, or that belong to the other queue pair; and a response to nothing.
        counted("mad_no_agent", &|| stranger.send_mad(gsi, QKey::GSI, &vendor))?;
        counted("mad_no_agent", &|| stranger.send_mad(gsi, QKey::GSI, &mad(get(0x32), 3, &[0x81])))?;
        counted("mad_malformed", &|| stranger.send_mad(gsi, QKey::GSI, &by_lid))?;
        counted("mad_malformed", &|| stranger.send_mad(smi, QKey(0), &vendor))?;
        let unknown = Mad::new(Mad::CLASS_CM, Mad::CM_VERSION, Mad::METHOD_SEND, 0x7F);
        counted("mad_malformed", &|| stranger.send_mad(gsi, QKey::GSI, &mad(unknown, 0, &[])))?;
        // A route of 64 hops, another host's administration, an announcement for somebody else.
        let far = mad(get(Mad::CLASS_SUBN_DIRECTED), 6, &[1, 64]);
        counted("smp_no_way", &|| stranger.send_mad(smi, QKey(0), &far))?;
        let ask = mad(Mad::new(Mad::CLASS_SUBN_ADM, 2, Mad::METHOD_GET, 0x11), 0, &[]);
        counted("subnet_lies", &|| stranger.send_mad(gsi, QKey::GSI, &ask))?;
        let other = Stranger::at("127.0.0.3")?;
        counted("subnet_lies", &|| other.send_mad(gsi, QKey::GSI, &announcement()))?;
        // A port that its subnet manager has locked, which lasts while that one announces itself.
        let before = own_counter("smp_bad_key")?;
        wait_until("smp_bad_key", || {
            stranger.send_mad(gsi, QKey::GSI, &announcement())?;
            stranger.send_mad(smi, QKey(0), &lock())?;
            Ok(own_counter("smp_bad_key")? > before)
        })
    });
}

#[test]
fn without_descriptors_a_device_is_refused() {
    in_world(|| {
        let limit = |most| -> Result<()> {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: 4096 };
            // SAFETY: a valid `rlimit`, which is only read.
            ensure!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0, "setrlimit");
            Ok(())
        };
        // More and more, until the device opens; on the way nothing may be lost.
        let mut refused = 0;
        for most in 3..200 {
            limit(most)?;
            if let Ok(context) = Context::open() {
                drop(context);
                break;
            }
            refused += 1;
        }
        limit(4096)?;
        ensure!((1..190).contains(&refused), "{refused} limits were refused");
        let before = std::fs::read_dir("/proc/self/fd")?.count();
        let pair = Pair::new(&Options::default())?;
        let (local, remote) = (pair.near.region(8192)?, pair.far.region(8192)?);
        works(&pair, &local, &remote)?;
        ensure!(before < 40, "{before} descriptors are still open");
        Ok(())
    });
}

#[test]
fn a_process_that_was_stopped_goes_on() -> Result<()> {
    let world = World::new()?;
    // An ACK timeout of 0.54 s, eight times. (ibv_rc_pingpong's own, 67 ms, is not enough where others want the processor.)
    let ends = Perftest::start("ib_send_bw", &["-u", "17", "-D", "4"], world.host(), world.host())?;
    // Each for longer than an ACK timeout, and shorter than all tries together.
    for end in [&ends.server, &ends.client, &ends.server] {
        thread::sleep(Duration::from_millis(50));
        end.signal(libc::SIGSTOP)?;
        thread::sleep(Duration::from_millis(700));
        end.signal(libc::SIGCONT)?;
    }
    ends.finish()
}

/// A card loses nothing on the way to itself, and UC sends nothing again: without one of its messages ib_write_lat would wait
/// for ever. A message is longer than the ring between the two.
#[test]
fn a_peer_without_a_processor_loses_no_message_of_uc() -> Result<()> {
    let world = World::new()?;
    // A peer that reads nothing for a second is given up: an attempt in which a stop was as long as that on a busy machine is none.
    wait_until("no stop is long", || {
        let args = ["-c", "UC", "-s", "8388608", "-n", "100"];
        let ends = Perftest::start("ib_write_lat", &args, world.host(), world.host())?;
        for end in [&ends.server, &ends.client].repeat(5) {
            thread::sleep(Duration::from_millis(100));
            let start = Instant::now();
            end.signal(libc::SIGSTOP)?;
            thread::sleep(Duration::from_millis(200));
            end.signal(libc::SIGCONT)?;
            if start.elapsed() > Duration::from_millis(500) {
                return Ok(false);
            }
        }
        ends.finish().map(|()| true)
    })
}

/// rping compares what it gets, and sleeps until there is an event.
#[test]
fn data_is_right_after_a_process_was_stopped() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let args = |role| [role, "-a", "127.0.0.1", "-V", "-C", "5000", "-S", "4096"];
    let server = host.spawn("rping", &args("-s"))?;
    wait_until("rping listens", || Ok(host.run("cat", &["/proc/net/unix"])?.stdout.contains("/service/")))?;
    let client = host.spawn("rping", &args("-c"))?;
    for end in [&server, &client, &server] {
        thread::sleep(Duration::from_millis(50));
        end.signal(libc::SIGSTOP)?;
        thread::sleep(Duration::from_millis(200));
        end.signal(libc::SIGCONT)?;
    }
    let (client, server) = (client.finish(TIMEOUT)?, server.finish(TIMEOUT)?);
    ensure!(client.status.success(), "{client}\n{server}");
    ensure!(!format!("{}{}", client.stdout, client.stderr).contains("mismatch"), "{client}");
    Ok(())
}

#[test]
fn an_interface_goes_down_and_comes_back() -> Result<()> {
    let (world, other) = World::linked()?;
    // Eight tries of two seconds: the kernel takes its time to use an interface again, and `ip` to have its turn.
    let stream = Perftest::start("ib_write_bw", &["-u", "19", "-D", "3"], world.host(), &other)?;
    wait_until("packets flow", || Ok(other.packets_sent("veth0")? > 1000))?;
    // sendmsg says ENETUNREACH or EPERM meanwhile.
    world.host().run("ip", &["link", "set", "veth0", "down"])?;
    thread::sleep(Duration::from_millis(100));
    world.host().run("ip", &["link", "set", "veth0", "up"])?;
    stream.finish()
}

#[test]
fn an_address_is_taken_away() -> Result<()> {
    let (world, other) = World::linked()?;
    let pair = PingPong { iters: u32::MAX >> 1, ..PingPong::default() }.start(world.host(), &other)?;
    wait_until("packets flow", || Ok(other.packets_sent("veth0")? > 1000))?;
    other.run("ip", &["address", "del", "10.77.0.2/24", "dev", "veth0"])?;
    let (mut server, mut client) = (pair.server, pair.client);
    wait_until("an end gives up", || Ok(!server.is_running()? || !client.is_running()?))?;
    for mut end in [server, client] {
        if !end.is_running()? {
            let end = end.finish(TIMEOUT)?;
            ensure!(end.stderr.contains("transport retry counter exceeded (12)"), "ended otherwise: {end}");
        }
    }
    Ok(())
}
