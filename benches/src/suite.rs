//! Measurements, and the figures that are compared.
//!
//! A new alternative is a [`Program`] and a line in [`PROBES`]; a new question is a line in [`COMPARISONS`].

use std::fmt;

use crate::paths::Paths;
use crate::programs::{Perftest, Program, SHARED_MEMORY, Ucx, Variables};
use crate::raw::Raw;

/// Figure that a program measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Name of the row in the table.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: Unit,
}

/// Unit of a [`Figure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds in one direction: half a round trip.
    Microseconds,
    /// 10^9 bits of payload a second.
    Gigabits,
    /// 10^6 messages a second.
    Megamessages,
    /// Nanoseconds of a processor for a message.
    Nanoseconds,
    /// Number for each message.
    Each,
}

/// A program to run in every round, and the figures it reports, in its order.
#[derive(Debug)]
pub struct Probe {
    /// Program to run.
    pub program: Program,
    /// Figures that the program reports.
    pub figures: &'static [Figure],
}

/// A ratio of two figures of one round.
#[derive(Debug)]
pub struct Comparison {
    /// Numerator: the subject.
    pub of: Figure,
    /// Denominator: what it is held against.
    pub to: Figure,
    /// Goals of the ratio.
    pub goals: Goals,
}

/// Goals of a ratio: the first and the final one.
#[derive(Debug, Clone, Copy)]
pub struct Goals {
    /// The first version's.
    pub start: Option<Goal>,
    /// Close to what the machine can do.
    pub target: Option<Goal>,
}

/// A bound of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Times are below it.
    AtMost(f64),
    /// Rates are above it.
    AtLeast(f64),
}

impl Goals {
    /// The ratio is only shown.
    pub const NONE: Self = Self { start: None, target: None };
}

impl Goal {
    /// Whether a ratio reaches it.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => ratio >= bound,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "≤ {bound:?}"),
            Self::AtLeast(bound) => write!(f, "≥ {bound:?}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Microseconds => "µs",
            Self::Gigabits => "Gbit/s",
            Self::Megamessages => "M/s",
            Self::Nanoseconds => "ns",
            Self::Each => "a message",
        })
    }
}

const fn micros(name: &'static str) -> Figure {
    Figure { name, unit: Unit::Microseconds }
}

const fn gigabits(name: &'static str) -> Figure {
    Figure { name, unit: Unit::Gigabits }
}

const fn megamessages(name: &'static str) -> Figure {
    Figure { name, unit: Unit::Megamessages }
}

/// Bare UDP ping-pong, both ends polling: median.
pub const UDP_LATENCY: Figure = micros("UDP ping-pong");
/// 99th percentile of the figure above.
pub const UDP_LATENCY_P99: Figure = micros("UDP ping-pong p99");
/// Latency of bare UDP when an ACK goes with each packet, as two packets of one GSO run: median.
pub const UDP_LATENCY_ACKS: Figure = micros("UDP ping-pong with ACKs");
/// 99th percentile of the figure above.
pub const UDP_LATENCY_ACKS_P99: Figure = micros("UDP ping-pong with ACKs p99");
/// Bare UDP with GSO, GRO, and a CRC and a copy at both ends.
pub const UDP_STREAM: Figure = gigabits("UDP stream");
/// Bandwidth of bare UDP without the copy at the sending end: the kernel takes the payload from where it is.
pub const UDP_GATHERED: Figure = gigabits("UDP stream, gathered");
/// Bare UDP, 64 small packets a GSO run.
pub const UDP_SMALL: Figure = megamessages("UDP small packets");
/// iperf3.
pub const TCP: Figure = gigabits("TCP stream (iperf3)");

