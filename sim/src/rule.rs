//! Rules for packets on their way: composable, and seeded where they are random.

use std::net::Ipv4Addr;
use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::rng::Rng;
use urxe_faults::{Direction, Qp, Script, Sight};
use urxe_wire::Packet;

use crate::node::NodeId;

/// A packet about to cross the network.
#[derive(Clone, Copy, Debug)]
pub struct Flight<'a> {
    /// Counts all packets sent in the fabric, from 0.
    pub number: u64,
    /// Time at which it was sent.
    pub now: Instant,
    /// Sender.
    pub from: NodeId,
    /// Receiver.
    pub to: NodeId,
    /// UDP source port.
    pub source_port: u16,
    /// The packet, parsed.
    pub packet: Packet<'a>,
    /// Bytes from the BTH to the ICRC.
    pub bytes: &'a [u8],
}

/// Decision of a rule about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Leaves the packet alone.
    Pass,
    /// Loses the packet.
    Drop,
    /// Delivers the packet, and once more so much later.
    Duplicate(Duration),
    /// Delivers the packet so much later, perhaps behind packets sent after it.
    Delay(Duration),
    /// Flips this bit, counted from the first of the BTH, modulo the packet's length.
    Corrupt(usize),
    /// Changes this byte, counted likewise, by exclusive or, and puts the ICRC right again: somebody on
    /// the way did it on purpose.
    Forge(usize, u8),
}

/// Decides about each packet. Rules of a fabric are asked in the order they were added until one says
/// [`Verdict::Drop`]; delays and damage add up.
pub trait Rule {
    /// Decides about a packet.
    fn on_packet(&mut self, flight: &Flight<'_>) -> Verdict;
}

/// The script of a program's `URXE_FAULTS`, for the packets of all nodes as they are sent. What only a program's own end
/// can do (refuse, change a payload, break a queue pair) does not happen here.
impl Rule for Script {
    fn on_packet(&mut self, flight: &Flight<'_>) -> Verdict {
        let sight = Sight {
            direction: Direction::Sent,
            opcode: flight.packet.bth().opcode,
            qp: Qp { qpn: flight.packet.bth().dest_qp, made: None },
            peer: Ipv4Addr::UNSPECIFIED.into(),
            len: flight.bytes.len(),
        };
        match self.packet(&sight) {
            urxe_faults::Verdict::Drop => Verdict::Drop,
            urxe_faults::Verdict::Duplicate => Verdict::Duplicate(Duration::from_nanos(1)),
            urxe_faults::Verdict::Corrupt(bit) => Verdict::Corrupt(bit),
            urxe_faults::Verdict::Delay(by) => Verdict::Delay(by),
            urxe_faults::Verdict::Reorder(behind) => Verdict::Delay(PACKET_TIME * behind),
            urxe_faults::Verdict::Pass
            | urxe_faults::Verdict::Mutate(_)
            | urxe_faults::Verdict::Refuse(_)
            | urxe_faults::Verdict::BreakQp => Verdict::Pass,
        }
    }
}

/// In which another packet is about to follow.
const PACKET_TIME: Duration = Duration::from_micros(1);

impl<F: FnMut(&Flight<'_>) -> Verdict> Rule for F {
    fn on_packet(&mut self, flight: &Flight<'_>) -> Verdict {
        self(flight)
    }
}

/// Probability in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chance(u32);

impl Chance {
    /// Chance of 0.
    pub const NEVER: Self = Self(0);

    /// Probability in hundredths.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 10_000)
    }

    /// Probability in thousandths.
    #[must_use]
    pub const fn per_mille(per_mille: u32) -> Self {
        Self(per_mille * 1000)
    }

    /// Throws the dice.
    pub const fn happens(self, rng: &mut Rng) -> bool {
        rng.below(1_000_000) < self.0 as u64
    }
}

macro_rules! random_rule {
    ($(#[$doc:meta])* $name:ident($($field:ident: $ty:ty)?) |$rng:ident| $verdict:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            rng: Rng,
            chance: Chance,
            $($field: $ty,)?
        }

        impl $name {
            /// Rule with its own random numbers.
            #[must_use]
            pub const fn new(seed: u64, chance: Chance $(, $field: $ty)?) -> Self {
                Self { rng: Rng::new(seed), chance $(, $field)? }
            }
        }

        impl Rule for $name {
            fn on_packet(&mut self, _: &Flight<'_>) -> Verdict {
                if !self.chance.happens(&mut self.rng) {
                    return Verdict::Pass;
                }
                $(let $field = self.$field;)?
                let $rng = &mut self.rng;
                $verdict
            }
        }
    };
}

random_rule! {
    /// Loses packets.
    Drops() |_rng| Verdict::Drop
}
random_rule! {
    /// Delivers packets twice, the second time up to `longest` later.
    Duplicates(longest: Duration) |rng| Verdict::Duplicate(up_to(rng, longest))
}
random_rule! {
    /// Delays packets by up to `longest`, so that later ones overtake them.
    Delays(longest: Duration) |rng| Verdict::Delay(up_to(rng, longest))
}
random_rule! {
    /// Flips one bit.
    Corrupts() |rng| Verdict::Corrupt(usize::try_from(rng.next_u64() >> 32).unwrap_or(0))
}

fn up_to(rng: &mut Rng, longest: Duration) -> Duration {
    Duration::from_nanos(1 + rng.below(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)))
}
