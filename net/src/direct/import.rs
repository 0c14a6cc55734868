//! The requester's side: a mapped file of another process, and what its table shows.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};

use urxe_wire::Qpn;

use super::file::SharedFile;
use super::mapping::{Mapping, Placed, WHOLE_TABLE};
use super::receives::ReceiveWords;
use super::words::{QpWords, RegionWords, SharedQp, SharedRegion};
use super::{QPS, REGIONS};
use crate::ipc::credentials::Credentials;
use crate::ipc::sealed_file;
use crate::mutex::lock;
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
    pub(super) version: u64,
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
        if !table.is_multiple_of(128) || table.checked_add(WHOLE_TABLE).is_none_or(|end| end > SharedFile::SIZE) {
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

    /// A queue pair, if it is shown.
    fn find_qp(&self, qpn: Qpn) -> Option<Seen<SharedQp>> {
        let (version, value) = self.mapping.table(self.table).0[qp_place(qpn)].read()?;
        (value.numbers & 0xFF_FFFF == u64::from(qpn.get())).then_some(Seen { value, version })
    }

    /// The words of a queue pair.
    pub(super) fn qp(&self, qpn: Qpn) -> Option<Placed<QpWords>> {
        Placed::new(&self.mapping, self.table, |qps, _| qps.get(qp_place(qpn)))
    }

    /// The receive WQEs of a queue pair that shows them.
    pub(super) fn receives(&self, qpn: Qpn) -> Option<Placed<ReceiveWords>> {
        self.mapping.open_receives(self.table, qp_place(qpn)).ok()?;
        self.mapping.receives(self.table, qp_place(qpn))
    }

    /// A region, if it is shown, and its words. Its memory may be accessed from now on, as these allow; an access that faults is one
    /// to memory that has to be found again.
    pub(super) fn find_region(&self, key: u32) -> Option<(Placed<RegionWords>, Seen<SharedRegion>)> {
        let place = region_place(key)?;
        let words = Placed::new(&self.mapping, self.table, |_, regions| regions.get(place))?;
        let (version, value) = words.read()?;
        let is_it = value.name & 0xFFFF_FFFF == u64::from(key) && self.mapping.open(value.at, value.length);
        is_it.then_some((words, Seen { value, version }))
    }

    /// The address here of the first byte of the file, and its length.
    pub(super) fn file(&self) -> (u64, u64) {
        (self.mapping.address(), self.mapping.len())
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
        let mut all = lock(&self.all);
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
        let mut all = lock(&self.all);
        all.retain(|import| import.is_alive());
        let of_process = all.iter().filter(|import| import.pid == pid);
        of_process.into_iter().find_map(|import| Some((Arc::clone(import), import.find_qp(qpn)?)))
    }
}
