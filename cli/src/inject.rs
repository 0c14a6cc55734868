//! `urxe inject` and `urxe replay`: a raw peer that speaks to a live program.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use urxe_faults::Dictionary;
use urxe_inject::campaign::{Aim, Campaign, script_of};
use urxe_inject::handshake::{self, Handshake, mtu_of};
use urxe_inject::peer::{Peer, Settings};
use urxe_inject::play::Player;
use urxe_inject::replay::{self, Recorded, Replay};
use urxe_inject::script;
use urxe_wire::cm::{CmMad, Message};
use urxe_wire::{Mtu, Qpn, Transport};

use crate::out;
use crate::trace::pairs;

/// The other end, and this one.
#[derive(clap::Args)]
struct Ends {
    /// Connect by rdma_cm, as rdma_connect(3) does
    #[arg(long, value_name = "HOST:PORT", group = "handshake")]
    cm: Option<String>,
    /// Wait for a connection by rdma_cm
    #[arg(long, value_name = "PORT", group = "handshake", requires = "address")]
    cm_listen: Option<u16>,
    /// Be a client of ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong, or of a program with their TCP handshake
    #[arg(long, value_name = "HOST[:PORT]", group = "handshake")]
    pingpong: Option<String>,
    /// Be a server of such a program
    #[arg(long, value_name = "PORT", group = "handshake")]
    pingpong_listen: Option<u16>,
    /// Address of this peer, which no other RoCE v2 process has [default: 127.0.0.2 for a peer on lo, else this host's]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// rc, uc or ud
    #[arg(long, value_name = "SERVICE", default_value = "rc", value_parser = transport)]
    transport: Transport,
    /// Payload of a packet: 256, 512, 1024, 2048 or 4096 [default: the capture's, else 1024]
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    mtu: Option<Mtu>,
    /// Decides everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How long an answer may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    timeout: u64,
    /// How long to wait for a program that connects to this peer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// Texts that mean something to the program, in the syntax of AFL and libFuzzer
    #[arg(long, value_name = "FILE")]
    dict: Option<PathBuf>,
    /// Private data of the connection by rdma_cm, as a payload of scripts: 'u8:1 hex:0a0b zero*38' [default: none; a capture's]
    #[arg(long, value_name = "PAYLOAD", conflicts_with_all = ["pingpong", "pingpong_listen"], value_parser = private_data)]
    private_data: Option<PrivateData>,
    /// Print no packets
    #[arg(long, short)]
    quiet: bool,
}

/// Bytes that the program finds in the request or the reply of rdma_cm.
#[derive(Clone, Debug)]
struct PrivateData(Vec<u8>);

fn private_data(text: &str) -> Result<PrivateData, script::Invalid> {
    script::bytes(text).map(PrivateData)
}