const WRITE_LATENCY: Figure = micros("ib_write_lat 8 B");
const WRITE_LATENCY_P99: Figure = micros("ib_write_lat 8 B p99");
const SEND_LATENCY: Figure = micros("ib_send_lat 8 B");
const SEND_LATENCY_P99: Figure = micros("ib_send_lat 8 B p99");
const PINGPONG: Figure = micros("ibv_rc_pingpong 8 B");
const WRITE_1M: Figure = gigabits("ib_write_bw 1 MiB");
const SEND_1M: Figure = gigabits("ib_send_bw 1 MiB");
const READ_1M: Figure = gigabits("ib_read_bw 1 MiB");
const WRITE_64K: Figure = gigabits("ib_write_bw 64 KiB");
const WRITE_RATE: Figure = megamessages("ib_write_bw 8 B");
const UCX_TCP_LATENCY: Figure = micros("UCX over TCP, tag_lat 8 B");
const UCX_TCP: Figure = gigabits("UCX over TCP, tag_bw 1 MiB");
const FI_TCP: Figure = micros("libfabric over TCP, fi_pingpong 8 B");
const POLLING_TARGET: Figure = micros("WRITE to a program that polls");
const POLLING_TARGET_P99: Figure = micros("WRITE to a program that polls p99");
const SLEEPING_TARGET: Figure = micros("WRITE to a program that sleeps");
const SLEEPING_TARGET_P99: Figure = micros("WRITE to a program that sleeps p99");
const ONE_QP: Figure = gigabits("WRITE 64 KiB, 1 QP");
const MANY_QPS: Figure = gigabits("WRITE 64 KiB, 1000 QPs");
const LOST_NONE: Figure = gigabits("ib_write_bw 1 MiB, faults on, none lost");
const LOST_FEW: Figure = gigabits("ib_write_bw 1 MiB, 0.1 % lost");
const LOST_MANY: Figure = gigabits("ib_write_bw 1 MiB, 1 % lost");
const REPEATED_NONE: Figure = gigabits("ib_write_bw 1 MiB, selective repeat, none lost");
const REPEATED_FEW: Figure = gigabits("ib_write_bw 1 MiB, selective repeat, 0.1 % lost");
const REPEATED_MANY: Figure = gigabits("ib_write_bw 1 MiB, selective repeat, 1 % lost");
const REPEATED_MORE: Figure = gigabits("ib_write_bw 1 MiB, selective repeat, 3 % lost");
const REPEATED_TENTH: Figure = gigabits("ib_write_bw 1 MiB, selective repeat, 10 % lost");
const OVERTAKEN: Figure = gigabits("ib_write_bw 1 MiB, selective repeat, 1 % overtaken by 64");
const EQUAL_PATHS: Figure = gigabits("ib_write_bw 64 KiB, 8 paths of one delay");
const DIFFERENT_PATHS: Figure = gigabits("ib_write_bw 64 KiB, 8 paths of different delay");

/// Rate and cost of the WRITEs of so many threads with queue pairs of their own, and locks found taken.
macro_rules! of_threads {
    ($($figures:ident = $name:literal;)*) => {
        $(const $figures: [Figure; 3] = [
            megamessages($name),
            Figure { name: concat!($name, ", cost"), unit: Unit::Nanoseconds },
            Figure { name: concat!($name, ", locks found taken"), unit: Unit::Each },
        ];)*
    };
}

of_threads! {
    THREAD = "WRITE 8 B, 1 thread";
    TWO_THREADS = "WRITE 8 B, 2 threads";
    EIGHT_THREADS = "WRITE 8 B, 8 threads";
    TWO_UNSHARDED = "WRITE 8 B, 2 threads, no shards";
    SHM_THREAD = "WRITE 8 B, 1 thread, shared memory";
    SHM_TWO_THREADS = "WRITE 8 B, 2 threads, shared memory";
    SHM_EIGHT_THREADS = "WRITE 8 B, 8 threads, shared memory";
}

const TWO_PROCESSES: [Figure; 2] = [megamessages("WRITE 8 B, 2 processes"), nanos("WRITE 8 B, 2 processes, cost")];
const SHM_TWO_PROCESSES: [Figure; 2] =
    [megamessages("WRITE 8 B, 2 processes, shared memory"), nanos("WRITE 8 B, 2 processes, shared memory, cost")];

