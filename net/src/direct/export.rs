//! The target's side: a table of queue pairs and regions in its shared file.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use urxe_wire::Qpn;

use super::copies::Peer;
use super::file::{Offer, SharedFile};
use super::mapping::{Mapping, Placed, WHOLE_TABLE};
use super::receives::{Message, ReceiveWords, SharedReceive};
use super::words::{QpWords, RegionWords, SharedQp, SharedRegion, Taken};
use super::{QPS, RECEIVERS, REGIONS};
use crate::mutex::lock;
use crate::route::Route;

/// Queue pairs and regions of a device, as its peers see them.
///
/// What is hidden nobody begins to copy from or to any more. A peer that is at it ends its copy; until it has,
/// [`wait`](Self::wait) waits for it, and memory that is given back to the file is not used again.
#[derive(Debug)]
pub struct Export {
    file: Arc<SharedFile>,
    at: u64,
    table: Arc<Mapping>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    /// Places of queue pairs, and the way to each one's peer.
    qps: HashMap<usize, (Qpn, Arc<Route>)>,
    /// Keys of regions.
    regions: HashSet<u32>,
    /// Places of receive WQEs.
    receivers: HashSet<usize>,
}

/// Receive WQEs of one queue pair, as its peer sees them: the queue pair has their place until this is dropped.
#[derive(Debug)]
pub struct Receives {
    export: Arc<Export>,
    place: usize,
    words: Placed<ReceiveWords>,
}

impl Receives {
    /// Shows the receive WQE of an index, counted from 0. The one of [`SLOTS`](Self::SLOTS) before was taken.
    pub fn show(&self, index: u64, receive: &SharedReceive) {
        self.words.show(index, receive);
    }

    /// Whether the peer has put the `nth` message that came so, counted from 0, into a buffer.
    #[inline]
    #[must_use]
    pub fn has(&self, nth: u64) -> bool {
        self.words.has(nth)
    }

    /// The `nth` message, if the peer has put it into the buffer.
    #[inline]
    #[must_use]
    pub fn message(&self, nth: u64) -> Option<Message> {
        self.words.message(nth)
    }

    /// Receive WQEs that are shown at most.
    pub const SLOTS: u64 = super::receives::SLOTS as u64;
}

impl Drop for Receives {
    fn drop(&mut self) {
        self.export.shown().receivers.remove(&self.place);
    }
}

