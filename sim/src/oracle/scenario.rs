//! Two nodes, a network, traffic: chosen from a seed.

use std::time::Duration;

use urxe_engine::attr::QpAttr;
use urxe_engine::congestion::{Algorithm, CongestionSettings};
use urxe_engine::rng::Rng;
use urxe_wire::{Mtu, Psn, RnrTimer};

use super::plan::{ALL_VERBS, Plan, Poison, Style};
use super::space::small;
use crate::NodeConfig;
use crate::bottleneck::Bottleneck;
use crate::connection::Connection;
use crate::rule::Chance;

/// Difficulty of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// No difficulty: no packet is lost, every buffer is large.
    Clean,
    /// A few packets are lost.
    Loss,
    /// Many packets are lost: requests may run out of tries.
    HeavyLoss,
    /// Packets overtake one another.
    Reorder,
    /// Packets arrive twice.
    Duplicate,
    /// Bits flip.
    Corrupt,
    /// All of the above, a little.
    Mixed,
    /// Receive buffers of the nodes hold few packets.
    TinyBuffers,
    /// Receive requests are posted late.
    NotReady,
    /// Send queues are drained and go on, again and again, and a few packets are lost.
    Draining,
    /// A buffer is deregistered at some time.
    Deregister,
    /// No packet arrives from some time on.
    Blackhole,
    /// A request is wrong.
    Poisoned,
    /// A request is wrong, and a few packets are lost.
    PoisonedLoss,
}

impl Profile {
    /// Profiles that schedules are made by.
    pub const ALL: [Self; 14] = [
        Self::Clean,
        Self::Loss,
        Self::HeavyLoss,
        Self::Reorder,
        Self::Duplicate,
        Self::Corrupt,
        Self::Mixed,
        Self::TinyBuffers,
        Self::NotReady,
        Self::Draining,
        Self::Deregister,
        Self::Blackhole,
        Self::Poisoned,
        Self::PoisonedLoss,
    ];

    /// Whether every request must succeed.
    #[must_use]
    pub const fn must_succeed(self) -> bool {
        !matches!(self, Self::HeavyLoss | Self::Deregister | Self::Blackhole | Self::Poisoned | Self::PoisonedLoss)
    }
}

/// A simulation to be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of all that is random in it.
    pub seed: u64,
    /// The difficulty.
    pub profile: Profile,
    /// Configuration of both nodes.
    pub node: NodeConfig,
    /// The nodes have IPv6 addresses.
    pub ipv6: bool,
    /// Properties of each connection.
    pub connections: Vec<Connection>,
    /// Plans of each connection: from the first node to the second, and back.
    pub plans: Vec<[Plan; 2]>,
    /// Chances of loss, duplication, delay, corruption.
    pub chances: [Chance; 4],
    /// Number of the packet from which on all are lost.
    pub blackhole_after: Option<u64>,
    /// Time at which each connection loses one of its buffers.
    pub deregister_after: Option<Duration>,
    /// Receives posted in the beginning, and then every 700 µs.
    pub recv_batch: usize,
    /// The queue of a switch in front of both nodes.
    pub bottleneck: Option<Bottleneck>,
}