const SHM_WRITE_LATENCY: Figure = micros("ib_write_lat 8 B, shared memory");
const SHM_WRITE_LATENCY_P99: Figure = micros("ib_write_lat 8 B p99, shared memory");
const SHM_PINGPONG: Figure = micros("ibv_rc_pingpong 8 B, shared memory");
const SHM_WRITE_1M: Figure = gigabits("ib_write_bw 1 MiB, shared memory");

const DIRECT_WRITE_LATENCY: Figure = micros("ib_write_lat 8 B, direct");
const DIRECT_WRITE_LATENCY_P99: Figure = micros("ib_write_lat 8 B p99, direct");
const DIRECT_SEND_LATENCY: Figure = micros("ib_send_lat 8 B, direct");
const DIRECT_SEND_LATENCY_P99: Figure = micros("ib_send_lat 8 B p99, direct");
const DIRECT_WRITE_1M: Figure = gigabits("ib_write_bw 1 MiB, direct");
const DIRECT_READ_1M: Figure = gigabits("ib_read_bw 1 MiB, direct");
const DIRECT_SEND_1M: Figure = gigabits("ib_send_bw 1 MiB, direct");
const DIRECT_WRITE_RATE: Figure = megamessages("ib_write_bw 8 B, direct");
const DIRECT_OWN_ONE: Figure = nanos("WRITE 8 B, direct, own loop, one at a time");
const DIRECT_OWN_LIST: Figure = nanos("WRITE 8 B, direct, own loop, lists of 64");
const UCX_PUT_LATENCY: Figure = micros("UCX through memory, ucp_put_lat 8 B");
const UCX_TAG_LATENCY: Figure = micros("UCX through memory, tag_lat 8 B");
const UCX_PUT_1M: Figure = gigabits("UCX through memory, ucp_put_bw 1 MiB");
const UCX_TAG_1M: Figure = gigabits("UCX through memory, tag_bw 1 MiB");
const UCX_PUT_RATE: Figure = megamessages("UCX through memory, ucp_put_bw 8 B");

const fn nanos(name: &'static str) -> Figure {
    Figure { name, unit: Unit::Nanoseconds }
}

const fn through_memory(perftest: Perftest) -> Program {
    Program::Perftest(perftest.with(&[SHARED_MEMORY]))
}

/// Program whose one-sided operations access the peer's memory, without packets.
const fn direct(perftest: Perftest) -> Program {
    Program::Perftest(perftest.with(&[SHARED_MEMORY, ("URXE_DIRECT", "1")]))
}

/// Rate of received frames of one size, and what they are in Gbit/s.
macro_rules! of_frames {
    ($($figures:ident = $name:literal;)*) => {
        $(const $figures: [Figure; 2] = [megamessages($name), gigabits(concat!($name, ", bits"))];)*
    };
}

of_frames! {
    RAW_64 = "raw_ethernet_bw 64 B";
    RAW_1500 = "raw_ethernet_bw 1500 B";
    RAW_XDP_64 = "raw_ethernet_bw 64 B, XDP";
    RAW_XDP_1500 = "raw_ethernet_bw 1500 B, XDP";
    RING_64 = "packet ring 64 B";
    RING_1500 = "packet ring 1500 B";
    XDP_64 = "AF_XDP 64 B";
    XDP_1500 = "AF_XDP 1500 B";
}

const BY_XDP: Variables = &[("URXE_RAW", "xdp")];

/// Transports of UCX within a host.
const UCX_MEMORY: &str = "sysv,cma,self";

const UCX_TCP_TLS: &str = "tcp,self";

/// Program with losses where packets leave, in both directions.
const fn lossy(variables: Variables) -> Program {
    Program::Perftest(Perftest::bandwidth("ib_write_bw", "-s 1048576 -n 2000").with(variables))
}

/// Has RC of both ends send again only what is missing.
pub(crate) const SELECTIVE_REPEAT: (&str, &str) = ("URXE_SELECTIVE_REPEAT", "1");

const fn own(args: &'static str) -> Program {
    Program::Own { program: "own-verbs", args, variables: &[] }
}

const fn own_through_memory(args: &'static str) -> Program {
    Program::Own { program: "own-verbs", args, variables: &[SHARED_MEMORY] }
}