impl Export {
    /// A table in which nothing is shown.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(file: &Arc<SharedFile>) -> io::Result<Self> {
        let at = file.take_table().ok_or(io::ErrorKind::StorageFull)?;
        let table = Mapping::new(file.file()?, at, WHOLE_TABLE).inspect_err(|_| file.give_table_back(at))?;
        Ok(Self { file: Arc::clone(file), at, table: Arc::new(table), shown: Mutex::default() })
    }

    pub(crate) fn offer(&self) -> Offer {
        Offer { file: Arc::clone(&self.file), at: self.at }
    }

    fn qp(&self, place: usize) -> &QpWords {
        &self.table.table(0).0[place % QPS]
    }

    fn region(&self, key: u32) -> Option<&RegionWords> {
        self.table.table(0).1.get(super::import::region_place(key)?)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        lock(&self.shown)
    }

    /// Shows a queue pair whose responder expects the PSN `base` to the peer that `route` leads to. False: another has its place,
    /// or the peer that it was shown to before is in the middle of a copy still.
    pub fn show_qp(&self, qpn: Qpn, qp: &SharedQp, base: u64, route: &Arc<Route>) -> bool {
        let place = super::import::qp_place(qpn);
        let mut shown = self.shown();
        if shown.qps.get(&place).is_some_and(|(other, _)| *other != qpn) || self.qp(place).show(qp, base).is_none() {
            return false;
        }
        shown.qps.insert(place, (qpn, Arc::clone(route)));
        true
    }

    /// Has a queue pair that is not shown yet show its receive WQEs. `None`: another shows them in that place, or a peer of before is in
    /// the middle of a copy still, and may say that it has put a message there.
    pub fn receives(self: &Arc<Self>, qpn: Qpn) -> Option<Receives> {
        let place = super::import::qp_place(qpn) % RECEIVERS;
        let words = self.table.receives(0, place)?;
        let mut shown = self.shown();
        let is_left = (place..QPS).step_by(RECEIVERS).all(|qp| self.qp(qp).copying().is_none());
        if !is_left || !shown.receivers.insert(place) {
            return None;
        }
        words.clear();
        Some(Receives { export: Arc::clone(self), place, words })
    }

    /// The version of a region that is shown.
    #[must_use]
    pub fn region_version(&self, key: u32) -> Option<u64> {
        self.region(key)?.read().map(|(version, _)| version)
    }

    /// Hides a queue pair that was shown. Returns the version that it has until its place is used again.
    pub fn hide_qp(&self, qpn: Qpn) -> u64 {
        let place = super::import::qp_place(qpn);
        let mut shown = self.shown();
        let version = self.qp(place).hide();
        if let Some((_, route)) = shown.qps.remove(&place) {
            self.file.copies.note(&self.table, place, None, route);
        }
        version
    }

    /// Requests that the peer of a queue pair has taken that was hidden, and whether it is at another one still. `None`: the place
    /// is used again, and the peer was told nothing since.
    pub fn taken_of_hidden(&self, qpn: Qpn, version: u64) -> Option<(Taken, bool)> {
        let words = self.qp(super::import::qp_place(qpn));
        // Nobody shows anything meanwhile.
        let _shown = self.shown();
        let is_copying = words.copying().is_some();
        words.is(version).then(|| (words.taken(), is_copying))
    }

    /// Requests that the peer of a queue pair that is shown has taken.
    #[inline]
    pub fn taken(&self, qpn: Qpn) -> Taken {
        self.qp(super::import::qp_place(qpn)).taken()
    }

    /// Says what the responder of a queue pair expects, less what was taken.
    #[inline]
    pub fn set_base(&self, qpn: Qpn, base: u64) {
        self.qp(super::import::qp_place(qpn)).set_base(base);
    }

    /// Shows a region. False: there is no place for its key.
    pub fn show_region(&self, key: u32, region: &SharedRegion) -> bool {
        let Some(words) = self.region(key) else { return false };
        self.shown().regions.insert(key);
        words.show(region);
        true
    }

    /// Hides a region.
    pub fn hide_region(&self, key: u32) {
        let mut shown = self.shown();
        if shown.regions.remove(&key)
            && let Some(words) = self.region(key)
        {
            words.hide();
            for (place, (_, route)) in &shown.qps {
                self.file.copies.note(&self.table, *place, Some(key), Arc::<Route>::clone(route));
            }
        }
    }

    /// Waits until nobody copies from or to what was hidden, but for peers that seem to be stopped in the middle of a copy, which
    /// they end when they go on.
    pub fn wait(&self) {
        self.file.copies.wait();
    }

    /// Waits as long as a copy takes that nothing stops. For threads that nobody may hold up.
    pub fn wait_briefly(&self) {
        self.file.copies.wait_briefly();
    }

    /// Hides everything.
    pub fn close(&self) {
        let (qps, regions): (Vec<_>, Vec<_>) = {
            let shown = self.shown();
            (shown.qps.values().map(|(qpn, _)| *qpn).collect(), shown.regions.iter().copied().collect())
        };
        for qpn in qps {
            self.hide_qp(qpn);
        }
        regions.into_iter().for_each(|key| self.hide_region(key));
    }
}

impl Peer for Route {
    fn is_gone(&self) -> bool {
        self.is_peer_gone()
    }

    fn pid(&self) -> Option<u32> {
        self.peer_pid()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.close();
        self.file.give_table_back(self.at);
    }
}

const _: () = assert!(REGIONS <= 1 << 24 && QPS <= 1 << 24);

#[cfg(test)]
mod tests {
    use super::super::words::SharedQp;
    use super::*;
    use crate::counters::Counters;
    use crate::interface::Interface;
    use crate::route::{Destination, TxPool};
    use crate::sys::fd::{Budget, FdSet};

    const QPN: Qpn = Qpn::new(0x1234);
    const PART: u64 = 64 << 10;

