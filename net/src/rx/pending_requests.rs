//! Connection requests for services that no process of this host listens for, and what became of the latest ones.
//!
//! Both ends of a connection are often opened at the same time, by programs that talk over another connection until
//! then (perftest `-R` does). Between a kernel's rdma_cm and a card's microseconds of work the listener wins; without
//! them it may lose by its processor having been taken away. So a request for a service that nobody on this host has is
//! kept for a moment and forwarded to a listener that appears meanwhile; after that it is refused.
//!
//! A request may come several times: its sender repeats it until it hears an answer. All copies share one decision. Those that
//! come while the first waits are dropped. A copy of a refused request is refused again, although somebody may listen by
//! then: its sender has heard the first refusal, and a listener that accepted the copy would find nobody. A copy of a
//! delivered request is never refused, although its listener may be gone: the process that has the first copy answers. The
//! kernel looks copies up likewise before it looks for a listener (cm.c `cm_match_req`).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cm_service::RequestId;
use crate::mailbox::Mailbox;
use crate::rx::Meta;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::{timer_arm, timer_create};

/// Time between two polls for a listener.
const INTERVAL: Duration = Duration::from_millis(2);
/// Polls for a listener before a request is refused: 50 ms, half of what a requester of ours waits before it asks again.
const POLLS: u8 = 25;
/// Requests that may wait, and services that they may be for; what comes beyond is refused at once. Each poll costs a
/// system call a service: a peer that makes up services makes us look up 8000 a second, and no more.
const ROOM: usize = 256;
const SERVICES: usize = 16;
/// Bytes of the longest packet that may wait: BTH, DETH, a MAD, padding and ICRC. A peer that sends longer ones fills no
/// memory.
const LONGEST: usize = 512;

/// How long a decision is remembered. A copy that was sent before its sender heard the decision is at most a round trip
/// younger; one that is sent because the answer was lost comes within the sender's interval, 4.3 s, a kernel's 6.4 s.
const MEMORY: Duration = Duration::from_secs(10);
/// Decisions that are remembered: the oldest go, whoever made them necessary.
const DECISIONS: usize = 4096;

/// Identity of a request: what all its copies share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    peer: IpAddr,
    to: Mailbox,
    id: RequestId,
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// No copy has come before, or long ago.
    New,
    /// The request waits for a listener.
    Waiting,
    Refused,
    /// A process of this host has it.
    Delivered,
}

/// A request, as it came.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) key: RequestKey,
    pub(crate) meta: Meta,
    /// Index in the run that the request came in.
    pub(crate) index: u16,
    pub(crate) packet: Box<[u8]>,
    polls_left: u8,
}

/// The requests that wait, and the latest decisions.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    requests: Vec<PendingRequest>,
    /// Services that they are for, each once.
    services: Vec<Mailbox>,
    /// Made when it is first needed.
    timer: Option<Fd>,
    decisions: HashMap<RequestKey, Decision>,
    /// When they were made, the oldest first.
    ages: VecDeque<(Instant, RequestKey)>,
}

impl RequestKey {
    pub(crate) fn new(meta: &Meta, to: Mailbox, id: RequestId) -> Self {
        Self { peer: meta.headers.peer.ip(), to, id }
    }

    pub(crate) fn to(&self) -> Mailbox {
        self.to
    }
}

impl PendingRequests {
    /// State that earlier copies have left.
    pub(crate) fn decision(&mut self, key: &RequestKey, now: Instant) -> Decision {
        if self.requests.iter().any(|request| request.key == *key) {
            return Decision::Waiting;
        }
        self.forget(now);
        self.decisions.get(key).copied().unwrap_or(Decision::New)
    }