const fn own_with(args: &'static str, variables: Variables) -> Program {
    Program::Own { program: "own-verbs", args, variables }
}

const fn own_direct(args: &'static str) -> Program {
    Program::Own { program: "own-verbs", args, variables: &[SHARED_MEMORY, ("URXE_DIRECT", "1")] }
}

const fn bare(args: &'static str) -> Program {
    Program::Own { program: "bare-udp", args, variables: &[] }
}

/// A round, in this order; every other round runs backwards.
pub const PROBES: &[Probe] = &[
    Probe { program: bare("ping-pong"), figures: &[UDP_LATENCY, UDP_LATENCY_P99] },
    Probe { program: bare("ping-pong-with-acks"), figures: &[UDP_LATENCY_ACKS, UDP_LATENCY_ACKS_P99] },
    Probe {
        program: Program::Perftest(Perftest::latency("ib_write_lat", "-s 8 -n 10000")),
        figures: &[WRITE_LATENCY, WRITE_LATENCY_P99],
    },
    Probe {
        program: Program::Perftest(Perftest::latency("ib_send_lat", "-s 8 -n 10000")),
        figures: &[SEND_LATENCY, SEND_LATENCY_P99],
    },
    Probe { program: Program::PingPong { size: 8, iters: 10_000, variable: None }, figures: &[PINGPONG] },
    Probe { program: bare("stream"), figures: &[UDP_STREAM] },
    Probe { program: bare("stream-gathered"), figures: &[UDP_GATHERED] },
    Probe {
        program: Program::Perftest(Perftest::bandwidth("ib_write_bw", "-s 1048576 -n 1000")),
        figures: &[WRITE_1M],
    },
    Probe { program: Program::Iperf3, figures: &[TCP] },
    Probe { program: Program::Perftest(Perftest::bandwidth("ib_send_bw", "-s 1048576 -n 1000")), figures: &[SEND_1M] },
    Probe { program: Program::Perftest(Perftest::bandwidth("ib_read_bw", "-s 1048576 -n 1000")), figures: &[READ_1M] },
    Probe {
        program: Program::Perftest(Perftest::bandwidth("ib_write_bw", "-s 65536 -n 15000")),
        figures: &[WRITE_64K],
    },
    Probe { program: bare("small"), figures: &[UDP_SMALL] },
    Probe { program: Program::Perftest(Perftest::rate("ib_write_bw", "-s 8 -l 64 -n 512000")), figures: &[WRITE_RATE] },
    Probe {
        program: through_memory(Perftest::latency("ib_write_lat", "-s 8 -n 10000")),
        figures: &[SHM_WRITE_LATENCY, SHM_WRITE_LATENCY_P99],
    },
    Probe {
        program: Program::PingPong { size: 8, iters: 10_000, variable: Some(SHARED_MEMORY) },
        figures: &[SHM_PINGPONG],
    },
    Probe {
        program: through_memory(Perftest::bandwidth("ib_write_bw", "-s 1048576 -n 1000")),
        figures: &[SHM_WRITE_1M],
    },
    Probe {
        program: direct(Perftest::latency("ib_write_lat", "-s 8 -n 100000")),
        figures: &[DIRECT_WRITE_LATENCY, DIRECT_WRITE_LATENCY_P99],
    },
    Probe {
        program: Program::Ucx(Ucx::latency(UCX_MEMORY, "-t ucp_put_lat -s 8 -n 100000")),
        figures: &[UCX_PUT_LATENCY],
    },
    Probe {
        program: direct(Perftest::latency("ib_send_lat", "-s 8 -n 100000")),
        figures: &[DIRECT_SEND_LATENCY, DIRECT_SEND_LATENCY_P99],
    },
    Probe { program: Program::Ucx(Ucx::latency(UCX_MEMORY, "-t tag_lat -s 8 -n 100000")), figures: &[UCX_TAG_LATENCY] },
    Probe { program: direct(Perftest::bandwidth("ib_write_bw", "-s 1048576 -n 3000")), figures: &[DIRECT_WRITE_1M] },
    Probe {
        program: Program::Ucx(Ucx::bandwidth(UCX_MEMORY, "-t ucp_put_bw -s 1048576 -n 3000")),
        figures: &[UCX_PUT_1M],
    },
    Probe { program: direct(Perftest::bandwidth("ib_read_bw", "-s 1048576 -n 3000")), figures: &[DIRECT_READ_1M] },
    Probe { program: direct(Perftest::bandwidth("ib_send_bw", "-s 1048576 -n 3000")), figures: &[DIRECT_SEND_1M] },
    Probe { program: Program::Ucx(Ucx::bandwidth(UCX_MEMORY, "-t tag_bw -s 1048576 -n 3000")), figures: &[UCX_TAG_1M] },
    Probe { program: direct(Perftest::rate("ib_write_bw", "-s 8 -l 64 -n 2048000")), figures: &[DIRECT_WRITE_RATE] },
    Probe { program: own_direct("lists 1"), figures: &[DIRECT_OWN_ONE] },
    Probe { program: own_direct("lists 64"), figures: &[DIRECT_OWN_LIST] },
    Probe { program: Program::Ucx(Ucx::rate(UCX_MEMORY, "-t ucp_put_bw -s 8 -n 2000000")), figures: &[UCX_PUT_RATE] },
    Probe { program: Program::Ucx(Ucx::latency(UCX_TCP_TLS, "-t tag_lat -s 8 -n 10000")), figures: &[UCX_TCP_LATENCY] },
    Probe { program: Program::Ucx(Ucx::bandwidth(UCX_TCP_TLS, "-t tag_bw -s 1048576 -n 1000")), figures: &[UCX_TCP] },
    Probe { program: Program::FiPingPong { size: 8, iters: 2000 }, figures: &[FI_TCP] },
    Probe { program: Program::Raw(Raw::Perftest("64", &[])), figures: &RAW_64 },
    Probe { program: Program::Raw(Raw::Ring("64")), figures: &RING_64 },
    Probe { program: Program::Raw(Raw::Perftest("1500", &[])), figures: &RAW_1500 },
    Probe { program: Program::Raw(Raw::Ring("1500")), figures: &RING_1500 },
    Probe { program: Program::Raw(Raw::Perftest("64", BY_XDP)), figures: &RAW_XDP_64 },
    Probe { program: Program::Raw(Raw::Xdp("64")), figures: &XDP_64 },
    Probe { program: Program::Raw(Raw::Perftest("1500", BY_XDP)), figures: &RAW_XDP_1500 },
    Probe { program: Program::Raw(Raw::Xdp("1500")), figures: &XDP_1500 },
    Probe { program: own("one-sided polls"), figures: &[POLLING_TARGET, POLLING_TARGET_P99] },
    Probe { program: own("one-sided sleeps"), figures: &[SLEEPING_TARGET, SLEEPING_TARGET_P99] },
    Probe { program: own("queue-pairs 1"), figures: &[ONE_QP] },
    Probe { program: own("queue-pairs 1000"), figures: &[MANY_QPS] },
    Probe { program: own("threads 1"), figures: &THREAD },
    Probe { program: own("threads 2"), figures: &TWO_THREADS },
    Probe { program: own("processes 2"), figures: &TWO_PROCESSES },
    Probe { program: own_with("threads 2", &[("URXE_SHARDS", "1")]), figures: &TWO_UNSHARDED },
    Probe { program: own("threads 8"), figures: &EIGHT_THREADS },
    Probe { program: own_through_memory("threads 1"), figures: &SHM_THREAD },
    Probe { program: own_through_memory("threads 2"), figures: &SHM_TWO_THREADS },
    Probe { program: own_through_memory("processes 2"), figures: &SHM_TWO_PROCESSES },
    Probe { program: own_through_memory("threads 8"), figures: &SHM_EIGHT_THREADS },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=0%,dir=tx,seed=1")]), figures: &[LOST_NONE] },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=0.1%,dir=tx,seed=1")]), figures: &[LOST_FEW] },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=1%,dir=tx,seed=1")]), figures: &[LOST_MANY] },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=0%,dir=tx,seed=1"), SELECTIVE_REPEAT]), figures: &[REPEATED_NONE] },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=0.1%,dir=tx,seed=1"), SELECTIVE_REPEAT]), figures: &[REPEATED_FEW] },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=1%,dir=tx,seed=1"), SELECTIVE_REPEAT]), figures: &[REPEATED_MANY] },
    Probe { program: lossy(&[("URXE_FAULTS", "drop=3%,dir=tx,seed=1"), SELECTIVE_REPEAT]), figures: &[REPEATED_MORE] },
    Probe {
        program: lossy(&[("URXE_FAULTS", "drop=10%,dir=tx,seed=1"), SELECTIVE_REPEAT]),
        figures: &[REPEATED_TENTH],
    },
    Probe {
        program: lossy(&[("URXE_FAULTS", "reorder=1%/64,dir=tx,seed=1"), SELECTIVE_REPEAT]),
        figures: &[OVERTAKEN],
    },
    Probe { program: Program::Paths(Paths::Equal), figures: &[EQUAL_PATHS] },
    Probe { program: Program::Paths(Paths::Different), figures: &[DIFFERENT_PATHS] },
];