    /// A table that shows a queue pair and regions, and a peer at one of these.
    struct Scene {
        export: Export,
        route: Arc<Route>,
        part: u64,
    }

    impl Scene {
        fn new() -> Self {
            let export = Export::new(&Arc::new(SharedFile::create().unwrap())).unwrap();
            let to = Destination {
                local: urxe_wire::Gid::default(),
                remote: urxe_wire::Gid::default(),
                dest_qpn: Qpn::new(1),
                flow_label: 0,
                tclass: 0,
                hop_limit: 0,
            };
            let here = "127.0.0.1:4791".parse().unwrap();
            let fds = FdSet::new().unwrap();
            let lo = Arc::new(Interface::by_name("lo").unwrap());
            let mut pool = TxPool::new(Budget::new(1), &lo, false);
            let route = pool.route(&fds, &Counters::default(), [here, here], &to, true, 0).unwrap();
            let scene = Self { part: export.file.take(PART).unwrap(), export, route: Arc::new(route) };
            assert!(scene.shows_again());
            for key in [0x100, 0x200] {
                assert!(scene.export.show_region(key, &SharedRegion { at: scene.part, ..SharedRegion::default() }));
            }
            scene
        }

        fn shows_again(&self) -> bool {
            self.export.show_qp(QPN, &SharedQp::default(), 0, &self.route)
        }

        fn words(&self) -> &QpWords {
            self.export.qp(super::super::import::qp_place(QPN))
        }

        /// The peer begins a copy, and is stopped.
        fn enters(&self, key: u32) {
            let (qp, region) = (self.words(), self.export.region(key).unwrap());
            assert!(qp.enter(qp.read().unwrap().0, region, region.read().unwrap().0, key));
        }

        /// Whether the memory of the regions is given to somebody else when it is given back.
        fn is_used_again(&self) -> bool {
            self.export.file.give_back(self.part, PART);
            self.export.file.take(PART) == Some(self.part)
        }
    }

    //= spec/memory.md#mem-007
    //= type=test
    //# When deregistration returns, nobody MUST copy from or to the memory any more.
    #[test]
    fn memory_of_a_stopped_copy_is_not_used_again() {
        type Hide = fn(&Export);
        let ways: [(&str, Hide); 3] = [
            ("its region", |export| export.hide_region(0x100)),
            ("the queue pair, and then the region", |export| {
                export.hide_qp(QPN);
                export.hide_region(0x100);
            }),
            ("a window, which nobody waits for, and then its region", |export| {
                export.hide_region(0x100);
                export.wait_briefly();
                export.hide_region(0x200);
            }),
        ];
        for (what, hide) in ways {
            let scene = Scene::new();
            scene.enters(0x100);
            hide(&scene.export);
            scene.export.wait();
            assert!(!scene.is_used_again(), "{what}");
            scene.words().leave();
            assert_eq!(scene.export.file.take(PART), Some(scene.part), "{what}: it has ended, and the part is free");
        }
        let scene = Scene::new();
        scene.export.hide_region(0x100);
        scene.export.wait();
        assert!(scene.is_used_again(), "nobody was there");
    }

    #[test]
    fn a_queue_pair_is_not_shown_again_while_its_peer_copies() {
        let scene = Scene::new();
        scene.enters(0x100);
        scene.export.hide_qp(QPN);
        assert!(!scene.shows_again());
        scene.words().leave();
        assert!(scene.shows_again());
    }

    /// Regions of a device that was closed are not those of the next device that has its table.
    #[test]
    fn a_closed_table_shows_nothing() {
        let scene = Scene::new();
        let (file, at) = (Arc::clone(&scene.export.file), scene.export.at);
        let before = scene.export.region(0x100).unwrap().read().unwrap();
        drop(scene);
        let next = Export::new(&file).unwrap();
        assert_eq!(next.at, at);
        assert_eq!(next.region(0x100).unwrap().read(), None);
        assert!(next.show_region(0x100, &before.1));
        assert_ne!(next.region(0x100).unwrap().read().unwrap().0, before.0, "the version of before");
    }
}