#[derive(clap::Args)]
#[command(after_long_help = script::GRAMMAR, group = clap::ArgGroup::new("packets").required(true))]
pub(crate) struct InjectArgs {
    #[command(flatten)]
    ends: Ends,
    /// Send the packets of a script (- is standard input), whose grammar --help prints
    #[arg(long, value_name = "FILE", group = "packets")]
    script: Option<PathBuf>,
    /// Send N messages that are mutations of those in --corpus, and say when the program has ended
    #[arg(long, value_name = "N", group = "packets", requires = "corpus")]
    generate: Option<u64>,
    /// A file with one well-formed message; may be given more than once
    #[arg(long, value_name = "FILE")]
    corpus: Vec<PathBuf>,
    /// Part of the packets that changes: payload, or headers
    #[arg(long, value_name = "PART", default_value = "payload", value_parser = aim)]
    mutate: Aim,
    /// Most bytes of a message [default: the longest of the corpus, 64 at least]
    #[arg(long, value_name = "BYTES")]
    max_len: Option<usize>,
    /// Messages of one connection
    #[arg(long, value_name = "N", default_value_t = 1000)]
    per_connection: u64,
    /// Write a script with the messages of the last connection here when the program has ended
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    ends: Ends,
    /// A capture of URXE_PCAP, tshark or tcpdump
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Queue pair in the capture whose place the live program has [default: the one that rdma_cm connects to, or with --cm-listen
    /// from; without rdma_cm in the capture, the one that got the first request]
    #[arg(long, value_name = "QPN", value_parser = crate::trace::qpn)]
    live: Option<u32>,
    /// Repeat it N times, with mutated payloads
    #[arg(long, value_name = "N", default_value_t = 0)]
    mutate: u64,
}

fn transport(text: &str) -> Result<Transport, String> {
    match text {
        "rc" => Ok(Transport::Rc),
        "uc" => Ok(Transport::Uc),
        "ud" => Ok(Transport::Ud),
        _ => Err("rc, uc or ud".to_owned()),
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(mtu_of);
    mtu.ok_or_else(|| "256, 512, 1024, 2048 or 4096".to_owned())
}

fn aim(text: &str) -> Result<Aim, String> {
    match text {
        "payload" => Ok(Aim::Payload),
        "headers" => Ok(Aim::Headers),
        _ => Err("payload or headers".to_owned()),
    }
}

/// Address and port of `HOST:PORT`; `usual` is the port of a name without one.
fn resolve(name: &str, usual: Option<u16>) -> Result<SocketAddr> {
    let with_port = match usual {
        Some(port) if !name.contains(':') => format!("{name}:{port}"),
        _ => name.to_owned(),
    };
    let mut addresses = with_port.to_socket_addrs().with_context(|| format!("{name}: HOST:PORT"))?;
    addresses.next().with_context(|| format!("{name} has no address"))
}

impl Ends {
    fn handshake(&self) -> Result<Handshake> {
        Ok(match (&self.cm, self.cm_listen, &self.pingpong, self.pingpong_listen) {
            (Some(server), ..) => Handshake::Cm(resolve(server, None)?),
            (_, Some(port), ..) => Handshake::CmListen(port),
            (_, _, Some(server), _) => Handshake::PingPong(resolve(server, Some(18515))?),
            (_, _, _, Some(port)) => Handshake::PingPongListen(port),
            _ => {
                bail!("--cm, --cm-listen, --pingpong or --pingpong-listen says how the program gets to know this peer")
            }
        })
    }

    fn address(&self, handshake: Handshake) -> Result<IpAddr> {
        const ON_LO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
        if let Some(address) = self.address {
            return Ok(address);
        }
        match handshake {
            Handshake::Cm(server) | Handshake::PingPong(server) if !server.ip().is_loopback() => {
                // The address from which the route leads there; nothing is sent.
                let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
                let socket = UdpSocket::bind(any)?;
                socket.connect(server).with_context(|| format!("no route to {server}"))?;
                Ok(socket.local_addr()?.ip())
            }
            Handshake::Cm(server) | Handshake::PingPong(server) if server.is_ipv6() => {
                bail!(
                    "{server}: a peer needs an --address of its own beside ::1, and of IPv6 (ip -6 address add … dev lo)"
                )
            }
            _ => Ok(ON_LO),
        }
    }

    fn dictionary(&self) -> Result<Dictionary> {
        let Some(path) = &self.dict else { return Ok(Dictionary::default()) };
        let name = || path.display().to_string();
        std::fs::read_to_string(path).with_context(name)?.parse::<Dictionary>().with_context(name)
    }

    const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    /// The peer, which prints its packets, a line each: time, direction, packet.
    fn peer(&self, handshake: Handshake, captured: CaptureSettings) -> Result<Peer<'static>> {
        let settings = Settings {
            address: self.address(handshake)?,
            transport: self.transport,
            mtu: self.mtu.or(captured.mtu).unwrap_or(Mtu::Mtu1024),
            seed: self.seed,
            wait: Duration::from_secs(self.wait),
            private_data: self.private_data.clone().map_or(captured.private_data, |data| data.0),
        };
        let (quiet, began) = (self.quiet, Instant::now());
        let tell = move |sent: bool, packet: &str| {
            if !quiet {
                let arrow = if sent { '>' } else { '<' };
                // Nobody reads any more: the packets go all the same.
                let _ = out::offer(&format!("{:10.6} {arrow} {packet}\n", began.elapsed().as_secs_f64()));
            }
        };
        let peer = Peer::new(settings, Box::new(tell))?;
        match handshake {
            Handshake::CmListen(port) => {
                out::print(&format!("waiting for a connection on {}, port {port}\n", self.address(handshake)?))?;
            }
            Handshake::PingPongListen(port) => {
                let address = self.address(handshake)?;
                out::print(&format!(
                    "waiting for a connection on TCP port {port} of all IPv4 addresses; the queue pair is at {address}\n"
                ))?;
            }
            _ => {}
        }
        Ok(peer)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// Settings that a capture has.
#[derive(Default)]
struct CaptureSettings {
    mtu: Option<Mtu>,
    /// Private data of the program whose part is played.
    private_data: Vec<u8>,
}

/// A program's message that has made a connection by rdma_cm.
struct CmMessage {
    /// A request: the program is the active side.
    is_active: bool,
    private_data: Vec<u8>,
}

impl CmMessage {
    /// Looks for the message of the program at this end.
    fn find(packets: &[urxe_pcapng::Captured], end: pairs::End) -> Option<Self> {
        packets.iter().filter(|packet| packet.from == end.address && packet.bth.dest_qp == Qpn::GSI).find_map(
            |packet| {
                let message = CmMad::parse(&packet.payload).ok()?.message;
                let (is_active, data) = match &message {
                    Message::Req(req) if Some(req.qpn.get()) == end.qpn => {
                        (true, handshake::of_program_in_request(req))
                    }
                    Message::Rep(rep) if Some(rep.qpn.get()) == end.qpn => (false, handshake::of_program_in_reply(rep)),
                    _ => return None,
                };
                Some(Self { is_active, private_data: without_padding(data) })
            },
        )
    }
}

/// Messages have room for more than programs send; a request for less than a reply.
fn without_padding(data: &[u8]) -> Vec<u8> {
    let len = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    data.get(..len).unwrap_or_default().to_vec()
}

/// Whether the program connects to this peer.
const fn waits(handshake: Handshake) -> bool {
    matches!(handshake, Handshake::CmListen(_) | Handshake::PingPongListen(_))
}

/// Says what has been found, and how to find it again.
fn found(why: &str, how: &str) -> Result<ExitCode> {
    out::print(&format!("found: {why}\n{how}\n"))?;
    Ok(ExitCode::FAILURE)
}

pub(crate) fn inject(args: &InjectArgs) -> Result<ExitCode> {
    let handshake = args.ends.handshake()?;
    let steps = match &args.script {
        None => None,
        Some(path) => {
            let text = String::from_utf8(read(path)?).with_context(|| format!("{} is not text", path.display()))?;
            Some(script::parse(&text).with_context(|| path.display().to_string())?)
        }
    };
    if steps.is_none() && waits(handshake) {
        bail!("--generate notices the end of a program by connecting to it again: --cm or --pingpong");
    }
    let mut peer = args.ends.peer(handshake, CaptureSettings::default())?;
    if let Some(steps) = steps {
        peer.shake(handshake, 0, args.ends.timeout())?;
        let played = Player::new(&mut peer).play(&steps);
        // What is still to come, and to be answered.
        let until = Instant::now() + args.ends.timeout();
        while Instant::now() < until && peer.receive(Instant::now() + Duration::from_millis(50))?.is_some() {}
        peer.disconnect()?;
        played?;
        return Ok(ExitCode::SUCCESS);
    }
    let corpus = args.corpus.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let longest = corpus.iter().map(Vec::len).max().unwrap_or(0).max(64);
    let campaign = Campaign {
        executions: args.generate.unwrap_or(0),
        seed: args.ends.seed,
        aim: args.mutate,
        corpus,
        dictionary: args.ends.dictionary()?,
        most: args.max_len.unwrap_or(longest),
        per_connection: args.per_connection.max(1),
        timeout: args.ends.timeout(),
    };
    let began = Instant::now();
    let report = campaign.run(&mut peer, handshake)?;
    let rate = (report.executions as f64 / began.elapsed().as_secs_f64().max(1e-6)).round();
    let (acks, naks, unanswered) = (report.acks, report.naks, report.unanswered);
    out::print(&format!(
        "{} executions, {rate}/s, {} connections: {acks} acknowledged, {naks} refused, {unanswered} without an answer\n",
        report.executions, report.connections
    ))?;
    let Some((why, messages)) = report.found else { return Ok(ExitCode::SUCCESS) };
    let how = match &args.save {
        Some(path) => {
            std::fs::write(path, script_of(&messages)).with_context(|| path.display().to_string())?;
            format!("again: urxe inject … --script {}", path.display())
        }
        None => format!("again: --seed {}; --save FILE writes a script", args.ends.seed),
    };
    found(&why, &how)
}

pub(crate) fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    let handshake = args.ends.handshake()?;
    if args.mutate > 0 && waits(handshake) {
        bail!("--mutate notices the end of a program by connecting to it again: --cm or --pingpong");
    }
    let name = || args.file.display().to_string();
    let mut packets = urxe_pcapng::read_whole(&args.file).with_context(name)?.packets;
    packets.sort_by_key(|packet| packet.at);
    let mut pairs = pairs::find(&packets);
    match args.live {
        Some(qpn) => pairs.retain(|pair| pair.names(qpn)),
        // Management datagrams are the handshake's.
        None => pairs.retain(|pair| pair.qpn() != 1),
    }
    let Some(pair) = pairs.first() else {
        bail!("{0}: no such exchange in it; `urxe trace {0}` lists those that it has", name())
    };
    let (left, right) = (pair.left(), pair.right());
    let (left_sent, right_sent) = (CmMessage::find(&packets, left), CmMessage::find(&packets, right));
    let left_is_active =
        left_sent.as_ref().map(|sent| sent.is_active).or(right_sent.as_ref().map(|sent| !sent.is_active));
    let live_is_right = match args.live {
        Some(qpn) => right.qpn == Some(qpn),
        // The side that connects may be the second that sends.
        None => left_is_active.is_none_or(|is_active| is_active != waits(handshake)),
    };
    let recorded = pair.packets.iter().filter_map(|index| {
        let packet = packets.get(*index)?;
        let is_ours = pair.is_there(packet) == live_is_right;
        Some(Recorded { is_ours, header: packet.header?, payload: packet.payload.clone() })
    });
    let recorded: Vec<_> = recorded.collect();
    let (live, played) = if live_is_right { (right_sent, left_sent) } else { (left_sent, right_sent) };
    let private_data = |sent: Option<CmMessage>| sent.map(|sent| sent.private_data).unwrap_or_default();
    let captured = CaptureSettings { mtu: replay::mtu(&recorded), private_data: private_data(played) };
    let replay = Replay {
        packets: recorded,
        private_data: private_data(live),
        timeout: args.ends.timeout(),
        rounds: args.mutate,
        seed: args.ends.seed,
        dictionary: args.ends.dictionary()?,
    };
    let mut peer = args.ends.peer(handshake, captured)?;
    let report = replay.run(&mut peer, handshake)?;
    for difference in &report.differences {
        out::print(&format!("differs: {difference}\n"))?;
    }
    let (sent, rounds, differences) = (report.sent, report.rounds, report.differences.len());
    out::print(&format!("{sent} packets sent, rounds: {rounds}, differences from the capture: {differences}\n"))?;
    match report.found {
        Some((why, round)) => found(&why, &format!("again: --seed {} --mutate {round}", args.ends.seed)),
        None => Ok(ExitCode::SUCCESS),
    }
}
