//! Last wills that neighbours have left, and those of them that have ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use urxe_wire::Gid;

use super::{LEN, LastWill};
use crate::sys::recv_parts;

/// Last wills that a neighbour may leave: the memory is ours.
const MOST: usize = 4096;

/// Last wills that all neighbours together may leave; and as many of those that have ended [of late](SOON).
const ALL: usize = 4 * MOST;

/// Messages of one neighbour before somebody else gets his turn: it may say them as fast as they are heard.
const HEARD: usize = 64;

/// Last wills of a process are sent again if the owner changes within this time.
const SOON: Duration = Duration::from_secs(1);

/// Last wills that are sent at a time: the receiver sends them, and has other work.
const AT_ONCE: usize = 16;

/// Interval between two such batches.
const INTERVAL: Duration = Duration::from_millis(2);

/// The last wills of the neighbours.
#[derive(Debug, Default)]
pub(crate) struct LastWillStore {
    /// By the connection to each.
    living: HashMap<RawFd, BTreeMap<u32, LastWill>>,
    /// Last wills of processes that have ended, to be sent.
    due: VecDeque<LastWill>,
    /// Executed, or of an address that had no owner then, and when that was; the latest last.
    done: VecDeque<(Instant, LastWill)>,
    /// More are sent after [`INTERVAL`].
    goes_on: bool,
}