impl Scenario {
    /// A scenario of any kind.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let profile = Profile::ALL[small(&mut Rng::new(seed ^ 0x9E), Profile::ALL.len())];
        Self::new(seed, profile)
    }

    /// A scenario of the given kind.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Self {
        let rng = &mut Rng::new(seed);
        let mtu = Mtu::ALL[small(rng, 5)];
        let poison = matches!(profile, Profile::Poisoned | Profile::PoisonedLoss)
            .then(|| Poison::ALL[small(rng, Poison::ALL.len())]);
        let count = if poison.is_some() { 1 } else { 1 + small(rng, 3) };
        let style =
            Style { ops: 4 + small(rng, 28), mtu, max_sge: 4, max_inline: 1024, verbs: ALL_VERBS, poison: None };
        let (bottleneck, congestion) = congestion(seed);
        let selective_paths = selective_paths(seed);
        let connections =
            (0..count).map(|_| Connection { congestion, selective_paths, ..connection(rng, profile, mtu) }).collect();
        let plans = (0..count)
            .map(|_| {
                let there = Plan::random(rng, &Style { poison, ..style });
                let back = Style { ops: if rng.below(3) == 0 { 0 } else { style.ops }, ..style };
                [there, Plan::random(rng, &back)]
            })
            .collect();
        let [never, few] = [Chance::NEVER, Chance::per_mille(5 + u32::try_from(rng.below(45)).unwrap_or(0))];
        let chances = match profile {
            Profile::Clean
            | Profile::TinyBuffers
            | Profile::NotReady
            | Profile::Deregister
            | Profile::Blackhole
            | Profile::Poisoned => [never; 4],
            Profile::Loss | Profile::Draining | Profile::PoisonedLoss => [few, never, never, never],
            Profile::HeavyLoss => [Chance::percent(40), never, never, never],
            Profile::Reorder => [never, never, few, never],
            Profile::Duplicate => [never, few, never, never],
            Profile::Corrupt => [never, never, never, few],
            Profile::Mixed => [few; 4],
        };
        let node = NodeConfig {
            seed: rng.next_u64(),
            receive_buffer: if profile == Profile::TinyBuffers { 4 + small(rng, 28) } else { 4096 },
            service_delay: Duration::from_nanos(rng.below(20_000)),
            // One at a time is slower than the shortest ACK timeouts allow for.
            send_room: if profile == Profile::Clean { 16 } else { 1 } + small(rng, 64),
            ..NodeConfig::default()
        };
        let recv_batch = if profile == Profile::NotReady { 1 + small(rng, 4) } else { usize::MAX };
        let deregister_after = (profile == Profile::Deregister).then(|| Duration::from_nanos(rng.below(200_000)));
        let blackhole_after = (profile == Profile::Blackhole).then(|| rng.below(200));
        Self {
            seed,
            profile,
            node,
            ipv6: seed.is_multiple_of(5),
            connections,
            plans,
            chances,
            blackhole_after,
            deregister_after,
            recv_batch,
            bottleneck,
        }
    }
}

/// Selective repeat of both ends of a scenario: of none, of both, or of one of them; on one path or several.
fn selective_paths(seed: u64) -> [u8; 2] {
    [[0, 0], [1, 1], [1, 1], [1, 0], [0, 1], [1, 3], [4, 4], [8, 2]][small(&mut Rng::new(seed ^ 0x5E1), 8)]
}

/// Congestion of a scenario: of every other none, else marks by short queues that lose nothing, and any algorithm.
fn congestion(seed: u64) -> (Option<Bottleneck>, CongestionSettings) {
    let rng = &mut Rng::new(seed ^ 0xCC);
    if rng.below(2) == 0 {
        return (None, CongestionSettings::NONE);
    }
    let (some, algorithm) = (small(rng, 8), Algorithm::ALL[small(rng, Algorithm::ALL.len())].1);
    let bottleneck = Bottleneck { rate: 40_000_000_000, capacity: usize::MAX, marks: Some((some, some + 8)) };
    (Some(bottleneck), CongestionSettings { ecn: true, algorithm, line_rate: 40_000, ..CongestionSettings::NONE })
}

fn connection(rng: &mut Rng, profile: Profile, path_mtu: Mtu) -> Connection {
    let default = Connection::default();
    // Half of the connections wrap around soon.
    let mut psn =
        || Psn::new(if rng.below(2) == 0 { 0xFF_FFE0 } else { 0 }.max(u32::try_from(rng.below(1 << 24)).unwrap_or(0)));
    let psns = [psn(), psn()];
    let rd_atomic = 1 + u8::try_from(rng.below(8)).unwrap_or(0);
    let mut cap = default.cap;
    cap.max_send_wr = 1 + u32::try_from(rng.below(40)).unwrap_or(0);
    // A receiver that is not ready is waited for; but where there never is one, not for ever, and then the others
    // must be ready from the beginning.
    let patient = !matches!(profile, Profile::Poisoned | Profile::PoisonedLoss);
    if patient && profile != Profile::Clean {
        cap.max_recv_wr = 1 + u32::try_from(rng.below(40)).unwrap_or(0);
    }
    Connection {
        attr: QpAttr {
            path_mtu,
            timeout: 9 + u8::try_from(rng.below(5)).unwrap_or(0),
            rnr_retry: if patient { 7 } else { 6 },
            min_rnr_timer: RnrTimer::new(1 + u8::try_from(rng.below(16)).unwrap_or(0)),
            max_rd_atomic: rd_atomic,
            max_dest_rd_atomic: rd_atomic,
            ..default.attr
        },
        psns,
        cap,
        window: 1 << rng.below(8),
        ..default
    }
}