    /// Remembers what has become of a request, for later copies. The first decision holds. One that is as
    /// [new](Decision::New) is not remembered.
    pub(crate) fn decide(&mut self, key: RequestKey, decision: Decision, now: Instant) {
        self.forget(now);
        if decision == Decision::New || self.decisions.contains_key(&key) {
            return;
        }
        if self.ages.len() >= DECISIONS
            && let Some((_, oldest)) = self.ages.pop_front()
        {
            self.decisions.remove(&oldest);
        }
        self.decisions.insert(key, decision);
        self.ages.push_back((now, key));
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, key)) = self.ages.front()
            && now.saturating_duration_since(*at) >= MEMORY
        {
            self.decisions.remove(key);
            self.ages.pop_front();
        }
    }

    /// Keeps a request, to be looked at when [`EpollKey::PendingRequests`] is ready. False if it cannot be kept.
    pub(crate) fn keep(&mut self, fds: &Arc<FdSet>, key: RequestKey, meta: Meta, index: u16, packet: &[u8]) -> bool {
        let is_new = !self.services.contains(&key.to);
        if packet.len() > LONGEST
            || self.requests.len() >= ROOM
            || (is_new && self.services.len() >= SERVICES)
            || self.arm(fds).is_err()
        {
            return false;
        }
        if is_new {
            self.services.push(key.to);
        }
        self.requests.push(PendingRequest { key, meta, index, packet: packet.into(), polls_left: POLLS });
        true
    }

    /// Asks about each, but not again in the same poll for a service that nobody has: `find` returns what has become of the
    /// request, or `None` where nobody listens. Returns those that are refused: nobody will be looked for any more.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        mut find: impl FnMut(&PendingRequest) -> Option<Decision>,
    ) -> Vec<PendingRequest> {
        let (mut refused, mut absent) = (Vec::new(), Vec::new());
        self.services.clear();
        for mut request in std::mem::take(&mut self.requests) {
            let to = request.key.to;
            if !absent.contains(&to) {
                if let Some(decision) = find(&request) {
                    self.decide(request.key, decision, now);
                    continue;
                }
                absent.push(to);
            }
            request.polls_left = request.polls_left.saturating_sub(1);
            if request.polls_left == 0 {
                self.decide(request.key, Decision::Refused, now);
                refused.push(request);
                continue;
            }
            if !self.services.contains(&to) {
                self.services.push(to);
            }
            self.requests.push(request);
        }
        if let Some(timer) = &self.timer {
            timer_arm(timer.as_raw_fd(), if self.requests.is_empty() { Duration::ZERO } else { INTERVAL });
        }
        refused
    }

    fn arm(&mut self, fds: &Arc<FdSet>) -> io::Result<()> {
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => {
                let timer = fds.adopt(timer_create()?)?;
                fds.watch(timer.as_raw_fd(), EpollKey::PendingRequests.pack())?;
                none.insert(timer)
            }
        };
        // Another request has set it already, unless this is the first.
        if self.requests.is_empty() {
            timer_arm(timer.as_raw_fd(), INTERVAL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use urxe_wire::Gid;
    use urxe_wire::cm::CommId;

    use super::*;

    fn meta() -> Meta {
        let local = "127.0.0.1:4791".parse().unwrap();
        let peer = "127.0.0.1:50000".parse().unwrap();
        let headers = crate::Headers { local, peer, tclass: 0, hop_limit: 0 };
        Meta { index: 0, headers, segment: 280, first: 0, icrc_elided: false }
    }

    const TO: Mailbox = Mailbox::Service(1, Gid::new([0; 16]));
    const OTHER: Mailbox = Mailbox::Service(2, Gid::new([0; 16]));

    fn key(to: Mailbox, id: u32) -> RequestKey {
        RequestKey::new(&meta(), to, RequestId { comm_id: CommId(id), transaction_id: id.into() })
    }

    fn keep(pending: &mut PendingRequests, fds: &Arc<FdSet>, to: Mailbox, id: u32) -> bool {
        pending.keep(fds, key(to, id), meta(), 0, b"request")
    }

    fn delivered(is_there: bool) -> Option<Decision> {
        is_there.then_some(Decision::Delivered)
    }

    fn ids(requests: &[PendingRequest]) -> Vec<u32> {
        requests.iter().map(|request| request.key.id.comm_id.0).collect()
    }

    #[test]
    fn a_request_waits_until_somebody_is_found() {
        let (fds, mut pending, now) = (FdSet::new().unwrap(), PendingRequests::default(), Instant::now());
        assert!(keep(&mut pending, &fds, TO, 1));
        assert!(keep(&mut pending, &fds, OTHER, 2));
        let mut keys = [0; 4];
        while fds.ready(&mut keys) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(EpollKey::unpack(keys[0]), Some(EpollKey::PendingRequests));
        assert!(pending.poll(now, |request| delivered(request.key == key(TO, 1))).is_empty());
        let mut left = Vec::new();
        let refused = pending.poll(now, |request| {
            left.push(request.key);
            delivered(true)
        });
        assert!(refused.is_empty());
        assert_eq!(left, [key(OTHER, 2)]);
    }

    #[test]
    fn a_request_is_refused_in_the_end_and_the_timer_rests() {
        let (fds, mut pending, now) = (FdSet::new().unwrap(), PendingRequests::default(), Instant::now());
        assert!(keep(&mut pending, &fds, TO, 7));
        for _ in 1..POLLS {
            assert!(pending.poll(now, |_| None).is_empty());
        }
        assert_eq!(ids(&pending.poll(now, |_| None)), [7]);
        std::thread::sleep(2 * INTERVAL);
        assert_eq!(fds.ready(&mut [0; 4]), 0);
    }

    //= spec/connections.md#cm-016
    //= type=test
    //# All copies of a request MUST be refused, or none.
    #[test]
    fn copies_of_a_request_share_its_fate() {
        let (fds, mut pending, now) = (FdSet::new().unwrap(), PendingRequests::default(), Instant::now());
        assert_eq!(pending.decision(&key(TO, 1), now), Decision::New);
        assert!(keep(&mut pending, &fds, TO, 1));
        assert!(keep(&mut pending, &fds, OTHER, 2));
        assert_eq!(pending.decision(&key(TO, 1), now), Decision::Waiting);
        assert_eq!(pending.decision(&key(TO, 2), now), Decision::New, "another request");
        for _ in 0..POLLS {
            pending.poll(now, |request| delivered(request.key.to() == OTHER));
        }
        assert_eq!(pending.decision(&key(TO, 1), now), Decision::Refused);
        assert_eq!(pending.decision(&key(OTHER, 2), now), Decision::Delivered);
        // The first decision holds.
        pending.decide(key(TO, 1), Decision::Delivered, now);
        assert_eq!(pending.decision(&key(TO, 1), now), Decision::Refused);
        // The name may mean another request, in the end.
        assert_eq!(pending.decision(&key(TO, 1), now + MEMORY), Decision::New);
        assert_eq!((pending.decisions.len(), pending.ages.len()), (0, 0));
    }

    /// A listener's mailbox without room, or no descriptor for a way there.
    #[test]
    fn a_request_that_was_dropped_is_new_when_it_comes_again() {
        let (fds, mut pending, now) = (FdSet::new().unwrap(), PendingRequests::default(), Instant::now());
        assert!(keep(&mut pending, &fds, TO, 1));
        assert!(pending.poll(now, |_| Some(Decision::New)).is_empty());
        assert_eq!(pending.decision(&key(TO, 1), now), Decision::New);
        // By then nobody listens: its sender is to hear that, as of any other.
        assert!(keep(&mut pending, &fds, TO, 1));
        for _ in 1..POLLS {
            pending.poll(now, |_| None);
        }
        assert_eq!(ids(&pending.poll(now, |_| None)), [1]);
    }

    #[test]
    fn so_many_decisions_are_remembered() {
        let (mut pending, now) = (PendingRequests::default(), Instant::now());
        let most = u32::try_from(DECISIONS).unwrap();
        for id in 0..=most {
            pending.decide(key(TO, id), Decision::Refused, now);
        }
        assert_eq!((pending.decisions.len(), pending.ages.len()), (DECISIONS, DECISIONS));
        assert_eq!(pending.decision(&key(TO, 0), now), Decision::New);
        assert_eq!(pending.decision(&key(TO, most), now), Decision::Refused);
    }

    /// The cost of a poll is bounded by services, and those are few.
    #[test]
    fn each_service_is_asked_for_once_a_poll() {
        let (fds, mut pending, now) = (FdSet::new().unwrap(), PendingRequests::default(), Instant::now());
        for round in 0..3 {
            let kept =
                (0..100).filter(|id| keep(&mut pending, &fds, Mailbox::Service(*id, Gid::new([0; 16])), round)).count();
            assert_eq!(kept, SERVICES);
        }
        for _ in 1..POLLS {
            let mut asked = 0;
            let refused = pending.poll(now, |_| {
                asked += 1;
                None
            });
            assert_eq!((asked, refused.len()), (SERVICES, 0));
        }
        // One appears: all that wait for it are passed on.
        let mut found = Vec::new();
        let refused = pending.poll(now, |request| {
            let is_there = request.key.to == TO;
            found.extend(is_there.then_some(request.key.id.comm_id.0));
            delivered(is_there)
        });
        assert_eq!((found, refused.len()), (vec![0, 1, 2], 3 * (SERVICES - 1)));
        assert!(keep(&mut pending, &fds, Mailbox::Service(1000, Gid::new([0; 16])), 0), "there is room again");
    }

    #[test]
    fn there_is_room_for_so_many() {
        let (fds, mut pending) = (FdSet::new().unwrap(), PendingRequests::default());
        assert!(!pending.keep(&fds, key(TO, 0), meta(), 0, &[0; LONGEST + 1]));
        for id in 0..u32::try_from(ROOM).unwrap() {
            assert!(keep(&mut pending, &fds, TO, id));
        }
        assert!(!keep(&mut pending, &fds, TO, u32::MAX));
    }
}