/// The questions.
pub const COMPARISONS: &[Comparison] = &[
    at_most(WRITE_LATENCY, UDP_LATENCY, Some(2.0), Some(1.3)),
    at_most(WRITE_LATENCY, UDP_LATENCY_ACKS, None, Some(1.4)),
    at_most(WRITE_LATENCY_P99, WRITE_LATENCY, None, Some(2.0)),
    at_most(SEND_LATENCY, UDP_LATENCY, Some(2.0), Some(1.4)),
    at_most(SEND_LATENCY, UDP_LATENCY_ACKS, None, Some(1.4)),
    at_most(SEND_LATENCY_P99, SEND_LATENCY, None, Some(2.0)),
    at_most(PINGPONG, UDP_LATENCY, Some(2.0), None),
    at_least(WRITE_1M, TCP, Some(0.5), Some(1.0)),
    at_least(WRITE_1M, UDP_STREAM, None, Some(0.8)),
    at_least(UDP_GATHERED, UDP_STREAM, None, None),
    at_least(SEND_1M, TCP, Some(0.5), None),
    at_least(SEND_1M, WRITE_1M, None, Some(0.9)),
    at_least(READ_1M, TCP, Some(0.5), None),
    at_least(READ_1M, WRITE_1M, None, Some(0.9)),
    at_least(WRITE_64K, WRITE_1M, Some(0.8), Some(0.85)),
    at_least(WRITE_RATE, UDP_SMALL, Some(0.45), Some(0.7)),
    at_most(SHM_WRITE_LATENCY, UDP_LATENCY, None, None),
    at_most(SHM_PINGPONG, UDP_LATENCY, Some(2.0), None),
    at_least(SHM_WRITE_1M, TCP, None, Some(2.0)),
    at_most(DIRECT_WRITE_LATENCY, UCX_PUT_LATENCY, None, Some(2.0)),
    at_most(DIRECT_SEND_LATENCY, UCX_TAG_LATENCY, None, Some(2.0)),
    at_least(DIRECT_WRITE_1M, UCX_PUT_1M, None, Some(0.9)),
    at_least(DIRECT_READ_1M, UCX_PUT_1M, None, Some(0.9)),
    at_least(DIRECT_SEND_1M, UCX_TAG_1M, None, None),
    at_least(DIRECT_WRITE_RATE, UCX_PUT_RATE, None, None),
    at_most(WRITE_LATENCY, UCX_TCP_LATENCY, None, None),
    at_most(SEND_LATENCY, FI_TCP, None, None),
    at_least(WRITE_1M, UCX_TCP, None, None),
    at_least(RAW_64[0], RING_64[0], None, Some(0.7)),
    at_least(RAW_1500[1], RING_1500[1], None, Some(0.7)),
    at_least(RAW_XDP_64[0], XDP_64[0], None, Some(0.7)),
    at_least(RAW_XDP_1500[1], XDP_1500[1], None, Some(0.7)),
    at_most(SLEEPING_TARGET, POLLING_TARGET, None, Some(2.0)),
    at_least(MANY_QPS, ONE_QP, None, Some(0.8)),
    at_least(TWO_THREADS[0], TWO_PROCESSES[0], None, Some(0.95)),
    at_least(EIGHT_THREADS[0], THREAD[0], None, Some(1.0)),
    at_least(TWO_UNSHARDED[0], TWO_PROCESSES[0], None, None),
    at_least(SHM_TWO_THREADS[0], SHM_TWO_PROCESSES[0], None, Some(0.95)),
    at_least(SHM_EIGHT_THREADS[0], SHM_THREAD[0], None, Some(1.0)),
    at_most(SHM_EIGHT_THREADS[1], SHM_THREAD[1], None, None),
    at_least(LOST_FEW, LOST_NONE, None, Some(0.8)),
    at_least(LOST_MANY, LOST_NONE, None, Some(0.5)),
    at_least(REPEATED_FEW, REPEATED_NONE, None, Some(0.97)),
    at_least(REPEATED_MANY, REPEATED_NONE, None, Some(0.9)),
    at_least(REPEATED_MORE, REPEATED_NONE, None, Some(0.75)),
    at_least(REPEATED_TENTH, REPEATED_NONE, None, Some(0.4)),
    at_least(OVERTAKEN, REPEATED_NONE, None, Some(0.95)),
    at_least(DIFFERENT_PATHS, EQUAL_PATHS, None, Some(0.95)),
];

