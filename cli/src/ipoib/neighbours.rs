//! Hardware addresses of neighbours, by their IP addresses: asked for, kept for a while, asked for again.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::frame::HardwareAddress;

/// Packets that wait for one neighbour's address; the oldest makes room (the kernel's `IPOIB_MAX_PATH_REC_QUEUE`).
const WAITING: usize = 3;

/// Neighbours that are known or asked for.
const MOST: usize = 1024;

/// Time between two requests, and how many there are (`mcast_solicit` and `retrans_time_ms` of arp(7)).
const RETRY: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;

/// Time that an address is taken for true (`base_reachable_time_ms` of arp(7)).
const REACHABLE: Duration = Duration::from_secs(30);

/// A step to take.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send a packet to a neighbour.
    Send(HardwareAddress, Vec<u8>),
    /// Ask everybody who has the address.
    Ask(IpAddr),
}

#[derive(Debug)]
enum Neighbour {
    Asked {
        at: Instant,
        tries: u32,
        waiting: VecDeque<Vec<u8>>,
    },
    Known {
        address: HardwareAddress,
        since: Instant,
        /// The first and the last request since it grew old.
        asked: Option<(Instant, Instant)>,
    },
}

impl Neighbour {
    /// The time by which the oldest goes first.
    const fn since(&self) -> Instant {
        match self {
            Self::Asked { at, .. } => *at,
            Self::Known { since, .. } => *since,
        }
    }
}

/// The neighbours of an interface.
#[derive(Debug, Default)]
pub(super) struct Neighbours(HashMap<IpAddr, Neighbour>);

impl Neighbours {
    /// Sends a packet to a neighbour, once its address is known.
    pub(super) fn send(&mut self, now: Instant, to: IpAddr, packet: Vec<u8>) -> Vec<Step> {
        match self.0.get_mut(&to) {
            Some(Neighbour::Known { address, since, asked }) => {
                let mut steps = vec![Step::Send(*address, packet)];
                let is_old = now.duration_since(*since) >= REACHABLE;
                if is_old && asked.is_none_or(|(_, last)| now.duration_since(last) >= RETRY) {
                    *asked = Some((asked.map_or(now, |(first, _)| first), now));
                    steps.push(Step::Ask(to));
                }
                steps
            }
            Some(Neighbour::Asked { waiting, .. }) => {
                if waiting.len() >= WAITING {
                    waiting.pop_front();
                }
                waiting.push_back(packet);
                Vec::new()
            }
            None => {
                self.make_room();
                self.0.insert(to, Neighbour::Asked { at: now, tries: 1, waiting: [packet].into() });
                vec![Step::Ask(to)]
            }
        }
    }

    /// Learns an address that a neighbour has told. A neighbour nobody asked for is remembered if `is_for_us`: it is about to
    /// be answered.
    pub(super) fn learn(&mut self, now: Instant, of: IpAddr, address: HardwareAddress, is_for_us: bool) -> Vec<Step> {
        let known = Neighbour::Known { address, since: now, asked: None };
        match self.0.get_mut(&of) {
            Some(neighbour) => match std::mem::replace(neighbour, known) {
                Neighbour::Asked { waiting, .. } => {
                    waiting.into_iter().map(|packet| Step::Send(address, packet)).collect()
                }
                Neighbour::Known { .. } => Vec::new(),
            },
            None if is_for_us => {
                self.make_room();
                self.0.insert(of, known);
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Asks again, and gives up what nobody answers for. To be called each second or so.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        self.0.retain(|of, neighbour| match neighbour {
            Neighbour::Asked { at, .. } if now.duration_since(*at) < RETRY => true,
            Neighbour::Asked { at, tries, .. } if *tries < TRIES => {
                (*at, *tries) = (now, *tries + 1);
                steps.push(Step::Ask(*of));
                true
            }
            Neighbour::Asked { .. } => false,
            // Requests since then had no answer.
            Neighbour::Known { asked, .. } => asked.is_none_or(|(first, _)| now.duration_since(first) < RETRY * TRIES),
        });
        steps
    }

    fn make_room(&mut self) {
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, neighbour)| neighbour.since()).map(|(of, _)| *of)
        {
            self.0.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use urxe_wire::{Gid, Qpn};

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    fn hardware(qpn: u32) -> HardwareAddress {
        HardwareAddress { qpn: Qpn::new(qpn), gid: Gid::new([1; 16]) }
    }

    #[test]
    fn packets_wait_for_the_address() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        assert_eq!(neighbours.send(now, PEER, vec![0]), [Step::Ask(PEER)]);
        for number in 1..=3 {
            assert_eq!(neighbours.send(now, PEER, vec![number]), []);
        }
        let sent = neighbours.learn(now, PEER, hardware(7), false);
        let wanted: Vec<Step> = (1..=3).map(|number| Step::Send(hardware(7), vec![number])).collect();
        assert_eq!(sent, wanted, "the first had to make room");
        assert_eq!(neighbours.send(now, PEER, vec![9]), [Step::Send(hardware(7), vec![9])]);
    }

    #[test]
    fn neighbour_without_answer_is_given_up() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        neighbours.send(now, PEER, vec![0]);
        for second in [1, 2] {
            assert_eq!(neighbours.handle_timeout(now + RETRY * second), [Step::Ask(PEER)]);
        }
        assert_eq!(neighbours.handle_timeout(now + RETRY * 3), []);
        assert!(neighbours.0.is_empty());
    }

    #[test]
    fn old_addresses_are_used_while_they_are_asked_for() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        neighbours.learn(now, PEER, hardware(7), true);
        let later = now + REACHABLE;
        assert_eq!(neighbours.send(later, PEER, vec![0]), [Step::Send(hardware(7), vec![0]), Step::Ask(PEER)]);
        assert_eq!(neighbours.send(later, PEER, vec![1]), [Step::Send(hardware(7), vec![1])]);
        assert_eq!(neighbours.learn(later, PEER, hardware(8), false), []);
        assert_eq!(neighbours.send(later, PEER, vec![2]), [Step::Send(hardware(8), vec![2])]);
        let much_later = later + REACHABLE;
        neighbours.send(much_later, PEER, vec![3]);
        neighbours.handle_timeout(much_later + RETRY * 3);
        assert!(neighbours.0.is_empty());
    }

    #[test]
    fn a_neighbour_that_was_idle_has_time_to_answer() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        neighbours.learn(now, PEER, hardware(7), true);
        let later = now + REACHABLE * 10;
        assert_eq!(neighbours.send(later, PEER, vec![0]), [Step::Send(hardware(7), vec![0]), Step::Ask(PEER)]);
        assert_eq!(neighbours.handle_timeout(later + RETRY), []);
        let again = later + RETRY;
        assert_eq!(neighbours.send(again, PEER, vec![1]), [Step::Send(hardware(7), vec![1]), Step::Ask(PEER)]);
        neighbours.handle_timeout(later + RETRY * TRIES);
        assert!(neighbours.0.is_empty());
    }

    #[test]
    fn strangers_do_not_fill_the_table() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        for number in 0..5000 {
            let stranger = Ipv4Addr::from_bits(0x0A00_0000 + number).into();
            neighbours.learn(now, stranger, hardware(number), false);
            assert!(neighbours.0.is_empty());
        }
        for number in 0..5000 {
            neighbours.learn(now, Ipv4Addr::from_bits(0x0A00_0000 + number).into(), hardware(number), true);
        }
        assert_eq!(neighbours.0.len(), MOST);
    }
}
