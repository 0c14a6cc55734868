//! Congestion control: how many packets a requester keeps in flight, and how fast they leave.
//!
//! | file | holds |
//! |---|---|
//! | `window` | packets in flight by losses, as TCP's Reno: the default |
//! | `dcqcn` | that, and a rate by congestion notifications |
//! | `swift` | packets in flight by the round-trip time |
//! | `reaction_point` | that rate: DCQCN's equations |
//! | `limiter` | when the next packets may leave at that rate |
//! | `pacer` | the clock of a sender at a rate |
//! | `notification` | marks of packets that arrive, and when a CNP answers them |
//! | `parameters` | the table of parameters |

mod dcqcn;
mod limiter;
mod notification;
mod pacer;
mod parameters;
mod reaction_point;
mod swift;
mod window;

use alloc::boxed::Box;

use urxe_wire::Psn;

use crate::time::Instant;
use dcqcn::Dcqcn;
pub(crate) use limiter::{RateLimiter, Sent};
pub(crate) use notification::NotificationPoint;
pub use notification::{Marks, capable};
pub use pacer::Pacer;
pub use parameters::{Parameter, ParameterError, Parameters};
pub(crate) use reaction_point::ReactionPoint;
use swift::Swift;
use window::CongestionWindow;

/// Packets that may be outstanding at least, whatever is lost.
const LEAST: u32 = 2;
/// Packets that may be outstanding at first.
const INITIAL: u32 = 32;

/// Answer of a requester to congestion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// A window of packets that losses and congestion notifications make smaller.
    #[default]
    Window,
    /// The window, and a rate that congestion notifications lower (DCQCN).
    Dcqcn,
    /// A window of packets that a growing round-trip time makes smaller (Swift).
    Swift,
}

impl Algorithm {
    /// Algorithms by the names that choose them.
    pub const ALL: [(&'static str, Self); 3] =
        [("window", Self::Window), ("dcqcn", Self::Dcqcn), ("swift", Self::Swift)];
}

/// Congestion control of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CongestionSettings {
    /// Marks are answered by CNPs, and CNPs obeyed. Otherwise both are ignored.
    pub ecn: bool,
    /// Reaction of the requester.
    pub algorithm: Algorithm,
    /// Parameters of all algorithms.
    pub parameters: Parameters,
    /// Speed of the interface in Mbit/s; 0: unknown, and taken for 10 Gbit/s.
    pub line_rate: u32,
}

impl CongestionSettings {
    /// A window of packets, and no part in congestion notification.
    pub const NONE: Self =
        Self { ecn: false, algorithm: Algorithm::Window, parameters: Parameters::DEFAULT, line_rate: 0 };

    /// Rate at which a queue pair is not limited, in bits a second.
    const fn most_rate(&self) -> u64 {
        const UNKNOWN: u32 = 10_000;
        let rate = match (self.parameters.rpg_max_rate, self.line_rate) {
            (0, 0) => UNKNOWN,
            (0, rate) | (rate, _) => rate,
        };
        rate as u64 * MEGABIT
    }
}

/// Bits a second in one Mbit/s.
const MEGABIT: u64 = 1_000_000;

/// News of packets acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// Packets acknowledged by this answer.
    pub(crate) count: u32,
    /// All before this PSN are acknowledged.
    pub(crate) snd_una: Psn,
    /// No packet from this PSN on was sent.
    pub(crate) snd_max: Psn,
    /// The round trip of one of them in nanoseconds, if it was measured.
    pub(crate) round_trip: Option<u64>,
}

/// An algorithm of congestion control for one requester.
pub(crate) trait Controller {
    /// Packets that may be outstanding now.
    fn packets(&self) -> u32;

    /// Packets were acknowledged.
    fn on_acknowledged(&mut self, acknowledged: Acknowledged);

    /// A packet was lost; everything before `snd_max` was in flight at that time.
    fn on_loss(&mut self, snd_max: Psn);

    /// A number of packets was lost of those before `snd_max`, and the others will arrive: selective repeat knows which.
    fn on_selective_loss(&mut self, _lost: u32, snd_max: Psn) {
        self.on_loss(snd_max);
    }

    /// No answer came for a whole ACK timeout: nothing is known of the network any more.
    fn on_timeout(&mut self);

    /// A CNP came; everything before `snd_max` was in flight at that time.
    fn on_notification(&mut self, now: Instant, snd_max: Psn);

    /// The limit on the rate, while there is one.
    fn limiter(&mut self) -> Option<&mut RateLimiter> {
        None
    }
}

/// The congestion control of one requester.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    /// Packets that may be outstanding now: the controller's, at hand for each packet.
    packets: u32,
    /// Every round trip is wanted.
    pub(crate) wants_round_trips: bool,
    controller: Choice,
}

#[derive(Debug)]
enum Choice {
    Window(CongestionWindow),
    Dcqcn(Box<Dcqcn>),
    Swift(Box<Swift>),
}

impl Choice {
    fn get(&mut self) -> &mut dyn Controller {
        match self {
            Self::Window(window) => window,
            Self::Dcqcn(dcqcn) => &mut **dcqcn,
            Self::Swift(swift) => &mut **swift,
        }
    }
}

impl CongestionControl {
    /// Congestion control with at most `most` packets outstanding.
    pub(crate) fn new(most: u32, settings: &CongestionSettings) -> Self {
        let mut controller = match settings.algorithm {
            Algorithm::Window => Choice::Window(CongestionWindow::new(most)),
            Algorithm::Dcqcn => Choice::Dcqcn(Box::new(Dcqcn::new(most, settings))),
            Algorithm::Swift => Choice::Swift(Box::new(Swift::new(most, settings.parameters.swift_target))),
        };
        let wants_round_trips = settings.algorithm == Algorithm::Swift;
        Self { packets: controller.get().packets(), wants_round_trips, controller }
    }

    /// Packets that may be outstanding now.
    #[inline]
    pub(crate) const fn packets(&self) -> u32 {
        self.packets
    }

    #[inline]
    pub(crate) fn on_acknowledged(&mut self, acknowledged: Acknowledged) {
        match &mut self.controller {
            Choice::Window(window) => {
                window.on_acknowledged(acknowledged);
                self.packets = window.packets();
            }
            Choice::Dcqcn(_) | Choice::Swift(_) => self.tell(|controller| controller.on_acknowledged(acknowledged)),
        }
    }

    pub(crate) fn on_loss(&mut self, snd_max: Psn) {
        self.tell(|controller| controller.on_loss(snd_max));
    }

    pub(crate) fn on_selective_loss(&mut self, lost: u32, snd_max: Psn) {
        self.tell(|controller| controller.on_selective_loss(lost, snd_max));
    }

    pub(crate) fn on_timeout(&mut self) {
        self.tell(|controller| controller.on_timeout());
    }

    pub(crate) fn on_notification(&mut self, now: Instant, snd_max: Psn) {
        self.tell(|controller| controller.on_notification(now, snd_max));
    }

    /// The limit on the rate, while there is one.
    #[inline]
    pub(crate) fn limiter(&mut self) -> Option<&mut RateLimiter> {
        match &mut self.controller {
            Choice::Dcqcn(dcqcn) => dcqcn.limiter(),
            Choice::Window(_) | Choice::Swift(_) => None,
        }
    }

    #[inline(never)]
    fn tell(&mut self, news: impl FnOnce(&mut dyn Controller)) {
        let controller = self.controller.get();
        news(controller);
        self.packets = controller.packets();
    }
}