/// Goals of figures by themselves, on the machine of docs/performance.md.
pub const BOUNDS: &[(Figure, Goal)] = &[
    (DIRECT_WRITE_LATENCY, Goal::AtMost(0.25)),
    (DIRECT_WRITE_RATE, Goal::AtLeast(20.0)),
    (TWO_THREADS[2], Goal::AtMost(0.01)),
    (EIGHT_THREADS[2], Goal::AtMost(0.01)),
    (SHM_TWO_THREADS[2], Goal::AtMost(0.01)),
    (SHM_EIGHT_THREADS[2], Goal::AtMost(0.01)),
];

const fn at_most(of: Figure, to: Figure, start: Option<f64>, target: Option<f64>) -> Comparison {
    Comparison { of, to, goals: Goals { start: times(start), target: times(target) } }
}

const fn at_least(of: Figure, to: Figure, start: Option<f64>, target: Option<f64>) -> Comparison {
    Comparison { of, to, goals: Goals { start: rates(start), target: rates(target) } }
}

const fn times(bound: Option<f64>) -> Option<Goal> {
    match bound {
        Some(bound) => Some(Goal::AtMost(bound)),
        None => None,
    }
}

const fn rates(bound: Option<f64>) -> Option<Goal> {
    match bound {
        Some(bound) => Some(Goal::AtLeast(bound)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_different_names() {
        let mut names: Vec<_> = PROBES.iter().flat_map(|probe| probe.figures).map(|figure| figure.name).collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }

    #[test]
    fn compared_figures_share_a_unit() {
        for Comparison { of, to, .. } in COMPARISONS {
            for figure in [of, to] {
                assert!(PROBES.iter().any(|probe| probe.figures.contains(figure)), "nothing measures {figure:?}");
            }
            assert_eq!(of.unit, to.unit, "{} against {}", of.name, to.name);
        }
        for (figure, _) in BOUNDS {
            assert!(PROBES.iter().any(|probe| probe.figures.contains(figure)), "nothing measures {figure:?}");
        }
    }

    #[test]
    fn goals_include_their_bound() {
        assert!(Goal::AtMost(2.0).is_met(2.0) && !Goal::AtMost(2.0).is_met(2.1));
        assert!(Goal::AtLeast(0.5).is_met(0.5) && !Goal::AtLeast(0.5).is_met(0.4));
        assert_eq!((Goal::AtLeast(0.95).to_string(), Goal::AtMost(2.0).to_string()), ("≥ 0.95".into(), "≤ 2.0".into()));
    }
}
