//! The requester's side: a mapped file of another process, and what its table shows.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use urxe_wire::Qpn;

use super::file::SharedFile;
use super::mapping::{Mapping, TABLE};
use super::words::{SharedQp, SharedRegion, Taken};
use super::{QPS, REGIONS};
use crate::ipc::credentials::Credentials;
use crate::ipc::sealed_file;
use crate::sys::fd::Fd;
use crate::sys::identity::Identity;
use crate::sys::is_hung_up;

/// The place of a queue pair in a table.
pub(super) fn qp_place(qpn: Qpn) -> usize {
    qpn.get() as usize % QPS
}

/// The place of a region in a table; keys begin at index 1.
pub(super) fn region_place(key: u32) -> Option<usize> {
    (key >> 8).checked_sub(1).map(|index| index as usize).filter(|index| *index < REGIONS)
}

/// The shared file of a device of this user and host, mapped.
#[derive(Debug)]
pub struct Import {
    mapping: Arc<Mapping>,
    file: Identity,
    table: u64,
    /// The other process, as far as it can be seen from here.
    pid: Option<u32>,
    is_dead: AtomicBool,
    /// The connection that ends with the other process, or with its device.
    connection: Arc<Fd>,
}

/// A queue pair or region as it was seen, and the version that it had.
#[derive(Clone, Copy, Debug)]
pub struct Seen<T> {
    /// Words that were seen.
    pub value: T,
    version: u64,
}

impl Import {
    /// Maps a file that was handed over, with a table at `table`; or shares the mapping of one of `others`.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        table: u64,
        connection: &Arc<Fd>,
        others: &[Arc<Self>],
    ) -> io::Result<Self> {
        sealed_file::check(file, SharedFile::SIZE)?;
        if !table.is_multiple_of(128) || table.checked_add(TABLE).is_none_or(|end| end > SharedFile::SIZE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let identity = Identity::of(file.as_raw_fd())?;
        let mapping = match others.iter().find(|other| other.file == identity) {
            Some(other) => Arc::clone(&other.mapping),
            None => Arc::new(Mapping::closed(file)?),
        };
        mapping.open_table(table)?;
        let pid = Credentials::of_raw(connection.as_raw_fd()).ok().and_then(|peer| peer.pid);
        let (file, is_dead) = (identity, AtomicBool::new(false));
        Ok(Self { mapping, file, table, pid, is_dead, connection: Arc::clone(connection) })
    }

    /// Whether the other process is there, as far as is known.
    #[inline]
    pub fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// Asks the system whether the other process is there: a requester that finds its completions at once never looks at sockets.
    pub fn look(&self) -> bool {
        let is_there = || self.connection.is_ours() && !is_hung_up(self.connection.as_raw_fd());
        let is_alive = self.is_alive() && is_there();
        if !is_alive {
            self.end();
        }
        is_alive
    }

    /// The other process has ended, or has closed the device.
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    fn qp(&self, qpn: Qpn) -> &super::words::QpWords {
        &self.mapping.table(self.table).0[qp_place(qpn)]
    }

    /// A queue pair, if it is shown.
    pub fn find_qp(&self, qpn: Qpn) -> Option<Seen<SharedQp>> {
        let (version, value) = self.qp(qpn).read()?;
        (value.numbers & 0xFF_FFFF == u64::from(qpn.get())).then_some(Seen { value, version })
    }

    /// Whether the queue pair is shown as it was seen.
    #[inline]
    pub fn is_current(&self, qpn: Qpn, seen: &Seen<SharedQp>) -> bool {
        self.qp(qpn).is(seen.version)
    }

    /// PSN that the responder of a queue pair expects, less the PSNs that were taken.
    #[inline]
    pub fn base(&self, qpn: Qpn) -> u64 {
        self.qp(qpn).base()
    }

    /// Requests that were taken.
    pub fn taken(&self, qpn: Qpn) -> Taken {
        self.qp(qpn).taken()
    }

    /// Says what was taken, by the queue pair's only peer.
    #[inline]
    pub fn set_taken(&self, qpn: Qpn, taken: &Taken) {
        self.qp(qpn).set_taken(taken);
    }

    /// A region, if it is shown. Its memory may be accessed from now on, as [`at_region`](Self::at_region) allows; an access that faults
    /// is one to memory that has to be found again.
    pub fn find_region(&self, key: u32) -> Option<Seen<SharedRegion>> {
        let words = self.mapping.table(self.table).1.get(region_place(key)?)?;
        let (version, value) = words.read()?;
        let is_it = value.name & 0xFFFF_FFFF == u64::from(key) && self.mapping.open(value.at, value.length);
        is_it.then_some(Seen { value, version })
    }

    /// Whether the region is shown as it was seen.
    #[inline]
    pub fn is_region(&self, key: u32, seen: &Seen<SharedRegion>) -> bool {
        let words = region_place(key).and_then(|place| self.mapping.table(self.table).1.get(place));
        words.is_some_and(|words| words.is(seen.version))
    }

    /// The address here of so many bytes of the file.
    #[inline]
    pub fn address(&self, at: u64, length: u64) -> Option<u64> {
        let end = at.checked_add(length)?;
        (end <= self.mapping.len()).then(|| self.mapping.address() + at)
    }

    /// Runs `copy` while the region stays what was seen; the queue pair is locked by its peer, who calls. `copy` may ask from
    /// time to time whether it should go on. `None`: queue pair or region are not what they were.
    #[inline]
    pub fn at_region<T>(
        &self,
        qpn: Qpn,
        qp: &Seen<SharedQp>,
        key: u32,
        region: &Seen<SharedRegion>,
        copy: impl FnOnce(&dyn Fn() -> bool) -> Option<T>,
    ) -> Option<T> {
        let words = self.qp(qpn);
        let region_words = self.mapping.table(self.table).1.get(region_place(key)?)?;
        if !words.enter(qp.version, region_words, region.version, key) {
            return None;
        }
        let copied = copy(&|| words.is(qp.version) && region_words.is(region.version));
        words.leave();
        copied
    }
}

/// The files of other processes that a port has mapped.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    all: Mutex<Vec<Arc<Import>>>,
    /// Changes with each that comes.
    count: AtomicU32,
}

impl Imports {
    /// Takes a file that came on a connection, with a table at `table`.
    pub(crate) fn take(&self, file: BorrowedFd<'_>, table: u64, connection: &Arc<Fd>) -> io::Result<Arc<Import>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|import| import.is_alive());
        let import = Arc::new(Import::new(file, table, connection, &all)?);
        all.push(Arc::clone(&import));
        self.count.fetch_add(1, Ordering::Release);
        Ok(import)
    }

    /// The import that shows a queue pair of the process `pid`.
    pub(crate) fn find(&self, qpn: Qpn, pid: Option<u32>) -> Option<(Arc<Import>, Seen<SharedQp>)> {
        if self.count.load(Ordering::Acquire) == 0 || pid.is_none() {
            return None;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|import| import.is_alive());
        let of_process = all.iter().filter(|import| import.pid == pid);
        of_process.into_iter().find_map(|import| Some((Arc::clone(import), import.find_qp(qpn)?)))
    }
}
