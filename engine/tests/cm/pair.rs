//! Two communication managers, what the network between them does, and the time.

use std::collections::BTreeMap;
use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::cm::{Cm, Ends, Event, Verdict};
use urxe_engine::rng::Rng;
use urxe_wire::cm::{CmMad, CommId, Ids, Path, Rep, Req, ServiceId, TransportService};
use urxe_wire::{Gid, Mtu, PKey, Psn, QKey, Qpn};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const GIDS: [Gid; 2] = [Gid::new([0xA; 16]), Gid::new([0xB; 16])];
pub(crate) const SERVICE: u64 = ServiceId::new(ServiceId::TCP, 7471).0;

/// Loss, duplication and delay of the network.
#[derive(Clone, Copy, Default)]
pub(crate) struct LossyNetwork {
    /// Percent that are lost.
    pub(crate) loss: u64,
    /// Percent that come twice.
    pub(crate) dup: u64,
    /// Delays are up to so many milliseconds.
    pub(crate) delay: u64,
}

pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) ends: [Cm; 2],
    under_way: BTreeMap<(Instant, u64), (usize, Ends, [u8; 256])>,
    pub(crate) sent: u64,
    rng: Rng,
    pub(crate) network: LossyNetwork,
    pub(crate) verdict: Option<Verdict>,
    next_id: u32,
    pub(crate) events: [Vec<(CommId, Event)>; 2],
}

impl Pair {
    pub(crate) fn new(seed: u64, network: LossyNetwork) -> Self {
        Self {
            now: Instant::from_nanos(0),
            ends: [Cm::new(), Cm::new()],
            under_way: BTreeMap::new(),
            sent: 0,
            rng: Rng::new(seed),
            network,
            verdict: None,
            next_id: 100,
            events: [Vec::new(), Vec::new()],
        }
    }

    pub(crate) fn ends(of: usize) -> Ends {
        Ends { local: GIDS[of], remote: GIDS[1 - of] }
    }

    fn collect(&mut self) {
        for of in [A, B] {
            while let Some(transmit) = self.ends[of].poll_transmit() {
                assert_eq!(transmit.ends, Self::ends(of));
                let copies = if self.rng.below(100) < self.network.dup { 2 } else { 1 };
                for _ in 0..copies {
                    self.sent += 1;
                    if self.rng.below(100) >= self.network.loss {
                        let delay = Duration::from_micros(10 + self.rng.below(1000 * self.network.delay + 1));
                        self.under_way
                            .insert((self.now + delay, self.sent), (1 - of, Self::ends(1 - of), transmit.payload));
                    }
                }
            }
            while let Some(event) = self.ends[of].poll_event() {
                self.events[of].push(event);
            }
        }
    }

    /// One step: the next datagram arrives or the next timer expires. False if nothing is left to happen.
    pub(crate) fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let timer = self.ends.iter().filter_map(Cm::poll_timeout).min();
        let Some(next) = arrival.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (to, ends, payload)) = self.under_way.pop_first().unwrap();
            let mad = CmMad::parse(&payload).unwrap();
            let (verdict, next_id) = (self.verdict, &mut self.next_id);
            self.ends[to].handle(self.now, ends, &mad, &mut |_| {
                verdict.unwrap_or_else(|| {
                    *next_id += 1;
                    Verdict::Take(CommId(*next_id))
                })
            });
        } else {
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
        }
        self.collect();
        true
    }

    /// Waits until `of` has an event.
    pub(crate) fn wait(&mut self, of: usize) -> (CommId, Event) {
        self.next(of).expect("nothing happens any more")
    }

    /// The next event of `of`, if it ever has one.
    pub(crate) fn next(&mut self, of: usize) -> Option<(CommId, Event)> {
        loop {
            self.collect();
            if !self.events[of].is_empty() {
                return Some(self.events[of].remove(0));
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// The peer of `of` perishes.
    pub(crate) fn hush(&mut self, of: usize) {
        self.collect();
        self.under_way.clear();
        self.ends[1 - of] = Cm::new();
    }

    pub(crate) fn run_dry(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it never ends");
    }

    pub(crate) fn connect(&mut self, id: u32) {
        self.ends[A].connect(self.now, Self::ends(A), &req(id), 0).unwrap();
    }

    /// Connects, up to the request at B.
    pub(crate) fn request(&mut self) -> CommId {
        self.connect(1);
        let (id, event) = self.wait(B);
        assert!(matches!(event, Event::Request(_)), "{event:?}");
        id
    }

    /// A connection: its names at A and B.
    pub(crate) fn established(&mut self) -> (CommId, CommId) {
        self.try_to_establish().unwrap_or_else(|event| panic!("{event:?}"))
    }

    /// Establishes a connection: its names at A and B, or the first event that neither end expected.
    pub(crate) fn try_to_establish(&mut self) -> Result<(CommId, CommId), Event> {
        let b = self.request();
        self.ends[B].accept(self.now, b, &rep(), 0).unwrap();
        let (a, event) = self.wait(A);
        if !matches!(event, Event::Reply(_)) {
            return Err(event);
        }
        self.ends[A].establish(a).unwrap();
        let (id, event) = self.wait(B);
        if !matches!(event, Event::Established(_)) {
            return Err(event);
        }
        assert_eq!(id, b);
        Ok((a, b))
    }
}

pub(crate) fn req(id: u32) -> Req {
    Req {
        local_id: CommId(id),
        vendor_id: 0,
        service_id: SERVICE,
        ca_guid: 1,
        q_key: QKey(0),
        qpn: Qpn::new(0x11),
        responder_resources: 1,
        initiator_depth: 2,
        eecn: 0,
        remote_eecn: 0,
        remote_response_timeout: 20,
        service: TransportService::Rc,
        flow_control: false,
        starting_psn: Psn::new(3),
        local_response_timeout: 20,
        retry_count: 7,
        p_key: PKey::DEFAULT,
        path_mtu: Mtu::Mtu1024,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        primary: Path::default(),
        alternate: Path::default(),
        private_data: [7; 92],
    }
}

pub(crate) fn rep() -> Rep {
    Rep {
        ids: Ids::default(),
        q_key: QKey(0),
        qpn: Qpn::new(0x22),
        eecn: 0,
        starting_psn: Psn::new(4),
        vendor_id: 0,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 0,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: 2,
        private_data: [8; 196],
    }
}