impl LastWillStore {
    /// Hears some of what a neighbour says. False if it has hung up, or says what none of us does: then its last wills are to
    /// be executed.
    pub(crate) fn hear(&mut self, fd: RawFd) -> bool {
        for _ in 0..HEARD {
            let (mut bytes, mut more) = ([0; LEN], [0]);
            match recv_parts(fd, [&mut bytes, &mut more]) {
                Ok(None) => return true,
                Ok(Some(LEN)) => {
                    let will = LastWill::parse(&bytes);
                    let all = self.living.values().map(BTreeMap::len).sum::<usize>();
                    let wills = self.living.entry(fd).or_default();
                    if (wills.len() < MOST && all < ALL) || wills.contains_key(&will.name) {
                        wills.insert(will.name, will);
                    }
                }
                Ok(Some(4)) => {
                    let [a, b, c, d, ..] = bytes;
                    if let Some(wills) = self.living.get_mut(&fd) {
                        wills.remove(&u32::from_le_bytes([a, b, c, d]));
                    }
                }
                // It has not heard all that we said; what it said comes behind this.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                Ok(Some(_)) | Err(_) => {
                    if let Some(wills) = self.living.remove(&fd) {
                        let room = ALL.saturating_sub(self.due.len() + self.done.len());
                        self.due.extend(wills.into_values().take(room));
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Notes that an address has another owner, who receives for the processes of this host. What was sent of late may have been
    /// lost: the old owner was perhaps just going, too, and a process' descriptors are not closed all at once.
    pub(crate) fn note_owner(&mut self, address: Gid) {
        let now = Instant::now();
        for (at, will) in std::mem::take(&mut self.done) {
            if now.duration_since(at) >= SOON {
                continue;
            }
            if will.local == address {
                self.due.push_back(will);
            } else {
                self.done.push_back((at, will));
            }
        }
    }

    /// Whether last wills are due that were not sent yet.
    pub(crate) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether to begin executing: last wills are due, and it has not begun yet.
    pub(crate) fn begin(&self) -> bool {
        !self.due.is_empty() && !self.goes_on
    }

    /// The next few last wills to be sent, and after how long to ask again. Those of addresses that have no owner, says
    /// `is_owned`, wait until one [has come](Self::note_owner).
    //= spec/hosts.md#net-031
    //# Last wills MUST leave a few at a time, and again only for an owner of the address that has just come.
    pub(crate) fn send(&mut self, now: Instant, is_owned: impl Fn(Gid) -> bool) -> (Vec<LastWill>, Option<Duration>) {
        let forgotten = self.done.iter().take_while(|(at, _)| now.duration_since(*at) >= SOON).count();
        self.done.drain(..forgotten);
        let few: Vec<LastWill> = self.due.drain(..AT_ONCE.min(self.due.len())).collect();
        self.done.extend(few.iter().map(|will| (now, will.clone())));
        self.goes_on = !self.due.is_empty();
        let again = if self.goes_on { Some(INTERVAL) } else { (!self.done.is_empty()).then_some(SOON) };
        (few.into_iter().filter(|will| is_owned(will.local)).collect(), again)
    }

    /// A connection ends from this side, because its address goes: nobody's will is sent.
    pub(crate) fn forget(&mut self, fd: RawFd) {
        self.living.remove(&fd);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use socket2::{Domain, Socket, Type};
    use urxe_wire::mad::MAD_LEN;

    use super::*;

    fn will(name: u32) -> LastWill {
        LastWill { name, local: Gid::new([1; 16]), remote: Gid::new([2; 16]), message: [3; MAD_LEN] }
    }

    fn connected() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap()
    }

    /// A neighbour that does not stop talking does not keep a receiver from its work.
    #[test]
    fn a_talker_is_heard_for_a_while() {
        let (near, far) = connected();
        let mut last_wills = LastWillStore::default();
        for name in 0..=HEARD {
            near.send(&will(u32::try_from(name).unwrap()).emit()).unwrap();
        }
        let known = |last_wills: &LastWillStore| last_wills.living[&far.as_raw_fd()].len();
        assert!(last_wills.hear(far.as_raw_fd()));
        assert_eq!(known(&last_wills), HEARD);
        assert!(last_wills.hear(far.as_raw_fd()));
        assert_eq!(known(&last_wills), HEARD + 1);
    }

    /// Many neighbours that stay do not fill the memory.
    #[test]
    fn wills_of_the_living_are_bounded() {
        let mut last_wills = LastWillStore::default();
        let neighbours: Vec<_> = (0..=ALL / MOST).map(|_| connected()).collect();
        for (near, far) in &neighbours {
            for name in 0..u32::try_from(MOST).unwrap() {
                near.send(&will(name).emit()).unwrap();
                assert!(last_wills.hear(far.as_raw_fd()));
            }
        }
        assert_eq!(last_wills.living.values().map(BTreeMap::len).sum::<usize>(), ALL);
        // What one has left it may still change.
        let (near, far) = &neighbours[0];
        let changed = LastWill { message: [4; MAD_LEN], ..will(7) };
        near.send(&changed.emit()).unwrap();
        assert!(last_wills.hear(far.as_raw_fd()));
        assert_eq!(last_wills.living[&far.as_raw_fd()][&7], changed);
    }

    /// Neighbours that come, leave last wills, and go, do not fill the memory.
    #[test]
    fn wills_of_the_ended_are_bounded() {
        let mut last_wills = LastWillStore::default();
        for round in 0..=ALL / MOST {
            let (near, far) = connected();
            for name in 0..u32::try_from(MOST).unwrap() {
                near.send(&will(name).emit()).unwrap();
                assert!(last_wills.hear(far.as_raw_fd()), "round {round}");
            }
            drop(near);
            assert!(!last_wills.hear(far.as_raw_fd()));
            assert_eq!(last_wills.due.len(), ALL.min((round + 1) * MOST), "round {round}");
        }
    }

    //= spec/hosts.md#net-031
    //= type=test
    //# Last wills MUST leave a few at a time, and again only for an owner of the address that has just come.
    #[test]
    fn wills_are_sent_a_few_at_a_time_and_once() {
        let mut last_wills = LastWillStore::default();
        let end = |last_wills: &mut LastWillStore, names: core::ops::Range<u32>| {
            let (near, far) = connected();
            for name in names {
                near.send(&will(name).emit()).unwrap();
                assert!(last_wills.hear(far.as_raw_fd()));
            }
            drop(near);
            assert!(!last_wills.hear(far.as_raw_fd()));
        };
        end(&mut last_wills, 0..100);
        assert!(last_wills.begin());
        let (mut now, mut seen) = (Instant::now(), Vec::new());
        loop {
            let (wills, again) = last_wills.send(now, |_| true);
            assert!(wills.len() <= AT_ONCE);
            seen.extend(wills.iter().map(|will| will.name));
            if seen.len() == AT_ONCE {
                // It goes on as it would have.
                end(&mut last_wills, 100..101);
                assert!(!last_wills.begin());
            }
            match again {
                Some(INTERVAL) => now += INTERVAL,
                last => break assert_eq!(last, Some(SOON)),
            }
        }
        assert_eq!(seen, (0..101).collect::<Vec<_>>());
        // Another one that ends does not have them sent again.
        end(&mut last_wills, 200..201);
        assert!(last_wills.begin());
        let (wills, _) = last_wills.send(now, |_| true);
        assert_eq!(wills, [will(200)]);
        // They are forgotten in the end.
        assert_eq!(last_wills.send(now + SOON, |_| true), (Vec::new(), None));
    }

    #[test]
    fn wills_are_sent_again_for_an_owner_that_comes_soon() {
        let mut last_wills = LastWillStore::default();
        let (near, far) = connected();
        let elsewhere = LastWill { local: Gid::new([9; 16]), ..will(2) };
        for will in [&will(1), &elsewhere] {
            near.send(&will.emit()).unwrap();
        }
        drop(near);
        assert!(!last_wills.hear(far.as_raw_fd()));
        let now = Instant::now();
        assert_eq!(last_wills.send(now, |_| false).0, []);
        last_wills.note_owner(Gid::new([1; 16]));
        assert_eq!(last_wills.send(now, |_| true).0, [will(1)]);
        last_wills.note_owner(Gid::new([9; 16]));
        assert_eq!(last_wills.send(now, |_| true).0, [elsewhere]);
    }
}
