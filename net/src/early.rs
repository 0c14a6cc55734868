//! Requests that came before anybody listened.
//!
//! Both ends of a connection are often opened at the same time, by programs that talk over another connection until
//! then (perftest `-R` does). Between a kernel's rdma_cm and a card's microseconds of work the listener wins; without
//! them it may lose by its processor having been taken away. So a request for a service that nobody on this host has is
//! asked about again for a moment, and refused after that.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::fd::{Fd, FdSet};
use crate::receiver::Meta;
use crate::service::Mailbox;
use crate::sys::{timer_arm, timer_create};
use crate::token::Token;

/// Between two looks for a listener.
const INTERVAL: Duration = Duration::from_millis(2);
/// Looks before a request is refused: 50 ms, half of what a requester of ours waits before it asks again.
const LOOKS: u8 = 25;
/// Requests that may wait, and services that they may be for; what comes beyond is refused at once. Each look costs a
/// system call a service: a peer that makes up services makes us look up 8000 a second, and no more.
const ROOM: usize = 256;
const SERVICES: usize = 16;

/// A request, as it came.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) to: Mailbox,
    pub(crate) meta: Meta,
    /// Its index in the run it came in.
    pub(crate) index: u16,
    pub(crate) packet: Box<[u8]>,
    looks: u8,
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct EarlyRequests {
    requests: Vec<Early>,
    /// What they are for, each once.
    services: Vec<Mailbox>,
    /// Made when it is first needed.
    timer: Option<Fd>,
}

impl EarlyRequests {
    /// Keeps a request, to be looked at when [`Token::Early`] is ready. False if it cannot be kept.
    pub(crate) fn keep(&mut self, fds: &Arc<FdSet>, to: Mailbox, meta: Meta, index: u16, packet: &[u8]) -> bool {
        let is_new = !self.services.contains(&to);
        if self.requests.len() >= ROOM || (is_new && self.services.len() >= SERVICES) || self.arm(fds).is_err() {
            return false;
        }
        if is_new {
            self.services.push(to);
        }
        self.requests.push(Early { to, meta, index, packet: packet.into(), looks: LOOKS });
        true
    }

    /// Asks about each, but not again in the same look for a service that nobody has: `find` says whether it has found
    /// somebody. Returns those for which nobody will be looked any more.
    pub(crate) fn look(&mut self, mut find: impl FnMut(&Early) -> bool) -> Vec<Early> {
        let (mut refused, mut absent) = (Vec::new(), Vec::new());
        self.services.clear();
        for mut early in std::mem::take(&mut self.requests) {
            if !absent.contains(&early.to) {
                if find(&early) {
                    continue;
                }
                absent.push(early.to);
            }
            early.looks = early.looks.saturating_sub(1);
            if early.looks == 0 {
                refused.push(early);
                continue;
            }
            if !self.services.contains(&early.to) {
                self.services.push(early.to);
            }
            self.requests.push(early);
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
                fds.watch(timer.as_raw_fd(), Token::Early.pack())?;
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

    use super::*;

    fn meta() -> Meta {
        let local = "127.0.0.1:4791".parse().unwrap();
        let peer = "127.0.0.1:50000".parse().unwrap();
        let headers = crate::Headers { local, peer, tclass: 0, hop_limit: 0 };
        Meta { index: 0, headers, segment: 280, first: 0, whole: false }
    }

    const TO: Mailbox = Mailbox::Service(1, Gid::UNSPECIFIED);
    const OTHER: Mailbox = Mailbox::Service(2, Gid::UNSPECIFIED);

    #[test]
    fn a_request_waits_until_somebody_is_found() {
        let (fds, mut early) = (FdSet::new().unwrap(), EarlyRequests::default());
        assert!(early.keep(&fds, TO, meta(), 0, b"first"));
        assert!(early.keep(&fds, OTHER, meta(), 1, b"second"));
        let mut tokens = [0; 4];
        while fds.ready(&mut tokens) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(Token::unpack(tokens[0]), Some(Token::Early));
        assert!(early.look(|request| *request.packet == *b"first").is_empty());
        let mut left = Vec::new();
        assert!(
            early
                .look(|request| {
                    left.push(request.index);
                    true
                })
                .is_empty()
        );
        assert_eq!(left, [1]);
    }

    #[test]
    fn a_request_is_refused_in_the_end_and_the_timer_rests() {
        let (fds, mut early) = (FdSet::new().unwrap(), EarlyRequests::default());
        assert!(early.keep(&fds, TO, meta(), 7, b"request"));
        for _ in 1..LOOKS {
            assert!(early.look(|_| false).is_empty());
        }
        let refused = early.look(|_| false);
        assert_eq!(refused.iter().map(|early| early.index).collect::<Vec<_>>(), [7]);
        std::thread::sleep(2 * INTERVAL);
        assert_eq!(fds.ready(&mut [0; 4]), 0);
    }

    /// What a look costs is bounded by services, and those are few.
    #[test]
    fn each_service_is_asked_for_once_a_look() {
        let (fds, mut early) = (FdSet::new().unwrap(), EarlyRequests::default());
        for round in 0..3_u16 {
            let kept = (0..100)
                .filter(|id| early.keep(&fds, Mailbox::Service(*id, Gid::UNSPECIFIED), meta(), round, b"?"))
                .count();
            assert_eq!(kept, SERVICES);
        }
        for _ in 1..LOOKS {
            let mut asked = 0;
            let refused = early.look(|_| {
                asked += 1;
                false
            });
            assert_eq!((asked, refused.len()), (SERVICES, 0));
        }
        // One appears: all that wait for it are passed on.
        let mut found = Vec::new();
        let refused = early.look(|request| {
            let is_there = request.to == TO;
            found.extend(is_there.then_some(request.index));
            is_there
        });
        assert_eq!((found, refused.len()), (vec![0, 1, 2], 3 * (SERVICES - 1)));
        assert!(early.keep(&fds, Mailbox::Service(1000, Gid::UNSPECIFIED), meta(), 0, b"?"), "there is room again");
    }

    #[test]
    fn there_is_room_for_so_many() {
        let (fds, mut early) = (FdSet::new().unwrap(), EarlyRequests::default());
        for _ in 0..ROOM {
            assert!(early.keep(&fds, TO, meta(), 0, b"request"));
        }
        assert!(!early.keep(&fds, TO, meta(), 0, b"request"));
    }
}
